// Cuts a walk into tasks: a group's rows into spans, its panels into runs; a task is one span by one run. Threads claim tasks one
// by one. Pure functions. The cut changes no bit of the output. Private to kernels/.
#ifndef EXPERTD_KERNELS_OPERATIONS_WALK_TASKS_H
#define EXPERTD_KERNELS_OPERATIONS_WALK_TASKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "expertd/kernels/grouped_matmul.h"
#include "kernels/products/panel_kernels.h"

struct walk_span {
    uint32_t first_row, rows;
    uint32_t group;                   // local
    uint32_t group_spans, first_span; // spans that share a run of panels, and the index of the first of them
};

// The input of the cut.
struct walk_shape {
    const struct expertd_grouped_matmul_args *args;
    const struct panel_kernels *kernels;
    size_t panels;          // of each operand
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
    bool small_m;                  // every span is so short that reading the panels bounds the speed
    size_t full_spans;             // the first spans, which one task each multiplies by all panels
    size_t products;               // tasks that multiply: first those of full_spans, then span by run
    size_t zero_before, zero_from; // rows [0, zero_before) and [zero_from, m) belong to no local group
    size_t zero_tasks_before;      // tasks that set rows below zero_before to 0; those from zero_from on follow
    size_t m;
    size_t count; // tasks
};

// A task that multiplies: a span by panels [panel, end).
struct walk_product {
    const struct walk_span *span;
    size_t panel, end;
};

// Bytes of spans for up to m rows over num_groups groups; SIZE_MAX on overflow.
size_t walk_spans_bytes(size_t m, size_t num_groups);

// spans: walk_spans_bytes, borrowed as long as *out is used.
void walk_tasks_make(const struct walk_shape *shape, struct walk_span *spans, struct walk_tasks *out);

// False where the task does not multiply, or `task` is past the last one.
bool walk_product(const struct walk_tasks *tasks, size_t task, struct walk_product *out);

// The rows [*begin, *end) that a task which does not multiply sets to 0.
void walk_zeros(const struct walk_tasks *tasks, size_t task, size_t *begin, size_t *end);

#endif
