// Fuzzes the decoders of expertd.shard.v1, which read the bytes of fronts and shards. The first byte of an input selects the
// decoder; the rest is the message. Messages of Rows are cut into parts: ranges must be within the message, accepted messages must
// survive encoding and decoding, give the same result for other parts and without their tensor bytes, and agree with protobuf-c.
#include <stdlib.h>
#include <string.h>

#include "generated/expertd/shard/v1/shard.pb-c.h"
#include "proto/shard/rows_wire.h"
#include "proto/shard/shard_control.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { GROUPS_MAX = 64, ROWS_MAX = 256 };

struct cut {
    const uint8_t *bytes;
    size_t length, part_bytes;
};

static struct wire_part part_at(const void *context, size_t index) {
    const struct cut *cut = context;
    size_t first = index * cut->part_bytes, left = cut->length - first;
    return (struct wire_part){cut->bytes + first, left < cut->part_bytes ? left : cut->part_bytes};
}

static struct wire_parts parts_of(const struct cut *cut) {
    return (struct wire_parts){.context = cut, .count = (cut->length + cut->part_bytes - 1) / cut->part_bytes, .part = part_at};
}

static void check_range(const struct wire_range *range, size_t length) {
    INVARIANT(range->first <= length && range->length <= length - range->first);
}

// ---- RowsRequest

struct decoded {
    struct rows_request request;
    struct wire_range hidden;
    uint32_t groups[2 * GROUPS_MAX], hidden_rows[ROWS_MAX];
};

static err_t decode_request(const uint8_t *bytes, size_t length, size_t part_bytes, struct decoded *out) {
    struct cut cut = {bytes, length, part_bytes};
    struct wire_parts parts = parts_of(&cut);
    struct rows_memory memory = {.groups = out->groups,
                                 .groups_max = GROUPS_MAX,
                                 .hidden_rows = out->hidden_rows,
                                 .rows_max = ROWS_MAX,
                                 .head_bytes = rows_head_bytes(GROUPS_MAX, ROWS_MAX)};
    INVARIANT((memory.head = malloc(memory.head_bytes)));
    err_t e = rows_decode_request(&parts, &memory, &out->request, &out->hidden);
    free(memory.head);
    return e;
}

static void check_same_request(const struct decoded *a, const struct decoded *b) {
    const struct rows_request *x = &a->request, *y = &b->request;
    INVARIANT(x->batch == y->batch && x->epoch == y->epoch && x->layer == y->layer && x->row_bytes == y->row_bytes);
    INVARIANT(x->first_row == y->first_row && x->first_hidden == y->first_hidden && x->num_hidden == y->num_hidden);
    INVARIANT(x->num_groups == y->num_groups && x->rows == y->rows && x->has_token == y->has_token);
    INVARIANT(memcmp(a->groups, b->groups, 2 * x->num_groups * sizeof *a->groups) == 0);
    INVARIANT(memcmp(a->hidden_rows, b->hidden_rows, x->rows * sizeof *a->hidden_rows) == 0);
    INVARIANT(memcmp(x->token, y->token, sizeof x->token) == 0);
    INVARIANT(a->hidden.length == b->hidden.length);
}

static void check_request_with_protobuf(const struct decoded *ours, const uint8_t *bytes, size_t length) {
    const struct rows_request *r = &ours->request;
    Expertd__Shard__V1__RowsRequest *theirs = expertd__shard__v1__rows_request__unpack(NULL, length, bytes);
    INVARIANT(theirs && theirs->base.n_unknown_fields == 0);
    INVARIANT(r->batch == theirs->batch && r->epoch == theirs->epoch && r->layer == theirs->layer);
    INVARIANT(r->first_row == theirs->first_row && r->first_hidden == theirs->first_hidden && r->row_bytes == theirs->row_bytes);
    INVARIANT(2 * r->num_groups == theirs->n_groups && r->rows == theirs->n_hidden_rows);
    INVARIANT(theirs->n_groups == 0 || memcmp(ours->groups, theirs->groups, theirs->n_groups * sizeof *theirs->groups) == 0);
    INVARIANT(theirs->n_hidden_rows == 0 ||
              memcmp(ours->hidden_rows, theirs->hidden_rows, theirs->n_hidden_rows * sizeof *theirs->hidden_rows) == 0);
    INVARIANT(ours->hidden.length == theirs->hidden.len);
    INVARIANT(theirs->hidden.len == 0 || memcmp(bytes + ours->hidden.first, theirs->hidden.data, theirs->hidden.len) == 0);
    INVARIANT(theirs->token.len == (r->has_token ? ROWS_TOKEN_LENGTH : 0));
    expertd__shard__v1__rows_request__free_unpacked(theirs, NULL);
}

// Encodes the request again, with its rows, and decodes it.
static void check_request_round_trip(const struct decoded *first, const uint8_t *rows) {
    struct decoded again;
    size_t head = rows_encode_request(&first->request, NULL, 0), length = head + first->hidden.length;
    uint8_t *bytes = malloc(length + 1);
    INVARIANT(bytes && rows_encode_request(&first->request, bytes, head) == head);
    memcpy(bytes + head, rows, first->hidden.length);
    INVARIANT(!err_is(decode_request(bytes, length, 5, &again)));
    check_same_request(first, &again);
    INVARIANT(again.hidden.length == 0 || again.hidden.first == head);
    free(bytes);
}

static void fuzz_request(const uint8_t *bytes, size_t length) {
    struct decoded first, second;
    err_t e = decode_request(bytes, length, 7, &first);
    if (err_is(e)) {
        INVARIANT(*expertd_err_message() != '\0');
        INVARIANT(decode_request(bytes, length, length + 1, &second).code == e.code);
        return;
    }
    check_range(&first.hidden, length);
    INVARIANT(first.hidden.length == first.request.num_hidden * first.request.row_bytes);
    INVARIANT(first.request.num_groups <= GROUPS_MAX && first.request.rows <= ROWS_MAX);
    uint8_t *other = malloc(length + 1); // the same message with other rows
    INVARIANT(other);
    memcpy(other, bytes, length);
    memset(other + first.hidden.first, 0xa5, first.hidden.length);
    INVARIANT(!err_is(decode_request(other, length, length + 1, &second)));
    check_same_request(&first, &second);
    free(other);
    check_request_round_trip(&first, bytes + first.hidden.first);
    check_request_with_protobuf(&first, bytes, length);
}

// ---- RowsReply

static err_t decode_reply(const uint8_t *bytes, size_t length, size_t part_bytes, struct rows_reply *out,
                          struct wire_range *results) {
    struct cut cut = {bytes, length, part_bytes};
    struct wire_parts parts = parts_of(&cut);
    return rows_decode_reply(&parts, out, results);
}

static void fuzz_reply(const uint8_t *bytes, size_t length) {
    struct rows_reply reply, again;
    struct wire_range results, same;
    err_t e = decode_reply(bytes, length, 7, &reply, &results);
    INVARIANT(decode_reply(bytes, length, length + 1, &again, &same).code == e.code);
    if (err_is(e)) {
        INVARIANT(*expertd_err_message() != '\0');
        return;
    }
    check_range(&results, length);
    INVARIANT(results.length == reply.result_bytes && (!reply.has_error || results.length == 0));
    INVARIANT(memcmp(&reply, &again, sizeof reply) == 0 && results.first == same.first);
    uint8_t head[ROWS_REPLY_HEAD_MAX];
    size_t used = rows_encode_reply(&reply, head, sizeof head);
    uint8_t *copy = malloc(used + results.length + 1);
    INVARIANT(copy);
    memcpy(copy, head, used);
    memcpy(copy + used, bytes + results.first, results.length);
    INVARIANT(!err_is(decode_reply(copy, used + results.length, 3, &again, &same)));
    INVARIANT(memcmp(&reply, &again, sizeof reply) == 0);
    free(copy);
    Expertd__Shard__V1__RowsReply *theirs = expertd__shard__v1__rows_reply__unpack(NULL, length, bytes);
    if (theirs) { // NULL: a field that this decoder skips may not parse for protobuf-c
        INVARIANT(reply.batch == theirs->batch && reply.epoch == theirs->epoch && reply.rows == theirs->rows);
        INVARIANT(results.length == theirs->results.len);
        expertd__shard__v1__rows_reply__free_unpacked(theirs, NULL);
    }
}

// ---- Control: accepted messages survive encoding, and then have the same bytes again

static void same_and_free(struct proto_bytes a, struct proto_bytes b) {
    INVARIANT(a.length == b.length && memcmp(a.data, b.data, a.length) == 0);
    free(a.data);
    free(b.data);
}

static void fuzz_control_request(const uint8_t *bytes, size_t length) {
    struct shard_request first, again;
    struct shard_message *owner, *other;
    struct proto_bytes encoded, second;
    if (err_is(shard_decode_request(bytes, length, &first, &owner))) {
        INVARIANT(*expertd_err_message() != '\0' && !owner);
        return;
    }
    INVARIANT(!err_is(shard_encode_request(&first, &encoded)));
    INVARIANT(!err_is(shard_decode_request(encoded.data, encoded.length, &again, &other)));
    INVARIANT(!err_is(shard_encode_request(&again, &second)));
    same_and_free(encoded, second);
    shard_message_free(owner);
    shard_message_free(other);
}

static void fuzz_control_reply(const uint8_t *bytes, size_t length) {
    struct shard_reply first, again;
    struct shard_message *owner, *other;
    struct proto_bytes encoded, second;
    if (err_is(shard_decode_reply(bytes, length, &first, &owner))) {
        INVARIANT(*expertd_err_message() != '\0' && !owner);
        return;
    }
    for (size_t i = 0; first.kind == SHARD_INVENTORY && i < first.inventory.count; i++) {
        const struct shard_copies *copies = &first.inventory.copies[i];
        INVARIANT(copies->state <= SHARD_COPY_FAILED);
        INVARIANT(copies->count == 0 || !copies->digests ||
                  (copies->state == SHARD_COPY_READY || copies->state == SHARD_COPY_RETIRING));
    }
    INVARIANT(!err_is(shard_encode_reply(&first, &encoded)));
    INVARIANT(!err_is(shard_decode_reply(encoded.data, encoded.length, &again, &other)));
    INVARIANT(!err_is(shard_encode_reply(&again, &second)));
    same_and_free(encoded, second);
    shard_message_free(owner);
    shard_message_free(other);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) {
        return 0;
    }
    const uint8_t *bytes = data + 1;
    size_t length = size - 1;
    switch (data[0]) {
    case 'A':
        fuzz_reply(bytes, length);
        break;
    case 'c':
        fuzz_control_request(bytes, length);
        break;
    case 'C':
        fuzz_control_reply(bytes, length);
        break;
    default: // most inputs: the decoder with the most fields
        fuzz_request(bytes, length);
    }
    return 0;
}
