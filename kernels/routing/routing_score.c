// Scores that need all logits: softmax, and sparsemixer's two masked softmaxes.
#include <math.h>
#include <string.h>

#include "kernels/cpu/backend/backend.h"
#include "kernels/routing/routing_internal.h"

void routing_softmax(const float *x, size_t count, float *out) {
    float greatest = x[0];
    for (size_t i = 1; i < count; i++) {
        greatest = x[i] > greatest ? x[i] : greatest; // if a value is NaN, the sum is NaN with any maximum
    }
    kernel_selected()->exp_minus(x, greatest, count, out);
    float sum = 0.0f;
    for (size_t i = 0; i < count; i++) {
        sum += out[i];
    }
    for (size_t i = 0; i < count; i++) {
        out[i] = out[i] / sum;
    }
}

// The best expert other than `taken` (-1: none).
static int32_t best_except(const float *logits, size_t count, int32_t taken) {
    int32_t best = taken == 0 ? 1 : 0;
    for (size_t e = 0; e < count; e++) {
        if ((int32_t)e != taken && routing_rank(logits[e]) > routing_rank(logits[best])) {
            best = (int32_t)e;
        }
    }
    return best;
}

// The softmax at `chosen`, over the logits near that of `chosen` and without `taken`. The mask is computed from the original
// logits.
static float masked_weight(const struct expertd_routing *routing, const float *logits, int32_t chosen, int32_t taken,
                           float *masked) {
    float greatest = logits[chosen];
    for (size_t e = 0; e < routing->num_experts; e++) {
        float magnitude = fabsf(logits[e]);
        float factor = magnitude < greatest ? greatest : magnitude; // a NaN stays NaN
        bool far = (greatest - logits[e]) / factor > 2.0f * routing->jitter;
        masked[e] = far || (int32_t)e == taken ? -INFINITY : logits[e];
    }
    routing_softmax(masked, routing->num_experts, masked);
    return masked[chosen];
}

void routing_sparsemixer(const struct expertd_routing *routing, const float *logits, const struct routing_scratch *scratch,
                         int32_t *ids, float *weights) {
    ids[0] = best_except(logits, routing->num_experts, -1);
    weights[0] = masked_weight(routing, logits, ids[0], -1, scratch->scores);
    ids[1] = best_except(logits, routing->num_experts, ids[0]);
    weights[1] = masked_weight(routing, logits, ids[1], ids[0], scratch->scores);
}
