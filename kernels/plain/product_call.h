// Rows of a task against neighbouring panels: where a thread keeps them, how its rows are reached, and what becomes of the sums.
// Private to kernels/product*.c.
#ifndef EXPERTD_KERNELS_PLAIN_PRODUCT_CALL_H
#define EXPERTD_KERNELS_PLAIN_PRODUCT_CALL_H

#include "kernels/plain/product_work.h"

// A thread's scratch, cut up (product_lane_bytes).
struct product_lane {
    char *panels;   // [holding.panels] packed by the thread; none where they were packed at load
    char *lines;    // [holding.rows] converted rows; none where rows are read in place
    float *sums;    // [held_rows, sums_stride], or what rows across take
    float *partial; // [rows, sums_stride] of one block of scaled operands
    void *kernel;   // KERNEL_SCRATCH_BYTES: the group kernels' own
};

// Rows [row, row + rows) of a group against panels [panel, panel + count), over [k, k + depth).
struct product_call {
    const struct product_work *work;
    const struct product_group *group;
    const struct product_lane *lane;
    const void *x[KERNEL_CALL_ROWS];       // [rows] the rows' k on, in the dtype of the sums' operands
    const void *panels[KERNEL_PANELS_MAX]; // [count] the panels' k on
    const void *next[KERNEL_PANELS_MAX]; // [count] where has_next: what the thread multiplies after these, to be fetched meanwhile
    bool has_next;
    struct memory_ahead ahead; // of weights that are packed next, fetched while these rows are multiplied
    bool grouped;              // by the group kernels, else panel by panel
    size_t row, rows;
    size_t panel, count;
    size_t k, depth;
    size_t line_bytes; // of a converted row; 0: rows are read in place
    float *sums;       // of the first row, first panel
    size_t stride;     // floats from a row of sums to the next
};

struct product_lane call_lane(const struct product_work *work, unsigned thread);

// Pointers to the call's rows, from its k on; rows that cannot be read in place are converted first.
void call_point_to_rows(struct product_call *c);

// sums = fma(partial, the product of the scales of this block of K, sums).
void call_add_scaled(const struct product_call *c, size_t k_block, const float *partial, float *sums);

// From sums to results, of at most KERNEL_PANELS_MAX panels.
void call_epilogue(struct product_call *c);

// What the next call takes of what is `left`, so that calls are as even as can be.
static inline size_t call_part(size_t left, size_t most) {
    return div_up(left, div_up(left, most));
}

#endif
