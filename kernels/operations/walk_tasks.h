// How a walk is cut: each group's rows into spans, spans against runs of panels into tasks, which threads claim one by one. Pure;
// nothing here can be seen in a bit of the output. Private to kernels/.
#ifndef EXPERTD_KERNELS_OPERATIONS_WALK_TASKS_H
#define EXPERTD_KERNELS_OPERATIONS_WALK_TASKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "expertd/kernels/grouped_matmul.h"
#include "kernels/operations/panel_kernels.h"

struct walk_span {
    uint32_t first_row, rows;
    uint32_t group;            // local
    uint32_t siblings, eldest; // spans that take turns at their group's panels, and the index of the first of them
};

// What is cut.
struct walk_shape {
    const struct expertd_grouped_matmul_args *args; // groups and their rows
    const struct panel_kernels *kernels;
    size_t panels;          // of an operand
    size_t panels_per_call; // of each operand
    size_t panel_bytes;     // of all operands
    size_t row_bytes;       // of lhs
    size_t threads;
    const struct expertd_matmul_schedule *schedule;
};

struct walk_tasks {
    const struct walk_span *spans;
    size_t num_spans;
    size_t panels, panels_per_run, runs;
    bool small_m;                  // rows in every span: reading panels is what counts
    size_t whole;                  // spans that one task takes against all panels; the others' tasks follow
    size_t products;               // tasks that multiply
    size_t zero_before, zero_from; // rows [0, zero_before) and [zero_from, m) belong to no local group
    size_t zero_tasks_before;      // then those from zero_from on
    size_t m;
    size_t count;
};

// A task that multiplies: a span against panels [panel, end).
struct walk_product {
    const struct walk_span *span;
    size_t panel, end;
};

// Bytes of spans for up to m rows over num_groups groups; SIZE_MAX where no memory has so many.
size_t walk_spans_bytes(size_t m, size_t num_groups);

// spans: of those bytes, borrowed.
void walk_tasks_make(const struct walk_shape *shape, struct walk_span *spans, struct walk_tasks *out);

// False: the task multiplies nothing, or is past the last one.
bool walk_product(const struct walk_tasks *tasks, size_t task, struct walk_product *out);

// Of one of the others: the rows [*begin, *end) that it sets to 0.
void walk_zeros(const struct walk_tasks *tasks, size_t task, size_t *begin, size_t *end);

#endif
