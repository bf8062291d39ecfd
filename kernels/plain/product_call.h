// A kernel call of the engine: a few rows by a few neighbouring panels. Finds the rows, and turns sums into results. Private to
// kernels/plain.
#ifndef EXPERTD_KERNELS_PLAIN_PRODUCT_CALL_H
#define EXPERTD_KERNELS_PLAIN_PRODUCT_CALL_H

#include "base/sizes.h"
#include "kernels/plain/product_state.h"

// Rows [row, row + rows) of a group by panels [panel, panel + count), over [k, k + depth).
struct product_call {
    const struct product_state *state;
    const struct product_group *group;
    const struct thread_scratch *scratch;
    const void *x[KERNEL_CALL_ROWS];       // [rows] each row from k on, in the dtype of the sums' operands
    const void *panels[KERNEL_PANELS_MAX]; // [count] each panel from k on
    const void *next[KERNEL_PANELS_MAX];   // [count] the panels of the thread's next call, for prefetch; valid where has_next
    bool has_next;
    struct prefetch_range ahead; // weights that this thread packs next; prefetched during the call
    bool by_macrokernel;         // else panel by panel
    size_t row, rows;
    size_t panel, count;
    size_t k, depth;
    size_t row_bytes; // of a converted row; 0: rows are read in place
    float *sums;      // of the first row and panel
    size_t stride;    // floats from row to row of the sums
};

// Sets x. Converts the rows first where they cannot be read in place.
void call_point_to_rows(struct product_call *c);

// sums = fma(partial, product of both operands' scales number `scale` along K, sums).
void call_add_scaled(const struct product_call *c, size_t scale, const float *partial, float *sums);

// The epilogue: from sums to results, of at most KERNEL_PANELS_MAX panels.
void call_epilogue(struct product_call *c);

// The size of the next part of `left` when it is cut into as few parts of at most `most` as possible, all of about equal size.
static inline size_t call_part(size_t left, size_t most) {
    return div_up(left, div_up(left, most));
}

#endif
