// Seeded requests of every kind that a caller may send. A seed gives the same numbers on every machine. Owned by one thread.
#ifndef EXPERTD_TESTS_VERIFY_CASES_H
#define EXPERTD_TESTS_VERIFY_CASES_H

#include <stdint.h>

#include "expert/layer/layer.h"
#include "proto/wire/wire.h"

enum case_kind {
    CASE_OWN,     // the model's router, BF16 in and out as inference engines send it; timed if the layer has a router
    CASE_OWN_F32, // F32 in and out: no rounding of inputs or outputs hides a difference
    CASE_OWN_F8,  // the model's router; F8_E4M3 with a scale per token
    CASE_LOGITS,  // the caller's router logits; F16 in and out, without shared experts
    CASE_ROUTES,  // the caller's ids and weights: dropped slots, repeated experts, more choices than the router makes; with shared
                  // experts
    CASE_KIND_COUNT
};

const char *case_name(enum case_kind kind);
bool case_fits(enum case_kind kind, const struct model_layer *layer);

enum { CASE_TENSOR_COUNT = 7 };

struct verify_case {
    enum case_kind kind;
    struct wire_request request; // views into `owned`; output_dtype is always set
    bool with_shared;            // whether the interface adds the shared experts to the answer
    void *owned[CASE_TENSOR_COUNT];
};

struct case_options {
    enum case_kind kind;
    const struct model_layer *layer;
    uint64_t tokens;
    uint32_t max_top_k; // the daemon's limit
    uint64_t seed;
};

// EXPERTD_ERR_NOMEM. Call case_deinit on *out also after an error.
FALLIBLE case_init(const struct case_options *options, struct verify_case *out);
void case_deinit(struct verify_case *verify_case); // legal on a zeroed struct

#endif
