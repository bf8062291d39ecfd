// expertd-verify's results, as a table or as JSON. Owned by one thread.
#ifndef EXPERTD_TESTS_VERIFY_REPORT_H
#define EXPERTD_TESTS_VERIFY_REPORT_H

#include "tests/verify/compare.h"

struct report_row {
    const struct layer_params *params; // borrowed from the model
    uint64_t tokens;
    double p50_s;      // median latency of a call, as the caller sees it
    uint64_t calls;    // timed
    uint64_t requests; // compared, each of another kind
    struct comparison found;
    bool right;
};

struct report {
    const char *model, *numerics_id, *daemon_numerics_id;
    bool same_numerics; // the ids are equal: answers must have equal bits
    double bound;       // the ids differ: answers must be within this error
    struct report_row *rows;
    size_t count;
};

bool report_all_right(const struct report *report);
FALLIBLE report_print_table(const struct report *report);
FALLIBLE report_print_json(const struct report *report);

#endif
