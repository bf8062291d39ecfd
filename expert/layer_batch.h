// One batch on its way through the stages of layer_forward. Private to expert/.
#ifndef EXPERTD_EXPERT_LAYER_BATCH_H
#define EXPERTD_EXPERT_LAYER_BATCH_H

#include "expert/engine.h"

struct batch {
    struct engine *engine;
    struct batch_input *in;
    unsigned slot; // of engine->inputs: which of its memory on the device, too
    const struct model_layer *layer;
    const struct shards *shards; // taken for the whole batch
    struct layer_request *requests;
    size_t count;         // requests
    size_t tokens, top_k; // of the whole batch; requests with fewer choices leave columns empty
    size_t shared_count;  // tokens that want the shared experts
    size_t read;          // rows that an expert will see
};

struct layer_pass {
    struct batch b;
    struct err_copy error; // of the steps so far
    struct layer_timings spent;
    int64_t clock_ns;
};

#endif
