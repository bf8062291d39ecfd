// The engine's state: scratch for the stages of one batch, reserved at start from the limits. Private to expert/.
#ifndef EXPERTD_EXPERT_LAYER_ENGINE_STATE_H
#define EXPERTD_EXPERT_LAYER_ENGINE_STATE_H

#include "base/arena.h"
#include "expert/layer/engine_options.h"
#include "expert/layer/layer_request.h"
#include "expert/layer/router.h"
#include "shard/exchange.h"
#include "shard/plan.h"

struct device_engine;   // expert/device: scratch and weights on devices
struct engine_backend;  // engine_backend.h: the host or devices
struct expertd_devices; // of kernels/
struct host_engine;     // expert/host: scratch of the host's stages
struct layer_pass;
struct layer_stages;

// The input rows and the outputs of one batch. Devices have two of these, so that the copies of one batch overlap the compute of
// another.
struct batch_input {
    char *hidden;            // [max_tokens, H] in D, stride hidden_stride bytes; NULL with devices, as are the next two
    float *hidden_f32;       // [max_tokens, H] the same rows widened, for routers and gates; = hidden where D is F32
    float *router_rows;      // [max_tokens, H] normalised router_input rows; NULL if no layer needs them
    uint32_t *token_request; // [max_tokens] index of the request each token belongs to
    char *staging; // [device_raw_bytes] the callers' rows, unconverted, for the first device; pinned, NULL without devices
    size_t hidden_stride, hidden_f32_stride; // of the current layer: in bytes, in elements
    uint32_t *shared_tokens;                 // [max_tokens] tokens whose request includes the shared experts
    uint32_t *shared_rows;                   // [max_tokens] each token's row of the shared experts' results, or SHARED_NO_ROW
    char *outputs;                           // [max_tokens, H] in any output dtype, pinned; NULL without devices
};
enum { BATCH_INPUTS = 2 };
enum { SHARED_NO_ROW = UINT32_MAX };

struct engine {
    const struct model *model;
    struct layer_limits limits;
    struct expertd_team *team;
    const struct engine_backend *backend; // chosen by engine_create
    const struct layer_stages *stages;    // the backend's
    const struct remote_links *links;     // engine_options
    uint32_t local_ranks;
    struct exchange *exchange;
    struct arena arena;
    uint64_t batches;                        // the number of the latest batch, for the exchange; each plan of a batch has its own
    struct batch_input inputs[BATCH_INPUTS]; // the second one is used only if batches overlap
    struct layer_pass *passes;               // [BATCH_INPUTS]
    unsigned next_pass;
    // ids and weights of the current batch; with devices the complete message to the first device (device_message.h), pinned
    char *message;
    struct plan plan;
    struct router_scratch router;

    struct host_engine *host; // NULL with devices

    struct expertd_devices *devices; // NULL on the host, as is the next field
    struct device_engine *device;
    struct engine_shared_memory shared_memory;
    size_t pinned_bytes; // devices read and write the first pinned_bytes of the arena; `message` is the last piece of this part
};

#endif
