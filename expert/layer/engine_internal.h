// What layer.c's stages work in: the scratch of one batch, reserved at start from the limits. Private to expert/.
#ifndef EXPERTD_EXPERT_LAYER_ENGINE_INTERNAL_H
#define EXPERTD_EXPERT_LAYER_ENGINE_INTERNAL_H

#include "base/arena.h"
#include "expert/layer/engine.h"
#include "expert/layer/ffn.h"
#include "expert/layer/node_teams.h"
#include "expert/layer/router.h"
#include "shard/exchange.h"
#include "shard/plan.h"

struct expertd_devices;
struct device_engine;

// The rows of a batch as they were taken in, and where its answers come: devices have two, so that one batch's rows are taken in
// and another's answers leave while a third is computed.
struct batch_input {
    char *hidden;            // [max_tokens, H] in D, hidden_stride bytes apart; NULL with devices, as the next two
    float *hidden_f32;       // [max_tokens, H] the same rows widened, for routers and gates; = hidden where D is F32
    float *router_rows;      // [max_tokens, H] normalised, of routers with an input of their own; NULL where no layer has one
    uint32_t *token_request; // [max_tokens] index of the request each token belongs to
    char *staging; // [device_landing_bytes] rows as callers sent them, on their way to the first device; pinned, NULL without
    size_t hidden_stride, hidden_f32_stride; // of the layer at hand: bytes, elements
    uint32_t *shared_tokens;                 // [max_tokens] tokens that want the shared experts
    uint32_t *shared_rows;                   // [max_tokens] row of `shared` of each token; SHARED_NO_ROW: none
    char *outputs;                           // [max_tokens, H] in any output dtype, pinned; NULL without devices
};
enum { BATCH_INPUTS = 2 };

struct engine {
    const struct model *model;
    struct layer_limits limits;
    struct expertd_team *team;
    struct exchange *exchange;
    struct arena arena;
    uint64_t batches;                        // numbers the batches for the exchange
    struct expertd_devices *devices;         // options'; NULL: the CPU computes
    struct engine_lent lent;                 // options'
    struct device_engine *device;            // on them
    size_t pinned_bytes;                     // of the arena's beginning, which devices read and write: to `message`
    struct batch_input inputs[BATCH_INPUTS]; // the second one with devices only
    struct layer_pass *passes;               // [BATCH_INPUTS]
    unsigned next_pass;
    char *message; // [device_message_most] of the batch that is computed; without devices ids and weights alone

    char *expanded; // [max_choices, H] in D: weighted inputs; NULL where no layer weighs its inputs
    struct plan plan;
    const void **rows; // [threads, max_top_k] the combine's row pointers
    struct router_scratch router;
    struct ffn_scratch ffn;
    struct node_teams *node_teams; // NULL: `team` serves all ranks, in `ffn`
    struct node_scratch *nodes;    // [node_teams_count] each node's own
    char *shared;                  // [max_tokens, H] in D: the shared experts' rows
    char *latent;        // [max_tokens, L] in D: what latent experts read, and then each token's sum; NULL where no layer has an L
    float *shared_scale; // [max_tokens] sigmoid of the shared gate
};

struct node_scratch {
    struct arena memory; // on the node
    struct ffn_scratch ffn;
};

enum { SHARED_NO_ROW = UINT32_MAX };

#endif
