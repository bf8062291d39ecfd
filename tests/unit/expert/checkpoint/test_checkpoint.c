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
#include "expert/checkpoint/checkpoint_notes.h"
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

static void check_message(const char *message) {
    if (!strstr(expertd_err_message(), message)) {
        fail_msg("\"%s\" does not say \"%s\"", expertd_err_message(), message);
    }
}

// Opens the folder and reads and requires the tensors that begin with `prefix`.
static err_t open_part(const char *prefix, struct checkpoint **out) {
    TRY(checkpoint_open(folder, out));
    err_t e = checkpoint_read(*out, prefix);
    e = err_is(e) ? e : checkpoint_require(*out, prefix);
    if (err_is(e)) {
        checkpoint_close(*out);
        *out = NULL;
    }
    return e;
}

static void refuse_part(const char *prefix, const char *message) {
    struct checkpoint *c;
    assert_int_equal(open_part(prefix, &c).code, EXPERTD_ERR_CHECKPOINT);
    assert_null(c);
    check_message(message);
}

static void refuse(const char *message) {
    refuse_part("", message);
}

static struct checkpoint *open_some(const char *prefix) {
    struct checkpoint *c;
    if (err_is(open_part(prefix, &c))) {
        fail_msg("%s", expertd_err_message());
    }
    return c;
}

static struct checkpoint *open_whole(void) {
    return open_some("");
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
    check_message("model.safetensors: No such file");
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
    refuse("shard model-00002-of-00002.safetensors is missing (1 of 2 shards are missing");
    assert_int_equal(unlink(path_of("model-00001-of-00002.safetensors")), 0);
    builder_write_text(folder, "weights.safetensors", "x");
    refuse("only weights.safetensors: its index is missing");
    unlink(path_of("config.json"));
    refuse("has no config.json");
    builder_write_text(folder, "model.gguf", "x");
    struct checkpoint *c;
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
    refuse("lists tensor c in shard s2.safetensors, which is not in the folder (1 of 2 shards are missing): download it");
    assert_int_equal(symlink("blobs/gone", path_of("s2.safetensors")), 0);
    refuse("lists tensor c in shard s2.safetensors, which is a link to a file that is not there (1 of 2 shards are missing)");
    assert_int_equal(unlink(path_of("s2.safetensors")), 0);
    builder_write_text(folder, "s2.safetensors.incomplete", "x");
    refuse("a download is under way or was interrupted (found s2.safetensors.incomplete): finish it");
    builder_write(&builder, 1, 1, folder, "s2.safetensors");
    refuse("s2.safetensors.incomplete lies beside it: finish the download");
    assert_int_equal(unlink(path_of("s2.safetensors.incomplete")), 0);
    refuse("lists tensor c in s2.safetensors, which does not have it");
    checkpoint_close(open_some("a"));
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
        {"\"a\":7", "weight_map: a is 7: expected the name of a file"},
        {"\"a\":\"s\",\"a\":\"s\"", "weight_map has a twice"},
        {"", "weight_map is empty"},
        {"\"a\":\"s\"},\"weight_map\":{", "weight_map occurs twice"},
        {"\"a\":\"s\",", "bad JSON"},
        {"\"a\\u0000\":\"s\"", "U+0000"},
        {"\"\":\"s\"", "weight_map: a tensor's name has 0 bytes"},
        {"\"a\\u0007\":\"s\"", "weight_map: a tensor's name contains the control character 0x07"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        index_text(CASES[i].map);
        refuse(CASES[i].message);
        assert_non_null(strstr(expertd_err_message(), "model.safetensors.index.json"));
    }
    builder_write_text(folder, "model.safetensors.index.json", "{\"metadata\":{}}");
    refuse("weight_map is missing");
    builder_write_text(folder, "model.safetensors.index.json", "");
    refuse("index.json: it is empty (an unfinished download?)");
    char deep[1024], map[640] = "\"", *end = map + 1;
    memset(end, 'n', SAFETENSORS_NAME_BYTES_MAX + 1);
    strcpy(end + SAFETENSORS_NAME_BYTES_MAX + 1, "\":\"s\"");
    index_text(map);
    refuse("weight_map: a tensor's name has 513 bytes");
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

static void two_shards_that_are_one_file_are_refused(void **state) {
    (void)state;
    char hard[256];
    builder_write(&builder, 0, 3, folder, "s1.safetensors");
    index_text("\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"");
    assert_int_equal(symlink("s1.safetensors", path_of("s2.safetensors")), 0);
    refuse("s2.safetensors are links to one file: download the two again");
    assert_int_equal(unlink(path_of("s2.safetensors")), 0);
    snprintf(hard, sizeof hard, "%s", path_of("s2.safetensors"));
    assert_int_equal(link(path_of("s1.safetensors"), hard), 0);
    refuse("s2.safetensors are links to one file: download the two again");
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
    refuse("s2 (2 of 3) have 1048577 tensors, more than the 1048576 that a checkpoint may have");
    write_many("s1", "a", 1, CHECKPOINT_HEADER_BYTES_MAX / 2);
    write_many("s2", "b", 1, CHECKPOINT_HEADER_BYTES_MAX / 2 + 1);
    refuse("s2 (2 of 3) have 134217729 bytes of headers, more than the 134217728 that a checkpoint may have");
    write_many("s2", "b", 1, CHECKPOINT_HEADER_BYTES_MAX / 4);
    checkpoint_close(open_whole());
}

// The value of the first element of a's copies: 1 in s1, 50 in s2.
static void write_two_copies(void) {
    struct builder other = {0};
    builder_write(&builder, 0, 2, folder, "s1.safetensors");
    builder_add(&other, "a", EXPERTD_DTYPE_F32, 50, 1, 2);
    builder_add(&other, "c", EXPERTD_DTYPE_F32, 60, 1, 2);
    builder_write(&other, 0, 2, folder, "s2.safetensors");
    builder_clear(&other);
}

static const char *first_note(const struct checkpoint *c) {
    const struct checkpoint_notes *notes = checkpoint_notes_of(c);
    return notes->count > 0 ? notes->notes[0].text : "";
}

static void the_index_decides_which_copy_of_a_tensor_counts(void **state) {
    (void)state;
    write_two_copies();
    index_text("\"a\":\"s2.safetensors\",\"b\":\"s1.safetensors\",\"c\":\"s2.safetensors\"");
    struct checkpoint *c = open_whole();
    assert_true(first_value(c, "a") == 50 && first_value(c, "b") == 10);
    assert_string_equal(checkpoint_file_of(c, checkpoint_find(c, "a")), path_of("s2.safetensors"));
    assert_string_equal(first_note(c), "");
    checkpoint_close(c);
}

static void files_of_other_parts_may_be_missing_or_damaged(void **state) {
    (void)state;
    write_two_copies();
    builder_write_text(folder, "s3.safetensors", "no safetensors");
    index_text("\"a\":\"s2.safetensors\",\"b\":\"s1.safetensors\",\"d\":\"s3.safetensors\",\"e\":\"gone.safetensors\",\"f\":\"s1."
               "safetensors\"");
    struct checkpoint *c = open_some("a");
    assert_int_equal(checkpoint_count(c), 5); // the names are known
    assert_true(first_value(c, "a") == 50);
    assert_null(checkpoint_find(c, "d")); // its file was not read
    assert_false(err_is(checkpoint_read(c, "")));
    assert_false(err_is(checkpoint_require(c, "b")));
    assert_int_equal(checkpoint_require(c, "d").code, EXPERTD_ERR_CHECKPOINT);
    check_message("s3.safetensors: it is text, not weights (\"no safetensors\")");
    check_message("(by model.safetensors.index.json, the file holds tensor d)");
    assert_int_equal(checkpoint_require(c, "e").code, EXPERTD_ERR_CHECKPOINT);
    check_message("lists tensor e in shard gone.safetensors, which is not in the folder (1 of 4 shards are missing)");
    assert_int_equal(checkpoint_require(c, "f").code, EXPERTD_ERR_CHECKPOINT);
    check_message("lists tensor f in s1.safetensors, which does not have it");
    checkpoint_close(c);
}

static void an_unlisted_tensor_of_a_served_part_is_noted(void **state) {
    (void)state;
    builder_write(&builder, 0, 3, folder, "s1.safetensors");
    index_text("\"a\":\"s1.safetensors\",\"c\":\"s1.safetensors\"");
    struct checkpoint *c = open_whole();
    checkpoint_note_unlisted(c, "a");
    assert_string_equal(first_note(c), "");
    checkpoint_note_unlisted(c, "b");
    assert_non_null(strstr(first_note(c), "tensor b in s1.safetensors is ignored"));
    checkpoint_close(c);
}

static void a_single_file_beside_an_index_is_ignored_with_a_note(void **state) {
    (void)state;
    write_two_copies();
    index_text("\"a\":\"s2.safetensors\",\"b\":\"s1.safetensors\"");
    builder_write_text(folder, "model.safetensors", "an interrupted save");
    struct checkpoint *c = open_whole();
    assert_true(first_value(c, "a") == 50);
    assert_non_null(strstr(first_note(c), "model.safetensors beside them is not one of them and is ignored"));
    checkpoint_close(c);
    builder_write(&builder, 1, 2, folder, "model.safetensors"); // b and c
    checkpoint_close(open_some("a"));
    refuse("tensor b is in model.safetensors and, by model.safetensors.index.json, in s1.safetensors: programs differ");
    index_text("\"a\":\"gone.safetensors\",\"b\":\"s1.safetensors\"");
    refuse("to serve model.safetensors, which is there too, move the index and its shards away");
}

static void a_single_file_may_be_a_link_to_a_listed_shard(void **state) {
    (void)state;
    builder_write(&builder, 0, 3, folder, "s1.safetensors");
    index_text("\"a\":\"s1.safetensors\",\"b\":\"s1.safetensors\"");
    assert_int_equal(symlink("s1.safetensors", path_of("model.safetensors")), 0);
    checkpoint_close(open_whole());
}

static void a_single_file_counts_if_the_index_is_of_no_use(void **state) {
    (void)state;
    builder_write(&builder, 0, 3, folder, "model.safetensors");
    index_text("\"a\":\"gone1.safetensors\",\"b\":\"gone2.safetensors\"");
    struct checkpoint *c = open_whole();
    assert_int_equal(checkpoint_count(c), 3);
    assert_non_null(strstr(first_note(c), "model.safetensors is taken: none of the 2 files that"));
    checkpoint_close(c);
    builder_write_text(folder, "model.safetensors.index.json", "version https://git-lfs.github.com/spec/v1\noid sha256:aa\n");
    c = open_whole();
    assert_non_null(strstr(first_note(c), "cannot be used"));
    assert_non_null(strstr(first_note(c), "Git LFS pointer"));
    checkpoint_close(c);
    assert_int_equal(unlink(path_of("model.safetensors")), 0);
    refuse("model.safetensors.index.json: it is a Git LFS pointer");
}

static void an_index_that_begins_with_a_byte_order_mark_is_read(void **state) {
    (void)state;
    builder_write(&builder, 0, 3, folder, "s1.safetensors");
    builder_write_text(folder, "model.safetensors.index.json", "\xef\xbb\xbf{\"weight_map\":{\"a\":\"s1.safetensors\"}}\r\n");
    checkpoint_close(open_whole());
}

static void numbered_shards_without_an_index_are_read(void **state) {
    (void)state;
    builder_write(&builder, 0, 1, folder, "model-00001-of-00003.safetensors");
    builder_write(&builder, 2, 1, folder, "model-00003-of-00003.safetensors");
    builder_write_text(folder, "consolidated-00001-of-00001.safetensors", "of another format");
    refuse("shard model-00002-of-00003.safetensors is missing (1 of 3 shards are missing");
    builder_write(&builder, 1, 1, folder, "model-00002-of-00003.safetensors");
    struct checkpoint *c = open_whole();
    assert_int_equal(checkpoint_count(c), 3);
    assert_true(first_value(c, "a") == 1 && first_value(c, "b") == 10 && first_value(c, "c") == 20);
    checkpoint_close(c);
    builder_write(&builder, 0, 1, folder, "model-00003-of-00004.safetensors");
    refuse("both model-00003-of-00003.safetensors and model-00003-of-00004.safetensors, which belong to different sets");
    assert_int_equal(unlink(path_of("model-00003-of-00004.safetensors")), 0);
    builder_write(&builder, 0, 1, folder, "model-0003-of-00003.safetensors");
    refuse("which have one number");
}

static void numbers_of_shards_may_begin_at_zero(void **state) {
    (void)state;
    builder_write(&builder, 0, 1, folder, "model-0-of-2.safetensors");
    refuse("shard model-1-of-2.safetensors is missing (1 of 2");
    builder_write(&builder, 1, 2, folder, "model-1-of-2.safetensors");
    checkpoint_close(open_whole());
}

static void without_an_index_a_required_tensor_must_be_in_one_file(void **state) {
    (void)state;
    builder_write(&builder, 0, 2, folder, "model-1-of-2.safetensors");
    builder_write(&builder, 1, 2, folder, "model-2-of-2.safetensors");
    struct checkpoint *c = open_some("a");
    assert_int_equal(checkpoint_count(c), 3);
    checkpoint_close(c);
    refuse("tensor b is in two files");
    check_message("model-1-of-2.safetensors");
    check_message("model-2-of-2.safetensors");
}

static void a_single_file_beside_numbered_shards_is_read_with_them_if_they_are_complete(void **state) {
    (void)state;
    builder_write(&builder, 0, 1, folder, "model.safetensors");
    builder_write(&builder, 1, 1, folder, "model-1-of-2.safetensors");
    struct checkpoint *c = open_whole();
    assert_int_equal(checkpoint_count(c), 1);
    assert_non_null(strstr(first_note(c), "not a complete set"));
    checkpoint_close(c);
    builder_write(&builder, 2, 1, folder, "model-2-of-2.safetensors");
    c = open_whole();
    assert_int_equal(checkpoint_count(c), 3);
    checkpoint_close(c);
}

static void a_damaged_shard_is_named(void **state) {
    (void)state;
    builder_write(&builder, 0, 3, folder, "model.safetensors");
    assert_int_equal(truncate(path_of("model.safetensors"), 200), 0);
    refuse("model.safetensors: ");
    assert_non_null(strstr(expertd_err_message(), "download it again"));
    assert_int_equal(truncate(path_of("model.safetensors"), 0), 0);
    refuse("it is empty");
    builder_write_text(folder, "model.safetensors.aria2", "");
    refuse("(a download is under way or was interrupted: found model.safetensors.aria2)");
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
    assert_false(err_is(checkpoint_parse(&bytes, &c)));
    assert_false(err_is(checkpoint_read(c, "")));
    assert_int_equal(checkpoint_require(c, "a").code, EXPERTD_ERR_CHECKPOINT);
    check_message("other does not exist");
    checkpoint_close(c);
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
        TEST(the_index_decides_which_copy_of_a_tensor_counts),
        TEST(files_of_other_parts_may_be_missing_or_damaged),
        TEST(an_unlisted_tensor_of_a_served_part_is_noted),
        TEST(a_single_file_beside_an_index_is_ignored_with_a_note),
        TEST(a_single_file_may_be_a_link_to_a_listed_shard),
        TEST(a_single_file_counts_if_the_index_is_of_no_use),
        TEST(an_index_that_begins_with_a_byte_order_mark_is_read),
        TEST(numbered_shards_without_an_index_are_read),
        TEST(numbers_of_shards_may_begin_at_zero),
        TEST(without_an_index_a_required_tensor_must_be_in_one_file),
        TEST(a_single_file_beside_numbered_shards_is_read_with_them_if_they_are_complete),
        TEST(two_shards_that_are_one_file_are_refused),
        TEST(more_tensors_or_headers_than_any_model_has_are_refused),
        TEST(a_damaged_shard_is_named),
        TEST(memory_is_opened_like_a_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
