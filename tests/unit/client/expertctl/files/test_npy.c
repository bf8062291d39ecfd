// The .npy reader over good files and hostile ones, and the writer.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/expertctl/files/npy.h"

enum { FILE_MAX = 4096 };

struct bytes {
    uint8_t at[FILE_MAX];
    size_t length;
};

// A file of `version` with this header text and `data_bytes` of 1, 2, 3, ...
static struct bytes make_file(int version, const char *header, size_t data_bytes) {
    struct bytes file = {.at = {0x93, 'N', 'U', 'M', 'P', 'Y', (uint8_t)version, 0}};
    size_t length = strlen(header), preamble = version == 1 ? 10 : 12;
    file.at[8] = (uint8_t)length;
    file.at[9] = (uint8_t)(length >> 8);
    memcpy(file.at + preamble, header, length);
    file.length = preamble + length;
    for (size_t i = 0; i < data_bytes; i++) {
        file.at[file.length++] = (uint8_t)(i + 1);
    }
    return file;
}

static void assert_refused(const struct bytes *file, const char *cause) {
    // A heap block of the exact length, so that a sanitizer detects reads beyond it.
    uint8_t *copy = malloc(file->length ? file->length : 1);
    assert_non_null(copy);
    memcpy(copy, file->at, file->length);
    struct npy npy;
    err_t e = npy_parse("x.npy", copy, file->length, &npy);
    free(copy);
    assert_int_equal(e.code, EXPERTD_ERR_CHECKPOINT);
    if (!strstr(expertd_err_message(), cause) || !strstr(expertd_err_message(), "x.npy")) {
        fail_msg("'%s' does not mention x.npy and '%s'", expertd_err_message(), cause);
    }
}

static void header_refused(const char *header, size_t data_bytes, const char *cause) {
    struct bytes file = make_file(1, header, data_bytes);
    assert_refused(&file, cause);
}

static void assert_taken(const struct bytes *file, enum expertd_dtype dtype, uint32_t rank, uint64_t rows, uint64_t columns) {
    struct npy npy;
    assert_false(err_is(npy_parse("x.npy", file->at, file->length, &npy)));
    assert_int_equal(npy.view.dtype, dtype);
    assert_int_equal(npy.view.rank, rank);
    assert_true(rank < 1 || npy.view.shape[0] == rows);
    assert_true(rank < 2 || npy.view.shape[1] == columns);
    assert_true(npy.view.bytes == 0 || *(const uint8_t *)npy.view.data == 1);
    npy_close(&npy);
}

static void npy_reads_every_dtype_of_requests(void **state) {
    (void)state;
    static const struct {
        const char *descr;
        enum expertd_dtype dtype;
    } CASES[] = {{"<f4", EXPERTD_DTYPE_F32}, {"<f2", EXPERTD_DTYPE_F16}, {"<i4", EXPERTD_DTYPE_I32}, {"<i8", EXPERTD_DTYPE_I64},
                 {"<u2", EXPERTD_DTYPE_U16}, {"|V2", EXPERTD_DTYPE_U16}, {"<V2", EXPERTD_DTYPE_U16}, {"|u1", EXPERTD_DTYPE_U8},
                 {"<f8", EXPERTD_DTYPE_F64}, {"=f4", EXPERTD_DTYPE_F32}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char header[128];
        snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (2, 3), }\n", CASES[i].descr);
        struct bytes file = make_file(1, header, 6 * expertd_dtype_size(CASES[i].dtype));
        assert_taken(&file, CASES[i].dtype, 2, 2, 3);
    }
}

static void npy_reads_both_versions_any_order_of_keys_and_any_rank(void **state) {
    (void)state;
    struct bytes two = make_file(2, "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }   \n", 12);
    assert_taken(&two, EXPERTD_DTYPE_F32, 1, 3, 0);
    struct bytes reordered = make_file(1, "{\"shape\":(2,2),\"fortran_order\":False,\"descr\":\"<i4\"}", 16);
    assert_taken(&reordered, EXPERTD_DTYPE_I32, 2, 2, 2);
    struct bytes scalar = make_file(1, "{'descr': '<f4', 'fortran_order': False, 'shape': ()}", 4);
    assert_taken(&scalar, EXPERTD_DTYPE_F32, 0, 0, 0);
    struct bytes empty = make_file(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 64)}", 0);
    assert_taken(&empty, EXPERTD_DTYPE_F32, 2, 0, 64);
    struct bytes longs = make_file(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 1L)}", 8);
    assert_taken(&longs, EXPERTD_DTYPE_F32, 2, 2, 1);
}

static void npy_refuses_unsupported_layouts_and_dtypes(void **state) {
    (void)state;
    header_refused("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2)}", 16, "ascontiguousarray");
    header_refused("{'descr': '>f4', 'fortran_order': False, 'shape': (2,)}", 8, "big-endian");
    header_refused("{'descr': [('a', '<f4'), ('b', '<i4')], 'fortran_order': False, 'shape': (1,)}", 8, "structured");
    header_refused("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", 8, "pickle");
    header_refused("{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}", 8, "<c8");
    header_refused("{'descr': '<U4', 'fortran_order': False, 'shape': (1,)}", 16, "<U4");
}

static void npy_refuses_a_shape_that_is_not_the_files_length(void **state) {
    (void)state;
    header_refused("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2)}", 15, "cut off");
    header_refused("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2)}", 17, "16 bytes");
    header_refused("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4)}", 16, "overflows");
    header_refused("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999999,)}", 16, "64 bits");
    header_refused("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}", 16, "4000000000000 bytes");
    header_refused("{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1)}", 4, "dimensions");
    header_refused("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", 4, "tuple of numbers");
}

static void npy_refuses_malformed_headers(void **state) {
    (void)state;
    header_refused("", 0, "'{'");
    header_refused("{", 0, "quoted");
    header_refused("{}", 0, "lacks descr");
    header_refused("{'descr'", 0, "':'");
    header_refused("{'descr': '<f4', 'fortran_order': False}", 4, "lacks shape");
    header_refused("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': ()}", 4, "twice");
    header_refused("{'descr': '<f4', 'fortran_order': False, 'shape': (), 'x': 1}", 4, "does not know");
    header_refused("{'descr': '<f4', 'fortran_order': False, 'shape': ()} {", 4, "follows");
    header_refused("{'descr': '<f4', 'fortran_order': Maybe, 'shape': ()}", 4, "True nor False");
    header_refused("{'descr': '<f4', 'fortran_order': False, 'shape': (2", 4, "')'");
    header_refused("{'descr': 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx', 'fortran_order': False, 'shape': ()}", 4,
                   "does not end");
    header_refused("{'descr': '<f4, 'fortran_order': False, 'shape': ()}", 4, "x.npy");
}

static void npy_refuses_every_truncation_of_a_good_file(void **state) {
    (void)state;
    struct bytes file = make_file(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }\n", 16);
    for (size_t length = 0; length < file.length; length++) {
        struct bytes cut = file;
        cut.length = length;
        assert_refused(&cut, "x.npy");
    }
}

static void npy_refuses_other_files_and_versions(void **state) {
    (void)state;
    struct bytes text = {.at = "this is no array at all", .length = 23};
    assert_refused(&text, "NUMPY");
    struct bytes newer = make_file(3, "{'descr': '<f4', 'fortran_order': False, 'shape': ()}", 4);
    assert_refused(&newer, "version 3");
    struct bytes lying = make_file(2, "{}", 0);
    lying.at[11] = 0xff; // a header of 4 GB
    assert_refused(&lying, "claims");
}

static void npy_survives_every_single_byte_change_of_a_header(void **state) {
    (void)state;
    struct bytes file = make_file(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }\n", 16);
    size_t refused = 0;
    for (size_t at = 0; at < file.length - 16; at++) {
        for (int value = 0; value < 256; value++) {
            struct bytes changed = file;
            changed.at[at] = (uint8_t)value;
            struct npy npy;
            err_t e = npy_parse("x.npy", changed.at, changed.length, &npy);
            assert_true(!err_is(e) ? npy.view.bytes == 16 : e.code == EXPERTD_ERR_CHECKPOINT);
            refused += err_is(e);
        }
    }
    assert_true(refused > 10000);
}

static void in_a_folder(char path[64], const char *name) {
    char folder[] = "/tmp/expertd-npy.XXXXXX";
    assert_non_null(mkdtemp(folder));
    snprintf(path, 64, "%s/%s", folder, name);
}

static void remove_folder_of(char *path) {
    unlink(path);
    *strrchr(path, '/') = '\0';
    assert_int_equal(rmdir(path), 0); // no temporary file was left in it
}

static void npy_reads_back_what_it_wrote(void **state) {
    (void)state;
    char path[64];
    in_a_folder(path, "a.npy");
    const uint16_t bits[6] = {0x3f80, 0x4000, 0x4040, 0, 0xffff, 1};
    struct expertd_tensor_view view = {.dtype = EXPERTD_DTYPE_BF16, .rank = 2, .shape = {2, 3}, .data = bits, .bytes = sizeof bits};
    for (int again = 0; again < 2; again++) { // also over an old file
        assert_false(err_is(npy_write(path, &view)));
    }
    struct npy npy;
    assert_false(err_is(npy_open(path, &npy)));
    assert_int_equal(npy.view.dtype, EXPERTD_DTYPE_U16);
    assert_string_equal(npy.descr, "<u2");
    assert_int_equal(npy.view.rank, 2);
    assert_memory_equal(npy.view.data, bits, sizeof bits);
    assert_int_equal((uintptr_t)npy.view.data % 64, 0);
    npy_close(&npy);
    remove_folder_of(path);
}

static void npy_writes_the_header_that_numpy_writes(void **state) {
    (void)state;
    char path[64];
    in_a_folder(path, "a.npy");
    const float ones[2] = {1, 1};
    struct expertd_tensor_view view = {.dtype = EXPERTD_DTYPE_F32, .rank = 1, .shape = {2}, .data = ones, .bytes = sizeof ones};
    assert_false(err_is(npy_write(path, &view)));
    struct npy npy;
    assert_false(err_is(npy_open(path, &npy)));
    assert_int_equal(npy.map_bytes, 128 + sizeof ones);
    static const char HEADER[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
    assert_memory_equal((const char *)npy.map + 10, HEADER, sizeof HEADER - 1);
    assert_int_equal(((const char *)npy.map)[127], '\n');
    npy_close(&npy);
    remove_folder_of(path);
}

static void npy_write_leaves_nothing_after_a_failure(void **state) {
    (void)state;
    const float one = 1;
    struct expertd_tensor_view view = {.dtype = EXPERTD_DTYPE_F32, .rank = 1, .shape = {1}, .data = &one, .bytes = sizeof one};
    assert_int_equal(npy_write("/nonexistent-folder/a.npy", &view).code, EXPERTD_ERR_IO);
    assert_non_null(strstr(expertd_err_message(), "/nonexistent-folder/a.npy"));
    char path[64];
    in_a_folder(path, "a.npy");
    assert_int_equal(mkdir(path, 0700), 0); // cannot be renamed over
    assert_int_equal(npy_write(path, &view).code, EXPERTD_ERR_IO);
    assert_int_equal(rmdir(path), 0);
    remove_folder_of(path);
}

static void write_text(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void assert_holds(const char *path, const char *text) {
    char found[16] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_true(fread(found, 1, sizeof found - 1, file) > 0);
    fclose(file);
    assert_string_equal(found, text);
}

// Neither another file of the user in the folder, nor the target of a link in it, is changed.
static void npy_write_touches_no_file_but_its_own(void **state) {
    (void)state;
    char path[64], older[96], other[96], planted[96];
    struct stat there;
    const float one = 1;
    struct expertd_tensor_view view = {.dtype = EXPERTD_DTYPE_F32, .rank = 1, .shape = {1}, .data = &one, .bytes = sizeof one};
    in_a_folder(path, "a.npy");
    snprintf(older, sizeof older, "%s.tmp", path);
    snprintf(other, sizeof other, "%s.other", path);
    snprintf(planted, sizeof planted, "%s.%ld.tmp", path, (long)getpid());
    write_text(older, "mine");
    write_text(other, "mine too");
    assert_int_equal(symlink(other, planted), 0);
    assert_false(err_is(npy_write(path, &view)));
    assert_holds(older, "mine");
    assert_holds(other, "mine too");
    assert_int_equal(lstat(planted, &there), 0);
    assert_true(S_ISLNK(there.st_mode));
    struct npy npy;
    assert_false(err_is(npy_open(path, &npy)));
    npy_close(&npy);
    unlink(older), unlink(other), unlink(planted);
    remove_folder_of(path);
}

static void npy_write_follows_a_link(void **state) {
    (void)state;
    char path[64], link[96];
    struct stat there;
    const float one = 1;
    struct expertd_tensor_view view = {.dtype = EXPERTD_DTYPE_F32, .rank = 1, .shape = {1}, .data = &one, .bytes = sizeof one};
    in_a_folder(path, "a.npy");
    snprintf(link, sizeof link, "%s.link", path);
    write_text(path, "old");
    assert_int_equal(symlink(path, link), 0);
    assert_false(err_is(npy_write(link, &view)));
    assert_int_equal(lstat(link, &there), 0);
    assert_true(S_ISLNK(there.st_mode));
    struct npy npy;
    assert_false(err_is(npy_open(path, &npy)));
    npy_close(&npy);
    unlink(link);
    remove_folder_of(path);
}

static void npy_open_refuses_other_than_regular_files(void **state) {
    (void)state;
    char path[64];
    struct npy npy;
    in_a_folder(path, "pipe.npy");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_true(err_is(npy_open(path, &npy))); // and does not block on the FIFO
    remove_folder_of(path);
    assert_int_equal(npy_open("/tmp", &npy).code, EXPERTD_ERR_CHECKPOINT);
    assert_int_equal(npy_open("/nonexistent.npy", &npy).code, EXPERTD_ERR_CHECKPOINT);
    in_a_folder(path, "empty.npy");
    fclose(fopen(path, "w"));
    assert_int_equal(npy_open(path, &npy).code, EXPERTD_ERR_CHECKPOINT);
    assert_non_null(strstr(expertd_err_message(), "empty"));
    remove_folder_of(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(npy_reads_every_dtype_of_requests),
        cmocka_unit_test(npy_reads_both_versions_any_order_of_keys_and_any_rank),
        cmocka_unit_test(npy_refuses_unsupported_layouts_and_dtypes),
        cmocka_unit_test(npy_refuses_a_shape_that_is_not_the_files_length),
        cmocka_unit_test(npy_refuses_malformed_headers),
        cmocka_unit_test(npy_refuses_every_truncation_of_a_good_file),
        cmocka_unit_test(npy_refuses_other_files_and_versions),
        cmocka_unit_test(npy_survives_every_single_byte_change_of_a_header),
        cmocka_unit_test(npy_reads_back_what_it_wrote),
        cmocka_unit_test(npy_writes_the_header_that_numpy_writes),
        cmocka_unit_test(npy_write_leaves_nothing_after_a_failure),
        cmocka_unit_test(npy_write_touches_no_file_but_its_own),
        cmocka_unit_test(npy_write_follows_a_link),
        cmocka_unit_test(npy_open_refuses_other_than_regular_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
