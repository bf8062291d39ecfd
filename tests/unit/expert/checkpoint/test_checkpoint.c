// Checkpoint folders: which files are opened, and the errors for damaged, missing and inconsistent ones.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "expert/checkpoint/checkpoint.h"
#include "tests/unit/expert/checkpoint/checkpoint_builder.h"

static char folder[64];
static struct builder builder;

static int begin(void **state) {
    (void)state;
    strcpy(folder, "/tmp/expertd-checkpoint-XXXXXX");
    if (!mkdtemp(folder)) {
        return -1;
    }
    builder_write_text(folder, "config.json", "{}");
    builder_add(&builder, "a", EXPERTD_DTYPE_F32, 1, 1, 2);
    builder_add(&builder, "b", EXPERTD_DTYPE_F32, 10, 1, 3);
    builder_add(&builder, "c", EXPERTD_DTYPE_F32, 20, 1, 4);
    return 0;
}

static int end(void **state) {
    (void)state;
    char command[128];
    builder_clear(&builder);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static const char *path_of(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void index_text(const char *map) {
    char text[1024];
    snprintf(text, sizeof text, "{\"metadata\":{\"total_size\":-1,\"x\":[1,{\"y\":null}]},\"weight_map\":{%s}}", map);
    builder_write_text(folder, "model.safetensors.index.json", text);
}

static void refuse(const char *message) {
    struct checkpoint *c;
    err_t e = checkpoint_open(folder, &c);
    assert_int_equal(e.code, EXPERTD_ERR_CHECKPOINT);
    assert_null(c);
    if (!strstr(expertd_err_message(), message)) {
        fail_msg("\"%s\" does not say \"%s\"", expertd_err_message(), message);
    }
}

static struct checkpoint *open_whole(void) {
    struct checkpoint *c;
    if (err_is(checkpoint_open(folder, &c))) {
        fail_msg("%s", expertd_err_message());
    }
    return c;
}

static float first_value(const struct checkpoint *c, const char *name) {
    const struct safetensors_entry *entry = checkpoint_find(c, name);
    assert_non_null(entry);
    float value;
    memcpy(&value, entry->view.data, sizeof value);
    return value;
}

static void one_file_is_opened(void **state) {
    (void)state;
    builder_write(&builder, 0, 3, folder, "model.safetensors");
    struct checkpoint *c = open_whole();
    assert_int_equal(checkpoint_count(c), 3);
    assert_true(first_value(c, "b") == 10);
    assert_null(checkpoint_find(c, "bb"));
    assert_int_equal(checkpoint_lower_bound(c, "aa"), 1);
    assert_int_equal(checkpoint_lower_bound(c, "z"), 3);
    assert_string_equal(checkpoint_at(c, 2)->name, "c");
    assert_string_equal(checkpoint_file_of(c, checkpoint_at(c, 0)), path_of("model.safetensors"));
    assert_string_equal(checkpoint_path(c), folder);
    assert_non_null(checkpoint_config(c));
    checkpoint_close(c);
    checkpoint_close(NULL);
}

static void shards_are_opened_by_their_index(void **state) {
    (void)state;
    builder_write(&builder, 0, 1, folder, "s1.safetensors");
    builder_write(&builder, 1, 2, folder, "s2.safetensors");
    index_text("\"c\":\"s2.safetensors\",\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"");
    struct checkpoint *c = open_whole();
    assert_int_equal(checkpoint_count(c), 3);
    assert_true(first_value(c, "a") == 1 && first_value(c, "b") == 10 && first_value(c, "c") == 20);
    assert_string_equal(checkpoint_file_of(c, checkpoint_find(c, "a")), path_of("s1.safetensors"));
    checkpoint_close(c);
}

static void tensors_that_the_index_does_not_list_are_ignored(void **state) {
    (void)state;
    builder_write(&builder, 0, 3, folder, "s1.safetensors");
    index_text("\"a\":\"s1.safetensors\",\"c\":\"s1.safetensors\"");
    struct checkpoint *c = open_whole();
    assert_int_equal(checkpoint_count(c), 2);
    assert_null(checkpoint_find(c, "b"));
    checkpoint_close(c);
}

static void links_to_regular_files_are_followed(void **state) {
    (void)state;
    assert_int_equal(mkdir(path_of("blobs"), 0700), 0);
    builder_write(&builder, 0, 3, folder, "blobs/0123");
    assert_int_equal(symlink("blobs/0123", path_of("model.safetensors")), 0);
    struct checkpoint *c = open_whole();
    assert_int_equal(checkpoint_count(c), 3);
    checkpoint_close(c);
}

static void a_dangling_link_or_a_link_to_a_fifo_is_refused(void **state) {
    (void)state;
    struct checkpoint *c;
    assert_int_equal(symlink("blobs/gone", path_of("model.safetensors")), 0);
    assert_int_equal(checkpoint_open(folder, &c).code, EXPERTD_ERR_CHECKPOINT);
    assert_non_null(strstr(expertd_err_message(), "model.safetensors: No such file"));
    assert_int_equal(unlink(path_of("model.safetensors")), 0);
    assert_int_equal(mkfifo(path_of("fifo"), 0600), 0);
    assert_int_equal(symlink("fifo", path_of("model.safetensors")), 0);
    refuse("model.safetensors is not a regular file");
    assert_int_equal(unlink(path_of("model.safetensors")), 0);
    index_text("\"a\":\"fifo\"");
    refuse("fifo is not a regular file");
    assert_int_equal(unlink(path_of("model.safetensors.index.json")), 0);
    assert_int_equal(symlink("fifo", path_of("model.safetensors.index.json")), 0);
    refuse("model.safetensors.index.json is not a regular file");
}

static void missing_files_are_named_with_advice(void **state) {
    (void)state;
    refuse("neither model.safetensors nor model.safetensors.index.json exists: is the download complete?");
    builder_write_text(folder, "pytorch_model.bin", "x");
    refuse("only pytorch_model.bin: pickled PyTorch weights are not supported: convert them to safetensors");
    builder_write_text(folder, "model-00001-of-00002.safetensors", "x");
    refuse("only model-00001-of-00002.safetensors: its index is missing");
    unlink(path_of("config.json"));
    refuse("has no config.json");
    struct checkpoint *c;
    assert_int_equal(checkpoint_open(path_of("absent"), &c).code, EXPERTD_ERR_CHECKPOINT);
    assert_non_null(strstr(expertd_err_message(), "absent: No such file"));
    assert_int_equal(checkpoint_open(path_of("pytorch_model.bin"), &c).code, EXPERTD_ERR_CHECKPOINT);
    assert_non_null(strstr(expertd_err_message(), "is not a folder: name the folder that holds config.json"));
    builder_write_text(folder, "model.gguf", "x");
    assert_int_equal(checkpoint_open(path_of("model.gguf"), &c).code, EXPERTD_ERR_CHECKPOINT);
    assert_non_null(strstr(expertd_err_message(), "model.gguf: it does not begin with \"GGUF\""));
}

static int open_as_somebody(const char *path) {
    struct checkpoint *c;
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) {
        return 1;
    }
    bool refused = checkpoint_open(path, &c).code == EXPERTD_ERR_CHECKPOINT;
    return refused && strstr(expertd_err_message(), "Permission denied: let uid ") ? 0 : 1;
}

// Opens the folder in a child process without root's privileges, which the folder's mode refuses.
static void expect_no_permission(const char *path) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        _exit(open_as_somebody(path));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void a_folder_without_read_permission_is_not_reported_as_empty(void **state) {
    (void)state;
    assert_int_equal(mkdir(path_of("closed"), 0700), 0);
    assert_int_equal(mkdir(path_of("closed/model"), 0700), 0);
    builder_write_text(path_of("closed/model"), "config.json", "{}");
    assert_int_equal(chmod(path_of("closed/model"), 0), 0);
    assert_int_equal(chmod(folder, 0755), 0);
    assert_int_equal(chmod(path_of("closed"), 0755), 0);
    expect_no_permission(path_of("closed/model"));
    assert_int_equal(chmod(path_of("closed"), 0), 0);
    expect_no_permission(path_of("closed/model"));
    assert_int_equal(chmod(path_of("closed"), 0700), 0);
    assert_int_equal(chmod(path_of("closed/model"), 0700), 0);
}

static void a_missing_shard_and_a_misplaced_tensor_are_named(void **state) {
    (void)state;
    builder_write(&builder, 0, 2, folder, "s1.safetensors");
    index_text("\"a\":\"s1.safetensors\",\"c\":\"s2.safetensors\"");
    refuse("lists shard s2.safetensors (of 2), which is not in the folder: download it");
    builder_write(&builder, 1, 1, folder, "s2.safetensors");
    refuse("tensor b is in two files");
    builder_write(&builder, 0, 1, folder, "s1.safetensors");
    refuse("lists tensor c in s2.safetensors, which does not have it");
}

static void an_invalid_index_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *map, *message;
    } CASES[] = {
        {"\"a\":\"../x.safetensors\"", "the plain name of a file"},
        {"\"a\":\"/etc/passwd\"", "the plain name of a file"},
        {"\"a\":\"sub/x.safetensors\"", "the plain name of a file"},
        {"\"a\":\"..\"", "the plain name of a file"},
        {"\"a\":\".\"", "the plain name of a file"},
        {"\"a\":\"\"", "the plain name of a file"},
        {"\"a\":\"x\\n\"", "the plain name of a file"},
        {"\"a\":7", "expected '\"'"},
        {"\"a\":\"s\",\"a\":\"s\"", "weight_map has a twice"},
        {"", "weight_map is empty"},
        {"\"a\":\"s\"},\"weight_map\":{", "weight_map occurs twice"},
        {"\"a\":\"s\",", "bad JSON"},
        {"\"a\\u0000\":\"s\"", "U+0000"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        index_text(CASES[i].map);
        refuse(CASES[i].message);
        assert_non_null(strstr(expertd_err_message(), "model.safetensors.index.json"));
    }
    builder_write_text(folder, "model.safetensors.index.json", "{\"metadata\":{}}");
    refuse("weight_map is missing");
    builder_write_text(folder, "model.safetensors.index.json", "");
    refuse("bad JSON");
    char deep[1024];
    memset(deep, '[', sizeof deep - 1);
    memcpy(deep, "{\"x\":", 5);
    deep[sizeof deep - 1] = '\0';
    builder_write_text(folder, "model.safetensors.index.json", deep);
    refuse("at most 64 levels of nesting");
}

static void too_many_shards_are_refused_before_they_are_opened(void **state) {
    (void)state;
    enum { SHARDS = 4097 };
    char *map = malloc(SHARDS * 32), path[256];
    size_t used = 0;
    for (int i = 0; i < SHARDS; i++) {
        used += (size_t)sprintf(map + used, "%s\"t%d\":\"s%d\"", i ? "," : "", i, i);
    }
    snprintf(path, sizeof path, "%s", path_of("model.safetensors.index.json"));
    FILE *file = fopen(path, "w");
    fprintf(file, "{\"weight_map\":{%s}}", map);
    fclose(file);
    free(map);
    refuse("names 4097 files: at most 4096 are supported");
}

// As in a hub cache, where each name is a link to a blob.
static void shards_may_be_links_to_different_files(void **state) {
    (void)state;
    assert_int_equal(mkdir(path_of("blobs"), 0700), 0);
    builder_write(&builder, 0, 1, folder, "blobs/01");
    builder_write(&builder, 1, 2, folder, "blobs/23");
    assert_int_equal(symlink("blobs/01", path_of("s1.safetensors")), 0);
    assert_int_equal(symlink("blobs/23", path_of("s2.safetensors")), 0);
    index_text("\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"");
    struct checkpoint *c = open_whole();
    assert_true(first_value(c, "a") == 1 && first_value(c, "b") == 10);
    checkpoint_close(c);
}

static void two_shards_that_are_one_file_are_refused_before_any_is_opened(void **state) {
    (void)state;
    char hard[256];
    builder_write_text(folder, "s1.safetensors", "which would be refused once it is opened");
    index_text("\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"");
    assert_int_equal(symlink("s1.safetensors", path_of("s2.safetensors")), 0);
    refuse("lists shards s1.safetensors and s2.safetensors, which are links to one file: download the two again");
    assert_int_equal(unlink(path_of("s2.safetensors")), 0);
    snprintf(hard, sizeof hard, "%s", path_of("s2.safetensors"));
    assert_int_equal(link(path_of("s1.safetensors"), hard), 0);
    refuse("lists shards s1.safetensors and s2.safetensors, which are links to one file: download the two again");
}

// Writes a file of `tensors` empty tensors, with the header padded to at least `header_bytes`.
static void write_many(const char *name, const char *prefix, int tensors, size_t bytes) {
    char *header = NULL;
    size_t length = 0;
    FILE *text = open_memstream(&header, &length), *file = fopen(path_of(name), "w");
    assert_true(text && file);
    fputc('{', text);
    for (int i = 0; i < tensors; i++) {
        fprintf(text, "%s\"%s%d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}", i ? "," : "", prefix, i);
    }
    fputc('}', text);
    fflush(text);
    for (size_t padded = length; padded < bytes; padded++) {
        fputc(' ', text);
    }
    fclose(text);
    uint64_t before = length; // little-endian, like every machine that runs the tests
    assert_int_equal(fwrite(&before, sizeof before, 1, file), 1);
    assert_int_equal(fwrite(header, 1, length, file), length);
    fclose(file);
    free(header);
}

static void more_tensors_or_headers_than_any_model_has_are_refused(void **state) {
    (void)state;
    index_text("\"a0\":\"s1\",\"b0\":\"s2\",\"c0\":\"s3\"");
    write_many("s3", "c", 1, 0);
    write_many("s1", "a", CHECKPOINT_TENSORS_MAX / 2, 0);
    write_many("s2", "b", CHECKPOINT_TENSORS_MAX / 2 + 1, 0);
    refuse("the shards up to s2 (2 of 3) have 1048577 tensors, more than the 1048576 that a checkpoint may have");
    write_many("s1", "a", 1, CHECKPOINT_HEADER_BYTES_MAX / 2);
    write_many("s2", "b", 1, CHECKPOINT_HEADER_BYTES_MAX / 2 + 1);
    refuse("the shards up to s2 (2 of 3) have 134217729 bytes of headers, more than the 134217728 that a checkpoint may have");
    write_many("s2", "b", 1, CHECKPOINT_HEADER_BYTES_MAX / 4);
    checkpoint_close(open_whole());
}

static void a_damaged_shard_is_named(void **state) {
    (void)state;
    builder_write(&builder, 0, 3, folder, "model.safetensors");
    assert_int_equal(truncate(path_of("model.safetensors"), 200), 0);
    refuse("model.safetensors: ");
    assert_non_null(strstr(expertd_err_message(), "download it again"));
    assert_int_equal(truncate(path_of("model.safetensors"), 0), 0);
    refuse("it is empty");
    builder_write_text(folder, "config.json", "{\"a\":1,}");
    refuse("config.json: bad JSON in line 1");
}

static void memory_is_opened_like_a_folder(void **state) {
    (void)state;
    static const char HEADER[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}";
    char file[8 + sizeof HEADER] = {sizeof HEADER - 1};
    memcpy(file + 8, HEADER, sizeof HEADER - 1); // the one byte of data is the terminator
    struct checkpoint_bytes bytes = {"{}", 2, NULL, 0, file, sizeof file};
    struct checkpoint *c;
    assert_false(err_is(checkpoint_parse(&bytes, &c)));
    assert_int_equal(checkpoint_count(c), 1);
    checkpoint_close(c);
    bytes.index_text = "{\"weight_map\":{\"a\":\"shard\"}}";
    bytes.index_length = strlen(bytes.index_text);
    assert_false(err_is(checkpoint_parse(&bytes, &c)));
    checkpoint_close(c);
    bytes.index_text = "{\"weight_map\":{\"a\":\"other\"}}";
    assert_int_equal(checkpoint_parse(&bytes, &c).code, EXPERTD_ERR_CHECKPOINT);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(one_file_is_opened),
        TEST(shards_are_opened_by_their_index),
        TEST(tensors_that_the_index_does_not_list_are_ignored),
        TEST(links_to_regular_files_are_followed),
        TEST(a_dangling_link_or_a_link_to_a_fifo_is_refused),
        TEST(missing_files_are_named_with_advice),
        TEST(a_folder_without_read_permission_is_not_reported_as_empty),
        TEST(a_missing_shard_and_a_misplaced_tensor_are_named),
        TEST(an_invalid_index_is_refused),
        TEST(too_many_shards_are_refused_before_they_are_opened),
        TEST(shards_may_be_links_to_different_files),
        TEST(two_shards_that_are_one_file_are_refused_before_any_is_opened),
        TEST(more_tensors_or_headers_than_any_model_has_are_refused),
        TEST(a_damaged_shard_is_named),
        TEST(memory_is_opened_like_a_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
