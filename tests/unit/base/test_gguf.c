// Every rule of the GGUF format, with files that the test composes and damages.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/gguf/gguf.h"

enum { FILE_BYTES_MAX = 1 << 16 };

// A file in memory that grows at its end.
struct image {
    unsigned char bytes[FILE_BYTES_MAX];
    size_t size;
};

static void put(struct image *image, const void *bytes, size_t count) {
    assert_true(count <= FILE_BYTES_MAX - image->size);
    memcpy(image->bytes + image->size, bytes, count);
    image->size += count;
}

static void put_number(struct image *image, uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        put(image, &(unsigned char){(unsigned char)(value >> (8 * i))}, 1);
    }
}

static void put_text(struct image *image, const char *text) {
    put_number(image, strlen(text), 8);
    put(image, text, strlen(text));
}

static struct image *begin(uint32_t version, uint64_t tensors, uint64_t pairs) {
    static struct image image;
    image.size = 0;
    put(&image, "GGUF", 4);
    put_number(&image, version, 4);
    put_number(&image, tensors, 8);
    put_number(&image, pairs, 8);
    return &image;
}

static void put_key(struct image *image, const char *key, uint32_t kind) {
    put_text(image, key);
    put_number(image, kind, 4);
}

static void put_u32(struct image *image, const char *key, uint32_t value) {
    put_key(image, key, GGUF_U32);
    put_number(image, value, 4);
}

// dims: innermost first, as in the file; a 0 ends them.
static void put_tensor(struct image *image, const char *name, const uint64_t dims[4], uint32_t type, uint64_t offset) {
    uint32_t rank = 0;
    while (rank < 4 && dims[rank] > 0) {
        rank++;
    }
    put_text(image, name);
    put_number(image, rank, 4);
    for (uint32_t i = 0; i < rank; i++) {
        put_number(image, dims[i], 8);
    }
    put_number(image, type, 4);
    put_number(image, offset, 8);
}

static void pad(struct image *image, size_t alignment) {
    while (image->size % alignment != 0) {
        put_number(image, 0, 1);
    }
}

static void put_data(struct image *image, size_t bytes) {
    pad(image, 32);
    for (size_t i = 0; i < bytes; i++) {
        put_number(image, i, 1);
    }
}

static struct gguf accept(const struct image *image) {
    struct gguf file;
    err_t e = gguf_parse("FILE", image->bytes, image->size, &file);
    if (err_is(e)) {
        fail_msg("refused: %s", expertd_err_message());
    }
    return file;
}

static void refuse(const struct image *image, const char *message) {
    struct gguf file;
    err_t e = gguf_parse("FILE", image->bytes, image->size, &file);
    if (!err_is(e)) {
        fail_msg("accepted; expected: %s", message);
    }
    assert_int_equal(e.code, EXPERTD_ERR_CHECKPOINT);
    if (!strstr(expertd_err_message(), message)) {
        fail_msg("%s\nexpected: %s", expertd_err_message(), message);
    }
}

static void reads_tensors_with_the_outermost_dimension_first(void **state) {
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        struct image *image = begin(version, 2, 0);
        put_tensor(image, "b", (uint64_t[4]){32, 3, 2, version == 3}, GGML_Q8_0, 0); // with a padding dimension of 1
        put_tensor(image, "a", (uint64_t[4]){5}, 0, 224);
        put_data(image, 224 + 20);
        struct gguf file = accept(image);
        assert_int_equal(file.tensors.count, 2);
        const struct safetensors_entry *a = &file.tensors.entries[0], *b = &file.tensors.entries[1];
        assert_string_equal(a->name, "a");
        assert_int_equal(a->view.dtype, EXPERTD_DTYPE_F32);
        assert_null(a->blocks);
        assert_int_equal(a->view.bytes, 20);
        assert_int_equal(*(const unsigned char *)a->view.data, 224);
        assert_int_equal(b->view.rank, 3);
        assert_int_equal(b->view.shape[0], 2);
        assert_int_equal(b->view.shape[2], 32);
        assert_string_equal(b->blocks->name, "Q8_0");
        assert_int_equal(b->view.bytes, 6 * 34);
        gguf_close(&file);
    }
}

static void keeps_the_alignment_that_the_file_states(void **state) {
    (void)state;
    struct image *image = begin(3, 2, 1);
    put_u32(image, "general.alignment", 8);
    put_tensor(image, "a", (uint64_t[4]){1}, 0, 0);
    put_tensor(image, "b", (uint64_t[4]){1}, 0, 8);
    pad(image, 8);
    put_number(image, 0, 8);
    put_number(image, 0, 4); // the last tensor is not padded
    struct gguf file = accept(image);
    assert_int_equal(file.tensors.count, 2);
    gguf_close(&file);
    const uint32_t wrong[] = {0, 3, 1u << 30};
    for (size_t i = 0; i < 3; i++) {
        image = begin(3, 0, 1);
        put_u32(image, "general.alignment", wrong[i]);
        refuse(image, "general.alignment: it is");
    }
}

static void reads_values_of_every_kind(void **state) {
    (void)state;
    const struct {
        enum gguf_kind kind;
        uint64_t bits;
        size_t bytes;
        double value;
        bool integer;
    } rows[] = {
        {GGUF_U8, 200, 1, 200, true},
        {GGUF_I8, 0xff, 1, -1, true},
        {GGUF_U16, 65535, 2, 65535, true},
        {GGUF_I16, 0xfffe, 2, -2, true},
        {GGUF_U32, 4294967295, 4, 4294967295, true},
        {GGUF_I32, 0xfffffffd, 4, -3, true},
        {GGUF_U64, 1ull << 40, 8, 1099511627776, true},
        {GGUF_I64, UINT64_MAX, 8, -1, true},
        {GGUF_F32, 0x3fc00000, 4, 1.5, false},
        {GGUF_F64, 0xbff8000000000000, 8, -1.5, false},
        {GGUF_BOOL, 1, 1, 1, false},
    };
    enum { ROWS = sizeof rows / sizeof *rows };
    struct image *image = begin(3, 0, 2 * ROWS);
    char key[16];
    for (size_t i = 0; i < ROWS; i++) {
        snprintf(key, sizeof key, "one.%zu", i);
        put_key(image, key, rows[i].kind);
        put_number(image, rows[i].bits, rows[i].bytes);
        snprintf(key, sizeof key, "two.%zu", i);
        put_key(image, key, GGUF_ARRAY);
        put_number(image, rows[i].kind, 4);
        put_number(image, 2, 8);
        put_number(image, 0, rows[i].bytes);
        put_number(image, rows[i].bits, rows[i].bytes);
    }
    struct gguf file = accept(image);
    for (size_t i = 0; i < ROWS; i++) {
        double value = 0;
        snprintf(key, sizeof key, "one.%zu", i);
        const struct gguf_value *one = gguf_find(&file, key);
        assert_non_null(one);
        assert_true(gguf_number(one, 0, &value) && value == rows[i].value);
        assert_true(gguf_is_integer(one) == rows[i].integer);
        snprintf(key, sizeof key, "two.%zu", i);
        const struct gguf_value *two = gguf_find(&file, key);
        assert_true(gguf_number(two, 1, &value) && value == rows[i].value);
        assert_true(gguf_number(two, 0, &value) && value == 0);
        assert_false(gguf_number(two, 2, &value));
    }
    assert_null(gguf_find(&file, "one"));
    gguf_close(&file);
}

static void reads_texts_and_skips_arrays_of_them(void **state) {
    (void)state;
    struct image *image = begin(3, 0, 3);
    put_key(image, "general.architecture", GGUF_STRING);
    put_text(image, "llama");
    put_key(image, "tokens", GGUF_ARRAY);
    put_number(image, GGUF_STRING, 4);
    put_number(image, 3, 8);
    put_text(image, "a");
    put_text(image, "");
    put_text(image, "ccc");
    put_key(image, "nested", GGUF_ARRAY);
    put_number(image, GGUF_ARRAY, 4);
    put_number(image, 2, 8);
    for (int i = 0; i < 2; i++) {
        put_number(image, GGUF_U16, 4);
        put_number(image, 2, 8);
        put_number(image, 7, 4);
    }
    struct gguf file = accept(image);
    double value;
    assert_true(gguf_is_text(gguf_find(&file, "general.architecture"), "llama"));
    assert_false(gguf_is_text(gguf_find(&file, "general.architecture"), "llama4"));
    assert_false(gguf_number(gguf_find(&file, "general.architecture"), 0, &value));
    assert_int_equal(gguf_find(&file, "tokens")->count, 3);
    assert_false(gguf_number(gguf_find(&file, "nested"), 0, &value));
    gguf_close(&file);
}

static void refuses_what_is_not_a_file_of_a_known_version(void **state) {
    (void)state;
    refuse(&(struct image){.size = 0}, "it does not begin with \"GGUF\": it is not a GGUF file, it is empty");
    struct image *image = begin(3, 0, 0);
    image->bytes[0] = 'g';
    refuse(image, "it does not begin with \"GGUF\"");
    refuse(begin(1, 0, 0), "GGUF version 1 is not supported: expected 2 or 3; convert the model again");
    refuse(begin(4, 0, 0), "GGUF version 4 is not supported");
    refuse(begin(0, 0, 0), "GGUF version 0 is not supported");
    refuse(begin(0x03000000, 0, 0), "the file is big-endian");
    image = begin(3, 0, 0);
    image->size = 0;
    put(image, "version https://git-lfs.github.com/spec/v1\n", 43);
    refuse(image, "it is a Git LFS pointer");
}

static void refuses_false_counts(void **state) {
    (void)state;
    refuse(begin(3, 1, 0), "the header continues past byte 24");
    refuse(begin(3, UINT64_MAX, 0), "the header claims 18446744073709551615 tensors");
    refuse(begin(3, 0, 1ull << 40), "keys: at most");
    struct image *image = begin(3, 0, 1);
    put_number(image, UINT64_MAX, 8);
    refuse(image, "a key has 18446744073709551615 bytes");
    image = begin(3, 0, 1);
    put_key(image, "k", GGUF_STRING);
    put_number(image, UINT64_MAX, 8);
    refuse(image, "k: the header continues past byte");
    image = begin(3, 0, 1);
    put_key(image, "k", GGUF_ARRAY);
    put_number(image, GGUF_U64, 4);
    put_number(image, 1ull << 61, 8); // times 8 is 0 in 64 bits
    refuse(image, "k: the header continues past byte");
    image = begin(3, 0, 1);
    put_key(image, "k", GGUF_ARRAY);
    put_number(image, GGUF_STRING, 4);
    put_number(image, UINT64_MAX, 8);
    refuse(image, "k: the header continues past byte");
}

static void refuses_damaged_values(void **state) {
    (void)state;
    struct image *image = begin(3, 0, 1);
    put_key(image, "k", 13);
    refuse(image, "k: its type is 13: types 0 to 12 are known");
    image = begin(3, 0, 1);
    put_key(image, "k", GGUF_BOOL);
    put_number(image, 2, 1);
    refuse(image, "k: a truth value is 2: expected 0 or 1");
    image = begin(3, 0, 1);
    put_key(image, "k", GGUF_ARRAY);
    for (int i = 0; i < 5; i++) {
        put_number(image, GGUF_ARRAY, 4);
        put_number(image, 1, 8);
    }
    refuse(image, "k: arrays are nested more than 4 deep");
    image = begin(3, 0, 1);
    put_u32(image, "a\nb", 1);
    refuse(image, "a key contains the control character 0x0a");
    image = begin(3, 0, 2);
    put_u32(image, "k", 1);
    put_u32(image, "k", 1);
    refuse(image, "k is given twice");
}

// One tensor with what is wrong.
static void refuse_tensor(const char *name, const uint64_t dims[4], uint32_t type, uint64_t offset, const char *message) {
    struct image *image = begin(3, 1, 0);
    put_tensor(image, name, dims, type, offset);
    put_data(image, 64);
    refuse(image, message);
}

static void refuses_damaged_tensors(void **state) {
    (void)state;
    refuse_tensor("t", (uint64_t[4]){4}, 36, 0,
                  "tensor t: its type is 36, IQ4_NL_4_4, which llama.cpp has withdrawn: use the model's IQ4_NL file");
    refuse_tensor("t", (uint64_t[4]){4}, 31, 0, "tensor t: its type is 31, Q4_0_4_4, which llama.cpp has withdrawn");
    refuse_tensor("t", (uint64_t[4]){4}, 4, 0, "or, of Ollama's gpt-oss, which has its own MXFP4 under this number, llama.cpp's");
    refuse_tensor("t", (uint64_t[4]){4}, 144, 0,
                  "tensor t: its type is 144, IQ4_KS of ik_llama.cpp, which is not served: use a file");
    refuse_tensor("t", (uint64_t[4]){4}, 97, 0, "tensor t: its type is 97, a type of ik_llama.cpp");
    refuse_tensor("t", (uint64_t[4]){4}, 399, 0, "tensor t: its type is 399, a type of ik_llama.cpp");
    refuse_tensor("t", (uint64_t[4]){4}, 400, 0, "tensor t: its type is 400, which is unknown");
    refuse_tensor("t", (uint64_t[4]){4}, UINT32_MAX, 0, "tensor t: its type is 4294967295");
    refuse_tensor("t", (uint64_t[4]){33}, GGML_Q4_0, 0, "tensor t: its rows have 33 elements, which do not fill blocks of Q4_0");
    refuse_tensor("t", (uint64_t[4]){1ull << 40, 1ull << 40}, 0, 0, "tensor t: the product of shape");
    refuse_tensor("t", (uint64_t[4]){1ull << 62}, 28, 0, "tensor t: its size overflows");
    refuse_tensor("t", (uint64_t[4]){16}, 0, 4, "which is not a multiple of general.alignment, 32");
    refuse_tensor("t", (uint64_t[4]){16}, 0, 32,
                  "tensor t begins at byte 32 of the data, past byte 0, where the header ends: a gap");
    refuse_tensor("t", (uint64_t[4]){17}, 0, 0, "tensor t ends at byte 68 of the data, but the file has 64: the file is truncated");
    refuse_tensor("t", (uint64_t[4]){8}, 0, 0, "the tensors end at byte");
    refuse_tensor("", (uint64_t[4]){16}, 0, 0, "a tensor's name has 0 bytes");
    refuse_tensor("t\x1b", (uint64_t[4]){16}, 0, 0, "a tensor's name contains the control character 0x1b");
    struct image *image = begin(3, 1, 0);
    put_text(image, "t");
    put_number(image, 5, 4);
    refuse(image, "tensor t: it has 5 dimensions: at most 4 are allowed");
}

static void refuses_overlaps_and_repeated_names(void **state) {
    (void)state;
    struct image *image = begin(3, 2, 0);
    put_tensor(image, "a", (uint64_t[4]){16}, 0, 0);
    put_tensor(image, "b", (uint64_t[4]){8}, 0, 32);
    put_data(image, 64);
    refuse(image, "tensor b begins at byte 32 of the data, before byte 64, where a ends: an overlap");
    image = begin(3, 2, 0);
    put_tensor(image, "a", (uint64_t[4]){8}, 0, 0);
    put_tensor(image, "a", (uint64_t[4]){8}, 0, 32);
    put_data(image, 64);
    refuse(image, "tensor a is given twice");
}

// Every prefix of a sound file is refused, and no byte's change is read out of bounds (sanitizers watch).
static void survives_every_cut_and_every_changed_byte(void **state) {
    (void)state;
    struct image *image = begin(3, 1, 2);
    put_u32(image, "k", 1);
    put_key(image, "list", GGUF_ARRAY);
    put_number(image, GGUF_STRING, 4);
    put_number(image, 1, 8);
    put_text(image, "x");
    put_tensor(image, "t", (uint64_t[4]){32, 2}, GGML_Q4_0, 0);
    size_t header = image->size;
    put_data(image, 36);
    struct gguf file;
    for (size_t size = 0; size < image->size; size++) {
        unsigned char *cut = malloc(size + 1);
        memcpy(cut, image->bytes, size);
        assert_true(err_is(gguf_parse("FILE", cut, size, &file)));
        free(cut);
    }
    for (size_t i = 0; i < header; i++) {
        unsigned char byte = image->bytes[i];
        for (unsigned value = 0; value < 256; value += 5) {
            image->bytes[i] = (unsigned char)value;
            if (!err_is(gguf_parse("FILE", image->bytes, image->size, &file))) {
                gguf_close(&file);
            }
        }
        image->bytes[i] = byte;
    }
}

static void every_type_has_a_block(void **state) {
    (void)state;
    size_t count = 0;
    for (uint32_t id = 0; id < GGML_TYPE_IDS + 8; id++) {
        const struct ggml_type *type = ggml_type_of(id);
        if (type) {
            count++;
            assert_int_equal(type->id, id);
            assert_true(type->elements > 0 && type->bytes > 0 && type->elements <= 256);
            assert_true((type->dtype == EXPERTD_DTYPE_NONE) == (type->elements > 1));
            assert_true(type->dtype == EXPERTD_DTYPE_NONE || expertd_dtype_size(type->dtype) == type->bytes);
        }
    }
    assert_int_equal(count, 34);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_tensors_with_the_outermost_dimension_first),
        cmocka_unit_test(keeps_the_alignment_that_the_file_states),
        cmocka_unit_test(reads_values_of_every_kind),
        cmocka_unit_test(reads_texts_and_skips_arrays_of_them),
        cmocka_unit_test(refuses_what_is_not_a_file_of_a_known_version),
        cmocka_unit_test(refuses_false_counts),
        cmocka_unit_test(refuses_damaged_values),
        cmocka_unit_test(refuses_damaged_tensors),
        cmocka_unit_test(refuses_overlaps_and_repeated_names),
        cmocka_unit_test(survives_every_cut_and_every_changed_byte),
        cmocka_unit_test(every_type_has_a_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
