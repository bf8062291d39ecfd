// ORG/NAME in the layout of a local Hugging Face cache.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "expert/files/hub.h"

static char cache[64];

static int begin(void **state) {
    (void)state;
    strcpy(cache, "/tmp/expertd-hub-XXXXXX");
    return mkdtemp(cache) ? 0 : -1;
}

static int end(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", cache);
    return system(command);
}

static const char *path_of(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", cache, name);
    return path;
}

// Creates the snapshot with its parent folders; `modified_s` is its time of modification.
static void make_snapshot(const char *repository, const char *revision, time_t modified_s) {
    char command[640], name[128];
    snprintf(name, sizeof name, "%s/snapshots/%s", repository, revision);
    snprintf(command, sizeof command, "mkdir -p '%s'", path_of(name));
    assert_int_equal(system(command), 0);
    const struct timespec times[2] = {{modified_s, 0}, {modified_s, 0}};
    assert_int_equal(utimensat(AT_FDCWD, path_of(name), times, 0), 0);
}

static void write_ref(const char *repository, const char *text) {
    char command[640], name[128];
    snprintf(name, sizeof name, "%s/refs", repository);
    snprintf(command, sizeof command, "mkdir -p '%s'", path_of(name));
    assert_int_equal(system(command), 0);
    snprintf(name, sizeof name, "%s/refs/main", repository);
    FILE *file = fopen(path_of(name), "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void assert_resolves(const char *model, const char *wanted) {
    char path[PATH_MAX];
    err_t e = hub_resolve(model, cache, path, sizeof path);
    if (err_is(e)) {
        fail_msg("%s", expertd_err_message());
    }
    assert_string_equal(path, wanted);
}

static void refuse(const char *model, const char *in, const char *message) {
    char path[PATH_MAX];
    assert_int_equal(hub_resolve(model, in, path, sizeof path).code, EXPERTD_ERR_CHECKPOINT);
    if (!strstr(expertd_err_message(), message)) {
        fail_msg("\"%s\" does not say \"%s\"", expertd_err_message(), message);
    }
}

static void a_folders_path_is_returned_unchanged(void **state) {
    (void)state;
    assert_resolves(cache, cache);
    assert_resolves(".", ".");
}

static void refs_main_selects_the_snapshot(void **state) {
    (void)state;
    make_snapshot("models--org--name", "aaaa", 1000);
    make_snapshot("models--org--name", "bbbb", 2000);
    write_ref("models--org--name", "aaaa\n");
    assert_resolves("org/name", path_of("models--org--name/snapshots/aaaa"));
}

static void without_a_ref_the_newest_snapshot_is_taken(void **state) {
    (void)state;
    make_snapshot("models--org--name", "zzzz", 1000);
    make_snapshot("models--org--name", "aaaa", 3000);
    make_snapshot("models--org--name", "bbbb", 2000);
    assert_resolves("org/name", path_of("models--org--name/snapshots/aaaa"));
    make_snapshot("models--org--name", "cccc", 3000);
    assert_resolves("org/name", path_of("models--org--name/snapshots/cccc"));
}

static void a_missing_model_is_reported_with_the_folder_that_was_searched(void **state) {
    (void)state;
    char where[128];
    snprintf(where, sizeof where, "searched %s/models--Org.x--Name-1", cache);
    refuse("Org.x/Name-1", cache, where);
    refuse("Org.x/Name-1", cache, "hf download Org.x/Name-1");
    refuse("org/name", NULL, "set HF_HOME or HF_HUB_CACHE");
    refuse("org/name", "", "set HF_HOME or HF_HUB_CACHE");
    refuse("/no/such/folder", cache, "there is no folder /no/such/folder");
    refuse("./org/name", cache, "there is no folder");
    refuse("name", cache, "there is no folder name");
    refuse("", cache, "there is no folder");
    make_snapshot("models--org--name", "aaaa", 1000);
    write_ref("models--org--name", "ffff");
    refuse("org/name", cache, "names commit ffff, which has no snapshot");
    assert_int_equal(mkdir(path_of("models--org--empty"), 0700), 0);
    refuse("org/empty", cache, "has no snapshot of org/empty");
}

static void a_ref_or_name_that_leaves_the_cache_is_refused(void **state) {
    (void)state;
    make_snapshot("models--org--name", "aaaa", 1000);
    static const char *const REFS[] = {"../../..", "", "\n", "a/b", "/etc", ".", "..", "a\x01"};
    for (size_t i = 0; i < sizeof REFS / sizeof *REFS; i++) {
        write_ref("models--org--name", REFS[i]);
        refuse("org/name", cache, "refs/main does not contain a commit");
    }
    refuse("../name", cache, "there is no folder");
    refuse("org/..", cache, "there is no folder");
    refuse("a/b/c", cache, "there is no folder");
    assert_int_equal(unlink(path_of("models--org--name/refs/main")), 0);
    assert_int_equal(mkfifo(path_of("models--org--name/refs/main"), 0600), 0);
    refuse("org/name", cache, "not a regular file");
}

static void a_path_that_does_not_fit_is_refused(void **state) {
    (void)state;
    char small[8];
    assert_int_equal(hub_resolve(cache, cache, small, sizeof small).code, EXPERTD_ERR_CHECKPOINT);
    make_snapshot("models--org--name", "aaaa", 1000);
    assert_int_equal(hub_resolve("org/name", cache, small, sizeof small).code, EXPERTD_ERR_CHECKPOINT);
}

static void write_named_ref(const char *repository, const char *ref, const char *text) {
    char command[900];
    snprintf(command, sizeof command, "cd '%s' && mkdir -p \"$(dirname '%s/refs/%s')\" && printf '%s' > '%s/refs/%s'", cache,
             repository, ref, text, repository, ref);
    assert_int_equal(system(command), 0);
}

static void a_revision_selects_a_snapshot(void **state) {
    (void)state;
    static const char COMMIT[] = "0123456789abcdef0123456789abcdef01234567";
    make_snapshot("models--org--name", COMMIT, 1000);
    make_snapshot("models--org--name", "0199", 2000);
    make_snapshot("models--org--name", "abcdef", 3000);
    write_ref("models--org--name", "0199\n");
    write_named_ref("models--org--name", "v1.0", "abcdef\\r\\n");
    write_named_ref("models--org--name", "refs/pr/1", "abcdef");
    char wanted[256];
    snprintf(wanted, sizeof wanted, "%s/models--org--name/snapshots/%s", cache, COMMIT);
    assert_resolves("org/name@0123456789abcdef0123456789abcdef01234567", wanted);
    assert_resolves("org/name@01234567", wanted);
    assert_resolves("org/name@v1.0", path_of("models--org--name/snapshots/abcdef"));
    assert_resolves("org/name@refs/pr/1", path_of("models--org--name/snapshots/abcdef"));
    assert_resolves("org/name@main", path_of("models--org--name/snapshots/0199"));
    assert_resolves("org/name", path_of("models--org--name/snapshots/0199"));
}

static void assert_named(const char *model, const char *wanted) {
    char name[64];
    hub_model_name(model, name, sizeof name);
    assert_string_equal(name, wanted);
}

static void the_name_in_requests_has_no_revision(void **state) {
    (void)state;
    assert_named("org/name", "org/name");
    assert_named("org/name@v1.0", "org/name");
    assert_named("org/name:Q4_0", "org/name:Q4_0");
    assert_named("org/name@main:Q4_0", "org/name:Q4_0");
    assert_named("org/name@refs/pr/1:Q4_0", "org/name:Q4_0");
    assert_named("/a/folder@home", "/a/folder@home");
    assert_named("/a/folder@home:Q4_0", "/a/folder@home:Q4_0");
}

static void make_file(const char *name) {
    FILE *file = fopen(path_of(name), "w");
    assert_non_null(file);
    fclose(file);
}

static void a_file_that_is_not_there_is_told_from_a_name_in_the_hub(void **state) {
    (void)state;
    char before[PATH_MAX], wanted[256];
    make_file("m-Q8_0.gguf");
    snprintf(wanted, sizeof wanted, "there is no file %s/m-Q8.gguf: the folder %s has m-Q8_0.gguf", cache, cache);
    refuse(path_of("m-Q8.gguf"), cache, wanted);
    assert_int_equal(symlink("gone", path_of("link")), 0);
    refuse(path_of("link"), cache, "link is a link to gone: No such file or directory: name the model's folder or file itself");
    assert_int_equal(symlink("loop", path_of("loop")), 0);
    refuse(path_of("loop"), cache, "loop is a link to loop: Too many levels of symbolic links");
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir("/tmp"), 0);
    snprintf(wanted, sizeof wanted, "%s/m-Q8.gguf", strrchr(cache, '/') + 1); // has the form of ORG/NAME
    refuse(wanted, cache, "has m-Q8_0.gguf");
    assert_int_equal(chdir(before), 0);
}

static void a_quantisation_without_its_first_part_says_so(void **state) {
    (void)state;
    make_snapshot("models--org--name", "aaaa", 1000);
    make_file("models--org--name/snapshots/aaaa/m-Q8_0-00003-of-00003.gguf");
    refuse("org/name:Q8_0", cache,
           "holds m-Q8_0-00003-of-00003.gguf, but not the first part of that model, -00001-of-...: download");
    refuse("org/name:Q8_0", cache, "(hf download org/name --revision aaaa)");
    refuse("org/name:Q4_0", cache, "holds no GGUF model in Q4_0");
}

static void a_revision_that_is_not_there_is_named_with_those_that_are(void **state) {
    (void)state;
    make_snapshot("models--org--name", "abcd1", 1000);
    make_snapshot("models--org--name", "abcd2", 2000);
    write_ref("models--org--name", "abcd1");
    refuse("org/name@v2", cache, "has no revision v2 of org/name: download it (hf download org/name --revision v2)");
    refuse("org/name@v2", cache, "refs main; snapshots abcd1, abcd2");
    refuse("org/name@abcd", cache, "2 snapshots begin with abcd: write more of the commit");
    refuse("org/name@abc", cache, "has no revision abc");
    refuse("org/name@refs", cache, "has no revision refs");
    write_named_ref("models--org--name", "feature/x", "abcd1");
    write_named_ref("models--org--name", "refs/pr/1", "abcd1");
    refuse("org/name@pr/1", cache, "refs feature/x, main, refs/pr/1; snapshots abcd1, abcd2");
    write_named_ref("models--org--name", "v3", "ffff");
    refuse("org/name@v3", cache,
           "refs/v3 names commit ffff, which has no snapshot: download it (hf download org/name --revision v3)");
    static const char *const INVALID[] = {"org/name@",   "org/name@../x", "org/name@/x", "org/name@x/",
                                          "org/name@.x", "org/name@a/.b", "org/name@a b"};
    for (size_t i = 0; i < sizeof INVALID / sizeof *INVALID; i++) {
        refuse(INVALID[i], cache, "there is no folder");
    }
}

static void another_spelling_of_a_cached_model_is_suggested(void **state) {
    (void)state;
    make_snapshot("models--Qwen--Qwen3-30B-A3B", "aaaa", 1000);
    refuse("qwen/qwen3-30b-a3b", cache, "the cache has Qwen/Qwen3-30B-A3B: did you mean it?");
    refuse("Qwen/Qwen3-30B-A3", cache, "the cache has Qwen/Qwen3-30B-A3B: did you mean it?");
    refuse("org/other", cache, "so download it first (hf download org/other)");
    refuse("org/other@v1", cache, "so download it first (hf download org/other --revision v1)");
    refuse("org/other:Q4_K_M", cache, "so download it first (hf download org/other --include '*Q4_K_M*')");
    refuse("org/other@v1:Q4_K_M", cache, "(hf download org/other --revision v1 --include '*Q4_K_M*')");
    refuse("org/other", path_of("gone"), "(the cache does not exist)");
    make_snapshot("hub/models--org--inner", "aaaa", 1000);
    refuse("org/inner", cache, "/hub: use --hf-cache");
}

static void addresses_and_tildes_are_explained(void **state) {
    (void)state;
    refuse("https://huggingface.co/org/name", cache, "is an address, and nothing is downloaded automatically");
    refuse("~/models/name", cache, "only a shell expands ~");
    refuse("/tmp/nowhere-at-all/model", cache, "(the nearest folder that exists is /tmp)");
}

static void snapshots_may_be_links(void **state) {
    (void)state;
    make_snapshot("elsewhere", "real", 1000);
    assert_int_equal(mkdir(path_of("models--org--name"), 0700), 0);
    assert_int_equal(mkdir(path_of("models--org--name/snapshots"), 0700), 0);
    assert_int_equal(symlink("../../elsewhere/snapshots/real", path_of("models--org--name/snapshots/aaaa")), 0);
    write_ref("models--org--name", "aaaa");
    assert_resolves("org/name", path_of("models--org--name/snapshots/aaaa"));
    assert_int_equal(symlink("models--org--name", path_of("models--org--linked")), 0);
    assert_resolves("org/linked", path_of("models--org--linked/snapshots/aaaa"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_revision_selects_a_snapshot),
        TEST(a_revision_that_is_not_there_is_named_with_those_that_are),
        TEST(another_spelling_of_a_cached_model_is_suggested),
        TEST(addresses_and_tildes_are_explained),
        TEST(snapshots_may_be_links),
        TEST(a_file_that_is_not_there_is_told_from_a_name_in_the_hub),
        TEST(the_name_in_requests_has_no_revision),
        TEST(a_quantisation_without_its_first_part_says_so),
        TEST(a_folders_path_is_returned_unchanged),
        TEST(refs_main_selects_the_snapshot),
        TEST(without_a_ref_the_newest_snapshot_is_taken),
        TEST(a_missing_model_is_reported_with_the_folder_that_was_searched),
        TEST(a_ref_or_name_that_leaves_the_cache_is_refused),
        TEST(a_path_that_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
