#include "expertd/kernels/normalise.h"

#include <math.h>

#include "kernels/cpu/common/float_mode.h"

enum { PARTIAL_SUMS = 16 };

static float sum_of_squares(const float *x, size_t width) {
    float sums[PARTIAL_SUMS] = {0};
    size_t full = width / PARTIAL_SUMS * PARTIAL_SUMS;
    for (size_t at = 0; at < full; at += PARTIAL_SUMS) {
        for (size_t j = 0; j < PARTIAL_SUMS; j++) {
            sums[j] += x[at + j] * x[at + j];
        }
    }
    for (size_t j = 0; j < width - full; j++) {
        sums[j] += x[full + j] * x[full + j];
    }
    for (size_t half = PARTIAL_SUMS / 2; half > 0; half /= 2) {
        for (size_t j = 0; j < half; j++) {
            sums[j] += sums[j + half];
        }
    }
    return sums[0];
}

void expertd_rms_normalise_row(const float *x, size_t width, float epsilon, const float *weight, float *out) {
    float_mode before = float_mode_set_ieee();
    float inverse = 1.0f / sqrtf(sum_of_squares(x, width) / (float)width + epsilon);
    for (size_t i = 0; i < width; i++) {
        out[i] = x[i] * inverse * weight[i];
    }
    float_mode_restore(before);
}
