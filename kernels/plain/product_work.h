// One run of the engine: what its tasks share, and what a thread holds. Private to kernels/product*.c.
#ifndef EXPERTD_KERNELS_PLAIN_PRODUCT_WORK_H
#define EXPERTD_KERNELS_PLAIN_PRODUCT_WORK_H

#include <stdatomic.h>

#include "base/sizes.h"
#include "kernels/operations/panel_kernels.h"
#include "kernels/plain/product.h"
#include "kernels/plain/product_lines.h"

// How much a thread holds, and in which pieces it works.
struct product_holding {
    enum expertd_dtype sum;
    bool grouped;              // by the kernels for groups of panels: K may go in blocks
    bool scaled_blocks;        // partial sums of blocks of K, each closed with its scales
    size_t panels;             // of a call at most
    size_t panel_bytes;        // of a panel's block, packed by the thread; 0: packed at load
    size_t k_step;             // k of a block
    size_t line_bytes;         // of a converted row's block; 0: rows are read in place
    size_t rows;               // of a call at most
    size_t held_rows;          // whose sums are kept while the panels' blocks pass
    size_t sums_stride;        // of a row
    size_t n_major_rows;       // of a span, up to which they multiply weights where these lie; 0: never
    size_t n_major_line_bytes; // of such a row, converted, all of K; 0: there is no room, or no need
};

enum {
    N_MAJOR_SPAN_ROWS = 32, // more of them are worth packing for
    N_MAJOR_COLUMNS = 1024, // of their sums: the longer the runs of memory, the better it follows
    N_MAJOR_STRIDE =
        N_MAJOR_COLUMNS + 80, // of their rows, floats: a page apart, each load would wait for the stores of another row
};

struct product_work {
    const struct product *product;
    const struct kernel_backend *backend;
    struct panel_kernels kernels; // for B's panels: of the sums' operands, or codes
    struct product_holding holding;
    struct line_reader read_a, read_b;
    size_t *first_task; // [num_groups + 1]; unused where m tiles go in order
    size_t span_rows;   // at most, of a task
    size_t run_panels;  // at most, of a task
    bool m_in_order;    // a task is a run of panels of every group
    bool streams;       // results go past the caches, which they would only pass through
    size_t tasks;
    _Atomic size_t claimed; // by the threads themselves
    char *scratch;
    size_t scratch_bytes; // of one thread
};

// Rows [row, end) of a group against panels [panel, panel_end).
struct product_span {
    const struct product_group *group;
    size_t row, end;
    size_t panel, panel_end;
};

// Bytes of a thread's scratch.
size_t product_lane_bytes(const struct product_holding *holding);

// after: the span that this thread takes next, or NULL: it is not known.
void product_run_span(const struct product_work *work, const struct product_span *span, const struct product_span *after,
                      unsigned thread);

#endif
