// Fuzzes the decoders of expertd.admin.v1. The first byte of an input selects the decoder; the rest is the message. An accepted
// message must be consistent, and encoding and decoding it again must give the same bytes.
#include <stdlib.h>
#include <string.h>

#include "proto/admin/admin.h"
#include "proto/admin/admin_shards.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_placement(const struct proto_placement *p) {
    for (uint32_t e = 0; e < p->num_experts && p->first; e++) {
        INVARIANT(p->first[e] < p->first[e + 1]);
        for (uint32_t i = p->first[e]; i < p->first[e + 1]; i++) {
            INVARIANT(p->holders[i] < p->ranks && (i == p->first[e] || p->holders[i - 1] < p->holders[i]));
        }
    }
}

static void same_and_free(struct proto_bytes a, struct proto_bytes b) {
    INVARIANT(a.length == b.length && memcmp(a.data, b.data, a.length) == 0);
    free(a.data);
    free(b.data);
}

static void fuzz_apply(const uint8_t *bytes, size_t length) {
    struct proto_placement taken, again;
    struct proto_bytes first, second;
    if (err_is(proto_decode_apply_request(bytes, length, &taken))) {
        INVARIANT(*expertd_err_message() != '\0' && !taken.first && !taken.holders && !taken.rows);
        return;
    }
    check_placement(&taken);
    INVARIANT(!err_is(proto_encode_apply_request(&taken, &first)));
    INVARIANT(!err_is(proto_decode_apply_request(first.data, first.length, &again)));
    INVARIANT(!err_is(proto_encode_apply_request(&again, &second)));
    same_and_free(first, second);
    proto_placement_deinit(&taken);
    proto_placement_deinit(&again);
}

static void fuzz_plan_request(const uint8_t *bytes, size_t length) {
    struct proto_plan_request taken, again;
    struct proto_bytes first, second;
    if (err_is(proto_decode_plan_request(bytes, length, &taken))) {
        INVARIANT(*expertd_err_message() != '\0' && !taken.counts && !taken.layers.layers);
        return;
    }
    INVARIANT(!err_is(proto_encode_plan_request(&taken, &first)));
    INVARIANT(!err_is(proto_decode_plan_request(first.data, first.length, &again)));
    INVARIANT(!err_is(proto_encode_plan_request(&again, &second)));
    same_and_free(first, second);
    proto_plan_request_deinit(&taken);
    proto_plan_request_deinit(&again);
}

static void fuzz_plan_response(const uint8_t *bytes, size_t length) {
    struct proto_plans taken;
    if (!err_is(proto_decode_plan_response(bytes, length, &taken))) {
        for (size_t i = 0; i < taken.count; i++) {
            check_placement(&taken.items[i].now);
            check_placement(&taken.items[i].planned);
        }
        proto_plans_deinit(&taken);
    }
}

static void fuzz_placements(err_t (*decode)(const uint8_t *bytes, size_t length, struct proto_placements *out),
                            const uint8_t *bytes, size_t length) {
    struct proto_placements taken;
    if (!err_is(decode(bytes, length, &taken))) {
        for (size_t i = 0; i < taken.count; i++) {
            check_placement(&taken.items[i]);
        }
        proto_placements_deinit(&taken);
    }
}

static void fuzz_small(const uint8_t *bytes, size_t length) {
    struct proto_layers layers;
    struct proto_progress progress;
    char reason[PROTO_REASON_MAX + 1];
    uint64_t active;
    if (!err_is(proto_decode_show_request(bytes, length, &layers))) {
        free(layers.layers);
    }
    if (err_is(proto_decode_progress(bytes, length, &progress)) || err_is(proto_decode_drain_response(bytes, length, &active))) {
        INVARIANT(*expertd_err_message() != '\0');
    }
    if (!err_is(proto_decode_drain_request(bytes, length, reason))) {
        INVARIANT(strlen(reason) <= PROTO_REASON_MAX);
    }
}

static void fuzz_list_shards(const uint8_t *bytes, size_t length) {
    struct proto_shards taken, again;
    struct proto_bytes first, second;
    if (err_is(proto_decode_list_shards_response(bytes, length, &taken))) {
        INVARIANT(*expertd_err_message() != '\0' && !taken.items);
        return;
    }
    INVARIANT(!err_is(proto_encode_list_shards_response(&taken, &first)));
    INVARIANT(!err_is(proto_decode_list_shards_response(first.data, first.length, &again)));
    INVARIANT(again.count == taken.count);
    INVARIANT(!err_is(proto_encode_list_shards_response(&again, &second)));
    same_and_free(first, second);
    proto_shards_deinit(&taken);
    proto_shards_deinit(&again);
}

static void fuzz_change_shard(const uint8_t *bytes, size_t length) {
    struct proto_change_shard change;
    if (!err_is(proto_decode_change_shard_request(bytes, length, &change))) {
        INVARIANT(change.address[0] && memchr(change.address, '\0', sizeof change.address));
        INVARIANT(change.change > PROTO_SHARD_UNSPECIFIED && change.change < PROTO_SHARD_CHANGES);
    }
    if (err_is(proto_decode_list_shards_request(bytes, length))) {
        INVARIANT(*expertd_err_message() != '\0');
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) {
        return 0;
    }
    const uint8_t *bytes = data + 1;
    size_t length = size - 1;
    switch (data[0]) {
    case 'P':
        fuzz_plan_response(bytes, length);
        break;
    case 'p':
        fuzz_plan_request(bytes, length);
        break;
    case 'S':
        fuzz_placements(proto_decode_show_response, bytes, length);
        break;
    case 'L':
        fuzz_placements(proto_decode_load_response, bytes, length);
        break;
    case 'H':
        fuzz_list_shards(bytes, length);
        break;
    case 'c':
        fuzz_change_shard(bytes, length);
        break;
    case 's':
        fuzz_small(bytes, length);
        break;
    default:
        fuzz_apply(bytes, length);
    }
    return 0;
}
