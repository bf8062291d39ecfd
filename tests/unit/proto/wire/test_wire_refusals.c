// ForwardRequest: refusals, with code, field and message.
#include "tests/unit/proto/wire/raw_message.h"

#include "proto/wire/wire.h"

static err_t decode(const struct raw *raw, struct wire_request *got) {
    uint8_t *bytes = raw_exact(raw->bytes, raw->length);
    err_t e = wire_decode_request(bytes, raw->length, got);
    free(bytes);
    return e;
}

static void assert_request_refused(const struct raw *raw, enum expertd_err_code code, const char *field, const char *text) {
    struct wire_request got;
    assert_refused(decode(raw, &got), code, field, text);
}

static void assert_bytes_refused(const uint8_t *bytes, size_t length, enum expertd_err_code code, const char *field,
                                 const char *text) {
    struct raw raw = {.length = 0};
    raw_put(&raw, bytes, length);
    assert_request_refused(&raw, code, field, text);
}

static void assert_tensor_refused(const struct raw *tensor, enum expertd_err_code code, const char *field, const char *text) {
    struct raw raw = {.length = 0};
    raw_message(&raw, 31, tensor);
    assert_request_refused(&raw, code, field, text);
}

static struct raw small_tensor(void) {
    return raw_tensor(EXPERTD_DTYPE_F32, (uint64_t[]){2, 3}, 2, 4);
}

static struct raw small_request(void) {
    struct raw raw = {.length = 0}, routes = {.length = 0};
    struct raw tensor = small_tensor();
    struct raw ids = raw_tensor(EXPERTD_DTYPE_I32, (uint64_t[]){2, 2}, 2, 4);
    raw_number(&raw, 1, 300);
    raw_text(&raw, 2, "tiny");
    raw_number(&raw, 3, 3);
    raw_message(&routes, 1, &ids);
    raw_message(&routes, 2, &ids);
    raw_message(&raw, 5, &routes);
    raw_tag(&raw, 4, RAW_FIXED64);
    raw_put(&raw, "12345678", 8);
    raw_message(&raw, 31, &tensor);
    return raw;
}

static void every_truncation_is_an_error_or_a_shorter_message(void **state) {
    (void)state;
    struct raw raw = small_request();
    struct wire_request got;
    assert_ok(decode(&raw, &got));
    size_t whole = 0;
    for (size_t length = 0; length < raw.length; length++) {
        struct raw cut = raw;
        cut.length = length;
        err_t e = decode(&cut, &got);
        whole += !err_is(e);
        if (err_is(e)) {
            assert_int_equal(e.code, EXPERTD_ERR_MALFORMED);
            assert_true(*expertd_err_message() != '\0');
        }
    }
    assert_int_equal(whole, 6); // truncations between two fields, and before the first
}

static void every_changed_byte_is_read_within_the_message(void **state) {
    (void)state;
    struct raw raw = small_request();
    for (size_t at = 0; at < raw.length; at++) {
        for (int value = 0; value < 256; value++) {
            struct raw changed = raw;
            changed.bytes[at] = (uint8_t)value;
            struct wire_request got;
            err_t e = decode(&changed, &got); // the allocation has the exact length, so a sanitizer detects a read past it
            assert_true(!err_is(e) || *expertd_err_message() != '\0');
        }
    }
}

static void length_beyond_the_end_is_refused(void **state) {
    (void)state;
    static const uint64_t LENGTHS[] = {1, 127, 128, UINT32_MAX, (uint64_t)INT64_MAX, UINT64_MAX};
    for (size_t i = 0; i < sizeof LENGTHS / sizeof *LENGTHS; i++) {
        struct raw raw = {.length = 0};
        raw_tag(&raw, 31, RAW_BYTES);
        raw_varint(&raw, LENGTHS[i]);
        assert_request_refused(&raw, EXPERTD_ERR_MALFORMED, "hidden", LENGTHS[i] > UINT32_MAX ? "the limit is 5" : "is truncated");
    }
}

// Overlong encodings that other decoders refuse: a length of 0 in six bytes, a tag in six bytes.
static void overlong_lengths_and_tags_are_refused(void **state) {
    (void)state;
    static const uint8_t LENGTH[] = {0x12, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00}, TAG[] = {0x88, 0x80, 0x80, 0x80, 0x80, 0x00, 0x01};
    assert_bytes_refused(LENGTH, sizeof LENGTH, EXPERTD_ERR_MALFORMED, "model", "the limit is 5");
    assert_bytes_refused(TAG, sizeof TAG, EXPERTD_ERR_MALFORMED, "", "the limit is 5");
}

static void inner_length_beyond_its_message_is_refused(void **state) {
    (void)state;
    struct raw tensor = {.length = 0}, raw = {.length = 0};
    raw_number(&tensor, 1, EXPERTD_DTYPE_F32);
    raw_tag(&tensor, 15, RAW_BYTES);
    raw_varint(&tensor, 4);
    raw_message(&raw, 31, &tensor);
    raw_text(&raw, 2, "four"); // the bytes exist, but do not belong to the tensor
    assert_request_refused(&raw, EXPERTD_ERR_MALFORMED, "hidden.data", "is truncated");
}

static void varint_over_64_bits_is_refused(void **state) {
    (void)state;
    static const uint8_t ELEVEN[] = {8, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1};
    static const uint8_t TENTH_TOO_GREAT[] = {8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2};
    static const uint8_t CUT[] = {8, 0xff, 0xff};
    static const uint8_t TAG[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    assert_bytes_refused(ELEVEN, sizeof ELEVEN, EXPERTD_ERR_MALFORMED, "id", "64 bits");
    assert_bytes_refused(TENTH_TOO_GREAT, sizeof TENTH_TOO_GREAT, EXPERTD_ERR_MALFORMED, "id", "64 bits");
    assert_bytes_refused(CUT, sizeof CUT, EXPERTD_ERR_MALFORMED, "id", "inside a varint");
    assert_bytes_refused(TAG, sizeof TAG, EXPERTD_ERR_MALFORMED, "", "64 bits");
}

static void greatest_varint_is_read(void **state) {
    (void)state;
    struct raw raw = {.length = 0};
    raw_number(&raw, 1, UINT64_MAX);
    struct wire_request got;
    assert_ok(decode(&raw, &got));
    assert_true(got.id == UINT64_MAX);
}

static void field_number_0_and_above_29_bits_is_refused(void **state) {
    (void)state;
    struct raw zero = {.length = 0}, great = {.length = 0};
    raw_number(&zero, 0, 1);
    assert_request_refused(&zero, EXPERTD_ERR_MALFORMED, "", "0 is not a field number");
    raw_number(&great, UINT64_C(1) << 29, 1);
    assert_request_refused(&great, EXPERTD_ERR_MALFORMED, "", "536870912 is not a field number");
}

static void groups_and_unused_wire_types_are_refused(void **state) {
    (void)state;
    for (int type = 0; type < 8; type++) {
        if (type == RAW_VARINT || type == RAW_FIXED64 || type == RAW_BYTES || type == RAW_FIXED32) {
            continue;
        }
        struct raw raw = {.length = 0};
        raw_tag(&raw, 1, type);
        raw_put(&raw, "\0\0\0\0\0\0\0\0", 8);
        assert_request_refused(&raw, EXPERTD_ERR_MALFORMED, "id", "wire type");
    }
}

static void another_wire_type_is_refused(void **state) {
    (void)state;
    static const struct {
        int field, type;
        const char *name;
    } CASES[] = {{1, RAW_BYTES, "id"},           {2, RAW_VARINT, "model"},  {4, RAW_VARINT, "weights_id"},
                 {4, RAW_FIXED32, "weights_id"}, {5, RAW_VARINT, "routes"}, {12, RAW_FIXED32, "priority"},
                 {31, RAW_FIXED64, "hidden"}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct raw raw = {.length = 0};
        raw_tag(&raw, (uint64_t)CASES[i].field, CASES[i].type);
        raw_put(&raw, "\0\0\0\0\0\0\0\0", CASES[i].type == RAW_FIXED64 ? 8 : CASES[i].type == RAW_FIXED32 ? 4 : 1);
        assert_request_refused(&raw, EXPERTD_ERR_MALFORMED, CASES[i].name, "wire type");
    }
}

static void unknown_field_is_refused_with_its_number_and_message(void **state) {
    (void)state;
    struct raw raw = {.length = 0};
    raw_number(&raw, 17, 1);
    assert_request_refused(&raw, EXPERTD_ERR_UNKNOWN_FIELD, "17", "ForwardRequest has no field 17");

    struct raw far = {.length = 0};
    raw_text(&far, 536870911, "x");
    assert_request_refused(&far, EXPERTD_ERR_UNKNOWN_FIELD, "536870911", "no field 536870911");

    struct raw tensor = small_tensor();
    raw_number(&tensor, 4, 1);
    assert_tensor_refused(&tensor, EXPERTD_ERR_UNKNOWN_FIELD, "hidden.4", "Tensor has no field 4");

    struct raw routes = {.length = 0}, request = {.length = 0};
    raw_number(&routes, 3, 1);
    raw_message(&request, 5, &routes);
    assert_request_refused(&request, EXPERTD_ERR_UNKNOWN_FIELD, "routes.3", "Routes has no field 3");

    struct raw extent = {.length = 0}, output = {.length = 0};
    raw_number(&extent, 9, 1);
    raw_message(&output, 10, &extent);
    assert_request_refused(&output, EXPERTD_ERR_UNKNOWN_FIELD, "output.9", "Extent has no field 9");
}

static void singular_field_twice_is_refused(void **state) {
    (void)state;
    static const int VARINTS[] = {1, 3, 8, 9, 11, 12, 13};
    static const char *const NAMES[] = {"id", "layer", "shared_experts", "output_dtype", "timeout_us", "priority", "timings"};
    for (size_t i = 0; i < sizeof VARINTS / sizeof *VARINTS; i++) {
        struct raw raw = {.length = 0};
        raw_number(&raw, (uint64_t)VARINTS[i], 1);
        raw_number(&raw, (uint64_t)VARINTS[i], 1);
        assert_request_refused(&raw, EXPERTD_ERR_UNKNOWN_FIELD, NAMES[i], "twice");
    }
    struct raw model = {.length = 0};
    raw_text(&model, 2, "a");
    raw_text(&model, 2, "a");
    assert_request_refused(&model, EXPERTD_ERR_UNKNOWN_FIELD, "model", "field 2 of ForwardRequest is given twice");
}

static void sub_message_twice_is_refused_not_merged(void **state) {
    (void)state;
    struct raw tensor = small_tensor(), raw = {.length = 0};
    raw_message(&raw, 31, &tensor);
    raw_message(&raw, 31, &tensor);
    assert_request_refused(&raw, EXPERTD_ERR_UNKNOWN_FIELD, "hidden", "twice");

    struct raw dtype = small_tensor();
    raw_number(&dtype, 1, EXPERTD_DTYPE_F32);
    assert_tensor_refused(&dtype, EXPERTD_ERR_UNKNOWN_FIELD, "hidden.dtype", "twice");

    struct raw routes = {.length = 0}, request = {.length = 0};
    raw_message(&routes, 1, &tensor);
    raw_message(&routes, 1, &tensor);
    raw_message(&request, 5, &routes);
    assert_request_refused(&request, EXPERTD_ERR_UNKNOWN_FIELD, "routes.ids", "twice");
}

static void two_members_of_a_oneof_are_refused(void **state) {
    (void)state;
    struct raw tensor = small_tensor(), routes = {.length = 0}, extent = {.length = 0};
    raw_message(&routes, 1, &tensor);
    raw_message(&routes, 2, &tensor);

    struct raw routing = {.length = 0};
    raw_message(&routing, 5, &routes);
    raw_message(&routing, 6, &tensor);
    assert_request_refused(&routing, EXPERTD_ERR_UNKNOWN_FIELD, "router_logits", "routes (5) and router_logits (6)");

    struct raw reversed = {.length = 0};
    raw_message(&reversed, 6, &tensor);
    raw_message(&reversed, 5, &routes);
    assert_request_refused(&reversed, EXPERTD_ERR_UNKNOWN_FIELD, "routes", "exclude each other");

    raw_number(&extent, 3, 24);
    raw_message(&tensor, 3, &extent);
    assert_tensor_refused(&tensor, EXPERTD_ERR_UNKNOWN_FIELD, "hidden.extent", "exclude each other");
}

static void routes_need_ids_and_weights(void **state) {
    (void)state;
    struct raw tensor = small_tensor();
    for (uint64_t only = 1; only <= 2; only++) {
        struct raw routes = {.length = 0}, raw = {.length = 0};
        raw_message(&routes, only, &tensor);
        raw_message(&raw, 5, &routes);
        assert_request_refused(&raw, EXPERTD_ERR_SHAPE_MISMATCH, only == 1 ? "routes.weights" : "routes.ids", "missing");
    }
}

static void numbers_above_32_bits_are_refused_not_truncated(void **state) {
    (void)state;
    struct raw layer = {.length = 0}, priority = {.length = 0};
    raw_number(&layer, 3, (UINT64_C(1) << 32) + 3);
    assert_request_refused(&layer, EXPERTD_ERR_LAYER_UNKNOWN, "layer", "4294967299 is not served");
    raw_number(&priority, 12, UINT64_C(1) << 32);
    assert_request_refused(&priority, EXPERTD_ERR_MALFORMED, "priority", "exceeds 32 bits");
}

static void unknown_enum_numbers_are_refused(void **state) {
    (void)state;
    struct raw output = {.length = 0}, negative = {.length = 0}, shared = {.length = 0}, shared_negative = {.length = 0};
    raw_number(&output, 9, 8);
    assert_request_refused(&output, EXPERTD_ERR_DTYPE_UNSUPPORTED, "output_dtype", "8 is not a DType");
    raw_number(&negative, 9, (uint64_t)-1);
    assert_request_refused(&negative, EXPERTD_ERR_DTYPE_UNSUPPORTED, "output_dtype", "-1 is not a DType");
    raw_number(&shared, 8, 3);
    assert_request_refused(&shared, EXPERTD_ERR_UNKNOWN_FIELD, "shared_experts", "3 is not a SharedExperts");
    raw_number(&shared_negative, 8, (uint64_t)-2);
    assert_request_refused(&shared_negative, EXPERTD_ERR_UNKNOWN_FIELD, "shared_experts", "-2 is not a SharedExperts");

    struct raw tensor = raw_tensor(99, (uint64_t[]){1}, 1, 4);
    assert_tensor_refused(&tensor, EXPERTD_ERR_DTYPE_UNSUPPORTED, "hidden.dtype", "99 is not a DType");
    // Truncated to 32 bits, 2^32 + 1 would be F32.
    struct raw wide = raw_tensor((UINT64_C(1) << 32) + 1, (uint64_t[]){1}, 1, 4);
    assert_tensor_refused(&wide, EXPERTD_ERR_DTYPE_UNSUPPORTED, "hidden.dtype", "is not a DType");
}

static void tensor_without_a_dtype_is_refused(void **state) {
    (void)state;
    struct raw tensor = raw_tensor(EXPERTD_DTYPE_NONE, (uint64_t[]){1, 4}, 2, 4);
    assert_tensor_refused(&tensor, EXPERTD_ERR_DTYPE_UNSUPPORTED, "hidden.dtype", "has no dtype");
    struct raw empty = {.length = 0};
    assert_tensor_refused(&empty, EXPERTD_ERR_DTYPE_UNSUPPORTED, "hidden.dtype", "has no dtype");
}

static void data_of_wrong_length_is_refused_with_both_lengths(void **state) {
    (void)state;
    struct raw tensor = {.length = 0};
    raw_number(&tensor, 1, EXPERTD_DTYPE_BF16);
    raw_bytes(&tensor, 2, (uint8_t[]){2, 3}, 2);
    struct raw less = tensor, more = tensor, none = tensor;
    raw_bytes(&less, 15, "0123456789", 10);
    assert_tensor_refused(&less, EXPERTD_ERR_TENSOR_BYTES, "hidden.data", "received 10 bytes, but BF16[2, 3] has 12");
    raw_bytes(&more, 15, "0123456789abc", 13);
    assert_tensor_refused(&more, EXPERTD_ERR_TENSOR_BYTES, "hidden.data", "received 13 bytes, but BF16[2, 3] has 12");
    assert_tensor_refused(&none, EXPERTD_ERR_TENSOR_BYTES, "hidden.data", "received 0 bytes");
}

static void shape_that_overflows_is_refused(void **state) {
    (void)state;
    static const uint64_t SHAPES[][3] = {{UINT64_MAX, 1, 1},
                                         {UINT64_C(1) << 32, UINT64_C(1) << 31, 1},
                                         {UINT64_C(1) << 61, 1, 1},
                                         {UINT64_C(1) << 33, UINT64_C(1) << 33, UINT64_C(1) << 33}};
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++) {
        struct raw tensor = {.length = 0}, packed = {.length = 0};
        for (size_t j = 0; j < 3; j++) {
            raw_varint(&packed, SHAPES[i][j]);
        }
        raw_number(&tensor, 1, EXPERTD_DTYPE_F32);
        raw_message(&tensor, 2, &packed);
        raw_bytes(&tensor, 15, NULL, 0);
        assert_tensor_refused(&tensor, EXPERTD_ERR_SHAPE_MISMATCH, "hidden.shape", "exceeds 63 bits");
    }
}

static void ninth_dimension_is_refused(void **state) {
    (void)state;
    struct raw packed = raw_tensor(EXPERTD_DTYPE_F32, (uint64_t[]){1, 1, 1, 1, 1, 1, 1, 1, 1}, 9, 4);
    assert_tensor_refused(&packed, EXPERTD_ERR_SHAPE_MISMATCH, "hidden.shape", "more than 8 dimensions");
    struct raw single = raw_tensor(EXPERTD_DTYPE_F32, (uint64_t[]){1, 1, 1, 1, 1, 1, 1, 1}, 8, 4);
    raw_number(&single, 2, 1);
    assert_tensor_refused(&single, EXPERTD_ERR_SHAPE_MISMATCH, "hidden.shape", "more than 8 dimensions");
}

static void packed_shape_cut_inside_a_dimension_is_refused(void **state) {
    (void)state;
    struct raw tensor = {.length = 0};
    raw_number(&tensor, 1, EXPERTD_DTYPE_F32);
    raw_bytes(&tensor, 2, (uint8_t[]){1, 0x80}, 2);
    assert_tensor_refused(&tensor, EXPERTD_ERR_MALFORMED, "hidden.shape", "end inside a varint");
}

static void extent_that_does_not_fit_is_refused(void **state) {
    (void)state;
    static const struct {
        uint64_t offset, length;
        enum expertd_err_code code;
        const char *field, *text;
    } CASES[] = {{32, 24, EXPERTD_ERR_TENSOR_BYTES, "hidden.extent.offset", "32 is not a multiple of 64"},
                 {0, 23, EXPERTD_ERR_TENSOR_BYTES, "hidden.extent.length", "received 23 bytes, but F32[2, 3] has 24"},
                 {UINT64_MAX - 63, 64, EXPERTD_ERR_TENSOR_BYTES, "hidden.extent.length", "exceeds 2^64"}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct raw extent = {.length = 0}, tensor = {.length = 0};
        raw_number(&extent, 1, 1);
        raw_number(&extent, 2, CASES[i].offset);
        raw_number(&extent, 3, CASES[i].length);
        raw_number(&tensor, 1, EXPERTD_DTYPE_F32);
        raw_bytes(&tensor, 2, (uint8_t[]){2, 3}, 2);
        raw_message(&tensor, 3, &extent);
        assert_tensor_refused(&tensor, CASES[i].code, CASES[i].field, CASES[i].text);
    }
}

static void fields_of_routes_are_named_by_their_path(void **state) {
    (void)state;
    struct raw tensor = raw_tensor(EXPERTD_DTYPE_I32, (uint64_t[]){1, 1, 1, 1, 1, 1, 1, 1, 1}, 9, 4), routes = {.length = 0},
               raw = {.length = 0};
    raw_message(&routes, 1, &tensor);
    raw_message(&raw, 5, &routes);
    assert_request_refused(&raw, EXPERTD_ERR_SHAPE_MISMATCH, "routes.ids.shape", "dimensions");
}

static void text_that_is_not_utf8_is_refused(void **state) {
    (void)state;
    static const char *const BAD[] = {"\x80",         "a\xff",        "\xc0\xaf",         "\xc1\x81",         "\xe0\x80\x80",
                                      "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80",
                                      "\xc3",         "\xe2\x82",     "\xf0\x9f\x92"};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        struct raw raw = {.length = 0};
        raw_text(&raw, 2, BAD[i]);
        assert_request_refused(&raw, EXPERTD_ERR_MALFORMED, "model", "UTF-8");
    }
    struct raw nul = {.length = 0};
    raw_bytes(&nul, 2, "tiny\0not", 8); // would match "tiny"
    assert_request_refused(&nul, EXPERTD_ERR_MALFORMED, "model", "NUL");
}

static void text_in_any_script_is_accepted(void **state) {
    (void)state;
    static const char *const GOOD[] = {"",
                                       "\x7f",
                                       "\xc2\x80",
                                       "\xdf\xbf",
                                       "\xe0\xa0\x80",
                                       "\xed\x9f\xbf",
                                       "\xee\x80\x80",
                                       "\xf0\x90\x80\x80",
                                       "\xf4\x8f\xbf\xbf",
                                       "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x92\xa1"};
    for (size_t i = 0; i < sizeof GOOD / sizeof *GOOD; i++) {
        struct raw raw = {.length = 0};
        raw_text(&raw, 14, GOOD[i]);
        struct wire_request got;
        assert_ok(decode(&raw, &got));
        assert_string_equal(got.traceparent, GOOD[i]);
    }
}

static void text_longer_than_its_buffer_is_refused(void **state) {
    (void)state;
    char text[WIRE_STRING_MAX + 1];
    memset(text, 't', WIRE_STRING_MAX);
    text[WIRE_STRING_MAX] = '\0';
    struct raw traceparent = {.length = 0}, model = {.length = 0};
    raw_text(&traceparent, 14, text);
    assert_request_refused(&traceparent, EXPERTD_ERR_MALFORMED, "traceparent", "256 bytes");
    raw_text(&model, 2, text);
    assert_request_refused(&model, EXPERTD_ERR_MODEL_UNKNOWN, "model", "256 bytes");
}

static void refused_request_keeps_its_id_at_any_position(void **state) {
    (void)state;
    struct wire_request got;
    struct raw tensor = raw_tensor(99, (uint64_t[]){1}, 1, 4), behind = {.length = 0}, before = {.length = 0};
    raw_message(&behind, 31, &tensor);
    raw_number(&behind, 1, 42);
    assert_refused(decode(&behind, &got), EXPERTD_ERR_DTYPE_UNSUPPORTED, "hidden.dtype", "99");
    assert_int_equal(got.id, 42);
    raw_number(&before, 1, 43);
    raw_number(&before, 99, 1);
    assert_refused(decode(&before, &got), EXPERTD_ERR_UNKNOWN_FIELD, "99", "99");
    assert_int_equal(got.id, 43);
}

static void id_that_cannot_be_read_is_zero(void **state) {
    (void)state;
    struct wire_request got;
    struct raw raw = {.length = 0};
    raw_tag(&raw, 5, RAW_GROUP);
    raw_number(&raw, 1, 42);
    assert_refused(decode(&raw, &got), EXPERTD_ERR_MALFORMED, "routes", "wire type 3");
    assert_int_equal(got.id, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_truncation_is_an_error_or_a_shorter_message),
        cmocka_unit_test(every_changed_byte_is_read_within_the_message),
        cmocka_unit_test(length_beyond_the_end_is_refused),
        cmocka_unit_test(inner_length_beyond_its_message_is_refused),
        cmocka_unit_test(overlong_lengths_and_tags_are_refused),
        cmocka_unit_test(varint_over_64_bits_is_refused),
        cmocka_unit_test(greatest_varint_is_read),
        cmocka_unit_test(field_number_0_and_above_29_bits_is_refused),
        cmocka_unit_test(groups_and_unused_wire_types_are_refused),
        cmocka_unit_test(another_wire_type_is_refused),
        cmocka_unit_test(unknown_field_is_refused_with_its_number_and_message),
        cmocka_unit_test(singular_field_twice_is_refused),
        cmocka_unit_test(sub_message_twice_is_refused_not_merged),
        cmocka_unit_test(two_members_of_a_oneof_are_refused),
        cmocka_unit_test(routes_need_ids_and_weights),
        cmocka_unit_test(numbers_above_32_bits_are_refused_not_truncated),
        cmocka_unit_test(unknown_enum_numbers_are_refused),
        cmocka_unit_test(tensor_without_a_dtype_is_refused),
        cmocka_unit_test(data_of_wrong_length_is_refused_with_both_lengths),
        cmocka_unit_test(shape_that_overflows_is_refused),
        cmocka_unit_test(ninth_dimension_is_refused),
        cmocka_unit_test(packed_shape_cut_inside_a_dimension_is_refused),
        cmocka_unit_test(extent_that_does_not_fit_is_refused),
        cmocka_unit_test(fields_of_routes_are_named_by_their_path),
        cmocka_unit_test(text_that_is_not_utf8_is_refused),
        cmocka_unit_test(text_in_any_script_is_accepted),
        cmocka_unit_test(text_longer_than_its_buffer_is_refused),
        cmocka_unit_test(refused_request_keeps_its_id_at_any_position),
        cmocka_unit_test(id_that_cannot_be_read_is_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
