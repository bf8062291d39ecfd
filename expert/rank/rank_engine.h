// Computes the pieces that fronts send to this process: result rows of the experts that it holds. It has no router, no combine and
// no shared experts, and knows nothing of sockets: the caller receives pieces, and sends the rows that it gets here.
//
// One thread at a time. A piece in two steps: rank_engine_take checks it and copies its hidden rows; then the caller takes memory
// for piece->rows rows, and rank_engine_compute fills it. If either fails, the caller answers with the error, once for the batch.
#ifndef EXPERTD_EXPERT_RANK_RANK_ENGINE_H
#define EXPERTD_EXPERT_RANK_RANK_ENGINE_H

#include "expert/layer/layer_request.h"
#include "expert/model/expert_block.h"
#include "expert/rank/rank_batch.h"
#include "expertd/kernels/team.h"

struct rank_engine_options {
    // Borrowed. Read: parameters and shapes of the layers, the compute dtype, the maxima; not the weights.
    const struct model *model;
    struct layer_limits limits; // max_tokens and max_choices, of the fronts' batches
    struct expertd_team *team;  // borrowed
    // Takes references to the blocks of `count` experts of model->layers[layer], which the caller drops. False: this rank does not
    // hold *missing; no reference is taken then. Called on the computing thread. holdings_take_all is one.
    bool (*take)(void *context, size_t layer, const uint32_t *experts, size_t count, struct expert_block **blocks,
                 uint32_t *missing);
    void *context;
};

struct rank_engine;

// Reserves rank_engine_bytes. EXPERTD_ERR_NOMEM.
FALLIBLE rank_engine_create(const struct rank_engine_options *options, struct rank_engine **out);
void rank_engine_destroy(struct rank_engine *engine); // NULL is legal
uint64_t rank_engine_bytes(const struct rank_engine_options *options);
uint64_t rank_engine_batch_bytes(const struct rank_engine_options *options); // of each front's rank_batch

// The batch of a new connection, for batches within the limits.
FALLIBLE rank_engine_create_batch(const struct rank_engine *engine, struct rank_batch **out);

// Rows of a piece, hidden rows of a batch, and experts of a piece, for which memory is reserved: limits for the decoder of the
// messages.
size_t rank_engine_max_rows(const struct rank_engine *engine);
size_t rank_engine_max_hidden(const struct rank_engine *engine); // of a batch
size_t rank_engine_max_groups(const struct rank_engine *engine);

// Takes a piece that rank_batch_skips does not skip: checks it, and copies its hidden rows. On an error the batch has failed:
//   EXPERTD_ERR_LAYER_UNKNOWN        the layer is not served here
//   EXPERTD_ERR_SHAPE_MISMATCH       rows of the layer have another size
//   EXPERTD_ERR_EXPERT_OUT_OF_RANGE  the layer does not have the expert
//   EXPERTD_ERR_TOO_LARGE            more rows than the limits allow
//   EXPERTD_ERR_INVALID              groups that are empty or not ascending, or do not have the piece's rows; see rank_batch_take
FALLIBLE rank_engine_take(struct rank_engine *engine, struct rank_batch *batch, const struct rank_piece *piece);

// Computes the piece that was taken last into results: piece->rows rows, stride bytes from row to row (at least row_bytes, a
// multiple of the element size), aligned to the element. EXPERTD_ERR_SHARD_LOST: an expert is not held here. On an error the batch
// has failed.
FALLIBLE rank_engine_compute(struct rank_engine *engine, struct rank_batch *batch, const struct rank_piece *piece, void *results,
                             size_t stride);

#endif
