// The feed-forward networks of a layer's experts over rows that are grouped by expert: gate and up, activation, down, all through
// the grouped matmul. Knows nothing of routing or shards. One batch at a time per scratch; runs on the team it is given.
#ifndef EXPERTD_EXPERT_HOST_FFN_H
#define EXPERTD_EXPERT_HOST_FFN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "expert/model/model.h"
#include "expertd/kernels/team.h"

// Intermediate rows of a run of the batch: bounded, whatever the batch. A longer batch is computed run by run; bits do not change.
struct ffn_scratch {
    size_t run_rows;              // rows of a run
    void *hidden;                 // [run_rows, I] in D
    void *ordered;                // [run_rows, max(H, I)] in D: rows in the order of their expert's codes; where sizes.ordered
    int32_t *group_sizes;         // [E] of the run
    void *matmul;                 // grouped_matmul's own
    uint64_t gate_up_ns, down_ns; // spent by all runs since the owner set them to 0
};

// Bytes for layers of up to these sizes and batches of up to max_rows rows, and the scratch laid into such memory.
struct ffn_sizes {
    uint32_t max_hidden_size, max_intermediate_size, max_experts;
    size_t max_rows;
    enum expertd_dtype dtype;
    bool ordered; // some expert reads its rows in an order of its own
};
size_t ffn_scratch_bytes(const struct ffn_sizes *sizes);
void ffn_scratch_init(struct ffn_scratch *scratch, const struct ffn_sizes *sizes, void *memory);

struct ffn_args {
    const struct expert_weights *weights; // num_actual_groups experts
    const struct expertd_activation *activation;
    uint32_t hidden_size, intermediate_size;
    enum expertd_dtype dtype;   // D
    size_t num_groups;          // E of the layer, or the experts held here; 1 for the shared expert
    size_t group_offset;        // the first expert held here, or 0
    const int32_t *group_sizes; // [weights' groups] rows per expert held here
    size_t rows;                // their sum
    const void *hidden;         // rows in D, hidden_stride bytes apart, a multiple of the element size
    size_t hidden_stride;
    const uint32_t *hidden_rows; // [rows] row of `hidden` for each row; NULL: in order
    const float *row_scale;      // [rows] multiplies each result row before its rounding (the shared expert's gate), or NULL
    void *results;               // [rows, H] in D
    size_t results_stride;       // bytes, a multiple of the element size
};

FALLIBLE ffn_forward(const struct ffn_args *args, struct ffn_scratch *scratch, struct expertd_team *team);

#endif
