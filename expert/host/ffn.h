// The feed-forward networks of a layer's experts, over rows that are grouped by expert: gate and up with the activation, then down,
// each a grouped matmul. Knows nothing of routing or shards. A scratch serves one batch at a time; the caller passes the team.
#ifndef EXPERTD_EXPERT_HOST_FFN_H
#define EXPERTD_EXPERT_HOST_FFN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "expert/model/model.h"
#include "expertd/kernels/team.h"

// Scratch for chunk_rows rows, a bound that does not grow with the batch. Larger batches are computed in chunks of that many rows;
// rows are independent, so the bits do not change.
struct ffn_scratch {
    size_t chunk_rows;
    void *inner;                  // [chunk_rows, I] in D: outputs of gate and up
    void *ordered;                // [chunk_rows, max(H, I)] in D: rows in the k order of their expert's codes, if sizes.ordered
    int32_t *group_sizes;         // [E] rows of each expert of the run in the chunk
    void *matmul;                 // workspace of the grouped matmul
    uint64_t gate_up_ns, down_ns; // time of all chunks since the owner set them to 0
};

// The largest layer and batch that a scratch serves. ffn_scratch_init lays the scratch out in ffn_scratch_bytes of memory.
struct ffn_sizes {
    uint32_t max_hidden_size, max_intermediate_size, max_experts;
    size_t max_rows;
    enum expertd_dtype dtype;
    bool ordered; // some expert's codes have a k order of their own (GPTQ act-order)
};
size_t ffn_scratch_bytes(const struct ffn_sizes *sizes);
void ffn_scratch_init(struct ffn_scratch *scratch, const struct ffn_sizes *sizes, void *memory);

struct ffn_args {
    const struct expert_weights *runs; // [num_runs] consecutive experts, in the order of the rows; one product for each run
    size_t num_runs;
    const struct expertd_activation *activation;
    uint32_t hidden_size, intermediate_size;
    enum expertd_dtype dtype;    // D
    const int32_t *group_sizes;  // [groups of all runs] rows of each expert
    size_t rows;                 // their sum
    const void *hidden;          // rows in D
    size_t hidden_stride;        // bytes, a multiple of the element size
    const uint32_t *hidden_rows; // [rows] index in `hidden` of each row; NULL: consecutive
    const float *row_scale;      // [rows] multiplies each result row before it is rounded (the shared expert's gate); or NULL
    void *results;               // [rows, H] in D
    size_t results_stride;       // bytes, a multiple of the element size
};

FALLIBLE ffn_forward(const struct ffn_args *args, struct ffn_scratch *scratch, struct expertd_team *team);

#endif
