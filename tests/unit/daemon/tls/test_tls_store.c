// Tests when new TLS files replace the current ones, and when the end of a certificate is reported.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/tls/tls_store.h"
#include "daemon/tls/tls_watch.h"
#include "tests/unit/certificates.h"

struct files {
    char folder[64], crt[PEM_PATH_MAX], key[PEM_PATH_MAX], ca_path[PEM_PATH_MAX];
    struct authority ca;
    struct tls_store *store;
    struct err_copy error;
};

static struct files *start(void) {
    struct files *f = calloc(1, sizeof *f);
    strcpy(f->folder, "/tmp/expertd-test-tls-store-XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    f->ca = authority_create(f->folder, "ca", NULL);
    authority_issue(&f->ca, f->folder, "own", &(struct issued){.names = "DNS:one.example"});
    authority_issue(&f->ca, f->folder, "new", &(struct issued){.names = "DNS:two.example"});
    struct tls_paths paths = {.cert = certificates_path(f->folder, "own", "crt", f->crt),
                              .key = certificates_path(f->folder, "own", "key", f->key),
                              .client_ca = certificates_path(f->folder, "ca", "crt", f->ca_path)};
    assert_false(err_is(tls_store_create(&paths, &f->store)));
    return f;
}

static void stop(struct files *f) {
    char command[128];
    tls_store_destroy(f->store);
    authority_free(&f->ca);
    snprintf(command, sizeof command, "rm -r %s", f->folder);
    assert_int_equal(system(command), 0);
    free(f);
}

static void move(const struct files *f, const char *from, const char *ending, const char *to) {
    char path[PEM_PATH_MAX];
    assert_int_equal(rename(certificates_path(f->folder, from, ending, path), to), 0);
}

static enum tls_change refresh(struct files *f) {
    return tls_store_refresh(f->store, &f->error);
}

static void assert_current(struct files *f, const char *names, uint64_t generation) {
    const struct tls_snapshot *snapshot = tls_store_take(f->store);
    assert_string_equal(snapshot->texts.names, names);
    assert_int_equal(snapshot->generation, generation);
    tls_store_release(f->store, snapshot);
}

static void a_replaced_pair_becomes_current_and_old_snapshots_stay_valid(void **state) {
    (void)state;
    struct files *f = start();
    const struct tls_snapshot *old = tls_store_take(f->store);
    assert_int_equal(refresh(f), TLS_UNCHANGED);
    move(f, "new", "crt", f->crt);
    move(f, "new", "key", f->key);
    assert_int_equal(refresh(f), TLS_REPLACED);
    assert_current(f, "two.example", 2);
    assert_string_equal(old->texts.names, "one.example");
    assert_non_null(strstr(old->texts.key, "PRIVATE KEY"));
    tls_store_release(f->store, old);
    assert_int_equal(refresh(f), TLS_UNCHANGED);
    stop(f);
}

// The certificate comes first, its key between two looks: no look reports an error.
static void a_key_that_follows_its_certificate_is_waited_for(void **state) {
    (void)state;
    struct files *f = start();
    move(f, "new", "crt", f->crt);
    assert_int_equal(refresh(f), TLS_UNCHANGED);
    assert_current(f, "one.example", 1);
    move(f, "new", "key", f->key);
    assert_int_equal(refresh(f), TLS_REPLACED);
    assert_current(f, "two.example", 2);
    stop(f);
}

static void wrong_files_are_reported_once_and_the_old_ones_stay(void **state) {
    (void)state;
    struct files *f = start();
    move(f, "new", "crt", f->crt);
    assert_int_equal(refresh(f), TLS_UNCHANGED);
    assert_int_equal(refresh(f), TLS_BROKEN);
    assert_non_null(strstr(f->error.message, "does not belong to the certificate"));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(refresh(f), TLS_UNCHANGED);
    }
    assert_current(f, "one.example", 1);
    FILE *file = fopen(f->crt, "we"); // another mistake is reported again
    fclose(file);
    assert_int_equal(refresh(f), TLS_UNCHANGED);
    assert_int_equal(refresh(f), TLS_BROKEN);
    assert_non_null(strstr(f->error.message, "has no certificate"));
    assert_int_equal(unlink(f->crt), 0);
    assert_int_equal(refresh(f), TLS_UNCHANGED);
    assert_int_equal(refresh(f), TLS_BROKEN);
    assert_non_null(strstr(f->error.message, "No such file"));
    assert_current(f, "one.example", 1);
    authority_issue(&f->ca, f->folder, "own", &(struct issued){.names = "DNS:three.example"});
    assert_int_equal(refresh(f), TLS_REPLACED);
    assert_current(f, "three.example", 2);
    stop(f);
}

static void a_touched_file_with_the_same_content_is_no_change(void **state) {
    (void)state;
    struct files *f = start();
    assert_int_equal(utimes(f->crt, NULL), 0);
    assert_int_equal(refresh(f), TLS_UNCHANGED);
    assert_current(f, "one.example", 1);
    stop(f);
}

// As Kubernetes does: FILE -> ..data/FILE, and ..data is a link that is replaced.
static void a_link_to_a_folder_that_is_replaced_is_a_change(void **state) {
    (void)state;
    char folder[] = "/tmp/expertd-test-tls-links-XXXXXX", command[1024];
    struct tls_store *store;
    struct err_copy error;
    assert_non_null(mkdtemp(folder));
    snprintf(command, sizeof command, "cd %s && mkdir one two && ln -s one ..data && ln -s ..data/own.crt ..data/own.key .",
             folder);
    assert_int_equal(system(command), 0);
    struct authority ca = authority_create(folder, "ca", NULL);
    char one[128], two[128], crt[PEM_PATH_MAX], key[PEM_PATH_MAX];
    snprintf(one, sizeof one, "%s/one", folder);
    snprintf(two, sizeof two, "%s/two", folder);
    authority_issue(&ca, one, "own", &(struct issued){.names = "DNS:one.example"});
    authority_issue(&ca, two, "own", &(struct issued){.names = "DNS:two.example"});
    struct tls_paths paths = {.cert = certificates_path(folder, "own", "crt", crt),
                              .key = certificates_path(folder, "own", "key", key)};
    assert_false(err_is(tls_store_create(&paths, &store)));
    snprintf(command, sizeof command, "cd %s && ln -s two ..new && mv -T ..new ..data", folder);
    assert_int_equal(system(command), 0);
    assert_int_equal(tls_store_refresh(store, &error), TLS_REPLACED);
    const struct tls_snapshot *snapshot = tls_store_take(store);
    assert_string_equal(snapshot->texts.names, "two.example");
    tls_store_release(store, snapshot);
    tls_store_destroy(store);
    authority_free(&ca);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static void a_store_needs_right_files(void **state) {
    (void)state;
    struct tls_store *store;
    assert_int_equal(tls_store_create(&(struct tls_paths){.ca = "/nowhere/ca.crt"}, &store).code, EXPERTD_ERR_CONFIG);
    assert_null(store);
}

static void the_end_is_reported_ahead_but_not_in_the_first_two_thirds(void **state) {
    (void)state;
    enum { HOUR = 3600, DAY = 24 * HOUR };
    static const struct {
        int64_t left_s, valid_s;
        int expected;
    } CASES[] = {
        {89 * DAY, 90 * DAY, -1},
        {31 * DAY, 365 * DAY, -1},
        {30 * DAY, 365 * DAY, 30},
        {29 * DAY, 90 * DAY, 30},
        {14 * DAY + 1, 365 * DAY, 30},
        {14 * DAY, 365 * DAY, 14},
        {7 * DAY, 365 * DAY, 7},
        {3 * DAY, 365 * DAY, 3},
        {2 * DAY - 1, 365 * DAY, 2},
        {DAY, 365 * DAY, 1},
        {1, 365 * DAY, 1},
        {0, 365 * DAY, 0},
        {-5 * DAY, 365 * DAY, 0},
        {9 * HOUR, DAY, -1},
        {8 * HOUR, DAY, 1},
        {-1, DAY, 0},
        {4 * DAY, 7 * DAY, -1},
        {2 * DAY, 7 * DAY, 2},
        {0, 0, 0},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        assert_int_equal(tls_watch_notice(CASES[i].left_s, CASES[i].valid_s), CASES[i].expected);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_replaced_pair_becomes_current_and_old_snapshots_stay_valid),
        cmocka_unit_test(a_key_that_follows_its_certificate_is_waited_for),
        cmocka_unit_test(wrong_files_are_reported_once_and_the_old_ones_stay),
        cmocka_unit_test(a_touched_file_with_the_same_content_is_no_change),
        cmocka_unit_test(a_link_to_a_folder_that_is_replaced_is_a_change),
        cmocka_unit_test(a_store_needs_right_files),
        cmocka_unit_test(the_end_is_reported_ahead_but_not_in_the_first_two_thirds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
