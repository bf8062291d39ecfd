// Encodes and decodes the messages of expertd.admin.v1, for the daemon and expertctl. Uses the reader and writer of proto/wire
// instead of protobuf-c. Unknown fields are refused in requests and skipped in answers. Any thread.
//
// Encoders return malloc'd bytes that the caller frees, or NULL bytes with EXPERTD_ERR_NOMEM. The caller frees a decoded struct
// with its deinit function; on error *out is zeroed. Decoders fail with EXPERTD_ERR_MALFORMED, EXPERTD_ERR_UNKNOWN_FIELD,
// EXPERTD_ERR_INVALID, EXPERTD_ERR_TOO_LARGE or EXPERTD_ERR_NOMEM; expertd_err_field() is the field at fault.
#ifndef EXPERTD_PROTO_ADMIN_ADMIN_H
#define EXPERTD_PROTO_ADMIN_ADMIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "proto/control/control.h"

enum { PROTO_ADMIN_MESSAGE_MAX = 4 << 20, PROTO_REASON_MAX = 256 };

// A layer's placement. holders[first[e]] to holders[first[e + 1] - 1] are the ranks that hold expert e: ascending, each below
// `ranks`.
struct proto_placement {
    uint32_t layer;
    uint64_t epoch;
    uint32_t ranks, num_experts;
    uint32_t *first;   // [num_experts + 1]
    uint32_t *holders; // [first[num_experts]]
    uint64_t *rows;    // [num_experts]; decoded as zeros if none were sent; encoders accept NULL
    double imbalance;
};
void proto_placement_deinit(struct proto_placement *placement); // legal on a zeroed struct

// The layers of a ShowPlacement, PlanPlacement or GetLoad request; none: all layers.
struct proto_layers {
    uint32_t *layers; // [count]
    size_t count;
};

struct proto_placements {
    struct proto_placement *items; // [count]
    size_t count;
};
void proto_placements_deinit(struct proto_placements *placements);

FALLIBLE proto_encode_show_request(const struct proto_layers *layers, struct proto_bytes *out);
FALLIBLE proto_decode_show_request(const uint8_t *bytes, size_t length, struct proto_layers *out); // free(out->layers)
FALLIBLE proto_encode_show_response(const struct proto_placements *placements, struct proto_bytes *out);
FALLIBLE proto_decode_show_response(const uint8_t *bytes, size_t length, struct proto_placements *out);

enum proto_policy { PROTO_POLICY_UNSPECIFIED, PROTO_POLICY_CONTIGUOUS, PROTO_POLICY_BALANCED };

struct proto_counts {
    uint32_t layer;
    uint64_t *rows; // [num_rows]
    size_t num_rows;
};

struct proto_plan_request {
    struct proto_layers layers;
    enum proto_policy policy;
    uint32_t replicas;
    struct proto_counts *counts; // [num_counts]
    size_t num_counts;
};
void proto_plan_request_deinit(struct proto_plan_request *request);

struct proto_plan {
    struct proto_placement now, planned;
    uint32_t copies;
    uint64_t copy_bytes;
};

struct proto_plans {
    struct proto_plan *items; // [count]
    size_t count;
};
void proto_plans_deinit(struct proto_plans *plans);

FALLIBLE proto_encode_plan_request(const struct proto_plan_request *request, struct proto_bytes *out);
FALLIBLE proto_decode_plan_request(const uint8_t *bytes, size_t length, struct proto_plan_request *out);
FALLIBLE proto_encode_plan_response(const struct proto_plans *plans, struct proto_bytes *out);
FALLIBLE proto_decode_plan_response(const uint8_t *bytes, size_t length, struct proto_plans *out);

// One message of the answer of ApplyPlacement.
struct proto_progress {
    uint64_t moved_bytes, all_bytes;
    uint32_t moved_experts, all_experts;
    bool done;
    uint64_t epoch;
};

FALLIBLE proto_encode_apply_request(const struct proto_placement *placement, struct proto_bytes *out);
FALLIBLE proto_decode_apply_request(const uint8_t *bytes, size_t length, struct proto_placement *out);
FALLIBLE proto_encode_progress(const struct proto_progress *progress, struct proto_bytes *out);
FALLIBLE proto_decode_progress(const uint8_t *bytes, size_t length, struct proto_progress *out);

FALLIBLE proto_encode_drain_request(const char *reason, struct proto_bytes *out);
FALLIBLE proto_decode_drain_request(const uint8_t *bytes, size_t length, char reason[PROTO_REASON_MAX + 1]);
FALLIBLE proto_encode_drain_response(uint64_t active, struct proto_bytes *out);
FALLIBLE proto_decode_drain_response(const uint8_t *bytes, size_t length, uint64_t *active);

// A GetLoad answer uses layer, epoch, num_experts, rows and imbalance of each placement. Its request has the encoding of
// ShowPlacement's.
FALLIBLE proto_encode_load_response(const struct proto_placements *loads, struct proto_bytes *out);
FALLIBLE proto_decode_load_response(const uint8_t *bytes, size_t length, struct proto_placements *out);

#endif
