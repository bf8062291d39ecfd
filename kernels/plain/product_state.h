// One run of the engine: what its tasks share. Private to kernels/plain.
#ifndef EXPERTD_KERNELS_PLAIN_PRODUCT_STATE_H
#define EXPERTD_KERNELS_PLAIN_PRODUCT_STATE_H

#include <stdatomic.h>

#include "kernels/plain/line_reader.h"
#include "kernels/plain/product_blocking.h"

struct product_state {
    const struct product *product;
    const struct kernel_backend *backend;
    struct panel_kernels kernels; // for B's panels
    struct product_blocking blocking;
    struct line_reader read_a, read_b;
    size_t *first_task; // [num_groups + 1] number of each group's first task; unused where m_in_order
    size_t span_rows;   // of a task, at most
    size_t run_panels;  // of a task, at most
    bool m_in_order;    // dimension_semantics: a task is one run of panels of every group, all rows in order
    bool streams;       // results are written with non-temporal stores
    size_t tasks;
    _Atomic size_t claimed; // tasks that threads have claimed
    char *scratch;          // of all threads
    size_t scratch_bytes;   // of one thread
};

// Rows [row, end) of a group by panels [panel, panel_end).
struct product_span {
    const struct product_group *group;
    size_t row, end;
    size_t panel, panel_end;
};

#endif
