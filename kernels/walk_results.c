#include "kernels/walk_results.h"

#include <string.h>

#include "kernels/backend.h"
#include "kernels/cpu/stream.h"
#include "kernels/finish.h"

static char *out_at(const struct grouped_matmul_args *product, enum dtype dtype, size_t row, size_t column) {
    return (char *)product->out + (row * product->out_stride + column) * dtype_size(dtype);
}

bool walk_results_stream(const struct grouped_matmul_args *product, enum dtype dtype) {
    return product->m * product->rhs.packed->n * dtype_size(dtype) >= STREAM_BYTES_MIN;
}

void walk_results_store(const struct walk_results *results, const struct walk_sums *sums, const float *bias) {
    const struct kernel_backend *backend = kernel_selected();
    const struct grouped_matmul_args *product = results->product;
    const size_t bytes = sums->columns * dtype_size(results->dtype);
    const bool streamed = walk_results_stream(product, results->dtype),
               as_it_is = results->dtype == DTYPE_F32 && !bias && !results->row_scale;
    char line[KERNEL_SUMS * sizeof(float)] __attribute__((aligned(64)));
    for (size_t r = 0; r < sums->rows; r++) {
        char *out = out_at(product, results->dtype, sums->first_row + r, sums->column);
        const float *from = sums->sums[0] + r * KERNEL_SUMS;
        struct finish_args finish = {
            .sums = from,
            .bias = bias,
            .count = sums->columns,
            .alpha = results->row_scale ? results->row_scale[sums->first_row + r] : 1.0f,
            .dtype = results->dtype,
            .out = streamed ? line : out,
        };
        if (!as_it_is) {
            backend->finish(&finish);
        }
        if (streamed) {
            stream_bytes(out, as_it_is ? (const void *)from : line, bytes);
        } else if (as_it_is) {
            memcpy(out, from, bytes);
        }
    }
    if (streamed) {
        stream_end();
    }
}

void walk_results_zero(const struct grouped_matmul_args *product, enum dtype dtype, size_t begin, size_t end) {
    const size_t bytes = product->rhs.packed->n * dtype_size(dtype);
    for (size_t row = begin; row < end && bytes; row++) { // without columns there may be no out
        memset(out_at(product, dtype, row, 0), 0, bytes);
    }
}
