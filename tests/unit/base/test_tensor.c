#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "expertd/base/tensor.h"

static void sizes_are_products(void **state) {
    (void)state;
    uint64_t n;
    assert_false(err_is(expertd_tensor_elements((uint64_t[]){3, 4, 5}, 3, &n)));
    assert_int_equal(n, 60);
    assert_false(err_is(expertd_tensor_elements(NULL, 0, &n))); // a scalar
    assert_int_equal(n, 1);
    assert_false(err_is(expertd_tensor_elements((uint64_t[]){7, 0}, 2, &n)));
    assert_int_equal(n, 0);
    assert_false(err_is(expertd_tensor_bytes(EXPERTD_DTYPE_F16, (uint64_t[]){3, 5}, 2, &n)));
    assert_int_equal(n, 30);
    assert_false(err_is(expertd_tensor_elements((uint64_t[]){INT64_MAX}, 1, &n)));
    assert_int_equal(n, INT64_MAX);
}

static void overflow_is_an_error_that_shows_the_shape(void **state) {
    (void)state;
    uint64_t n = 5;
    assert_int_equal(expertd_tensor_elements((uint64_t[]){(uint64_t)1 << 32, (uint64_t)1 << 31}, 2, &n).code,
                     EXPERTD_ERR_SHAPE_MISMATCH);
    assert_non_null(strstr(expertd_err_message(), "[4294967296, 2147483648]"));
    assert_int_equal(expertd_tensor_elements((uint64_t[]){UINT64_MAX, UINT64_MAX}, 2, &n).code, EXPERTD_ERR_SHAPE_MISMATCH);
    assert_int_equal(expertd_tensor_elements((uint64_t[]){(uint64_t)1 << 63}, 1, &n).code, EXPERTD_ERR_SHAPE_MISMATCH);
    assert_int_equal(expertd_tensor_bytes(EXPERTD_DTYPE_F32, (uint64_t[]){(uint64_t)1 << 61}, 1, &n).code,
                     EXPERTD_ERR_SHAPE_MISMATCH);
    assert_int_equal(expertd_tensor_bytes(EXPERTD_DTYPE_F32, (uint64_t[]){(uint64_t)1 << 62}, 1, &n).code,
                     EXPERTD_ERR_SHAPE_MISMATCH);
}

static void shape_text_is_read_like_python_and_fits(void **state) {
    (void)state;
    char text[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
    assert_string_equal(expertd_tensor_shape_text((uint64_t[]){32, 96}, 2, text), "[32, 96]");
    assert_string_equal(expertd_tensor_shape_text(NULL, 0, text), "[]");
    uint64_t greatest[EXPERTD_TENSOR_RANK_MAX];
    for (size_t i = 0; i < EXPERTD_TENSOR_RANK_MAX; i++) {
        greatest[i] = UINT64_MAX;
    }
    expertd_tensor_shape_text(greatest, EXPERTD_TENSOR_RANK_MAX, text);
    assert_true(strlen(text) < EXPERTD_TENSOR_SHAPE_TEXT_MAX);
    assert_int_equal(text[strlen(text) - 1], ']');
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_products),
        cmocka_unit_test(overflow_is_an_error_that_shows_the_shape),
        cmocka_unit_test(shape_text_is_read_like_python_and_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
