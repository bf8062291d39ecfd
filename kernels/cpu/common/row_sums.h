// The sums of a row over scale groups, which formats with minima multiply by the minima (expertd/kernels/quantised.h). Private to
// kernels/cpu.
#ifndef EXPERTD_KERNELS_CPU_COMMON_ROW_SUMS_H
#define EXPERTD_KERNELS_CPU_COMMON_ROW_SUMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "expertd/base/dtype.h"

enum { ROW_SUMS_CHAINS = 8 }; // scale groups summed side by side, since each sum is a chain of dependent additions

static inline __attribute__((always_inline)) float row_sums_element(const void *x, bool bf16, size_t i) {
    return bf16 ? expertd_f32_from_bf16(((const uint16_t *)x)[i]) : ((const float *)x)[i];
}

// minus[s] = -(the sum of scale group s), for all scale groups of x[k], in fp32 from +0, k ascending. The caller has set IEEE mode.
// bf16: x is uint16_t, else float. scale_k is not 0.
static inline __attribute__((always_inline)) void row_sums_minus(const void *x, bool bf16, size_t k, size_t scale_k, float *minus) {
    const size_t size = bf16 ? sizeof(uint16_t) : sizeof(float);
    size_t s = 0;
    for (; (s + ROW_SUMS_CHAINS) * scale_k <= k; s += ROW_SUMS_CHAINS) {
        const char *from = (const char *)x + s * scale_k * size;
        float sums[ROW_SUMS_CHAINS] = {0};
        for (size_t i = 0; i < scale_k; i++) {
            for (size_t j = 0; j < ROW_SUMS_CHAINS; j++) {
                sums[j] += row_sums_element(from, bf16, j * scale_k + i);
            }
        }
        for (size_t j = 0; j < ROW_SUMS_CHAINS; j++) {
            minus[s + j] = -sums[j];
        }
    }
    for (; s * scale_k < k; s++) {
        float sum = 0.0f;
        for (size_t i = s * scale_k; i < k && i < (s + 1) * scale_k; i++) {
            sum += row_sums_element(x, bf16, i);
        }
        minus[s] = -sum;
    }
}

#endif
