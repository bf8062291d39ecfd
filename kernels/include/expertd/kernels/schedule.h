// How a grouped matmul cuts its work: which rows, panels and bytes go to a thread at a time. Nothing here
// can be seen in a bit of the output, so it may be chosen by measurement (tuning.h).
#ifndef EXPERTD_KERNELS_SCHEDULE_H
#define EXPERTD_KERNELS_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "expertd/base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { EXPERTD_SCHEDULE_CALL_ROWS_MIN = 48 }; // a multiple of every tile of rows but 5; fewer would only read the weights again

struct expertd_matmul_schedule {
    uint32_t
        call_rows; // rows of one group that a kernel takes at a time at most: EXPERTD_SCHEDULE_CALL_ROWS_MIN to KERNEL_CALL_ROWS
    uint32_t run_bytes;        // of weights that a thread reads in one go at least, where that leaves no thread idle
    uint32_t tasks_per_thread; // at least, so that the last ones to finish differ little: 1 or more
};

// Products that take one schedule: the same matrices, the same threads, about as many rows in each group that has any.
struct expertd_schedule_class {
    enum expertd_dtype dtype; // of the rows
    uint32_t k, n;            // of a matrix
    uint32_t panel_bytes;     // of 64 of its columns, packed: tells the formats of weights apart
    uint32_t rows;            // a power of two: see expertd_schedule_rows
    uint32_t threads;         // of the team
};

enum { EXPERTD_SCHEDULE_ROWS_MAX = 256 };

// The class of `rows` rows over `groups` groups that have any: the mean, rounded down to a power of two, EXPERTD_SCHEDULE_ROWS_MAX
// at most.
uint32_t expertd_schedule_rows(size_t rows, size_t groups);

// By rule: one for all classes, since none has yet measured better otherwise on the machines that were tried (MEASUREMENTS.md).
struct expertd_matmul_schedule expertd_schedule_heuristic(void);

// The i-th schedule worth a trial, the heuristic's first; false past the end.
bool expertd_schedule_candidate(const struct expertd_schedule_class *wanted, size_t i, struct expertd_matmul_schedule *out);

// Are all fields within their bounds? A schedule from a file is not used otherwise, a caller's is refused.
bool expertd_schedule_is_valid(const struct expertd_matmul_schedule *schedule);

bool expertd_schedule_class_equal(const struct expertd_schedule_class *a, const struct expertd_schedule_class *b);

#ifdef __cplusplus
}
#endif

#endif
