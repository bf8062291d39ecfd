// Rows of a task against neighbouring panels: where a thread keeps them, how its rows are reached, and what becomes of the sums.
// Private to kernels/product*.c.
#ifndef EXPERTD_KERNELS_PRODUCT_CALL_H
#define EXPERTD_KERNELS_PRODUCT_CALL_H

#include "kernels/product_work.h"

// A thread's scratch.
struct lane {
    char *panels, *lines;
    float *sums, *partial; // [held_rows], [rows]
    void *kernel;          // the group kernels' own
};

// Rows against neighbouring panels, over a block of K.
struct call {
    const struct work *work;
    const struct product_group *group;
    const struct lane *lane;
    const void *x[KERNEL_CALL_ROWS];
    const void *panels[KERNEL_GROUP];
    const void *next[KERNEL_GROUP];
    bool has_next, grouped;
    size_t row, rows;
    size_t panel, count;
    size_t k, depth;
    float *sums;   // of the first row
    size_t stride; // of a row of sums
};

struct lane call_lane(const struct work *work, unsigned thread);

// Pointers to the call's rows, from its k on; rows that cannot be read in place are converted first.
void call_point_to_rows(struct call *c);

// sums = fma(partial, the product of the scales of this block of K, sums).
void call_add_scaled(const struct call *c, size_t k_block, const float *partial, float *sums);

// From sums to results, of at most KERNEL_GROUP panels.
void call_finish(struct call *c);

// What the next call takes of what is `left`, so that calls are as even as can be.
static inline size_t call_part(size_t left, size_t most) {
    return div_up(left, div_up(left, most));
}

// Do the span's rows multiply their weights where they lie?
bool product_goes_across(const struct work *work, const struct span *span);

// The same for all of its rows and panels, by a call that knows its work, group, lane and first panel.
void product_run_across(struct call c, const struct span *span);

#endif
