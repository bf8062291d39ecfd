// Digests: equal elements give equal digests in any layout; the published XXH3 values are reproduced.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "expert/checkpoint/digest.h"

enum { N = 150, K = 70 };

static uint64_t digest_of(const struct expertd_weight_source *source, size_t n, size_t k) {
    struct digest d;
    size_t bytes = digest_scratch_bytes(source, n, k);
    void *scratch = malloc(bytes ? bytes : 1); // exact, so that sanitizers see an overrun
    assert_non_null(scratch);
    digest_init(&d);
    digest_matrix(&d, source, n, k, scratch);
    free(scratch);
    return digest_64(&d);
}

static void fill(uint8_t *codes, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        codes[i] = (uint8_t)(i * 167 + i / 251);
    }
}

static void digest_is_xxh3_of_the_bytes(void **state) {
    (void)state;
    // XXH3_64bits("") and XXH3_128bits(""), as xxHash publishes them, and of "a".
    struct digest d;
    uint8_t wide[DIGEST_128_BYTES];
    static const uint8_t empty_128[DIGEST_128_BYTES] = {0x99, 0xaa, 0x06, 0xd3, 0x01, 0x47, 0x98, 0xd8,
                                                        0x60, 0x01, 0xc3, 0x24, 0x46, 0x8d, 0x49, 0x7f};
    digest_init(&d);
    assert_int_equal(digest_64(&d), 0x2d06800538d394c2u);
    digest_128(&d, wide);
    assert_memory_equal(wide, empty_128, sizeof wide);
    digest_update(&d, "a", 1);
    assert_int_equal(digest_64(&d), 0xe6c632b61e964e1fu);
}

static void digest_continues_after_it_was_read(void **state) {
    (void)state;
    uint8_t codes[5000];
    fill(codes, sizeof codes);
    struct digest whole, pieces;
    digest_init(&whole);
    digest_update(&whole, codes, sizeof codes);
    digest_init(&pieces);
    for (size_t i = 0; i < sizeof codes; i += 500) {
        (void)digest_64(&pieces);
        digest_update(&pieces, codes + i, 500);
    }
    assert_int_equal(digest_64(&whole), digest_64(&pieces));
}

static void matrix_digest_is_that_of_the_row_major_codes(void **state) {
    (void)state;
    static const enum expertd_dtype dtypes[] = {EXPERTD_DTYPE_F32, EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_F16};
    for (size_t t = 0; t < 3; t++) {
        size_t size = expertd_dtype_size(dtypes[t]);
        size_t bytes = (size_t)N * K * size;
        uint8_t *rows = malloc(bytes), *columns = malloc(bytes), *even = calloc(2, bytes), *shifted = malloc(bytes + 1);
        assert_true(rows && columns && even && shifted);
        fill(rows, bytes);
        memcpy(shifted + 1, rows, bytes);
        for (size_t n = 0; n < N; n++) {
            memcpy(even + 2 * n * K * size, rows + n * K * size, K * size);
            for (size_t k = 0; k < K; k++) {
                memcpy(columns + (k * N + n) * size, rows + (n * K + k) * size, size);
            }
        }
        struct digest d;
        digest_init(&d);
        digest_update(&d, rows, bytes);
        uint64_t wanted = digest_64(&d);
        assert_int_equal(wanted, digest_of(&(struct expertd_weight_source){rows, dtypes[t], K, 1}, N, K));
        assert_int_equal(wanted, digest_of(&(struct expertd_weight_source){columns, dtypes[t], 1, N}, N, K));
        assert_int_equal(wanted, digest_of(&(struct expertd_weight_source){even, dtypes[t], (size_t)2 * K, 1}, N, K));
        assert_int_equal(wanted, digest_of(&(struct expertd_weight_source){shifted + 1, dtypes[t], K, 1}, N, K));
        columns[bytes / 2] ^= 1;
        assert_int_not_equal(wanted, digest_of(&(struct expertd_weight_source){columns, dtypes[t], 1, N}, N, K));
        free(rows);
        free(columns);
        free(even);
        free(shifted);
    }
}

static void vector_digest_follows_its_stride(void **state) {
    (void)state;
    uint16_t dense[N], strided[2 * N] = {0};
    for (size_t i = 0; i < N; i++) {
        dense[i] = strided[2 * i] = (uint16_t)(i * 257 + 3);
    }
    assert_int_equal(digest_of(&(struct expertd_weight_source){dense, EXPERTD_DTYPE_BF16, 0, 1}, 1, N),
                     digest_of(&(struct expertd_weight_source){strided, EXPERTD_DTYPE_BF16, 0, 2}, 1, N));
}

static void the_boundary_between_texts_counts(void **state) {
    (void)state;
    struct digest a, b;
    digest_init(&a);
    digest_text(&a, "ab");
    digest_text(&a, "c");
    digest_init(&b);
    digest_text(&b, "a");
    digest_text(&b, "bc");
    assert_int_not_equal(digest_64(&a), digest_64(&b));
}

static void numbers_are_added_little_endian(void **state) {
    (void)state;
    struct digest a, b;
    digest_init(&a);
    digest_u64(&a, 0x0807060504030201u);
    digest_f32(&a, 1.0f);
    digest_init(&b);
    digest_update(&b, "\1\2\3\4\5\6\7\10\0\0\x80\x3f", 12);
    assert_int_equal(digest_64(&a), digest_64(&b));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digest_is_xxh3_of_the_bytes),
        cmocka_unit_test(digest_continues_after_it_was_read),
        cmocka_unit_test(matrix_digest_is_that_of_the_row_major_codes),
        cmocka_unit_test(vector_digest_follows_its_stride),
        cmocka_unit_test(the_boundary_between_texts_counts),
        cmocka_unit_test(numbers_are_added_little_endian),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
