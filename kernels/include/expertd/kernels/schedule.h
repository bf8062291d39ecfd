// How a grouped matmul on packed weights splits its work among threads. A schedule changes the speed and no bit of the result, so
// it may be chosen by measurement (tuning.h).
#ifndef EXPERTD_KERNELS_SCHEDULE_H
#define EXPERTD_KERNELS_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "expertd/base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

// 48 rows split into equal tiles for every kernel except AMX's integer tiles of 5 rows. With fewer rows per call, weights are read
// more often.
enum { EXPERTD_SCHEDULE_CALL_ROWS_MIN = 48, EXPERTD_SCHEDULE_CALL_ROWS_MAX = 240 };

struct expertd_matmul_schedule {
    uint32_t call_rows;        // rows of one group per kernel call, at most: CALL_ROWS_MIN to CALL_ROWS_MAX
    uint32_t run_bytes;        // bytes of weights that one task reads, at least, unless that leaves threads idle: 1 to 64 MiB
    uint32_t tasks_per_thread; // at least, so that all threads end at about the same time: 1 to 1024
};

// Products that share one schedule: equal k, n and format, equal threads, and about as many rows per group.
struct expertd_schedule_class {
    enum expertd_dtype dtype; // of the rows
    uint32_t k, n;            // of a matrix
    uint32_t panel_bytes;     // of 64 packed columns, which differs between formats
    uint32_t rows;            // expertd_schedule_rows
    uint32_t threads;         // of the team
};

enum { EXPERTD_SCHEDULE_ROWS_MAX = 256 };

// The `rows` of the class for `rows` rows over `groups` groups that have rows: the mean, rounded down to a power of two, at least 1
// and at most EXPERTD_SCHEDULE_ROWS_MAX.
uint32_t expertd_schedule_rows(size_t rows, size_t groups);

// The schedule that is used without tuning: one for all classes. No rule by class was faster on the machines measured so far.
struct expertd_matmul_schedule expertd_schedule_heuristic(void);

// The i-th candidate for tuning; the first is the heuristic's schedule. False past the end.
bool expertd_schedule_candidate(const struct expertd_schedule_class *wanted, size_t i, struct expertd_matmul_schedule *out);

// True where all fields are within their bounds. An invalid schedule in a file is ignored; a caller's is refused.
bool expertd_schedule_is_valid(const struct expertd_matmul_schedule *schedule);

// True where all fields are equal: products of equal classes share a schedule. Any thread.
bool expertd_schedule_class_equal(const struct expertd_schedule_class *a, const struct expertd_schedule_class *b);

#ifdef __cplusplus
}
#endif

#endif
