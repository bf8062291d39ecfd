// The stages of one batch as a table. The host's teams (expert/host) and devices (expert/device) each implement it; the engine
// chooses one when it is created, and layer.c's compute() calls it in order. Private to expert/.
//
// A stage works on the whole batch, reads and writes the engine's arrays, and never calls another stage. All run on the engine's
// thread; devices may still be working when a stage returns, until `answer`.
#ifndef EXPERTD_EXPERT_LAYER_STAGES_H
#define EXPERTD_EXPERT_LAYER_STAGES_H

#include "base/err.h"
#include "expert/layer/batch.h"

struct layer_stages {
    bool overlaps; // the input of the next batch may run while this one is computed

    // The callers' hidden rows become rows of D. Adds to *rows_direct the rows that the host did not copy.
    err_t (*input)(struct batch *b, uint64_t *rows_direct);
    // Fills b->ids and b->weights for every token.
    err_t (*route)(struct batch *b);
    // Latent experts: rows of H become rows of L.
    err_t (*project)(struct batch *b);
    // Sets out->hidden, and on devices out->row_token. Computes the weighted rows of layers with weights on the input.
    err_t (*dispatch)(struct batch *b, struct exchange_batch *out);
    // Computes each rank's experts over the rows in the rank's inbox.
    err_t (*experts)(struct batch *b);
    // Computes the shared experts over b->shared_tokens. Called only if b->shared_count > 0.
    err_t (*shared_experts)(struct batch *b);
    // Each token's weighted sum. The host writes it to the request's output; devices start the copy to the host.
    err_t (*combine)(struct batch *b);
    // Devices: waits for the outputs and copies them to the requests. Host: nothing is left to do.
    err_t (*answer)(struct batch *b);
    // After an error: waits until no copy of the batch's rows is running.
    void (*abandon)(struct batch *b);
};

#endif
