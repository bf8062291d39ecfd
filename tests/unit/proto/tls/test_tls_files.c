// Tests the reading of certificates, keys and CA files: each mistake is named.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "proto/tls/tls_files.h"
#include "tests/unit/certificates.h"

static char folder[] = "/tmp/expertd-test-tls-files-XXXXXX";
static struct authority ca;

static const char *at(const char *name, const char *ending) {
    static char paths[32][PEM_PATH_MAX];
    static unsigned next;
    return certificates_path(folder, name, ending, paths[next++ % 32]);
}

static char *contents(const char *path, size_t *length) {
    FILE *file = fopen(path, "re");
    char *bytes = calloc(1, 1 << 16);
    *length = fread(bytes, 1, 1 << 16, file);
    fclose(file);
    return bytes;
}

static void write_bytes(const char *path, const char *bytes, size_t length) {
    FILE *file = fopen(path, "we");
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    fclose(file);
}

static void refuse(const struct tls_paths *paths, enum tls_use use, const char *file, const char *part) {
    struct tls_texts texts;
    err_t e = tls_texts_read(paths, use, EXPERTD_ERR_CONFIG, &texts);
    if (e.code != EXPERTD_ERR_CONFIG || !strstr(expertd_err_message(), part) || !strstr(expertd_err_message(), file)) {
        fail_msg("expected %s and %s: %s", file, part, err_is(e) ? expertd_err_message() : "accepted");
    }
    assert_null(texts.cert);
    assert_null(texts.key);
}

static void right_files_are_read_unchanged(void **state) {
    (void)state;
    struct tls_paths paths = {at("good", "crt"), at("good", "key"), at("ca", "crt"), at("ca", "crt")};
    struct tls_texts texts;
    for (int use = TLS_USE_SERVER; use <= TLS_USE_CLIENT; use++) {
        assert_false(err_is(tls_texts_read(&paths, (enum tls_use)use, EXPERTD_ERR_CONFIG, &texts)));
        size_t length;
        char *expected = contents(at("good", "crt"), &length);
        assert_string_equal(texts.cert, expected);
        free(expected);
        assert_non_null(strstr(texts.key, "PRIVATE KEY"));
        assert_string_equal(texts.ca, texts.client_ca);
        assert_string_equal(texts.names, "spiffe://example/a,a.example,127.0.0.1,::1");
        int64_t left_s = texts.expires_s - (int64_t)time(NULL);
        assert_true(left_s > 10 * 86400 - 60 && left_s <= 10 * 86400);
        assert_true((int64_t)time(NULL) - texts.begins_s >= 3600);
        tls_texts_deinit(&texts);
    }
    assert_false(err_is(tls_texts_read(&(struct tls_paths){0}, TLS_USE_CLIENT, EXPERTD_ERR_CONFIG, &texts)));
    assert_null(texts.cert);
    tls_texts_deinit(&texts);
}

// The file has the certificate and then those that lead to the CA: the first to expire counts, and the key is the first's.
static void a_chain_expires_with_its_first_certificate(void **state) {
    (void)state;
    size_t first, second;
    char *a = contents(at("good", "crt"), &first), *b = contents(at("soon", "crt"), &second), both[1 << 15];
    memcpy(both, a, first);
    memcpy(both + first, b, second);
    write_bytes(at("chain", "crt"), both, first + second);
    struct tls_texts texts;
    struct tls_paths paths = {.cert = at("chain", "crt"), .key = at("good", "key")};
    assert_false(err_is(tls_texts_read(&paths, TLS_USE_SERVER, EXPERTD_ERR_CONFIG, &texts)));
    assert_true(texts.expires_s - (int64_t)time(NULL) <= 3600);
    tls_texts_deinit(&texts);
    refuse(&(struct tls_paths){.cert = at("chain", "crt"), .key = at("soon", "key")}, TLS_USE_SERVER, "chain.crt",
           "does not belong");
    free(a);
    free(b);
}

static void mistakes_are_named(void **state) {
    (void)state;
    const char *crt = at("good", "crt"), *key = at("good", "key"), *other = at("other", "key"), *dated = at("past", "crt"),
               *past_key = at("past", "key");
    refuse(&(struct tls_paths){.cert = crt}, TLS_USE_SERVER, "good.crt", "without its key");
    refuse(&(struct tls_paths){.key = key}, TLS_USE_SERVER, "good.key", "without its certificate");
    refuse(&(struct tls_paths){.cert = "/nowhere/a.crt", .key = key}, TLS_USE_SERVER, "/nowhere/a.crt", "No such file");
    refuse(&(struct tls_paths){.cert = crt, .key = folder}, TLS_USE_SERVER, folder, "is not a regular file");
    refuse(&(struct tls_paths){.cert = crt, .key = other}, TLS_USE_SERVER, "other.key", "does not belong to the certificate");
    refuse(&(struct tls_paths){.cert = key, .key = key}, TLS_USE_SERVER, "good.key", "has no certificate");
    refuse(&(struct tls_paths){.cert = crt, .key = crt}, TLS_USE_SERVER, "good.crt", "has no private key");
    refuse(&(struct tls_paths){.cert = dated, .key = past_key}, TLS_USE_SERVER, "past.crt", "expired on 20");
    refuse(&(struct tls_paths){.cert = at("future", "crt"), .key = at("future", "key")}, TLS_USE_SERVER, "future.crt",
           "check the clock");
    refuse(&(struct tls_paths){.cert = at("client", "crt"), .key = at("client", "key")}, TLS_USE_SERVER, "client.crt",
           "lacks serverAuth");
    refuse(&(struct tls_paths){.cert = at("server", "crt"), .key = at("server", "key")}, TLS_USE_CLIENT, "server.crt",
           "lacks clientAuth");
    refuse(&(struct tls_paths){.ca = key}, TLS_USE_CLIENT, "good.key", "has no certificate");
    refuse(&(struct tls_paths){.client_ca = at("old-ca", "crt")}, TLS_USE_CLIENT, "old-ca.crt", "every CA certificate");
}

static void an_encrypted_key_is_refused_without_a_question(void **state) {
    (void)state;
    EVP_PKEY *key = certificates_key();
    FILE *file = fopen(at("secret", "key"), "we");
    assert_true(PEM_write_PrivateKey(file, key, EVP_aes_128_cbc(), (const unsigned char *)"pass", 4, NULL, NULL));
    fclose(file);
    EVP_PKEY_free(key);
    refuse(&(struct tls_paths){.cert = at("good", "crt"), .key = at("secret", "key")}, TLS_USE_SERVER, "secret.key",
           "is encrypted");
}

static void a_key_that_openssl_does_not_take_is_named(void **state) {
    (void)state;
    EVP_PKEY *key = EVP_RSA_gen(1024);
    X509 *certificate = certificates_issue(&ca, key, "short", &(struct issued){0});
    certificates_write(at("short", "crt"), certificate);
    certificates_write_key(at("short", "key"), key);
    X509_free(certificate);
    EVP_PKEY_free(key);
    refuse(&(struct tls_paths){.cert = at("short", "crt"), .key = at("short", "key")}, TLS_USE_SERVER, "short.crt",
           "key too small");
}

// Whatever prefix of a file has been written: it is refused, except a complete one.
static void every_half_written_file_is_refused(void **state) {
    (void)state;
    static const char *const ENDINGS[] = {"crt", "key"};
    for (int i = 0; i < 2; i++) {
        size_t length;
        char *bytes = contents(at("good", ENDINGS[i]), &length);
        for (size_t cut = 0; cut + 2 < length; cut += 7) {
            struct tls_texts texts;
            write_bytes(at("half", ENDINGS[i]), bytes, cut);
            struct tls_paths paths = {.cert = at(i == 0 ? "half" : "good", "crt"), .key = at(i == 1 ? "half" : "good", "key")};
            assert_int_equal(tls_texts_read(&paths, TLS_USE_SERVER, EXPERTD_ERR_CONFIG, &texts).code, EXPERTD_ERR_CONFIG);
            assert_non_null(strstr(expertd_err_message(), "half."));
        }
        free(bytes);
    }
}

static void bytes_that_are_no_pem_are_refused(void **state) {
    (void)state;
    write_bytes(at("zero", "crt"), "a\0b", 3);
    refuse(&(struct tls_paths){.ca = at("zero", "crt")}, TLS_USE_CLIENT, "zero.crt", "has a byte 0 at offset 1");
    char *large = calloc(1, (1 << 20) + 2);
    memset(large, 'x', (1 << 20) + 1);
    write_bytes(at("large", "crt"), large, (1 << 20) + 1);
    refuse(&(struct tls_paths){.ca = at("large", "crt")}, TLS_USE_CLIENT, "large.crt", "more than the limit");
    free(large);
}

static int make(void **state) {
    (void)state;
    enum { DAY = 86400 };
    struct authority old;
    assert_non_null(mkdtemp(folder));
    ca = authority_create(folder, "ca", NULL);
    old = authority_create(folder, "old-ca", &(struct issued){.begins_s = -2 * DAY, .expires_s = -DAY});
    authority_free(&old);
    authority_issue(&ca, folder, "good", &(struct issued){.names = "URI:spiffe://example/a,DNS:a.example,IP:127.0.0.1,IP:::1"});
    authority_issue(&ca, folder, "other", &(struct issued){.names = "DNS:a.example"});
    authority_issue(&ca, folder, "soon", &(struct issued){.begins_s = -DAY, .expires_s = 3600});
    authority_issue(&ca, folder, "past", &(struct issued){.begins_s = -2 * DAY, .expires_s = -DAY});
    authority_issue(&ca, folder, "future", &(struct issued){.begins_s = DAY, .expires_s = 2 * DAY});
    authority_issue(&ca, folder, "client", &(struct issued){.usage = "clientAuth"});
    authority_issue(&ca, folder, "server", &(struct issued){.usage = "serverAuth"});
    return 0;
}

static int drop(void **state) {
    (void)state;
    char command[128];
    authority_free(&ca);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_files_are_read_unchanged),
        cmocka_unit_test(a_chain_expires_with_its_first_certificate),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(an_encrypted_key_is_refused_without_a_question),
        cmocka_unit_test(a_key_that_openssl_does_not_take_is_named),
        cmocka_unit_test(every_half_written_file_is_refused),
        cmocka_unit_test(bytes_that_are_no_pem_are_refused),
    };
    return cmocka_run_group_tests(tests, make, drop);
}
