// The messages of expertd.shard.v1.Rows: agreement with the bytes of Python's protobuf and with protobuf-c, messages in parts,
// field order, refusals.
#include <sys/mman.h>

#include "tests/unit/proto/wire/raw_message.h"

#include "generated/expertd/shard/v1/shard.pb-c.h"
#include "proto/shard/rows_wire.h"

// google.protobuf's encoding of REQUEST, REPLY and ERROR_REPLY below:
//   RowsRequest(batch=300, epoch=2**40, layer=61, groups=[3, 2, 7, 1, 300, 2], first_row=9, first_hidden=4,
//               hidden_rows=[0, 5, 1, 128, 4], row_bytes=6, token=bytes(range(16)), hidden=bytes(range(100, 118)))
//   RowsReply(batch=300, epoch=2**40, first_row=9, rows=2, compute_ns=123456, results=bytes(range(12)))
//   RowsReply(batch=300, epoch=1, error=RowsError(reason="SHARD_LOST", message="expert 5 of layer 61 is not on this shard"))
static const uint8_t PYTHON_REQUEST[] = {0x08, 0xac, 0x02, 0x10, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20, 0x18, 0x3d, 0x22, 0x07, 0x03,
                                         0x02, 0x07, 0x01, 0xac, 0x02, 0x02, 0x28, 0x09, 0x30, 0x04, 0x3a, 0x06, 0x00, 0x05, 0x01,
                                         0x80, 0x01, 0x04, 0x40, 0x06, 0x4a, 0x10, 0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07,
                                         0x08, 0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f, 0x7a, 0x12, 0x64, 0x65, 0x66, 0x67, 0x68,
                                         0x69, 0x6a, 0x6b, 0x6c, 0x6d, 0x6e, 0x6f, 0x70, 0x71, 0x72, 0x73, 0x74, 0x75};
static const uint8_t PYTHON_REPLY[] = {0x08, 0xac, 0x02, 0x10, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20, 0x18,
                                       0x09, 0x20, 0x02, 0x28, 0xc0, 0xc4, 0x07, 0x7a, 0x0c, 0x00, 0x01,
                                       0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b};
static const uint8_t PYTHON_ERROR[] = {
    0x08, 0xac, 0x02, 0x10, 0x01, 0x32, 0x37, 0x0a, 0x0a, 0x53, 0x48, 0x41, 0x52, 0x44, 0x5f, 0x4c, 0x4f, 0x53, 0x54, 0x12, 0x29,
    0x65, 0x78, 0x70, 0x65, 0x72, 0x74, 0x20, 0x35, 0x20, 0x6f, 0x66, 0x20, 0x6c, 0x61, 0x79, 0x65, 0x72, 0x20, 0x36, 0x31, 0x20,
    0x69, 0x73, 0x20, 0x6e, 0x6f, 0x74, 0x20, 0x6f, 0x6e, 0x20, 0x74, 0x68, 0x69, 0x73, 0x20, 0x73, 0x68, 0x61, 0x72, 0x64};

static const uint32_t GROUPS[] = {3, 2, 7, 1, 300, 2}, HIDDEN_ROWS[] = {0, 5, 1, 128, 4};

static struct rows_request request(void) {
    struct rows_request request = {.batch = 300,
                                   .epoch = UINT64_C(1) << 40,
                                   .layer = 61,
                                   .first_row = 9,
                                   .first_hidden = 4,
                                   .groups = GROUPS,
                                   .num_groups = 3,
                                   .hidden_rows = HIDDEN_ROWS,
                                   .rows = 5,
                                   .row_bytes = 6,
                                   .num_hidden = 3,
                                   .has_token = true};
    for (size_t i = 0; i < sizeof request.token; i++) {
        request.token[i] = (uint8_t)i;
    }
    return request;
}

// ---- a message in parts

enum { PARTS_MAX = 1024, GROUPS_MAX = 4, ROWS_MAX = 6 };

struct message {
    struct wire_part parts[PARTS_MAX];
    struct wire_parts view;
    uint8_t *bytes;
};

static struct wire_part part_at(const void *context, size_t index) {
    return ((const struct message *)context)->parts[index];
}

// Parts of part_bytes each, and empty ones between them.
static void message_init(struct message *m, const uint8_t *bytes, size_t length, size_t part_bytes) {
    *m = (struct message){.bytes = raw_exact(bytes, length)};
    size_t count = 0;
    for (size_t at = 0; at < length; at += part_bytes) {
        size_t left = length - at;
        m->parts[count++] = (struct wire_part){m->bytes + at, left < part_bytes ? left : part_bytes};
        m->parts[count++] = (struct wire_part){NULL, 0};
        assert_true(count < PARTS_MAX);
    }
    m->view = (struct wire_parts){.context = m, .count = count, .part = part_at};
}

struct decoded {
    struct rows_request request;
    struct wire_range hidden;
    uint32_t groups[2 * GROUPS_MAX], hidden_rows[ROWS_MAX];
    uint8_t *head;
};

static err_t decode(struct message *m, struct decoded *out) {
    struct rows_memory memory = {.groups = out->groups,
                                 .groups_max = GROUPS_MAX,
                                 .hidden_rows = out->hidden_rows,
                                 .rows_max = ROWS_MAX,
                                 .head_bytes = rows_head_bytes(GROUPS_MAX, ROWS_MAX)};
    memory.head = malloc(memory.head_bytes); // a sanitizer detects a write past its end
    err_t e = rows_decode_request(&m->view, &memory, &out->request, &out->hidden);
    free(memory.head);
    return e;
}

// Copies the bytes of a range of the message, which lies in parts.
static void read_range(const struct wire_parts *parts, struct wire_range range, uint8_t *to) {
    for (size_t i = 0, first = 0; i < parts->count; i++) {
        struct wire_part part = parts->part(parts->context, i);
        for (size_t at = 0; at < part.length; at++) {
            if (first + at >= range.first && first + at < range.first + range.length) {
                to[first + at - range.first] = part.bytes[at];
            }
        }
        first += part.length;
    }
}

static err_t decode_bytes(const uint8_t *bytes, size_t length, size_t part_bytes, struct decoded *out) {
    struct message m;
    message_init(&m, bytes, length, part_bytes);
    err_t e = decode(&m, out);
    if (!err_is(e) && out->hidden.length > 0) { // the rows are where the decoder says
        uint8_t rows[64];
        assert_true(out->hidden.length <= sizeof rows && out->hidden.first + out->hidden.length <= length);
        read_range(&m.view, out->hidden, rows);
        assert_memory_equal(rows, bytes + out->hidden.first, out->hidden.length);
    }
    free(m.bytes);
    return e;
}

static void assert_same(const struct rows_request *got, const struct rows_request *want) {
    assert_true(got->batch == want->batch && got->epoch == want->epoch);
    assert_int_equal(got->layer, want->layer);
    assert_int_equal(got->first_row, want->first_row);
    assert_int_equal(got->first_hidden, want->first_hidden);
    assert_int_equal(got->num_groups, want->num_groups);
    assert_int_equal(got->rows, want->rows);
    assert_memory_equal(got->groups, want->groups, 2 * want->num_groups * sizeof *want->groups);
    assert_memory_equal(got->hidden_rows, want->hidden_rows, want->rows * sizeof *want->hidden_rows);
    assert_int_equal(got->row_bytes, want->row_bytes);
    assert_int_equal(got->num_hidden, want->num_hidden);
    assert_int_equal(got->has_token, want->has_token);
    assert_memory_equal(got->token, want->token, sizeof want->token);
}

// ---- requests

static void a_request_has_the_bytes_of_pythons_protobuf(void **state) {
    (void)state;
    struct rows_request sent = request();
    size_t rows = sent.num_hidden * sent.row_bytes, length = rows_encode_request(&sent, NULL, 0);
    assert_int_equal(length + rows, sizeof PYTHON_REQUEST);
    uint8_t *head = malloc(length);
    assert_int_equal(rows_encode_request(&sent, head, length), length);
    assert_memory_equal(head, PYTHON_REQUEST, length);
    assert_true(length <= rows_head_bytes(sent.num_groups, sent.rows));
    free(head);
}

static void a_request_is_decoded_from_parts_of_any_size(void **state) {
    (void)state;
    struct rows_request sent = request();
    for (size_t part = 1; part <= sizeof PYTHON_REQUEST; part++) {
        struct decoded got;
        assert_ok(decode_bytes(PYTHON_REQUEST, sizeof PYTHON_REQUEST, part, &got));
        assert_same(&got.request, &sent);
        assert_int_equal(got.hidden.first, sizeof PYTHON_REQUEST - 18);
        assert_int_equal(got.hidden.length, 18);
    }
}

static void protobuf_c_agrees(void **state) {
    (void)state;
    Expertd__Shard__V1__RowsRequest *theirs = expertd__shard__v1__rows_request__unpack(NULL, sizeof PYTHON_REQUEST, PYTHON_REQUEST);
    assert_non_null(theirs);
    assert_int_equal(theirs->base.n_unknown_fields, 0);
    assert_int_equal(theirs->n_groups, 6);
    assert_memory_equal(theirs->groups, GROUPS, sizeof GROUPS);
    assert_memory_equal(theirs->hidden_rows, HIDDEN_ROWS, sizeof HIDDEN_ROWS);
    assert_int_equal(theirs->hidden.len, 18);
    expertd__shard__v1__rows_request__free_unpacked(theirs, NULL);
}

// The tensor's bytes lie in memory that cannot be read.
static void hidden_rows_are_not_read(void **state) {
    (void)state;
    struct rows_request sent = request();
    uint8_t head[256];
    size_t length = rows_encode_request(&sent, head, sizeof head), rows = sent.num_hidden * sent.row_bytes;
    uint8_t *sealed = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(sealed != MAP_FAILED);
    struct message m = {.parts = {{head, length}, {sealed, rows}}};
    m.view = (struct wire_parts){.context = &m, .count = 2, .part = part_at};
    struct decoded got;
    assert_ok(decode(&m, &got));
    assert_same(&got.request, &sent);
    assert_int_equal(got.hidden.first, length);
    munmap(sealed, 4096);
}

static void fields_come_in_any_order_and_numbers_unpacked(void **state) {
    (void)state;
    struct raw m = {.length = 0};
    uint8_t rows[18] = {7};
    raw_bytes(&m, 15, rows, sizeof rows);
    raw_number(&m, 8, 6);
    for (size_t i = 0; i < 2; i++) {
        raw_number(&m, 7, HIDDEN_ROWS[i]);
        raw_number(&m, 4, GROUPS[i]);
    }
    struct raw packed = {.length = 0};
    for (size_t i = 2; i < 6; i++) {
        raw_varint(&packed, GROUPS[i]);
    }
    raw_message(&m, 4, &packed);
    packed.length = 0;
    for (size_t i = 2; i < 5; i++) {
        raw_varint(&packed, HIDDEN_ROWS[i]);
    }
    raw_message(&m, 7, &packed);
    raw_number(&m, 6, 4);
    raw_number(&m, 5, 9);
    struct rows_request want = request();
    raw_bytes(&m, 9, want.token, sizeof want.token);
    raw_number(&m, 3, 61);
    raw_number(&m, 2, want.epoch);
    raw_number(&m, 1, 300);
    for (size_t part = 1; part < 40; part++) {
        struct decoded got;
        assert_ok(decode_bytes(m.bytes, m.length, part, &got));
        assert_same(&got.request, &want);
        assert_int_equal(got.hidden.first, 2);
    }
}

static void a_message_with_a_token_opens_a_stream(void **state) {
    (void)state;
    struct rows_request sent = {.has_token = true, .token = {1, 2, 3}};
    uint8_t head[64];
    struct decoded got;
    size_t length = rows_encode_request(&sent, head, sizeof head);
    assert_int_equal(length, 18);
    assert_ok(decode_bytes(head, length, 5, &got));
    assert_true(got.request.has_token && got.request.batch == 0);
    assert_memory_equal(got.request.token, sent.token, sizeof sent.token);
}

static void truncated_requests_are_refused(void **state) {
    (void)state;
    for (size_t length = 0; length < sizeof PYTHON_REQUEST; length++) {
        for (size_t part = 1; part < 20; part += 6) {
            struct decoded got;
            err_t e = decode_bytes(PYTHON_REQUEST, length, part, &got);
            // Without `hidden` it is a piece whose hidden rows have all been sent before, if it ends behind row_bytes.
            bool whole = length == sizeof PYTHON_REQUEST - 20 || length == sizeof PYTHON_REQUEST - 20 - 18;
            assert_int_equal(e.code, whole ? EXPERTD_ERR_OK : EXPERTD_ERR_MALFORMED);
        }
    }
}

// A valid piece of one row, to which a test adds one field.
static struct raw small_piece(void) {
    struct raw m = {.length = 0};
    raw_number(&m, 1, 1);
    raw_bytes(&m, 4, "\x03\x01", 2);
    raw_bytes(&m, 7, "\x00", 1);
    raw_number(&m, 8, 4);
    raw_bytes(&m, 15, "abcd", 4);
    return m;
}

static void refuse(const struct raw *m, enum expertd_err_code code, const char *field, const char *text) {
    struct decoded got;
    assert_refused(decode_bytes(m->bytes, m->length, 3, &got), code, field, text);
}

static void fields_given_twice_are_refused(void **state) {
    (void)state;
    static const uint64_t NUMBERS[] = {1, 2, 3, 5, 6, 8};
    static const char *const NAMES[] = {"batch", "epoch", "layer", "first_row", "first_hidden", "row_bytes"};
    for (size_t i = 0; i < 6; i++) {
        struct raw m = small_piece();
        for (int twice = 0; twice < 2; twice++) {
            raw_number(&m, NUMBERS[i], 4);
        }
        refuse(&m, EXPERTD_ERR_UNKNOWN_FIELD, NAMES[i], "twice");
    }
    struct raw m = small_piece();
    raw_bytes(&m, 15, "abcd", 4);
    refuse(&m, EXPERTD_ERR_UNKNOWN_FIELD, "", "field 15 of RowsRequest is given twice");
    m = small_piece();
    raw_bytes(&m, 9, "0123456789abcdef", 16);
    raw_bytes(&m, 9, "0123456789abcdef", 16);
    refuse(&m, EXPERTD_ERR_UNKNOWN_FIELD, "token", "twice");
}

static void requests_that_do_not_fit_are_refused_by_field(void **state) {
    (void)state;
    struct raw m = small_piece();
    struct decoded got;
    assert_ok(decode_bytes(m.bytes, m.length, 3, &got));
    raw_number(&m, 10, 1);
    refuse(&m, EXPERTD_ERR_UNKNOWN_FIELD, "10", "no field 10");
    m = small_piece();
    raw_number(&m, 15, 1);
    refuse(&m, EXPERTD_ERR_MALFORMED, "hidden", "wire type 0 instead of 2");
    m = small_piece();
    raw_bytes(&m, 3, "a", 1);
    refuse(&m, EXPERTD_ERR_MALFORMED, "layer", "wire type 2 instead of 0");
    m = small_piece();
    raw_number(&m, 3, UINT64_C(1) << 32);
    refuse(&m, EXPERTD_ERR_MALFORMED, "layer", "exceeds 32 bits");
    m = small_piece();
    raw_number(&m, 7, UINT64_MAX);
    refuse(&m, EXPERTD_ERR_MALFORMED, "hidden_rows", "exceeds 32 bits");
    m = small_piece();
    raw_bytes(&m, 7, "\x80", 1);
    refuse(&m, EXPERTD_ERR_MALFORMED, "hidden_rows", "inside a varint");
    m = small_piece();
    raw_bytes(&m, 9, "0123456789abcde", 15);
    refuse(&m, EXPERTD_ERR_MALFORMED, "token", "15 bytes instead of 16");
    m = small_piece();
    raw_number(&m, 4, 1);
    refuse(&m, EXPERTD_ERR_MALFORMED, "groups", "3 numbers");
    m = small_piece();
    for (int i = 0; i < ROWS_MAX; i++) {
        raw_number(&m, 7, 0);
    }
    refuse(&m, EXPERTD_ERR_TOO_LARGE, "hidden_rows", "more than 6");
    m = small_piece();
    for (int i = 0; i < 2 * GROUPS_MAX; i++) {
        raw_number(&m, 4, 1);
    }
    refuse(&m, EXPERTD_ERR_TOO_LARGE, "groups", "more than 8");
    m = small_piece();
    for (int i = 0; i < 100; i++) { // fields that would not fit into the memory of the head
        raw_number(&m, 3, UINT64_MAX);
    }
    refuse(&m, EXPERTD_ERR_TOO_LARGE, "", "the fields beside the rows have more than");
    m.length = 0;
    raw_number(&m, 1, 1);
    raw_bytes(&m, 15, "abcd", 4);
    refuse(&m, EXPERTD_ERR_MALFORMED, "hidden", "not rows of 0 bytes");
    raw_number(&m, 8, 3);
    refuse(&m, EXPERTD_ERR_MALFORMED, "hidden", "4 bytes are not rows of 3 bytes");
    m.length = 0;
    refuse(&m, EXPERTD_ERR_MALFORMED, "batch", "missing");
    m = small_piece();
    m.bytes[1] = 0; // batch 0
    refuse(&m, EXPERTD_ERR_MALFORMED, "batch", "missing");
}

static void hostile_lengths_are_refused(void **state) {
    (void)state;
    static const uint64_t LENGTHS[] = {5, 1000, UINT32_MAX, UINT64_C(1) << 40, UINT64_MAX};
    for (size_t i = 0; i < sizeof LENGTHS / sizeof *LENGTHS; i++) {
        for (uint64_t field = 4; field <= 15; field += 11) {
            struct raw m = {.length = 0};
            raw_number(&m, 1, 1);
            raw_tag(&m, field, RAW_BYTES);
            raw_varint(&m, LENGTHS[i]);
            raw_put(&m, "abcd", 4);
            refuse(&m, EXPERTD_ERR_MALFORMED, "", "not a sequence of fields");
        }
    }
    static const int GROUPS_TYPES[] = {RAW_GROUP, RAW_GROUP_END, 6, 7};
    for (size_t i = 0; i < 4; i++) {
        struct raw m = small_piece();
        raw_tag(&m, 15, GROUPS_TYPES[i]);
        refuse(&m, EXPERTD_ERR_MALFORMED, "", "not a sequence of fields");
    }
    struct raw m = small_piece(); // a tag and a length in six bytes
    raw_put(&m, "\xfa\x80\x80\x80\x80\x00\x00", 7);
    refuse(&m, EXPERTD_ERR_MALFORMED, "", "not a sequence of fields");
}

// ---- replies

static err_t decode_reply(const uint8_t *bytes, size_t length, size_t part_bytes, struct rows_reply *out,
                          struct wire_range *results) {
    struct message m;
    message_init(&m, bytes, length, part_bytes);
    err_t e = rows_decode_reply(&m.view, out, results);
    free(m.bytes);
    return e;
}

static void replies_have_the_bytes_of_pythons_protobuf(void **state) {
    (void)state;
    struct rows_reply sent = {
        .batch = 300, .epoch = UINT64_C(1) << 40, .first_row = 9, .rows = 2, .compute_ns = 123456, .result_bytes = 12};
    struct rows_reply failed = {.batch = 300,
                                .epoch = 1,
                                .has_error = true,
                                .reason = "SHARD_LOST",
                                .message = "expert 5 of layer 61 is not on this shard"};
    uint8_t head[ROWS_REPLY_HEAD_MAX];
    assert_int_equal(rows_encode_reply(&sent, head, sizeof head), sizeof PYTHON_REPLY - 12);
    assert_memory_equal(head, PYTHON_REPLY, sizeof PYTHON_REPLY - 12);
    assert_int_equal(rows_encode_reply(&failed, head, sizeof head), sizeof PYTHON_ERROR);
    assert_memory_equal(head, PYTHON_ERROR, sizeof PYTHON_ERROR);
    struct rows_reply got;
    struct wire_range results;
    for (size_t part = 1; part < 60; part++) {
        assert_ok(decode_reply(PYTHON_REPLY, sizeof PYTHON_REPLY, part, &got, &results));
        assert_true(got.batch == 300 && got.epoch == sent.epoch && got.compute_ns == 123456 && !got.has_error);
        assert_int_equal(got.first_row, 9);
        assert_int_equal(got.rows, 2);
        assert_int_equal(got.result_bytes, 12);
        assert_int_equal(results.first, sizeof PYTHON_REPLY - 12);
        assert_ok(decode_reply(PYTHON_ERROR, sizeof PYTHON_ERROR, part, &got, &results));
        assert_true(got.has_error);
        assert_string_equal(got.reason, failed.reason);
        assert_string_equal(got.message, failed.message);
    }
}

static void the_longest_error_fits(void **state) {
    (void)state;
    struct rows_reply sent = {.batch = UINT64_MAX, .epoch = UINT64_MAX, .compute_ns = UINT64_MAX, .has_error = true}, got;
    struct wire_range results;
    sent.first_row = sent.rows = UINT32_MAX;
    memset(sent.reason, 'R', sizeof sent.reason - 1);
    memset(sent.message, 'm', sizeof sent.message - 1);
    uint8_t head[ROWS_REPLY_HEAD_MAX];
    size_t length = rows_encode_reply(&sent, head, sizeof head);
    assert_refused(decode_reply(head, length, 7, &got, &results), EXPERTD_ERR_MALFORMED, "error", "rows or an error");
    sent.rows = 0;
    length = rows_encode_reply(&sent, head, sizeof head);
    assert_ok(decode_reply(head, length, 7, &got, &results));
    assert_string_equal(got.message, sent.message);
}

static void replies_skip_unknown_fields_and_cut_texts(void **state) {
    (void)state;
    struct raw m = {.length = 0}, error = {.length = 0};
    struct rows_reply got;
    struct wire_range results;
    char text[700];
    memset(text, 'x', sizeof text);
    raw_number(&m, 1, 7);
    raw_number(&m, 12, 9);
    raw_bytes(&m, 13, "new", 3);
    raw_text(&error, 1, "SHARD_LOST");
    raw_bytes(&error, 2, text, sizeof text);
    raw_message(&m, 6, &error);
    assert_ok(decode_reply(m.bytes, m.length, 11, &got, &results));
    assert_int_equal(strlen(got.message), ROWS_ERROR_MAX - 1);
    m.length = error.length = 0;
    raw_bytes(&error, 2, "caf\xc3\xa9\xff tail", 11);
    raw_message(&m, 6, &error);
    assert_ok(decode_reply(m.bytes, m.length, 11, &got, &results));
    assert_string_equal(got.message, "caf\xc3\xa9");
    raw_bytes(&m, 15, "abcd", 4);
    assert_refused(decode_reply(m.bytes, m.length, 4, &got, &results), EXPERTD_ERR_MALFORMED, "error", "rows or an error");
    m.length = 0;
    raw_bytes(&m, 15, "abcd", 4);
    raw_bytes(&m, 15, "abcd", 4);
    assert_refused(decode_reply(m.bytes, m.length, 4, &got, &results), EXPERTD_ERR_UNKNOWN_FIELD, "", "twice");
    for (size_t length = 1; length < sizeof PYTHON_REPLY - 14; length++) { // up to the tag of `results`
        err_t e = decode_reply(PYTHON_REPLY, length, 2, &got, &results);
        assert_true(!err_is(e) || e.code == EXPERTD_ERR_MALFORMED);
    }
    assert_int_equal(decode_reply(PYTHON_REPLY, sizeof PYTHON_REPLY - 1, 2, &got, &results).code, EXPERTD_ERR_MALFORMED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_has_the_bytes_of_pythons_protobuf),
        cmocka_unit_test(a_request_is_decoded_from_parts_of_any_size),
        cmocka_unit_test(protobuf_c_agrees),
        cmocka_unit_test(hidden_rows_are_not_read),
        cmocka_unit_test(fields_come_in_any_order_and_numbers_unpacked),
        cmocka_unit_test(a_message_with_a_token_opens_a_stream),
        cmocka_unit_test(truncated_requests_are_refused),
        cmocka_unit_test(fields_given_twice_are_refused),
        cmocka_unit_test(requests_that_do_not_fit_are_refused_by_field),
        cmocka_unit_test(hostile_lengths_are_refused),
        cmocka_unit_test(replies_have_the_bytes_of_pythons_protobuf),
        cmocka_unit_test(the_longest_error_fits),
        cmocka_unit_test(replies_skip_unknown_fields_and_cut_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
