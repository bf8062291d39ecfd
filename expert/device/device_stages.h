// The stages of a batch on devices: the same map as layer.c's, a function a stage, each working from and into the engine's arrays;
// those that devices read and write are pinned. Work is put into the devices' streams and waited for where the host needs what
// came of it: after the routes, and at the end. Private to expert/; used by the engine's thread.
#ifndef EXPERTD_EXPERT_DEVICE_DEVICE_STAGES_H
#define EXPERTD_EXPERT_DEVICE_DEVICE_STAGES_H

#include "expert/layer/layer_batch.h"
#include "expert/layer/router.h"

// Its rows leave, as callers sent them, beside what is computed (device_input.c). *direct: rows that no host memory was copied
// for.
FALLIBLE device_take_in(struct batch *b, uint64_t *direct);
FALLIBLE device_await_rows(struct batch *b); // and are in D from here on
void device_abandon_rows(struct batch *b);   // after an error: none is under way once the exchange has settled
// The layer's own router, over args->tokens of requests that follow each other: their ids and weights are there after
// device_routed, and stay on the first device.
FALLIBLE device_route(struct batch *b, const struct layer_request *requests, const struct router_args *args);
FALLIBLE device_routed(struct batch *b);
// Sets of *out what lies in the first device's memory: the rows that leave for the ranks, and their tokens.
FALLIBLE device_dispatch(struct batch *b, struct exchange_batch *out);
FALLIBLE device_experts(struct batch *b);
FALLIBLE device_shared_experts(struct batch *b);
FALLIBLE device_combine(struct batch *b); // its answers leave, beside what is computed next
FALLIBLE device_answer(struct batch *b);  // waits for the exchange and for them, writes every request's output

#endif
