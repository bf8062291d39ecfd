// The results, printed as a table or as one JSON object. Owned by one thread.
#ifndef EXPERTD_TESTS_BENCH_KERNELS_REPORT_H
#define EXPERTD_TESTS_BENCH_KERNELS_REPORT_H

#include <stdbool.h>

#include "tests/bench/kernels/measure/machine.h"
#include "tests/bench/kernels/measure/measure.h"
#include "tests/bench/kernels/shapes.h"

enum { REPORT_NAME_MAX = 64 };

struct report_row {
    char shape[REPORT_NAME_MAX];
    const char *dtype;               // a constant
    const struct bench_shape *dealt; // a constant: k, n and rows of each group, to be included in JSON; NULL: omit
    unsigned threads;
    struct measurement measured;
    double neighbour_leaves; // share of the CPUs' time, if measured.ratio_beside_neighbour is not 0
    // for layers; tokens 0: a row of kernels
    unsigned tokens;
    struct report_shares { // shares of the time
        double hidden, router, plan, dispatch, gate_up, down, shared, combine;
    } shares;
};

struct device_rig;

struct report {
    const struct machine *machine; // borrowed
    struct device_rig *rig;        // the device under measurement, borrowed; NULL: the CPU
    const char *backend;
    struct report_row *rows;
    size_t count, reserved;
};

FALLIBLE report_add(struct report *report, const struct report_row *row); // copies; EXPERTD_ERR_NOMEM
void report_deinit(struct report *report);

FALLIBLE report_print_table(const struct report *report);
FALLIBLE report_print_json(const struct report *report);

#endif
