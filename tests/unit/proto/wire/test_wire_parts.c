// wire_find_hidden finds the same bytes as the decoder, however the message is split into parts.
#include "tests/unit/proto/wire/raw_message.h"

#include "proto/wire/wire.h"
#include "proto/wire/wire_parts.h"

enum { TENSOR_BYTES = 24, PART_MAX = 9 };

struct cut {
    const uint8_t *bytes;
    size_t length, part_bytes;
};

static struct wire_part part_at(const void *context, size_t index) {
    const struct cut *cut = context;
    size_t first = index * cut->part_bytes, left = cut->length - first;
    return (struct wire_part){cut->bytes + first, left < cut->part_bytes ? left : cut->part_bytes};
}

static bool find(const uint8_t *bytes, size_t length, size_t part_bytes, struct wire_range *range) {
    struct cut cut = {bytes, length, part_bytes};
    struct wire_parts parts = {.context = &cut, .count = (length + part_bytes - 1) / part_bytes, .part = part_at};
    return wire_find_hidden(&parts, range);
}

static void put_tensor(struct raw *raw, uint64_t field, bool data_first) {
    struct raw tensor = {0}, shape = {0};
    static const uint8_t DATA[TENSOR_BYTES] = {0xff, 0x80, 0x08};
    raw_varint(&shape, 2);
    raw_varint(&shape, 3);
    if (data_first) {
        raw_bytes(&tensor, 15, DATA, sizeof DATA);
    }
    raw_number(&tensor, 1, EXPERTD_DTYPE_F32);
    raw_message(&tensor, 2, &shape);
    if (!data_first) {
        raw_bytes(&tensor, 15, DATA, sizeof DATA);
    }
    raw_message(raw, field, &tensor);
}

static struct raw message_of(bool hidden_first, bool data_first) {
    struct raw raw = {0};
    if (hidden_first) {
        put_tensor(&raw, 31, data_first);
    }
    raw_number(&raw, 1, 300);
    raw_text(&raw, 2, "tiny");
    raw_tag(&raw, 4, RAW_FIXED64);
    raw_put(&raw, "12345678", 8);
    put_tensor(&raw, 7, data_first); // hidden_scale: the same length, but another field
    if (!hidden_first) {
        put_tensor(&raw, 31, data_first);
    }
    return raw;
}

static void hidden_is_found_at_any_split_into_parts(void **state) {
    (void)state;
    for (int order = 0; order < 4; order++) {
        struct raw raw = message_of(order & 1, order & 2);
        struct wire_request request;
        assert_false(err_is(wire_decode_request(raw.bytes, raw.length, &request)));
        for (size_t part = 1; part <= raw.length; part++) {
            struct wire_range range;
            assert_true(find(raw.bytes, raw.length, part, &range));
            assert_ptr_equal(raw.bytes + range.first, request.hidden.view.data);
            assert_int_equal(range.length, TENSOR_BYTES);
        }
    }
}

static void a_message_without_hidden_has_no_range(void **state) {
    (void)state;
    struct raw none = {0}, extent = {0}, tensor = {0}, place = {0}, number = {0};
    struct wire_range range;
    assert_false(find(none.bytes, 0, 1, &range));
    put_tensor(&none, 7, false);
    assert_false(find(none.bytes, none.length, 5, &range));
    raw_number(&place, 1, 77);
    raw_message(&tensor, 3, &place);
    raw_message(&extent, 31, &tensor);
    assert_false(find(extent.bytes, extent.length, 5, &range));
    raw_number(&number, 31, 4); // another wire type
    assert_false(find(number.bytes, number.length, 5, &range));
    assert_true(range.first == 0 && range.length == 0);
}

// With each byte changed and at each length: the range is within the message, and the decoder's result does not depend on its
// bytes.
static void the_decoder_never_reads_the_range(void **state) {
    (void)state;
    struct raw good = message_of(false, true);
    for (size_t at = 0; at < good.length; at++) {
        for (unsigned change = 1; change < 256; change++) {
            struct raw raw = good;
            raw.bytes[at] ^= (uint8_t)change;
            raw.length = change == 255 ? at : raw.length;
            struct wire_range range;
            if (!find(raw.bytes, raw.length, 1 + at % PART_MAX, &range)) {
                continue;
            }
            assert_true(range.first <= raw.length && range.length <= raw.length - range.first);
            struct wire_request before, after;
            enum expertd_err_code was = wire_decode_request(raw.bytes, raw.length, &before).code;
            memset(raw.bytes + range.first, 0xa5, range.length);
            assert_int_equal(wire_decode_request(raw.bytes, raw.length, &after).code, was);
            assert_true(after.id == before.id && after.hidden.view.data == before.hidden.view.data);
            assert_true(after.layer == before.layer && strcmp(after.model, before.model) == 0);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hidden_is_found_at_any_split_into_parts),
        cmocka_unit_test(a_message_without_hidden_has_no_range),
        cmocka_unit_test(the_decoder_never_reads_the_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
