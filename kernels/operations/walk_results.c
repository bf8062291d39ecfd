#include "kernels/operations/walk_results.h"

#include <string.h>

#include "kernels/cpu/backend/backend.h"
#include "kernels/cpu/common/nontemporal_store.h"
#include "kernels/elements/epilogue.h"

static char *out_at(const struct expertd_grouped_matmul_args *product, enum expertd_dtype dtype, size_t row, size_t column) {
    return (char *)product->out + (row * product->out_stride + column) * expertd_dtype_size(dtype);
}

bool walk_results_stream(const struct expertd_grouped_matmul_args *product, enum expertd_dtype dtype) {
    return product->m * product->rhs.packed->n * expertd_dtype_size(dtype) >= STREAM_BYTES_MIN;
}

// A row's sums as floats; int8 sums are converted into `floats`.
static const float *float_sums(const struct walk_results *results, const struct walk_sums *sums, size_t row, float *floats) {
    const float *from = sums->sums[0] + row * KERNEL_SUMS;
    if (results->product->rhs.packed->dtype != EXPERTD_DTYPE_I8) {
        return from;
    }
    memcpy(floats, from, sums->columns * sizeof *floats);
    kernel_selected()->from_i32(floats, sums->columns, results->dtype);
    return floats;
}

static void epilogue_row(const struct walk_results *results, const struct walk_sums *sums, size_t row, const float *bias,
                         void *out) {
    float floats[KERNEL_SUMS] __attribute__((aligned(64)));
    kernel_selected()->epilogue(&(struct epilogue_args){
        .sums = float_sums(results, sums, row, floats),
        .bias = bias,
        .count = sums->columns,
        .alpha = results->row_scale ? results->row_scale[sums->first_row + row] : 1.0f,
        .dtype = results->dtype,
        .out = out,
    });
}

// Do the results equal the sums, without any conversion?
static bool is_copied(const struct walk_results *results, const float *bias) {
    const enum expertd_dtype sums = results->product->rhs.packed->dtype == EXPERTD_DTYPE_I8 ? EXPERTD_DTYPE_I32 : EXPERTD_DTYPE_F32;
    return results->dtype == sums && !bias && !results->row_scale;
}

void walk_results_store(const struct walk_results *results, const struct walk_sums *sums, const float *bias) {
    const struct expertd_grouped_matmul_args *product = results->product;
    const size_t bytes = sums->columns * expertd_dtype_size(results->dtype);
    const bool streamed = walk_results_stream(product, results->dtype), copied = is_copied(results, bias);
    char line[KERNEL_SUMS * sizeof(float)] __attribute__((aligned(64)));
    for (size_t r = 0; r < sums->rows; r++) {
        char *out = out_at(product, results->dtype, sums->first_row + r, sums->column);
        const void *from = copied ? (const void *)(sums->sums[0] + r * KERNEL_SUMS) : line;
        if (!copied) {
            epilogue_row(results, sums, r, bias, streamed ? line : out);
        }
        if (streamed) {
            stream_bytes(out, from, bytes);
        } else if (copied) {
            memcpy(out, from, bytes);
        }
    }
    if (streamed) {
        stream_end();
    }
}

void walk_results_zero(const struct expertd_grouped_matmul_args *product, enum expertd_dtype dtype, size_t begin, size_t end) {
    const size_t bytes = product->rhs.packed->n * expertd_dtype_size(dtype);
    for (size_t row = begin; row < end && bytes; row++) { // where n is 0, out may be NULL
        memset(out_at(product, dtype, row, 0), 0, bytes);
    }
}
