// One expert's packed weights and biases as one block of memory: what lies on a rank, is copied and verified as a whole. Blocks of
// a layer are all laid out alike. A block is written once, before others see it; references may be taken and dropped on any thread.
#ifndef EXPERTD_EXPERT_MODEL_EXPERT_BLOCK_H
#define EXPERTD_EXPERT_MODEL_EXPERT_BLOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "expertd/kernels/weights.h"
#include "shard/topology.h"

enum expert_matrix { EXPERT_GATE, EXPERT_UP, EXPERT_DOWN, EXPERT_MATRICES };

// Of quantised weights whose k are sorted: where the activations of the k-th come from.
enum expert_order { EXPERT_HIDDEN_ORDER, EXPERT_INNER_ORDER, EXPERT_ORDERS };

// The layout of a layer's blocks.
struct expert_shape {
    struct expertd_packed_weights matrix[EXPERT_MATRICES]; // dtype, k, n and group_bytes; group_bytes 0: the layer has none
    size_t matrix_at[EXPERT_MATRICES];                     // bytes from the block's start
    size_t bias[EXPERT_MATRICES];                          // elements; 0: none
    size_t bias_at[EXPERT_MATRICES];
    size_t order[EXPERT_ORDERS]; // numbers; 0: none
    size_t order_at[EXPERT_ORDERS];
    size_t bytes; // of a block, a multiple of 64
};

// The experts of one layer that one rank holds, or the shared expert (one group).
struct expert_weights {
    struct expertd_packed_weights gate, up, down; // gate.data NULL where not gated. [groups] x (I x H, I x H, H x I)
    void *const *gate_bias;                       // [groups] to [I] fp32, or NULL
    void *const *up_bias;                         // [groups] to [I] fp32, or NULL
    void *const *down_bias;                       // [groups] to [H] fp32, or NULL
    void *const *hidden_order; // [groups] to [H] uint32_t: gate and up read element order[k] of a row as its k-th; NULL: in order
    void *const *inner_order;  // [groups] to [I], of down
};

struct expert_block {
    atomic_uint references;
    void *data;
    size_t bytes;
    struct arena mapping; // its own; zeroed where the block is a piece of the model's arena
    // Of a block that was copied, or is a copy; the mover's.
    bool has_digest;
    uint64_t digest;
};

// Where memory and copies come from: tests put failures in their place. NULL functions: memory of its own, and memcpy.
struct block_copier {
    void *context;
    err_t (*reserve)(void *context, size_t bytes, struct arena *out);
    err_t (*copy)(void *context, void *to, const void *from, size_t bytes);
    const struct topology *topology; // NULL: one node
    bool share;                      // weights lie on devices: a block only stands for them, and nothing is copied
};

// A block over memory of the model's arena, which outlives it. One reference, the caller's. EXPERTD_ERR_NOMEM.
FALLIBLE expert_block_over(void *data, size_t bytes, struct expert_block **out);
// A copy in memory of its own, on `node` where that is not NULL, with the digest of what it was copied from compared.
// EXPERTD_ERR_NOMEM; EXPERTD_ERR_IO: the digests differ.
FALLIBLE expert_block_copy(struct expert_block *from, const struct block_copier *copier, const struct topology_node *node,
                           struct expert_block **out);
struct expert_block *expert_block_share(struct expert_block *block); // one reference more
// What the block held is elsewhere: its whole pages go back to the system, and read as zeros.
void expert_block_let_go(const struct expert_block *block);
void expert_block_drop(struct expert_block *block); // with the last one its memory goes back to the system. NULL is legal

// The tables of `groups` experts, whose blocks are given in their order. table: [EXPERT_TABLE * groups], as long-lived as `out`.
enum { EXPERT_TABLE = 2 * EXPERT_MATRICES + EXPERT_ORDERS };
void expert_weights_bind(const struct expert_shape *shape, struct expert_block *const *blocks, size_t groups, void **table,
                         struct expert_weights *out);

#endif
