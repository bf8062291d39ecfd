// From router logits to choices, with the results of expertd_routing_row. One warp per token, so that a small batch is not one long
// chain; scores are in shared memory. Every lane computes the sums whose order the contract fixes; the other work is divided among
// the lanes. The kernel moves few bytes and is bound by latency, so values that are read again stay in registers and lanes
// synchronise as rarely as possible.
#include <ptx.cuh>

#include "kernels/cuda/common/launchers.h"
#include "kernels/elements/scalar_math_inline.h"
#include "kernels/routing/routing_rank.h"

namespace {

constexpr int LANES = 32;
constexpr size_t SHARED_DEFAULT_MAX = 48 << 10; // dynamic shared memory without cudaFuncSetAttribute

// The arrays of one token, in shared memory.
struct token {
    float *scores;         // [num_experts]
    float *selecting;      // [num_experts] the values by which experts are selected: scores with the selection bias
    uint32_t *ranks;       // [num_experts] of `selecting`; 0: not eligible, or already chosen
    uint32_t *group_ranks; // [num_groups] of the groups' scores; 0: already chosen
    float *weights;        // [top_k]
    int *ids;              // [top_k]
};

__device__ __forceinline__ unsigned groups_of(const struct expertd_routing &r) {
    return r.num_groups > 1 ? r.num_groups : 1;
}

__device__ __forceinline__ token arrays_of(const struct expertd_routing &r, unsigned char *memory) {
    token t;
    t.scores = (float *)memory;
    t.selecting = t.scores + r.num_experts;
    t.ranks = (uint32_t *)(t.selecting + r.num_experts);
    t.group_ranks = t.ranks + r.num_experts;
    t.weights = (float *)(t.group_ranks + groups_of(r));
    t.ids = (int *)(t.weights + r.top_k);
    return t;
}

size_t shared_bytes(const struct expertd_routing &r) {
    const size_t groups = r.num_groups > 1 ? r.num_groups : 1;
    return 4 * (3 * (size_t)r.num_experts + groups + 2 * (size_t)r.top_k);
}

// x[i] = exp(x[i] - max) / sum, in place, by one lane alone.
__device__ void softmax_by_one_lane(float *x, int count) {
    float greatest = x[0];
    for (int i = 1; i < count; i++) {
        greatest = x[i] > greatest ? x[i] : greatest; // if a value is NaN, the sum is NaN with any maximum
    }
    float sum = 0.0f;
    for (int i = 0; i < count; i++) {
        x[i] = math_exp(x[i] - greatest);
        sum += x[i];
    }
    for (int i = 0; i < count; i++) {
        x[i] = x[i] / sum;
    }
}

// The value with that rank; +0 for the rank of the zeros.
__device__ __forceinline__ float value_of_rank(uint32_t rank) {
    return expertd_f32_from_bits(rank >> 31 ? rank & 0x7fffffffu : ~rank);
}

// The same softmax by all lanes.
__device__ void softmax(float *x, int count) {
    const int lane = threadIdx.x;
    uint32_t rank = 0x007fffffu; // -Inf's: a NaN, which ranks below, makes the sum NaN
    for (int i = lane; i < count; i += LANES) {
        const uint32_t own = routing_rank(x[i]);
        rank = own > rank ? own : rank;
    }
    const float greatest = value_of_rank(ptx::warp_max(rank));
    for (int i = lane; i < count; i += LANES) {
        x[i] = math_exp(x[i] - greatest);
    }
    ptx::sync_warp();
    float sum = 0.0f;
    // Ascending. Every lane computes the same sum, since a broadcast costs no more than a read. Unrolled, so that
    // the reads overlap.
#pragma unroll 16
    for (int i = 0; i < count; i++) {
        sum += x[i];
    }
    ptx::sync_warp();
    for (int i = lane; i < count; i += LANES) {
        x[i] = x[i] / sum;
    }
    ptx::sync_warp();
}

// The logit after the soft cap.
__device__ __forceinline__ float capped(const struct expertd_routing &r, float logit) {
    return r.softcap > 0.0f ? math_softcap(logit, r.softcap) : logit;
}

__device__ __forceinline__ float score_of(enum expertd_routing_score score, float x) {
    return score == EXPERTD_SCORE_SIGMOID ? math_sigmoid(x) : sqrtf(math_softplus(x));
}

__device__ void score_all(const struct expertd_routing &r, float *x) {
    if (r.score == EXPERTD_SCORE_SOFTMAX) {
        softmax(x, r.num_experts);
        return;
    }
    for (int i = threadIdx.x; i < (int)r.num_experts; i += LANES) {
        x[i] = score_of(r.score, x[i]);
    }
    ptx::sync_warp();
}

// The rank of a value, at least 1, since 0 marks entries that are not eligible. Only NaN's rank is raised: no other value
// has rank 0 or 1.
__device__ __forceinline__ uint32_t rank_of(float value) {
    const uint32_t rank = routing_rank(value);
    return rank > 0 ? rank : 1;
}

struct candidate {
    uint32_t rank, id;
};

// The greatest of the lane's own ranks, numbers lane, lane + 32, ...; the lower id among equals.
__device__ __forceinline__ candidate best_of_lane(const uint32_t *ranks, unsigned count) {
    candidate best = {0, 0};
#pragma unroll 4
    for (unsigned i = threadIdx.x; i < count; i += LANES) {
        const uint32_t rank = ranks[i];
        best = rank > best.rank ? candidate{rank, i} : best;
    }
    return best;
}

// Selects the `top` greatest ranks and sets them to 0. ids: their numbers in descending order of rank, the lower id first
// among equals; may be NULL. Each lane has written its own ranks and keeps the greatest of them; only the lane whose rank is
// selected searches again.
__device__ void select_greatest(uint32_t *ranks, unsigned count, unsigned top, int *ids) {
    candidate best = best_of_lane(ranks, count);
    for (unsigned j = 0; j < top; j++) {
        const uint32_t greatest = ptx::warp_max(best.rank);
        const uint32_t id = ptx::warp_min(best.rank == greatest ? best.id : UINT32_MAX);
        if (id % LANES == threadIdx.x) {
            ranks[id] = 0;
            best = best_of_lane(ranks, count);
            if (ids) {
                ids[j] = (int)id;
            }
        }
    }
    ptx::sync_warp();
}

// A group's score: its greatest value, or the sum of its two greatest.
__device__ __forceinline__ float group_score_of(const struct expertd_routing &r, const float *values, unsigned length) {
    candidate first = {0, 0}, second = {0, 0};
    for (unsigned i = 0; i < length; i++) {
        const candidate next = {rank_of(values[i]), i};
        second = next.rank > first.rank ? first : next.rank > second.rank ? next : second;
        first = next.rank > first.rank ? next : first;
    }
    return r.group_score == EXPERTD_GROUP_TOP2_SUM ? values[first.id] + values[second.id] : values[first.id];
}

// Selects top_groups groups: their ranks become 0.
__device__ void select_groups(const struct expertd_routing &r, const token &t) {
    const unsigned length = r.num_experts / r.num_groups;
    for (unsigned g = threadIdx.x; g < r.num_groups; g += LANES) {
        t.group_ranks[g] = rank_of(group_score_of(r, t.selecting + g * length, length));
    }
    select_greatest(t.group_ranks, r.num_groups, r.top_groups, nullptr);
}

// Selects top_k experts in descending order of the selecting value. In groups that were not selected the value is 0, or the experts
// are not eligible.
__device__ void choose_ids(const struct expertd_routing &r, const token &t) {
    const bool grouped = r.num_groups > 1;
    const unsigned length = grouped ? r.num_experts / r.num_groups : r.num_experts;
    if (grouped) {
        select_groups(r, t);
    }
    for (unsigned i = threadIdx.x; i < r.num_experts; i += LANES) {
        const bool eligible = !grouped || t.group_ranks[i / length] == 0;
        t.ranks[i] = eligible ? rank_of(t.selecting[i]) : r.masked_groups_are_zero ? rank_of(0.0f) : 0;
    }
    select_greatest(t.ranks, r.num_experts, r.top_k, t.ids);
}

// ---- PhiMoE: two choices, each weighted by a softmax over the logits close to its own

__device__ int best_except(const float *logits, int count, int taken) {
    int best = taken == 0 ? 1 : 0;
    for (int e = 0; e < count; e++) {
        if (e != taken && routing_rank(logits[e]) > routing_rank(logits[best])) {
            best = e;
        }
    }
    return best;
}

__device__ float masked_weight(const struct expertd_routing &r, const float *logits, int chosen, int taken, float *masked) {
    const float greatest = logits[chosen];
    for (int e = 0; e < (int)r.num_experts; e++) {
        const float size = fabsf(logits[e]);
        const float factor = size < greatest ? greatest : size; // comparisons with NaN are false: NaN stays
        const bool far = (greatest - logits[e]) / factor > 2.0f * r.jitter;
        masked[e] = far || e == taken ? -INFINITY : logits[e];
    }
    softmax_by_one_lane(masked, r.num_experts);
    return masked[chosen];
}

__device__ void sparsemixer(const struct expertd_routing &r, const token &t) {
    if (threadIdx.x == 0) {
        t.ids[0] = best_except(t.selecting, r.num_experts, -1);
        t.weights[0] = masked_weight(r, t.selecting, t.ids[0], -1, t.scores);
        t.ids[1] = best_except(t.selecting, r.num_experts, t.ids[0]);
        t.weights[1] = masked_weight(r, t.selecting, t.ids[1], t.ids[0], t.scores);
    }
}

// ---- the weights

__device__ float norm_of(const struct expertd_routing &r, const float *weights) {
    const bool sizes = r.norm == EXPERTD_NORM_P, squares = sizes && r.norm_p == 2.0f;
    float sum = 0.0f;
    for (unsigned j = 0; j < r.top_k; j++) {
        const float w = weights[j];
        sum += squares ? w * w : sizes ? fabsf(w) : w;
    }
    switch (r.norm) {
    case EXPERTD_NORM_SUM:
        return sum + r.norm_epsilon;
    case EXPERTD_NORM_SUM_MAX:
        return sum < r.norm_epsilon ? r.norm_epsilon : sum; // NaN stays
    default:
        return squares ? sqrtf(sum) : sum;
    }
}

// The weights of the chosen experts from t.scores, which holds their scores or, if only chosen experts are scored, their capped
// logits. Every lane computes the norm; each computes its own weights.
__device__ void weigh_chosen(const struct expertd_routing &r, const token &t) {
    const bool score_now = r.order == EXPERTD_ORDER_TOPK_SCORE && r.score != EXPERTD_SCORE_SOFTMAX;
    for (unsigned j = threadIdx.x; j < r.top_k && r.score != EXPERTD_SCORE_SPARSEMIXER; j += LANES) {
        const float x = t.scores[t.ids[j]];
        t.weights[j] = score_now ? score_of(r.score, x) : x;
    }
    ptx::sync_warp();
    if (r.order == EXPERTD_ORDER_TOPK_SCORE && r.score == EXPERTD_SCORE_SOFTMAX) {
        softmax(t.weights, r.top_k);
    }
    const float norm = r.norm == EXPERTD_NORM_NONE ? 1.0f : norm_of(r, t.weights);
    ptx::sync_warp();
    for (unsigned j = threadIdx.x; j < r.top_k; j += LANES) {
        const float w = r.norm == EXPERTD_NORM_NONE ? t.weights[j] : t.weights[j] / norm;
        t.weights[j] = w * r.scale;
    }
}

__device__ void select(const struct expertd_routing &r, const token &t) {
    for (unsigned i = threadIdx.x; i < r.num_experts; i += LANES) {
        const float value = t.scores[i];
        t.selecting[i] = r.selection_bias && r.score != EXPERTD_SCORE_SPARSEMIXER ? value + r.selection_bias[i] : value;
    }
    ptx::sync_warp();
    if (r.score == EXPERTD_SCORE_SPARSEMIXER) {
        sparsemixer(r, t);
    } else {
        choose_ids(r, t);
    }
}

// Reads choices that were made elsewhere, by a hash router's table.
__device__ void read_ids(const expertd_device_choose &a, const token &t) {
    for (unsigned j = threadIdx.x; j < a.routing.top_k; j += LANES) {
        t.ids[j] = a.ids[(size_t)blockIdx.x * a.columns + j];
    }
    ptx::sync_warp();
}

__global__ void __launch_bounds__(LANES) choose(const __grid_constant__ expertd_device_choose a) {
    const struct expertd_routing &r = a.routing;
    const token t = arrays_of(r, ptx::shared_base());
    const float *logits = a.logits + (size_t)blockIdx.x * r.num_experts;
    const bool score_first = r.score != EXPERTD_SCORE_SPARSEMIXER && r.order == EXPERTD_ORDER_SCORE_TOPK;
    for (unsigned i = threadIdx.x; i < r.num_experts; i += LANES) {
        t.scores[i] = capped(r, logits[i]);
    }
    ptx::sync_warp();
    if (score_first) {
        score_all(r, t.scores);
    }
    if (a.chosen) {
        read_ids(a, t);
    } else {
        select(r, t);
    }
    ptx::sync_warp();
    weigh_chosen(r, t);
    for (unsigned j = threadIdx.x; j < a.columns; j += LANES) {
        a.ids[(size_t)blockIdx.x * a.columns + j] = j < r.top_k ? t.ids[j] : -1;
        a.weights[(size_t)blockIdx.x * a.columns + j] = j < r.top_k ? t.weights[j] : 0.0f;
    }
}

} // namespace

// Grid: one warp per token. Shared memory: 12 bytes per expert, 3 KiB for 256 experts, so that a multiprocessor runs its maximum of
// 32 blocks. More than 48 KiB, for thousands of experts, must be requested. Registers are no limit.
int cuda_choose(const struct expertd_device_choose *a, struct CUstream_st *stream) {
    if (a->tokens == 0) {
        return cudaSuccess;
    }
    const size_t bytes = shared_bytes(a->routing);
    if (bytes > SHARED_DEFAULT_MAX) {
        cudaError_t error = cudaFuncSetAttribute((const void *)choose, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
        if (error != cudaSuccess) {
            return error;
        }
    }
    LAUNCH(choose, dim3(a->tokens), dim3(LANES), bytes, stream, *a);
    return cudaGetLastError();
}
