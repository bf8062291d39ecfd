// One expert's packed weights and biases in one block of memory: the unit that is placed on a rank, copied and verified. A block's
// shape follows from the formats of the expert's matrices; nearly always all routed experts of a layer have one shape. A block is
// written once, before other threads see it; it is reference-counted, and references may be taken and dropped on any thread.
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

// For quantised weights whose k are sorted by scale: the permutation of k for gate and up, and the permutation for down.
enum expert_order { EXPERT_HIDDEN_ORDER, EXPERT_INNER_ORDER, EXPERT_ORDERS };

// The shape of a block.
struct expert_shape {
    struct expertd_packed_weights matrix[EXPERT_MATRICES]; // dtype, k, n, format and group_bytes; group_bytes 0: there is none
    size_t matrix_at[EXPERT_MATRICES];                     // bytes from the block's start
    size_t bias[EXPERT_MATRICES];                          // elements; 0: none
    size_t bias_at[EXPERT_MATRICES];
    size_t order[EXPERT_ORDERS]; // uint32_t elements; 0: none
    size_t order_at[EXPERT_ORDERS];
    size_t bytes; // of a block, a multiple of 64
};

enum { EXPERT_SHAPES_MAX = 16 };

// The shapes of a layer's routed experts: one for each combination of formats.
struct expert_shapes {
    uint32_t count;
    const struct expert_shape *all; // [count]
    const uint8_t *of_expert;       // [E] index into `all`
};

static inline const struct expert_shape *expert_shape_of(const struct expert_shapes *shapes, uint32_t expert) {
    return &shapes->all[shapes->of_expert[expert]];
}

static inline size_t expert_shapes_bytes_max(const struct expert_shapes *shapes) { // of the largest block
    size_t most = 0;
    for (uint32_t i = 0; i < shapes->count; i++) {
        most = shapes->all[i].bytes > most ? shapes->all[i].bytes : most;
    }
    return most;
}

static inline uint32_t expert_shapes_experts(const struct expert_shapes *shapes, uint32_t num_experts, uint32_t shape) {
    uint32_t count = 0; // of the experts with that shape
    for (uint32_t e = 0; e < num_experts; e++) {
        count += shapes->of_expert[e] == shape;
    }
    return count;
}

// Experts of one layer whose blocks have one shape, or the shared expert (one group).
struct expert_weights {
    struct expertd_packed_weights gate, up, down; // gate.data NULL where not gated. [groups] x (I x H, I x H, H x I)
    void *const *gate_bias;                       // [groups] to [I] fp32, or NULL
    void *const *up_bias;                         // [groups] to [I] fp32, or NULL
    void *const *down_bias;                       // [groups] to [H] fp32, or NULL
    void *const *hidden_order; // [groups] to [H] uint32_t: the k-th input of gate and up is element order[k] of the row; NULL: k
    void *const *inner_order;  // [groups] to [I] uint32_t: the same for down
};

struct expert_block {
    atomic_uint references;
    void *data;
    size_t bytes;
    struct arena mapping; // of a copy; zeroed if the block is part of the model's arena
    // Set once the block was copied, or is a copy. Used by the thread that moves experts only.
    bool has_digest;
    uint64_t digest;
};

// How blocks are copied. Tests inject failures here. NULL functions: each copy gets an arena of its own and is copied by memcpy.
struct block_copier {
    void *context;
    err_t (*reserve)(void *context, size_t bytes, struct arena *out);
    err_t (*copy)(void *context, void *to, const void *from, size_t bytes);
    const struct topology *topology; // NULL: one node
    bool share;                      // the weights are on devices: host blocks hold no data, and are shared instead of copied
};

// Creates a block, with one reference, over existing memory of the model's arena, which must outlive the block. EXPERTD_ERR_NOMEM.
FALLIBLE expert_block_over(void *data, size_t bytes, struct expert_block **out);
// A block in memory of its own, on `node` unless that is NULL; its data is zero. EXPERTD_ERR_NOMEM.
FALLIBLE expert_block_create(size_t bytes, const struct topology_node *node, struct expert_block **out);
// A copy in memory of its own, on `node` unless that is NULL, verified by digest. EXPERTD_ERR_NOMEM; EXPERTD_ERR_IO: the copy
// differs.
FALLIBLE expert_block_copy(struct expert_block *from, const struct block_copier *copier, const struct topology_node *node,
                           struct expert_block **out);
struct expert_block *expert_block_share(struct expert_block *block); // adds a reference
// Returns the block's full pages to the system, because its data is on a device; they read as zeros afterwards.
void expert_block_release(const struct expert_block *block);
void expert_block_drop(struct expert_block *block); // drops a reference; the last one frees the memory. NULL is legal

// Fills in the pointer tables of `groups` experts. table: [EXPERT_TABLE * groups], must live as long as `out`.
enum { EXPERT_TABLE = 2 * EXPERT_MATRICES + EXPERT_ORDERS };
void expert_weights_bind(const struct expert_shape *shape, struct expert_block *const *blocks, size_t groups, void **table,
                         struct expert_weights *out);

#endif
