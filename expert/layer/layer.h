// Computes one batch of one MoE layer: route, plan, dispatch, experts, combine. compute() in layer.c lists the stages.
#ifndef EXPERTD_EXPERT_LAYER_LAYER_H
#define EXPERTD_EXPERT_LAYER_LAYER_H

#include <stddef.h>
#include <stdint.h>

#include "expert/layer/layer_request.h"
#include "expert/layer/layer_timings.h"

struct engine; // expert/engine/engine.h: scratch and teams for one batch at a time

// A batch in three steps, for engines that overlap batches (engine_overlaps): while one batch is computed, the rows of the next are
// converted and copied to the device. For one batch call input, compute and finish in this order; call each step for the batches in
// the same order. The input of the next batch may be called between compute and finish of the current one; its compute may not.
// `requests` are borrowed from input to finish. An error of any step is returned by finish.
struct layer_pass;
struct layer_pass *layer_pass_input(struct engine *engine, const struct model_layer *layer, struct layer_request *requests,
                                    size_t count);
void layer_pass_compute(struct layer_pass *pass);
FALLIBLE layer_pass_finish(struct layer_pass *pass, uint64_t *expert_load, struct layer_timings *timings); // as layer_forward

// All three steps: computes `count` requests of one layer as one batch of at most limits.max_tokens tokens. Does not allocate.
// expert_load (may be NULL) [E] is increased by the rows of each expert. timings may be NULL.
FALLIBLE layer_forward(struct engine *engine, const struct model_layer *layer, struct layer_request *requests, size_t count,
                       uint64_t *expert_load, struct layer_timings *timings);

// The scalar twin of the whole block for one request: plain loops on one thread. It defines the bits that layer_forward must
// produce. Allocates.
FALLIBLE layer_forward_reference(const struct model_layer *layer, enum expertd_dtype compute_dtype, struct layer_request *request);

#endif
