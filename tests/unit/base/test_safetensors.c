// Every rule of the safetensors format, with damaged files that the test creates.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/safetensors.h"

static char folder[64];

static int make_folder(void **state) {
    (void)state;
    strcpy(folder, "/tmp/expertd-safetensors-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static const char *path_of(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

// A file in memory: length, header, `data_bytes` of data.
struct image {
    char *bytes;
    size_t size;
};

static struct image image_of(const char *header, size_t header_bytes, size_t data_bytes) {
    struct image image = {.size = 8 + header_bytes + data_bytes};
    image.bytes = calloc(1, image.size);
    assert_non_null(image.bytes);
    for (int i = 0; i < 8; i++) {
        image.bytes[i] = (char)((uint64_t)header_bytes >> (8 * i));
    }
    memcpy(image.bytes + 8, header, header_bytes);
    return image;
}

static err_t parse_bytes(const char *header, size_t header_bytes, size_t data_bytes, struct safetensors *out) {
    struct image image = image_of(header, header_bytes, data_bytes);
    err_t e = safetensors_parse("FILE", image.bytes, image.size, out);
    free(image.bytes); // the parser owns names and metadata; data is not read below
    return e;
}

static void accept(const char *header, size_t data_bytes) {
    struct safetensors file;
    err_t e = parse_bytes(header, strlen(header), data_bytes, &file);
    if (err_is(e)) {
        fail_msg("refused: %s: %s", header, expertd_err_message());
    }
    safetensors_close(&file);
}

static void refuse_bytes(const char *header, size_t header_bytes, size_t data_bytes, const char *message) {
    struct safetensors file;
    err_t e = parse_bytes(header, header_bytes, data_bytes, &file);
    if (!err_is(e)) {
        fail_msg("accepted: %s", header);
    }
    assert_int_equal(e.code, EXPERTD_ERR_CHECKPOINT);
    assert_non_null(strstr(expertd_err_message(), "FILE"));
    if (!strstr(expertd_err_message(), message)) {
        fail_msg("\"%s\" does not say \"%s\"", expertd_err_message(), message);
    }
    assert_null(file.entries); // nothing to close
    assert_null(file.path);
}

static void refuse(const char *header, size_t data_bytes, const char *message) {
    refuse_bytes(header, strlen(header), data_bytes, message);
}

// ---- valid files ----

static void a_scalar_and_zero_dims_are_legal(void **state) {
    (void)state;
    accept("{\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
           "\"z\":{\"dtype\":\"BF16\",\"shape\":[3,0,5],\"data_offsets\":[4,4]}}",
           4);
    accept("{}", 0);
    accept("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}   \n", 2);
}

static void empty_tensors_may_be_between_others(void **state) {
    (void)state;
    accept("{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]},\"e\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":["
           "2,2]},"
           "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}",
           4);
}

static void entries_are_found_by_name_in_any_order(void **state) {
    (void)state;
    static const char HEADER[] = "{\"b\":{\"shape\":[2],\"data_offsets\":[2,4],\"dtype\":\"U8\"},"
                                 "\"a\\u0041\":{\"dtype\":\"I8\",\"shape\":[1,2],\"data_offsets\":[0,2]}}";
    struct image image = image_of(HEADER, sizeof HEADER - 1, 4);
    struct safetensors file;
    assert_false(err_is(safetensors_parse("FILE", image.bytes, image.size, &file)));
    assert_int_equal(file.count, 2);
    const struct safetensors_entry *a = safetensors_find(&file, "aA"), *b = safetensors_find(&file, "b");
    assert_non_null(a);
    assert_non_null(b);
    assert_ptr_equal(a->view.data, image.bytes + 8 + sizeof HEADER - 1);
    assert_ptr_equal(b->view.data, (const char *)a->view.data + 2);
    assert_int_equal(a->view.dtype, EXPERTD_DTYPE_I8);
    assert_int_equal(a->view.rank, 2);
    assert_int_equal(a->view.shape[1], 2);
    assert_null(safetensors_find(&file, "c"));
    safetensors_close(&file);
    free(image.bytes);
}

// The safetensors crate 0.8.0 accepts and refuses the same files.
static void unknown_keys_are_skipped_but_must_be_json(void **state) {
    (void)state;
    accept("{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1],\"scale\":2}}", 1);
    accept("{\"a\":{\"x\":{\"dtype\":[1,-2.5e3,{\"z\":null}]},\"dtype\":\"U8\",\"x\":\"}\",\"shape\":[],\"\":true,\"data_offsets\":"
           "[0,1]}}",
           1);
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1],\"scale\"}}", 1, "expected ':'");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1],\"scale\":}}", 1, "expected a value");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1],\"scale\":NaN}}", 1, "expected a value");
    refuse("{\"a\":{\"scale\":2,\"shape\":[],\"data_offsets\":[0,1]}}", 1, "dtype is missing");
}

static void metadata_may_be_null(void **state) {
    (void)state;
    static const char HEADER[] = "{\"__metadata__\": null,\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}";
    struct safetensors file;
    assert_false(err_is(parse_bytes(HEADER, sizeof HEADER - 1, 1, &file)));
    assert_int_equal(file.count, 1);
    assert_int_equal(file.metadata_count, 0);
    assert_null(safetensors_metadata(&file, "format"));
    safetensors_close(&file);
}

static void metadata_is_kept_and_unescaped(void **state) {
    (void)state;
    struct safetensors file;
    static const char HEADER[] = "{\"__metadata__\":{\"format\":\"pt\",\"note\":\"a\\\"b\\n\\u00e9\\ud83d\\ude00\",\"\":\"\"}}";
    assert_false(err_is(parse_bytes(HEADER, sizeof HEADER - 1, 0, &file)));
    assert_string_equal(safetensors_metadata(&file, "format"), "pt");
    assert_string_equal(safetensors_metadata(&file, "note"), "a\"b\n\xc3\xa9\xf0\x9f\x98\x80");
    assert_null(safetensors_metadata(&file, "absent"));
    safetensors_close(&file);
}

static void types_that_are_only_stored_are_checked_for_size_and_have_no_dtype(void **state) {
    (void)state;
    struct safetensors file;
    static const char HEADER[] = "{\"x\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[0,3]}}";
    assert_false(err_is(parse_bytes(HEADER, sizeof HEADER - 1, 3, &file)));
    assert_int_equal(file.entries[0].view.dtype, EXPERTD_DTYPE_NONE);
    safetensors_close(&file);
    accept("{\"x\":{\"dtype\":\"F6_E3M2\",\"shape\":[4],\"data_offsets\":[0,3]}}", 3);
    accept("{\"x\":{\"dtype\":\"C64\",\"shape\":[2],\"data_offsets\":[0,16]}}", 16);
    refuse("{\"x\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2, "do not fill whole bytes");
    refuse("{\"x\":{\"dtype\":\"F7\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "unknown dtype \"F7\"");
}

static void two_codes_of_4_bits_are_given_as_a_byte(void **state) {
    (void)state;
    struct safetensors file;
    static const char HEADER[] = "{\"x\":{\"dtype\":\"F4\",\"shape\":[3,4],\"data_offsets\":[0,6]}}";
    assert_false(err_is(parse_bytes(HEADER, sizeof HEADER - 1, 6, &file)));
    const struct expertd_tensor_view *view = &file.entries[0].view;
    assert_int_equal(view->dtype, EXPERTD_DTYPE_U8);
    assert_int_equal(view->rank, 2);
    assert_int_equal(view->shape[0], 3);
    assert_int_equal(view->shape[1], 2);
    assert_int_equal(view->bytes, 6);
    safetensors_close(&file);
    static const char ODD[] = "{\"x\":{\"dtype\":\"F4\",\"shape\":[2,3],\"data_offsets\":[0,3]}}"; // a row does not end at a byte
    assert_false(err_is(parse_bytes(ODD, sizeof ODD - 1, 3, &file)));
    assert_int_equal(file.entries[0].view.dtype, EXPERTD_DTYPE_NONE);
    safetensors_close(&file);
}

// ---- refusals ----

static void short_and_empty_files_are_refused(void **state) {
    (void)state;
    struct safetensors file;
    static const char ZEROS[8];
    for (size_t size = 0; size < 8; size++) {
        assert_int_equal(safetensors_parse("FILE", ZEROS, size, &file).code, EXPERTD_ERR_CHECKPOINT);
    }
    assert_int_equal(safetensors_parse("FILE", ZEROS, 8, &file).code, EXPERTD_ERR_CHECKPOINT); // an empty header
    assert_non_null(strstr(expertd_err_message(), "does not begin with '{'"));
}

static void a_wrong_header_length_is_refused_without_allocation(void **state) {
    (void)state;
    struct safetensors file;
    unsigned char bytes[16] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, '{', '}'};
    assert_int_equal(safetensors_parse("FILE", bytes, sizeof bytes, &file).code, EXPERTD_ERR_CHECKPOINT);
    assert_non_null(strstr(expertd_err_message(), "more than the limit of 100000000"));
    const uint64_t most = 100000000;
    for (int i = 0; i < 8; i++) {
        bytes[i] = (unsigned char)(most >> (8 * i));
    }
    assert_int_equal(safetensors_parse("FILE", bytes, sizeof bytes, &file).code, EXPERTD_ERR_CHECKPOINT);
    assert_non_null(strstr(expertd_err_message(), "download it again"));
    bytes[0]++; // 100000001
    assert_int_equal(safetensors_parse("FILE", bytes, sizeof bytes, &file).code, EXPERTD_ERR_CHECKPOINT);
    assert_non_null(strstr(expertd_err_message(), "more than the limit of 100000000"));
}

static void bad_json_is_refused(void **state) {
    (void)state;
    refuse("", 0, "does not begin with");
    refuse(" {}", 0, "does not begin with");
    refuse("[]", 0, "does not begin with");
    refuse("{", 0, "bad JSON at byte 1");
    refuse("{}x", 0, "bad JSON at byte 2");
    refuse("{\"a\"}", 0, "expected ':'");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]},}", 1, "bad JSON");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[1,],\"data_offsets\":[0,1]}}", 1, "an integer of 0 or more");
    refuse("{\"a\":[]}", 0, "the entry is []: expected an object with dtype, shape and data_offsets");
    refuse("{\"a\":null}", 0, "the entry is null: expected an object");
    refuse("{\"a\\x\":{}}", 0, "expected an escape");
    refuse("{\"a\n\":{}}", 0, "control character needs an escape");
    refuse("{\"\\ud800\":{}}", 0, "surrogate");
    refuse("{\"\\udc00\":{}}", 0, "surrogate");
    refuse("{\"\\u0000\":{}}", 0, "U+0000");
    refuse_bytes("{}\0", 3, 0, "bad JSON at byte 2");
}

static void bad_utf8_is_refused(void **state) {
    (void)state;
    static const char *const BAD[] = {"\xff",
                                      "\x80",
                                      "\xc0\x80",
                                      "\xc3",
                                      "\xe0\x80\x80",
                                      "\xed\xa0\x80",
                                      "\xf0\x80\x80\x80",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xc3("};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        char header[64];
        snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", BAD[i]);
        refuse(header, 1, "expected UTF-8");
    }
    accept("{\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xf4\x8f\xbf\xbf\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1);
}

static void a_git_lfs_pointer_is_recognised(void **state) {
    (void)state;
    static const char POINTER[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 4900000000\n";
    struct safetensors file;
    assert_int_equal(safetensors_parse("FILE", POINTER, sizeof POINTER - 1, &file).code, EXPERTD_ERR_CHECKPOINT);
    assert_non_null(strstr(expertd_err_message(), "FILE: it is a Git LFS pointer, not the file itself"));
}

static void a_gap_an_overlap_and_a_wrong_end_are_refused(void **state) {
    (void)state;
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":["
           "3,5]}}",
           5, "tensor b begins at byte 3 of the data, past byte 2, where a ends: a gap");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":["
           "1,3]}}",
           3, "an overlap");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":["
           "0,2]}}",
           2, "an overlap");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}", 3, "past byte 0, where the header ends: a gap");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,0]}}", 2, "end before they begin");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 3,
           "the tensors end at byte 2 of the data, but the file has 3");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 1, "is truncated");
    refuse("{}", 1, "the tensors end at byte 0");
}

static void a_size_that_differs_from_the_shape_is_refused(void **state) {
    (void)state;
    refuse("{\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,11]}}", 11,
           "tensor a: data_offsets hold 11 bytes, but BF16[2, 3] needs 12");
    refuse("{\"a\":{\"dtype\":\"BF16\",\"shape\":[0,3],\"data_offsets\":[0,6]}}", 6, "needs 0");
}

static void overflowing_shapes_are_refused(void **state) {
    (void)state;
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, "overflow");
    refuse("{\"a\":{\"dtype\":\"F64\",\"shape\":[9223372036854775807],\"data_offsets\":[0,0]}}", 0, "overflow");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0, "overflow");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[9223372036854775808],\"data_offsets\":[0,0]}}", 0, "below 2^63");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[99999999999999999999999],\"data_offsets\":[0,0]}}", 0, "below 2^63");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[18446744073709551615,0]}}", 0, "below 2^63");
}

static void fractions_and_negative_numbers_are_refused(void **state) {
    (void)state;
    static const char *const BAD[] = {"-1", "1.0", "1e0", "1E2", "01", "+1", "\"1\"", "null", "true", "NaN", "0x1", "-0"};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        char header[128];
        snprintf(header, sizeof header, "{\"a\":{\"dtype\":\"U8\",\"shape\":[%s],\"data_offsets\":[0,1]}}", BAD[i]);
        refuse(header, 1, "tensor a");
        snprintf(header, sizeof header, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,%s]}}", BAD[i]);
        refuse(header, 1, "tensor a");
    }
}

static void duplicates_are_refused(void **state) {
    (void)state;
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[1,"
           "2]}}",
           2, "tensor a is given twice");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]},\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[],\"data_"
           "offsets\":[1,2]}}",
           2, "tensor a is given twice");
    refuse("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, "dtype is given twice");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"shape\":[],\"data_offsets\":[0,1]}}", 1, "shape is given twice");
    refuse("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ is given twice");
    refuse("{\"__metadata__\":{\"k\":\"1\",\"l\":\"\",\"k\":\"2\"}}", 0, "\"k\" is given twice");
}

static void entries_must_be_complete_and_known(void **state) {
    (void)state;
    refuse("{\"a\":{\"shape\":[],\"data_offsets\":[0,1]}}", 1, "dtype is missing");
    refuse("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "shape is missing");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[]}}", 0, "data_offsets is missing");
    refuse("{\"a\":{}}", 0, "is missing");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0]}}", 1, "data_offsets is [0]: expected two integers");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1,2]}}", 1, "data_offsets is [0,1,2]: expected two integers");
    refuse("{\"a\":{\"dtype\":8,\"shape\":[],\"data_offsets\":[0,1]}}", 1, "dtype is 8: expected the name of a dtype");
    refuse("{\"a\":{\"dtype\":\"an unreasonably long type name\",\"shape\":[],\"data_offsets\":[0,1]}}", 1,
           "unknown dtype, with a name of");
    refuse("{\"__metadata__\":{\"k\":1}}", 0, "__metadata__: k is 1: expected a string");
    refuse("{\"__metadata__\":[]}", 0, "__metadata__ is []: expected an object of strings");
    refuse("{\"__metadata__\":false}", 0, "__metadata__ is false: expected an object");
    refuse("{\"__metadata__\":nul}", 0, "expected '{'");
    refuse("{\"__metadata__\":{\"k\":null}}", 0, "__metadata__: k is null: expected a string");
    refuse("{\"__metadata__\":null,\"__metadata__\":{}}", 0, "__metadata__ is given twice");
    refuse("{\"a\":null}", 0, "the entry is null");
}

static void rank_and_names_are_bounded(void **state) {
    (void)state;
    accept("{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1);
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1,
           "shape is [1,1,1,1,1,1,1,1,1]: expected a list of up to 8 integers");
    refuse("{\"\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, "name has 0 bytes");
    refuse("{\"a\\u001b[2J\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, "control character 0x1b");
    char header[1024], name[SAFETENSORS_NAME_BYTES_MAX + 2];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", name);
    refuse(header, 1, "name has 513 bytes");
    name[SAFETENSORS_NAME_BYTES_MAX] = '\0';
    snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", name);
    accept(header, 1);
}

static void deep_nesting_is_refused_without_recursion(void **state) {
    (void)state;
    enum { DEEP = 1 << 20 };
    char *header = malloc(DEEP);
    assert_non_null(header);
    memset(header, '[', DEEP);
    static const char START[] = {'{', '"', 'a', '"', ':'};
    memcpy(header, START, sizeof START);
    refuse_bytes(header, DEEP, 0, "expected '{'");
    free(header);
}

// CPU time of this thread, so that other processes do not matter.
static int64_t reading_takes_ns(int tensors) {
    enum { EACH = 96 };
    struct timespec begun, ended;
    struct safetensors file;
    char *header = malloc((size_t)tensors * EACH);
    assert_non_null(header);
    size_t used = 0;
    for (int i = 0; i < tensors; i++) {
        used += (size_t)sprintf(header + used, "%s\"model.layers.%d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
                                i ? "," : "{", i);
    }
    header[used++] = '}';
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
    assert_false(err_is(parse_bytes(header, used, 0, &file)));
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ended);
    assert_int_equal(file.count, tensors);
    safetensors_close(&file);
    free(header);
    return (ended.tv_sec - begun.tv_sec) * (int64_t)NS_PER_S + ended.tv_nsec - begun.tv_nsec;
}

// Sixteen times as many tensors take about sixteen times as long; quadratic code would take 256 times as long.
static void the_time_of_a_header_grows_with_its_length(void **state) {
    (void)state;
    enum { FEW = 5000, MANY = 16 * FEW, TRIES = 5, MOST = 64 };
    bool linear = false;
    for (int i = 0; i < TRIES && !linear; i++) { // timings vary
        linear = reading_takes_ns(MANY) < MOST * reading_takes_ns(FEW);
    }
    assert_true(linear);
}

// ---- files ----

static void other_than_regular_files_are_refused_without_waiting(void **state) {
    (void)state;
    struct safetensors file;
    assert_int_equal(mkfifo(path_of("fifo"), 0600), 0);
    assert_int_equal(safetensors_open(path_of("fifo"), &file).code, EXPERTD_ERR_CHECKPOINT);
    assert_non_null(strstr(expertd_err_message(), "not a regular file"));
    assert_int_equal(safetensors_open("/dev/zero", &file).code, EXPERTD_ERR_CHECKPOINT);
    assert_int_equal(safetensors_open(folder, &file).code, EXPERTD_ERR_CHECKPOINT);
    assert_int_equal(safetensors_open(path_of("absent"), &file).code, EXPERTD_ERR_CHECKPOINT);
    assert_non_null(strstr(expertd_err_message(), "absent: No such file"));
    int fd = open(path_of("empty"), O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(safetensors_open(path_of("empty"), &file).code, EXPERTD_ERR_CHECKPOINT);
    assert_non_null(strstr(expertd_err_message(), "it is empty"));
}

static struct safetensors_entry entry_of(const char *name, enum expertd_dtype dtype, const void *data, uint64_t n) {
    return (struct safetensors_entry){
        .name = name, .view = {.dtype = dtype, .rank = 1, .shape = {n}, .data = data, .bytes = n * expertd_dtype_size(dtype)}};
}

static void written_files_read_back(void **state) {
    (void)state;
    static const float VALUES[3] = {1, -2, 0.5f};
    static const uint8_t BYTES[5] = {1, 2, 3, 4, 5};
    const struct safetensors_entry entries[] = {entry_of("z \"quoted\" \\ \xc3\xa9", EXPERTD_DTYPE_U8, BYTES, 5),
                                                entry_of("a", EXPERTD_DTYPE_F32, VALUES, 3),
                                                entry_of("none", EXPERTD_DTYPE_BF16, "", 0)};
    struct safetensors file;
    assert_false(err_is(safetensors_write(path_of("out"), entries, 3)));
    assert_false(err_is(safetensors_open(path_of("out"), &file)));
    assert_int_equal(file.count, 3);
    assert_memory_equal(safetensors_find(&file, "a")->view.data, VALUES, sizeof VALUES);
    assert_memory_equal(safetensors_find(&file, entries[0].name)->view.data, BYTES, sizeof BYTES);
    assert_int_equal(safetensors_find(&file, "none")->view.shape[0], 0);
    safetensors_close(&file);
    safetensors_close(&file); // a second close is legal
    assert_false(err_is(safetensors_write(path_of("out"), NULL, 0)));
    assert_false(err_is(safetensors_open(path_of("out"), &file)));
    assert_int_equal(file.count, 0);
    safetensors_close(&file);
}

static void inconsistent_views_are_not_written(void **state) {
    (void)state;
    struct safetensors_entry entries[2] = {entry_of("a", EXPERTD_DTYPE_U8, "abc", 3), entry_of("a", EXPERTD_DTYPE_U8, "abc", 3)};
    assert_int_equal(safetensors_write(path_of("twice"), entries, 2).code, EXPERTD_ERR_INVALID);
    entries[0].view.bytes = 2;
    assert_int_equal(safetensors_write(path_of("twice"), entries, 1).code, EXPERTD_ERR_INVALID);
    entries[0] = entry_of("__metadata__", EXPERTD_DTYPE_U8, "abc", 3);
    assert_int_equal(safetensors_write(path_of("twice"), entries, 1).code, EXPERTD_ERR_INVALID);
    assert_int_equal(access(path_of("twice"), F_OK), -1);
}

static int count_files(void) {
    char command[128];
    snprintf(command, sizeof command, "exit $(ls '%s' | wc -l)", folder);
    return WEXITSTATUS(system(command));
}

// A limit on file sizes simulates a full disk: write fails in the middle of the data.
static void a_full_disk_keeps_the_old_file_and_leaves_no_other(void **state) {
    (void)state;
    static uint8_t large[1 << 16];
    const struct safetensors_entry small = entry_of("old", EXPERTD_DTYPE_U8, "abc", 3),
                                   big = entry_of("new", EXPERTD_DTYPE_U8, large, sizeof large);
    assert_false(err_is(safetensors_write(path_of("kept"), &small, 1)));
    int before = count_files();
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){4096, 4096});
        err_t e = safetensors_write(path_of("kept"), &big, 1);
        _exit(e.code == EXPERTD_ERR_IO && strstr(expertd_err_message(), "kept") ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(count_files(), before);
    struct safetensors file;
    assert_false(err_is(safetensors_open(path_of("kept"), &file)));
    assert_non_null(safetensors_find(&file, "old"));
    safetensors_close(&file);
}

static void writing_follows_a_link(void **state) {
    (void)state;
    char link[128];
    struct stat there;
    const struct safetensors_entry entry = entry_of("a", EXPERTD_DTYPE_U8, "abc", 3);
    assert_false(err_is(safetensors_write(path_of("behind"), NULL, 0)));
    snprintf(link, sizeof link, "%s", path_of("link"));
    assert_int_equal(symlink("behind", link), 0);
    assert_false(err_is(safetensors_write(link, &entry, 1)));
    assert_int_equal(lstat(link, &there), 0);
    assert_true(S_ISLNK(there.st_mode));
    struct safetensors file;
    assert_false(err_is(safetensors_open(path_of("behind"), &file)));
    assert_non_null(safetensors_find(&file, "a"));
    safetensors_close(&file);
}

static void a_missing_folder_is_reported(void **state) {
    (void)state;
    const struct safetensors_entry entry = entry_of("a", EXPERTD_DTYPE_U8, "abc", 3);
    assert_int_equal(safetensors_write(path_of("no/such/file"), &entry, 1).code, EXPERTD_ERR_IO);
    assert_non_null(strstr(expertd_err_message(), "no/such/file"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_scalar_and_zero_dims_are_legal),
        cmocka_unit_test(empty_tensors_may_be_between_others),
        cmocka_unit_test(entries_are_found_by_name_in_any_order),
        cmocka_unit_test(unknown_keys_are_skipped_but_must_be_json),
        cmocka_unit_test(metadata_may_be_null),
        cmocka_unit_test(metadata_is_kept_and_unescaped),
        cmocka_unit_test(types_that_are_only_stored_are_checked_for_size_and_have_no_dtype),
        cmocka_unit_test(two_codes_of_4_bits_are_given_as_a_byte),
        cmocka_unit_test(short_and_empty_files_are_refused),
        cmocka_unit_test(a_wrong_header_length_is_refused_without_allocation),
        cmocka_unit_test(bad_json_is_refused),
        cmocka_unit_test(bad_utf8_is_refused),
        cmocka_unit_test(a_git_lfs_pointer_is_recognised),
        cmocka_unit_test(a_gap_an_overlap_and_a_wrong_end_are_refused),
        cmocka_unit_test(a_size_that_differs_from_the_shape_is_refused),
        cmocka_unit_test(overflowing_shapes_are_refused),
        cmocka_unit_test(fractions_and_negative_numbers_are_refused),
        cmocka_unit_test(duplicates_are_refused),
        cmocka_unit_test(entries_must_be_complete_and_known),
        cmocka_unit_test(rank_and_names_are_bounded),
        cmocka_unit_test(deep_nesting_is_refused_without_recursion),
        cmocka_unit_test(the_time_of_a_header_grows_with_its_length),
        cmocka_unit_test(other_than_regular_files_are_refused_without_waiting),
        cmocka_unit_test(written_files_read_back),
        cmocka_unit_test(inconsistent_views_are_not_written),
        cmocka_unit_test(a_full_disk_keeps_the_old_file_and_leaves_no_other),
        cmocka_unit_test(writing_follows_a_link),
        cmocka_unit_test(a_missing_folder_is_reported),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
