// The sums of a row over scale groups, which formats with minima multiply by the minima (expertd/kernels/quantised.h). Private to
// kernels/cpu.
#ifndef EXPERTD_KERNELS_CPU_COMMON_ROW_SUMS_H
#define EXPERTD_KERNELS_CPU_COMMON_ROW_SUMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "expertd/base/dtype.h"
#include "kernels/cpu/backend/backends.h"

enum { ROW_SUMS_GROUPS = 8 }; // scale groups summed side by side, since each sum is a chain of dependent additions

typedef float row_sums_vector __attribute__((vector_size(4 * ROW_SUMS_GROUPS)));

// Elements i to i + 7.
PANEL_INLINE void row_sums_load(const void *x, bool bf16, size_t i, row_sums_vector *to) {
    typedef uint16_t halves __attribute__((vector_size(2 * ROW_SUMS_GROUPS)));
    typedef uint32_t words __attribute__((vector_size(4 * ROW_SUMS_GROUPS)));
    if (bf16) {
        halves half;
        memcpy(&half, (const uint16_t *)x + i, sizeof half);
        *to = (row_sums_vector)(__builtin_convertvector(half, words) << 16);
    } else {
        memcpy(to, (const float *)x + i, sizeof *to);
    }
}

// Rows become columns.
PANEL_INLINE void row_sums_transpose(row_sums_vector v[ROW_SUMS_GROUPS]) {
    row_sums_vector a[ROW_SUMS_GROUPS], b[ROW_SUMS_GROUPS];
    PANEL_UNROLL for (size_t i = 0; i < ROW_SUMS_GROUPS; i += 2) {
        a[i] = __builtin_shufflevector(v[i], v[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        a[i + 1] = __builtin_shufflevector(v[i], v[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    PANEL_UNROLL for (size_t i = 0; i < ROW_SUMS_GROUPS; i += 4) {
        PANEL_UNROLL for (size_t j = 0; j < 2; j++) {
            b[i + 2 * j] = __builtin_shufflevector(a[i + j], a[i + 2 + j], 0, 1, 8, 9, 4, 5, 12, 13);
            b[i + 2 * j + 1] = __builtin_shufflevector(a[i + j], a[i + 2 + j], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    }
    PANEL_UNROLL for (size_t i = 0; i < 4; i++) {
        v[i] = __builtin_shufflevector(b[i], b[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        v[i + 4] = __builtin_shufflevector(b[i], b[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

// `groups` full scale groups of scale_k k each, a multiple of 8.
PANEL_INLINE void row_sums_full(const void *x, bool bf16, size_t scale_k, size_t groups, float *minus) {
    row_sums_vector sums = {0};
    for (size_t k = 0; k < scale_k; k += ROW_SUMS_GROUPS) {
        row_sums_vector v[ROW_SUMS_GROUPS];
        PANEL_UNROLL for (size_t j = 0; j < ROW_SUMS_GROUPS; j++) {
            row_sums_load(x, bf16, (j < groups ? j : 0) * scale_k + k, &v[j]); // instead of groups past the last: the first one
        }
        row_sums_transpose(v);
        PANEL_UNROLL for (size_t j = 0; j < ROW_SUMS_GROUPS; j++) {
            sums += v[j];
        }
    }
    sums = -sums;
    memcpy(minus, &sums, groups * sizeof *minus);
}

// minus[s] = -(the sum of scale group s), for all scale groups of x[k], in fp32 from +0, k ascending. The caller has set IEEE mode.
// bf16: x is uint16_t, else float. scale_k is a multiple of 8 or all of k.
PANEL_INLINE void row_sums_minus(const void *x, bool bf16, size_t k, size_t scale_k, float *minus) {
    const size_t size = bf16 ? sizeof(uint16_t) : sizeof(float);
    size_t full = k > 0 && scale_k % ROW_SUMS_GROUPS == 0 ? k / scale_k : 0, s = 0;
    while (s < full) {
        const char *from = (const char *)x + s * scale_k * size;
        const size_t groups = full - s < ROW_SUMS_GROUPS ? full - s : ROW_SUMS_GROUPS;
        if (groups == ROW_SUMS_GROUPS) {
            row_sums_full(from, bf16, scale_k, ROW_SUMS_GROUPS, minus + s);
        } else {
            row_sums_full(from, bf16, scale_k, groups, minus + s);
        }
        s += groups;
    }
    for (; s * scale_k < k; s++) {
        float sum = 0.0f;
        for (size_t i = s * scale_k; i < k && i < (s + 1) * scale_k; i++) {
            sum += bf16 ? expertd_f32_from_bf16(((const uint16_t *)x)[i]) : ((const float *)x)[i];
        }
        minus[s] = -sum;
    }
}

#endif
