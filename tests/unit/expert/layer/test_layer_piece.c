// Pieces of a request, as views of its rows; and which rows are computed.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "expert/layer/layer_piece.h"

enum { T = 6, H = 4, K = 3, E = 5 };

static struct expertd_tensor_view view(enum expertd_dtype dtype, const void *data, uint64_t rows, uint64_t columns) {
    return (struct expertd_tensor_view){
        .dtype = dtype, .rank = 2, .shape = {rows, columns}, .data = data, .bytes = rows * columns * expertd_dtype_size(dtype)};
}

static void check(const struct expertd_tensor_view *piece, const struct expertd_tensor_view *whole, uint64_t first,
                  uint64_t tokens) {
    uint64_t row_bytes = whole->bytes / T;
    assert_ptr_equal(piece->data, (const char *)whole->data + first * row_bytes);
    assert_int_equal(piece->shape[0], tokens);
    assert_int_equal(piece->shape[1], whole->shape[1]);
    assert_int_equal(piece->bytes, tokens * row_bytes);
}

static void a_piece_of_routed_rows_has_their_rows_of_every_tensor(void **state) {
    (void)state;
    static char hidden[T * H], scale[T * 4], ids[T * K * 8], weights[T * K * 2], output[T * H * 2];
    struct layer_request whole = {.tokens = T,
                                  .hidden = view(EXPERTD_DTYPE_F8_E4M3, hidden, T, H),
                                  .hidden_scale = view(EXPERTD_DTYPE_F32, scale, T, 1),
                                  .source = ROUTING_GIVEN,
                                  .ids = view(EXPERTD_DTYPE_I64, ids, T, K),
                                  .weights = view(EXPERTD_DTYPE_BF16, weights, T, K),
                                  .output_dtype = EXPERTD_DTYPE_BF16,
                                  .output = output};
    struct layer_request piece = layer_request_piece(&whole, 2, 3, H);
    assert_int_equal(piece.tokens, 3);
    check(&piece.hidden, &whole.hidden, 2, 3);
    check(&piece.hidden_scale, &whole.hidden_scale, 2, 3);
    check(&piece.ids, &whole.ids, 2, 3);
    check(&piece.weights, &whole.weights, 2, 3);
    assert_ptr_equal(piece.output, output + 2 * H * 2);
}

static void one_scale_for_all_rows_is_not_cut(void **state) {
    (void)state;
    static char hidden[T * H], output[T * H * 4], logits[T * E * 4];
    static float scale;
    struct layer_request whole = {.tokens = T,
                                  .hidden = view(EXPERTD_DTYPE_F8_E5M2, hidden, T, H),
                                  .hidden_scale = {.dtype = EXPERTD_DTYPE_F32, .rank = 1, .shape = {1}, .data = &scale, .bytes = 4},
                                  .source = ROUTING_LOGITS,
                                  .logits = view(EXPERTD_DTYPE_F32, logits, T, E),
                                  .output_dtype = EXPERTD_DTYPE_F32,
                                  .output = output};
    struct layer_request piece = layer_request_piece(&whole, 5, 1, H);
    assert_ptr_equal(piece.hidden_scale.data, &scale);
    assert_int_equal(piece.hidden_scale.bytes, 4);
    check(&piece.logits, &whole.logits, 5, 1);
}

static void all_rows_are_the_request_itself(void **state) {
    (void)state;
    static char hidden[T * H * 4], output[T * H * 4];
    struct layer_request whole = {
        .tokens = T, .hidden = view(EXPERTD_DTYPE_F32, hidden, T, H), .output_dtype = EXPERTD_DTYPE_F32, .output = output};
    struct layer_request piece = layer_request_piece(&whole, 0, T, H);
    check(&piece.hidden, &whole.hidden, 0, T);
    assert_ptr_equal(piece.output, output);
}

static void rows_whose_ids_are_all_negative_are_not_read(void **state) {
    (void)state;
    static const int32_t ids[2 * K] = {-1, -7, INT32_MIN, -1, 0, -1};
    static const int64_t wide[2 * K] = {-1, INT64_MIN, -3, -1, -1, 4};
    struct layer_request request = {.tokens = 2, .source = ROUTING_GIVEN, .ids = view(EXPERTD_DTYPE_I32, ids, 2, K)};
    assert_false(layer_request_reads_row(&request, 0));
    assert_true(layer_request_reads_row(&request, 1));
    assert_false(layer_request_is_empty(&request));
    request.ids = view(EXPERTD_DTYPE_I64, wide, 2, K);
    assert_false(layer_request_reads_row(&request, 0));
    assert_true(layer_request_reads_row(&request, 1));
    assert_false(layer_request_is_empty(&request));
    request.tokens = 1;
    assert_true(layer_request_is_empty(&request));
}

static void rows_for_shared_experts_or_the_router_are_read(void **state) {
    (void)state;
    static const int32_t ids[K] = {-1, -1, -1};
    struct layer_request request = {
        .tokens = 1, .source = ROUTING_GIVEN, .ids = view(EXPERTD_DTYPE_I32, ids, 1, K), .shared = true};
    assert_true(layer_request_reads_row(&request, 0));
    assert_false(layer_request_is_empty(&request));
    request = (struct layer_request){.tokens = 1, .source = ROUTING_OWN};
    assert_true(layer_request_reads_row(&request, 0));
    assert_false(layer_request_is_empty(&request));
    request.tokens = 0;
    assert_true(layer_request_is_empty(&request));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_piece_of_routed_rows_has_their_rows_of_every_tensor),
        cmocka_unit_test(one_scale_for_all_rows_is_not_cut),
        cmocka_unit_test(all_rows_are_the_request_itself),
        cmocka_unit_test(rows_whose_ids_are_all_negative_are_not_read),
        cmocka_unit_test(rows_for_shared_experts_or_the_router_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
