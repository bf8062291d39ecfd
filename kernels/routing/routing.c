// Routes one row: scores and selects in the model's order, then normalises and scales the weights. Sums are taken in the order of
// the choices.
#include "expertd/kernels/routing.h"

#include <math.h>
#include <string.h>

#include "base/err.h"
#include "kernels/cpu/backend/backend.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/routing/routing_internal.h"

// `count` logits to scores. out may be logits.
static void score(const struct expertd_routing *routing, const float *logits, size_t count, float *out) {
    switch (routing->score) {
    case EXPERTD_SCORE_SOFTMAX:
        routing_softmax(logits, count, out);
        return;
    case EXPERTD_SCORE_SIGMOID:
        kernel_selected()->sigmoid(logits, count, out);
        return;
    case EXPERTD_SCORE_SQRT_SOFTPLUS:
        kernel_selected()->sqrt_softplus(logits, count, out);
        return;
    case EXPERTD_SCORE_SPARSEMIXER:
        break;
    }
    INVARIANT(!"sparsemixer has no score of single logits");
}

// The logits after the softcap.
static const float *capped(const struct expertd_routing *routing, const float *logits, const struct routing_scratch *scratch) {
    if (!(routing->softcap > 0)) {
        return logits;
    }
    kernel_selected()->softcap(logits, routing->softcap, routing->num_experts, scratch->logits);
    return scratch->logits;
}

static void add_selection_bias(const struct expertd_routing *routing, const float *values, float *out) {
    if (!routing->selection_bias) {
        memcpy(out, values, routing->num_experts * sizeof *out);
        return;
    }
    for (size_t e = 0; e < routing->num_experts; e++) {
        out[e] = values[e] + routing->selection_bias[e];
    }
}

static void gather(const float *values, const int32_t *ids, size_t count, float *out) {
    for (size_t j = 0; j < count; j++) {
        out[j] = values[ids[j]];
    }
}

static void score_then_choose(const struct expertd_routing *routing, const float *logits, const struct routing_scratch *scratch,
                              int32_t *ids, float *weights) {
    score(routing, logits, routing->num_experts, scratch->scores);
    add_selection_bias(routing, scratch->scores, scratch->selecting);
    routing_select(routing, scratch, ids);
    gather(scratch->scores, ids, routing->top_k, weights);
}

static void choose_then_score(const struct expertd_routing *routing, const float *logits, const struct routing_scratch *scratch,
                              int32_t *ids, float *weights) {
    add_selection_bias(routing, logits, scratch->selecting);
    routing_select(routing, scratch, ids);
    gather(logits, ids, routing->top_k, weights);
    score(routing, weights, routing->top_k, weights);
}

// The divisor of the weights.
static float norm_of(const struct expertd_routing *routing, const float *weights) {
    bool squares = routing->norm == EXPERTD_NORM_P && routing->norm_p == 2.0f;
    bool absolute = routing->norm == EXPERTD_NORM_P;
    float sum = 0.0f;
    for (size_t j = 0; j < routing->top_k; j++) {
        float w = weights[j];
        sum += squares ? w * w : absolute ? fabsf(w) : w;
    }
    switch (routing->norm) {
    case EXPERTD_NORM_SUM:
        return sum + routing->norm_epsilon;
    case EXPERTD_NORM_SUM_MAX:
        return sum < routing->norm_epsilon ? routing->norm_epsilon : sum; // a NaN stays NaN
    default:
        return squares ? sqrtf(sum) : sum;
    }
}

static void normalise(const struct expertd_routing *routing, const int32_t *ids, float *weights) {
    if (routing->norm != EXPERTD_NORM_NONE) {
        float norm = norm_of(routing, weights);
        for (size_t j = 0; j < routing->top_k; j++) {
            weights[j] = weights[j] / norm;
        }
    }
    for (size_t j = 0; j < routing->top_k; j++) {
        weights[j] = weights[j] * routing->scale;
    }
    for (size_t j = 0; routing->expert_scale && j < routing->top_k; j++) {
        weights[j] = weights[j] * routing->expert_scale[ids[j]];
    }
}

void expertd_routing_row(const struct expertd_routing *routing, const float *logits, int32_t *ids, float *weights, void *memory) {
    struct routing_scratch scratch;
    float_mode before = float_mode_set_ieee();
    routing_divide_scratch(routing, memory, &scratch);
    logits = capped(routing, logits, &scratch);
    if (routing->score == EXPERTD_SCORE_SPARSEMIXER) {
        routing_sparsemixer(routing, logits, &scratch, ids, weights);
    } else if (routing->order == EXPERTD_ORDER_SCORE_TOPK) {
        score_then_choose(routing, logits, &scratch, ids, weights);
    } else {
        choose_then_score(routing, logits, &scratch, ids, weights);
    }
    normalise(routing, ids, weights);
    float_mode_restore(before);
}

void expertd_routing_row_chosen(const struct expertd_routing *routing, const float *logits, const int32_t *ids, float *weights,
                                void *memory) {
    struct routing_scratch scratch;
    float_mode before = float_mode_set_ieee();
    routing_divide_scratch(routing, memory, &scratch);
    logits = capped(routing, logits, &scratch);
    if (routing->order == EXPERTD_ORDER_SCORE_TOPK) {
        score(routing, logits, routing->num_experts, scratch.scores);
        gather(scratch.scores, ids, routing->top_k, weights);
    } else {
        gather(logits, ids, routing->top_k, weights);
        score(routing, weights, routing->top_k, weights);
    }
    normalise(routing, ids, weights);
    float_mode_restore(before);
}
