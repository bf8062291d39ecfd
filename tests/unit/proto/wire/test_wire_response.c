// ForwardResponse: protobuf-c unpacks header and output bytes together.
#include "tests/unit/proto/wire/raw_message.h"

#include "generated/expertd/v1/expertd.pb-c.h"
#include "proto/wire/wire.h"

typedef Expertd__V1__ForwardResponse pb_response;

enum { TOKENS = 3, HIDDEN = 5, OUTPUT_BYTES = TOKENS * HIDDEN * 2 };

static const uint8_t OUTPUT[OUTPUT_BYTES] = {9, 8, 7, 6, 5, 4, 3, 2, 1};

// Encodes the header into an allocation of exactly its length, so that a sanitizer detects a longer write.
static pb_response *encode(const struct wire_response *response, size_t output_bytes, size_t *header_bytes) {
    size_t capacity = WIRE_HEADER_MAX + response->status_bytes;
    uint8_t *header = malloc(capacity);
    *header_bytes = wire_encode_response(response, header, capacity);
    assert_true(*header_bytes <= capacity);
    assert_int_equal(wire_encode_response(response, NULL, 0), *header_bytes);
    struct raw raw = {.length = 0};
    raw_put(&raw, header, *header_bytes);
    raw_put(&raw, OUTPUT, output_bytes);
    free(header);
    pb_response *unpacked = expertd__v1__forward_response__unpack(NULL, raw.length, raw.bytes);
    assert_non_null(unpacked);
    assert_int_equal(unpacked->base.n_unknown_fields, 0);
    return unpacked;
}

static void answer_with_every_field_matches_protobuf_c(void **state) {
    (void)state;
    struct wire_timings timings = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT32_MAX, UINT32_MAX};
    struct wire_response response = {.id = UINT64_MAX,
                                     .weights_id = 0xfedcba9876543210,
                                     .placement_epoch = UINT64_MAX,
                                     .timings = &timings,
                                     .has_output = true,
                                     .output_dtype = EXPERTD_DTYPE_BF16,
                                     .output_shape = {TOKENS, HIDDEN}};
    size_t header_bytes;
    pb_response *got = encode(&response, OUTPUT_BYTES, &header_bytes);
    assert_true(got->id == UINT64_MAX && got->placement_epoch == UINT64_MAX);
    assert_true(got->weights_id == 0xfedcba9876543210);
    assert_null(got->error);
    assert_true(got->timings->queue == UINT64_MAX && got->timings->route == UINT64_MAX && got->timings->exchange == UINT64_MAX);
    assert_true(got->timings->compute == UINT64_MAX && got->timings->combine == UINT64_MAX && got->timings->total == UINT64_MAX);
    assert_true(got->timings->batch_tokens == UINT32_MAX && got->timings->batch_requests == UINT32_MAX);
    assert_int_equal(got->output->dtype, EXPERTD__V1__DTYPE__BF16);
    assert_int_equal(got->output->n_shape, 2);
    assert_int_equal(got->output->shape[0], TOKENS);
    assert_int_equal(got->output->shape[1], HIDDEN);
    assert_int_equal(got->output->place_case, EXPERTD__V1__TENSOR__PLACE_DATA);
    assert_int_equal(got->output->data.len, OUTPUT_BYTES);
    assert_memory_equal(got->output->data.data, OUTPUT, OUTPUT_BYTES);
    expertd__v1__forward_response__free_unpacked(got, NULL);
}

static void each_timing_has_its_field(void **state) {
    (void)state;
    struct wire_timings timings = {1, 2, 3, 4, 5, 6, 7, 8};
    size_t header_bytes;
    pb_response *got = encode(&(struct wire_response){.timings = &timings}, 0, &header_bytes);
    assert_int_equal(got->timings->queue, 1);
    assert_int_equal(got->timings->route, 2);
    assert_int_equal(got->timings->exchange, 3);
    assert_int_equal(got->timings->compute, 4);
    assert_int_equal(got->timings->combine, 5);
    assert_int_equal(got->timings->total, 6);
    assert_int_equal(got->timings->batch_tokens, 7);
    assert_int_equal(got->timings->batch_requests, 8);
    expertd__v1__forward_response__free_unpacked(got, NULL);
}

static void answer_without_tokens_has_an_empty_output(void **state) {
    (void)state;
    struct wire_response response = {.id = 1, .has_output = true, .output_dtype = EXPERTD_DTYPE_F32, .output_shape = {0, HIDDEN}};
    size_t header_bytes;
    pb_response *got = encode(&response, 0, &header_bytes);
    assert_non_null(got->output);
    assert_int_equal(got->output->n_shape, 2);
    assert_int_equal(got->output->shape[0], 0);
    assert_int_equal(got->output->place_case, EXPERTD__V1__TENSOR__PLACE_DATA);
    assert_int_equal(got->output->data.len, 0);
    expertd__v1__forward_response__free_unpacked(got, NULL);
}

static void answer_in_a_region_names_its_extent(void **state) {
    (void)state;
    struct wire_response response = {.has_output = true,
                                     .output_dtype = EXPERTD_DTYPE_F16,
                                     .output_shape = {UINT32_MAX, 4096},
                                     .output_in_extent = true,
                                     .output = {UINT64_MAX, UINT64_MAX - 63, UINT64_MAX}};
    size_t header_bytes;
    pb_response *got = encode(&response, 0, &header_bytes);
    assert_int_equal(got->output->place_case, EXPERTD__V1__TENSOR__PLACE_EXTENT);
    assert_true(got->output->extent->region == UINT64_MAX && got->output->extent->offset == UINT64_MAX - 63);
    assert_true(got->output->extent->length == UINT64_MAX);
    expertd__v1__forward_response__free_unpacked(got, NULL);
}

static void error_answer_has_its_status(void **state) {
    (void)state;
    static const uint8_t STATUS[] = {8, 3, 18, 2, 'n', 'o'}; // code 3, message "no"
    struct wire_response response = {.id = 5, .status = STATUS, .status_bytes = sizeof STATUS};
    size_t header_bytes;
    pb_response *got = encode(&response, 0, &header_bytes);
    assert_int_equal(got->id, 5);
    assert_int_equal(got->error->code, 3);
    assert_string_equal(got->error->message, "no");
    assert_null(got->output);
    expertd__v1__forward_response__free_unpacked(got, NULL);
}

static void empty_status_is_present(void **state) {
    (void)state;
    size_t header_bytes;
    pb_response *got = encode(&(struct wire_response){.status = (const uint8_t *)""}, 0, &header_bytes);
    assert_non_null(got->error);
    expertd__v1__forward_response__free_unpacked(got, NULL);
}

static void header_length_includes_the_output(void **state) {
    (void)state;
    uint8_t header[WIRE_HEADER_MAX];
    struct wire_response response = {.has_output = true, .output_dtype = EXPERTD_DTYPE_F32, .output_shape = {1 << 20, 1 << 14}};
    size_t length = wire_encode_response(&response, header, sizeof header);
    // 2^36 bytes of data need a varint of six bytes; the last two fields are the lengths of the tensor and of its data.
    static const uint8_t DATA_PREFIX[] = {0x7a, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02};
    assert_true(length > sizeof DATA_PREFIX);
    assert_memory_equal(header + length - sizeof DATA_PREFIX, DATA_PREFIX, sizeof DATA_PREFIX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answer_with_every_field_matches_protobuf_c),
        cmocka_unit_test(each_timing_has_its_field),
        cmocka_unit_test(answer_without_tokens_has_an_empty_output),
        cmocka_unit_test(answer_in_a_region_names_its_extent),
        cmocka_unit_test(error_answer_has_its_status),
        cmocka_unit_test(empty_status_is_present),
        cmocka_unit_test(header_length_includes_the_output),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
