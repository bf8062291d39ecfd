// The state that the stages of a batch work in: scratch for one batch, reserved at start from the limits. Private to expert/.
#ifndef EXPERTD_EXPERT_LAYER_ENGINE_STATE_H
#define EXPERTD_EXPERT_LAYER_ENGINE_STATE_H

#include "base/arena.h"
#include "expert/layer/engine_options.h"
#include "expert/layer/layer_request.h"
#include "expert/layer/router.h"
#include "shard/exchange.h"
#include "shard/plan.h"

struct device_engine;   // expert/device: scratch and weights on devices
struct engine_backend;  // expert/engine: the host or devices
struct expertd_devices; // of kernels/
struct host_engine;     // expert/host: scratch of the host's stages
struct layer_pass;
struct layer_stages;

// The input rows of one batch, and its outputs on their way to the callers. Devices have two, so that one batch's rows are copied
// in and another's outputs leave while a third batch is computed.
struct batch_input {
    char *hidden;            // [max_tokens, H] in D, hidden_stride bytes apart; NULL with devices, as the next two
    float *hidden_f32;       // [max_tokens, H] the same rows widened, for routers and gates; = hidden where D is F32
    float *router_rows;      // [max_tokens, H] normalised rows of routers with an input of their own; NULL where no layer has one
    uint32_t *token_request; // [max_tokens] index of the request each token belongs to
    char *staging; // [device_landing_bytes] rows as the callers sent them, copied here for the first device; pinned, NULL without
    size_t hidden_stride, hidden_f32_stride; // of the current layer: bytes, elements
    uint32_t *shared_tokens;                 // [max_tokens] tokens that want the shared experts
    uint32_t *shared_rows;                   // [max_tokens] each token's row of the shared experts' results, or SHARED_NO_ROW
    char *outputs;                           // [max_tokens, H] in any output dtype, pinned; NULL without devices
};
enum { BATCH_INPUTS = 2 };
enum { SHARED_NO_ROW = UINT32_MAX };

struct engine {
    const struct model *model;
    struct layer_limits limits;
    struct expertd_team *team;
    const struct engine_backend *backend; // who reserves and computes: chosen once, in engine_create
    const struct layer_stages *stages;    // the backend's
    struct exchange *exchange;
    struct arena arena;
    uint64_t batches;                        // numbers the batches for the exchange
    struct batch_input inputs[BATCH_INPUTS]; // the second one only where batches overlap
    struct layer_pass *passes;               // [BATCH_INPUTS]
    unsigned next_pass;
    // ids and weights of the current batch; with devices the whole message to the first one (device_message.h), pinned
    char *message;
    struct plan plan;
    struct router_scratch router;

    struct host_engine *host; // NULL with devices

    struct expertd_devices *devices; // NULL without, as the next one
    struct device_engine *device;
    struct engine_lent lent;
    size_t pinned_bytes; // the first bytes of the arena, to the end of `message`: devices read and write them
};

#endif
