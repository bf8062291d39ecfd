// Rows of transposed matrices: every element is read from its position, at every edge of the tiles, and nothing else is written.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "expert/checkpoint/gathered_rows.h"

enum { N = 130, K_MOST = 70, GUARD = 64, POISON = 0xa5 };

static void fill(uint8_t *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        bytes[i] = (uint8_t)(i * 167 + i / 251);
    }
}

// Compares the rows with the source, element by element.
static void check(const struct expertd_weight_source *source, size_t first, size_t rows, size_t k) {
    const size_t size = expertd_dtype_size(source->dtype), bytes = rows * k * size;
    uint8_t *guarded = malloc(bytes + 2 * GUARD), *dst = guarded + GUARD;
    assert_non_null(guarded);
    memset(guarded, POISON, bytes + 2 * GUARD);
    gather_rows(source, first, rows, k, dst);
    for (size_t r = 0; r < rows; r++) {
        for (size_t i = 0; i < k; i++) {
            const size_t at = (first + r) * source->n_stride + i * source->k_stride;
            assert_memory_equal(dst + (r * k + i) * size, (const uint8_t *)source->data + at * size, size);
        }
    }
    for (size_t i = 0; i < GUARD; i++) {
        assert_int_equal(guarded[i], POISON);
        assert_int_equal(dst[bytes + i], POISON);
    }
    free(guarded);
}

static void every_element_is_gathered_from_its_position(void **state) {
    (void)state;
    static const size_t rows[] = {1, 3, 4, 7, 8, 9, 63, 64}, ks[] = {1, 3, 4, 8, 31, 32, 33, 64, K_MOST};
    static const enum expertd_dtype dtypes[] = {EXPERTD_DTYPE_F32, EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_F16};
    for (size_t apart = 1; apart <= 3; apart++) {    // contiguous columns, interleaved gate and up, and a larger stride
        for (size_t shift = 0; shift < 2; shift++) { // tensors in files may be misaligned
            const size_t bytes = (size_t)N * apart * K_MOST * sizeof(float);
            uint8_t *codes = malloc(bytes + shift); // exact, so that sanitizers see a read past the end
            assert_non_null(codes);
            fill(codes, bytes + shift);
            for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++) {
                const struct expertd_weight_source source = {
                    .data = codes + shift, .dtype = dtypes[t], .n_stride = apart, .k_stride = N * apart};
                for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
                    for (size_t k = 0; k < sizeof ks / sizeof *ks; k++) {
                        check(&source, 0, rows[r], ks[k]);
                        check(&source, N - rows[r], rows[r], ks[k]);
                    }
                }
            }
            free(codes);
        }
    }
}

static void rows_at_once_is_bounded_by_the_rows_of_the_matrix(void **state) {
    (void)state;
    assert_int_equal(gathered_rows_at_once(1), 1);
    assert_int_equal(gathered_rows_at_once(63), 63);
    assert_int_equal(gathered_rows_at_once(64), 64);
    assert_int_equal(gathered_rows_at_once(4096), 64);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_is_gathered_from_its_position),
        cmocka_unit_test(rows_at_once_is_bounded_by_the_rows_of_the_matrix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
