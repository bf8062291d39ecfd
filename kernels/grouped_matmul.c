// The product on packed weights, as serving asks for it: checked, walked, and its sums stored where the caller wants them. What
// else the contract has goes to grouped_matmul_general.
#include "kernels/grouped_matmul.h"

#include <string.h>

#include "kernels/backend.h"
#include "kernels/cpu/stream.h"
#include "kernels/grouped_matmul_general.h"
#include "kernels/matmul_check.h"
#include "kernels/matmul_walk.h"

size_t packed_matmul_workspace_bytes(size_t m, size_t num_groups) {
    return matmul_walk_scratch_bytes(m, num_groups);
}

size_t grouped_matmul_workspace_bytes(const struct grouped_matmul_args *args, const struct team *team) {
    if (grouped_matmul_is_plain_serving(args)) {
        return packed_matmul_workspace_bytes(args->m, args->num_groups);
    }
    return grouped_matmul_general_bytes(args, team);
}

static float *out_row(const struct grouped_matmul_args *args, size_t row) {
    return (float *)args->out + row * args->out_stride;
}

// Its lines are best not read first then (a512: .96 -> .97 of the peak).
static bool streams(const struct grouped_matmul_args *args) {
    return args->m * args->rhs.packed->n * sizeof(float) >= STREAM_BYTES_MIN;
}

static void store(const void *context, const struct walk_sums *sums) {
    const struct grouped_matmul_args *args = context;
    bool streamed = streams(args);
    for (size_t r = 0; r < sums->rows; r++) {
        float *out = out_row(args, sums->first_row + r) + sums->column;
        const float *from = sums->sums[0] + r * KERNEL_SUMS;
        if (streamed) {
            stream_copy(out, from, sums->columns);
        } else {
            memcpy(out, from, sums->columns * sizeof *out);
        }
    }
    if (streamed) {
        stream_end();
    }
}

static void zero_rows(const void *context, size_t begin, size_t end) {
    const struct grouped_matmul_args *args = context;
    const size_t bytes = args->rhs.packed->n * sizeof(float);
    for (size_t row = begin; row < end && bytes; row++) { // without columns there may be no out
        memset(out_row(args, row), 0, bytes);
    }
}

FALLIBLE grouped_matmul(const struct grouped_matmul_args *args, struct team *team, void *workspace) {
    if (!grouped_matmul_is_plain_serving(args)) {
        return grouped_matmul_general(args, team, workspace);
    }
    TRY(grouped_matmul_check(args));
    TRY(grouped_matmul_check_out(args));
    TRY(matmul_check_workspace(workspace, packed_matmul_workspace_bytes(args->m, args->num_groups)));
    struct matmul_walk walk = {.args = args,
                               .rhs = {args->rhs.packed},
                               .operands = 1,
                               .out_element = streams(args) ? 0 : sizeof(float),
                               .finish = store,
                               .zero = zero_rows,
                               .context = args};
    matmul_walk(&walk, team, workspace);
    return OK;
}
