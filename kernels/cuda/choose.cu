// From router logits to choices, as routing_row does it: a warp a token, so that a small batch is not one long chain, scores in
// shared memory. What the contract orders (sums) one lane does; the rest is spread. Few bytes and few operations: bound by latency.
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/routing_rank.h"
#include "kernels/scalar_math_inline.h"

namespace {

constexpr int LANES = 32;

// Of one token, in shared memory.
struct token {
    float *scores;    // [n] S
    float *selecting; // [n] C
    float *groups;    // [num_groups] scores of groups
    int *kept;        // [num_groups]
    float *weights;   // [top_k]
    int *ids;         // [top_k]
};

__device__ __forceinline__ unsigned groups_of(const struct routing &r) {
    return r.num_groups > 1 ? r.num_groups : 1;
}

__device__ __forceinline__ token lay_out(const struct routing &r, unsigned char *memory) {
    token t;
    t.scores = (float *)memory;
    t.selecting = t.scores + r.num_experts;
    t.groups = t.selecting + r.num_experts;
    t.kept = (int *)(t.groups + groups_of(r));
    t.weights = (float *)(t.kept + groups_of(r));
    t.ids = (int *)(t.weights + r.top_k);
    return t;
}

size_t shared_bytes(const struct routing &r) {
    const size_t groups = r.num_groups > 1 ? r.num_groups : 1;
    return 4 * (2 * (size_t)r.num_experts + 2 * groups + 2 * (size_t)r.top_k);
}

// out[i] = exp(x[i] - max) / sum, in place, by one lane: over chosen experts, and wherever all lanes do not take part.
__device__ void softmax_alone(float *x, int count) {
    float greatest = x[0];
    for (int i = 1; i < count; i++) {
        greatest = x[i] > greatest ? x[i] : greatest; // a NaN anywhere makes the sum NaN, whatever this finds
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

// The same by all lanes; the sum is one lane's, ascending.
__device__ void softmax(float *x, int count) {
    const int lane = threadIdx.x;
    float greatest = -INFINITY;
    for (int i = lane; i < count; i += LANES) {
        greatest = x[i] > greatest ? x[i] : greatest;
    }
    for (int mask = LANES / 2; mask > 0; mask /= 2) {
        const float other = f32_from_bits(ptx::shuffle_xor(f32_bits(greatest), mask));
        greatest = other > greatest ? other : greatest;
    }
    for (int i = lane; i < count; i += LANES) {
        x[i] = math_exp(x[i] - greatest);
    }
    ptx::sync_warp();
    float sum = 0.0f;
    for (int i = 0; i < count; i++) { // every lane the same: a broadcast costs no more than a read
        sum += x[i];
    }
    ptx::sync_warp();
    for (int i = lane; i < count; i += LANES) {
        x[i] = x[i] / sum;
    }
    ptx::sync_warp();
}

// A logit as it is scored.
__device__ __forceinline__ float capped(const struct routing &r, float logit) {
    return r.softcap > 0.0f ? math_softcap(logit, r.softcap) : logit;
}

__device__ __forceinline__ float score_of(enum routing_score score, float x) {
    return score == SCORE_SIGMOID ? math_sigmoid(x) : sqrtf(math_softplus(x));
}

__device__ void score_all(const struct routing &r, float *x) {
    if (r.score == SCORE_SOFTMAX) {
        softmax(x, r.num_experts);
        return;
    }
    for (int i = threadIdx.x; i < (int)r.num_experts; i += LANES) {
        x[i] = score_of(r.score, x[i]);
    }
    ptx::sync_warp();
}

// Rises in the selecting order: by rank, of equals the lower id first. Never 0.
__device__ __forceinline__ uint64_t key_of(float value, unsigned id) {
    return (uint64_t)routing_rank(value) << 32 | (0xffffffffu - id);
}

__device__ __forceinline__ uint64_t greatest_of_warp(uint64_t key) {
    for (int mask = LANES / 2; mask > 0; mask /= 2) {
        const uint64_t high = ptx::shuffle_xor((uint32_t)(key >> 32), mask), low = ptx::shuffle_xor((uint32_t)key, mask);
        const uint64_t other = high << 32 | low;
        key = other > key ? other : key;
    }
    return key;
}

// The greatest, or greatest + second, of each group; then the best groups are marked.
__device__ void keep_groups(const struct routing &r, const token &t) {
    const int length = r.num_experts / r.num_groups;
    for (int g = threadIdx.x; g < (int)r.num_groups; g += LANES) {
        const float *values = t.selecting + g * length;
        uint64_t first = 0, second = 0;
        for (int i = 0; i < length; i++) {
            const uint64_t key = key_of(values[i], i);
            second = key > first ? first : key > second ? key : second;
            first = key > first ? key : first;
        }
        const float best = values[0xffffffffu - (uint32_t)first];
        t.groups[g] = r.group_score == GROUP_TOP2_SUM ? best + values[length > 1 ? 0xffffffffu - (uint32_t)second : 0] : best;
        t.kept[g] = 0;
    }
    ptx::sync_warp();
    if (threadIdx.x == 0) {
        uint64_t before = ~0ull;
        for (unsigned i = 0; i < r.top_groups; i++) {
            uint64_t best = 0;
            for (unsigned g = 0; g < r.num_groups; g++) {
                const uint64_t key = key_of(t.groups[g], g);
                best = key < before && key > best ? key : best;
            }
            t.kept[0xffffffffu - (uint32_t)best] = 1;
            before = best;
        }
    }
    ptx::sync_warp();
}

// ids in falling order of the selecting value: each round takes the greatest below the last one's.
__device__ void choose_ids(const struct routing &r, const token &t) {
    const bool grouped = r.num_groups > 1, masked = grouped && !r.masked_groups_are_zero;
    const unsigned length = grouped ? r.num_experts / r.num_groups : r.num_experts;
    if (grouped) {
        keep_groups(r, t);
    }
    if (grouped && !masked) {
        for (unsigned i = threadIdx.x; i < r.num_experts; i += LANES) {
            t.selecting[i] = t.kept[i / length] ? t.selecting[i] : 0.0f;
        }
        ptx::sync_warp();
    }
    uint64_t before = ~0ull;
    for (unsigned j = 0; j < r.top_k; j++) {
        uint64_t best = 0;
        for (unsigned i = threadIdx.x; i < r.num_experts; i += LANES) {
            const uint64_t key = key_of(t.selecting[i], i);
            best = (!masked || t.kept[i / length]) && key < before && key > best ? key : best;
        }
        before = greatest_of_warp(best);
        if (threadIdx.x == 0) {
            t.ids[j] = (int)(0xffffffffu - (uint32_t)before);
        }
    }
    ptx::sync_warp();
}

// ---- PhiMoE: two choices, each with a softmax over the logits near its own

__device__ int best_but(const float *logits, int count, int taken) {
    int best = taken == 0 ? 1 : 0;
    for (int e = 0; e < count; e++) {
        if (e != taken && routing_rank(logits[e]) > routing_rank(logits[best])) {
            best = e;
        }
    }
    return best;
}

__device__ float masked_weight(const struct routing &r, const float *logits, int chosen, int taken, float *masked) {
    const float greatest = logits[chosen];
    for (int e = 0; e < (int)r.num_experts; e++) {
        const float size = fabsf(logits[e]);
        const float factor = size < greatest ? greatest : size; // NaN compares false and stays
        const bool far = (greatest - logits[e]) / factor > 2.0f * r.jitter;
        masked[e] = far || e == taken ? -INFINITY : logits[e];
    }
    softmax_alone(masked, r.num_experts);
    return masked[chosen];
}

__device__ void sparsemixer(const struct routing &r, const token &t) {
    if (threadIdx.x == 0) {
        t.ids[0] = best_but(t.selecting, r.num_experts, -1);
        t.weights[0] = masked_weight(r, t.selecting, t.ids[0], -1, t.scores);
        t.ids[1] = best_but(t.selecting, r.num_experts, t.ids[0]);
        t.weights[1] = masked_weight(r, t.selecting, t.ids[1], t.ids[0], t.scores);
    }
}

// ---- the weights, by one lane

__device__ float norm_of(const struct routing &r, const float *weights) {
    const bool sizes = r.norm == NORM_P, squares = sizes && r.norm_p == 2.0f;
    float sum = 0.0f;
    for (unsigned j = 0; j < r.top_k; j++) {
        const float w = weights[j];
        sum += squares ? w * w : sizes ? fabsf(w) : w;
    }
    switch (r.norm) {
    case NORM_SUM:
        return sum + r.norm_epsilon;
    case NORM_SUM_MAX:
        return sum < r.norm_epsilon ? r.norm_epsilon : sum; // NaN stays
    default:
        return squares ? sqrtf(sum) : sum;
    }
}

__device__ void weigh_chosen(const struct routing &r, const token &t, const float *logits) {
    if (r.score != SCORE_SPARSEMIXER) {
        for (unsigned j = 0; j < r.top_k; j++) {
            t.weights[j] = r.order == ORDER_SCORE_TOPK ? t.scores[t.ids[j]] : capped(r, logits[t.ids[j]]);
        }
        if (r.order == ORDER_TOPK_SCORE && r.score == SCORE_SOFTMAX) {
            softmax_alone(t.weights, r.top_k);
        } else if (r.order == ORDER_TOPK_SCORE) {
            for (unsigned j = 0; j < r.top_k; j++) {
                t.weights[j] = score_of(r.score, t.weights[j]);
            }
        }
    }
    const float norm = r.norm == NORM_NONE ? 1.0f : norm_of(r, t.weights);
    for (unsigned j = 0; j < r.top_k; j++) {
        const float w = r.norm == NORM_NONE ? t.weights[j] : t.weights[j] / norm;
        t.weights[j] = w * r.scale;
    }
}

__device__ void select(const struct routing &r, const token &t) {
    for (unsigned i = threadIdx.x; i < r.num_experts; i += LANES) {
        const float value = t.scores[i];
        t.selecting[i] = r.selection_bias && r.score != SCORE_SPARSEMIXER ? value + r.selection_bias[i] : value;
    }
    ptx::sync_warp();
    if (r.score == SCORE_SPARSEMIXER) {
        sparsemixer(r, t);
    } else {
        choose_ids(r, t);
    }
}

// Somebody else has chosen: a hash router's table, by the token.
__device__ void take_ids(const device_choose &a, const token &t) {
    for (unsigned j = threadIdx.x; j < a.routing.top_k; j += LANES) {
        t.ids[j] = a.ids[(size_t)blockIdx.x * a.columns + j];
    }
    ptx::sync_warp();
}

__global__ void __launch_bounds__(LANES) choose(const __grid_constant__ device_choose a) {
    const struct routing &r = a.routing;
    const token t = lay_out(r, ptx::shared_base());
    const float *logits = a.logits + (size_t)blockIdx.x * r.num_experts;
    const bool score_first = r.score != SCORE_SPARSEMIXER && r.order == ORDER_SCORE_TOPK;
    for (unsigned i = threadIdx.x; i < r.num_experts; i += LANES) {
        t.scores[i] = capped(r, logits[i]);
    }
    ptx::sync_warp();
    if (score_first) {
        score_all(r, t.scores);
    }
    if (a.chosen) {
        take_ids(a, t);
    } else {
        select(r, t);
    }
    if (threadIdx.x == 0) {
        weigh_chosen(r, t, logits);
    }
    ptx::sync_warp();
    for (unsigned j = threadIdx.x; j < a.columns; j += LANES) {
        a.ids[(size_t)blockIdx.x * a.columns + j] = j < r.top_k ? t.ids[j] : -1;
        a.weights[(size_t)blockIdx.x * a.columns + j] = j < r.top_k ? t.weights[j] : 0.0f;
    }
}

} // namespace

// Grid: a warp a token. Shared memory: 8 bytes an expert, 2 KiB for 256, so that 32 blocks, as many as a multiprocessor takes,
// share it; more than 48 KiB, which thousands of groups would need, must be asked for. Registers do not bound it.
int cuda_choose(const struct device_choose *a, struct CUstream_st *stream) {
    if (a->tokens == 0) {
        return cudaSuccess;
    }
    const size_t bytes = shared_bytes(a->routing);
    cudaError_t error = cudaFuncSetAttribute((const void *)choose, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (error != cudaSuccess) {
        return error;
    }
    LAUNCH(choose, dim3(a->tokens), dim3(LANES), bytes, stream, *a);
    return cudaGetLastError();
}
