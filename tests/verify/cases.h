// Seeded requests of every kind that a caller may send: the same numbers on every machine. Owned by one thread.
#ifndef EXPERTD_TESTS_VERIFY_CASES_H
#define EXPERTD_TESTS_VERIFY_CASES_H

#include <stdint.h>

#include "expert/layer/layer.h"
#include "proto/wire/wire.h"

enum case_kind {
    CASE_OWN,     // the model's router; BF16 in and out, as engines send it. The one that is timed, where there is a router
    CASE_OWN_F32, // F32 in and out: nothing is hidden by a rounding at the edge
    CASE_OWN_F8,  // F8_E4M3 with a scale per token
    CASE_LOGITS,  // the caller's router logits; F16 in and out, without the shared experts
    CASE_ROUTES,  // the caller's ids and weights: dropped slots, repeated experts, more choices than the router's; with the shared
                  // experts
    CASE_KIND_COUNT
};

const char *case_name(enum case_kind kind);
bool case_fits(enum case_kind kind, const struct model_layer *layer);

enum { CASE_TENSOR_COUNT = 7 };

struct verify_case {
    enum case_kind kind;
    struct wire_request request; // views into `owned`; output_dtype is always said
    bool with_shared;            // what the answer holds by the interface's rules
    void *owned[CASE_TENSOR_COUNT];
};

struct case_options {
    enum case_kind kind;
    const struct model_layer *layer;
    uint64_t tokens;
    uint32_t max_top_k; // of the daemon
    uint64_t seed;
};

// EXPERTD_ERR_NOMEM; out must be deinit'ed also then.
FALLIBLE case_init(const struct case_options *options, struct verify_case *out);
void case_deinit(struct verify_case *verify_case); // legal on a zeroed struct

#endif
