// Tuned schedules (schedule.h): measuring them, a table of them by class of product, the table that this process uses, and its
// file.
//
// The file is text: a line each for the version, the CPU and the backend; a line per class; a last line with the number of classes
// and a checksum of all lines before it. A file that is damaged or was written by another version, on another CPU or for another
// backend is refused with an error that says why. Its contents can change the speed of a product, never its result.
#ifndef EXPERTD_KERNELS_TUNING_H
#define EXPERTD_KERNELS_TUNING_H

#include <stddef.h>
#include <stdio.h>

#include "expertd/base/err.h"
#include "expertd/kernels/grouped_matmul.h"
#include "expertd/kernels/schedule.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { EXPERTD_TUNING_ENTRIES_MAX = 512, EXPERTD_TUNING_NAME_MAX = 96 };

struct expertd_tuning_entry {
    struct expertd_schedule_class found_for;
    struct expertd_matmul_schedule schedule;
};

struct expertd_tuning_table {
    size_t count;
    struct expertd_tuning_entry entries[EXPERTD_TUNING_ENTRIES_MAX];
};

// NULL where the table has no schedule for the class.
const struct expertd_matmul_schedule *expertd_tuning_find(const struct expertd_tuning_table *table,
                                                          const struct expertd_schedule_class *wanted);

// Adds or replaces the entry of a class. False, with the table unchanged, where it is full or the entry's schedule or dtype is
// invalid.
bool expertd_tuning_put(struct expertd_tuning_table *table, const struct expertd_tuning_entry *entry);

// From now on, products of all threads use the schedules in `table`, and the heuristic for classes that it lacks. NULL: the
// heuristic for all, as at the start. The table is borrowed and must not change while it is in use.
void expertd_tuning_use(const struct expertd_tuning_table *table);

// The schedule in use for a class: the table's where it is valid, else the heuristic's. Any thread.
struct expertd_matmul_schedule expertd_tuning_schedule(const struct expertd_schedule_class *wanted);

// The class of a product on packed weights.
struct expertd_schedule_class expertd_tuning_class(const struct expertd_grouped_matmul_args *args, unsigned threads);

// A product to tune on.
struct expertd_tuning_job {
    const struct expertd_grouped_matmul_args *args; // on packed weights. Every trial writes its `out`, with equal bits
    struct expertd_team *team;
    void *scratch;                 // workspace of expertd_grouped_matmul
    void (*before)(void *context); // called before each trial, for instance to point args at weights that are not cached; or NULL
    void *context;
    int64_t span_ns; // approximate time for all trials together
};

struct expertd_tuning_trial {
    size_t candidates, rounds;
    double heuristic_s, best_s; // median seconds of a product
    struct expertd_matmul_schedule best;
};

// Runs the product with every candidate in turn, for several rounds. *out: the candidate with the least median time, or the
// heuristic unless another is at least 2 % faster. Does not allocate and does not change the table in use. EXPERTD_ERR_INVALID
// where schedules do not apply: the product must have packed F32 or BF16 weights, an F32 output, no existing_out and no options.
EXPERTD_FALLIBLE expertd_tuning_measure(const struct expertd_tuning_job *job, struct expertd_tuning_trial *out);

// The machine that schedules were measured on.
struct expertd_tuning_identity {
    char cpu[EXPERTD_TUNING_NAME_MAX];     // one line of text, without spaces at its ends
    char kernels[EXPERTD_TUNING_NAME_MAX]; // expertd_kernel_float_name()
};
// Fills in this machine's identity: the CPU's name from /proc/cpuinfo, "unknown" if it cannot be read, and the selected backend's
// kernels. Opens a file and so allocates.
void expertd_tuning_identity_read(struct expertd_tuning_identity *out);

// Reads the CPU's name from a file in the format of Linux's /proc/cpuinfo: the "model name" with family and model; on aarch64 the
// numbers of implementer and part; else "unknown".
void expertd_tuning_cpu_name(FILE *cpuinfo, char name[EXPERTD_TUNING_NAME_MAX]);

// Reads a file into `table`, which is empty after an error. EXPERTD_ERR_IO: the file is missing or cannot be read.
// EXPERTD_ERR_INVALID: the file is refused; the message says why.
EXPERTD_FALLIBLE expertd_tuning_load(const char *path, const struct expertd_tuning_identity *identity,
                                     struct expertd_tuning_table *table);

// Replaces the file atomically: writes a temporary file in its folder, flushes it to the disk and renames it. An existing file
// keeps its mode, its symbolic links and, where permitted, its owner; a new file gets mode 0644 minus the umask. Of two concurrent
// writers the last one wins. `table` must come from expertd_tuning_put or expertd_tuning_load. After an error the old file is
// unchanged. EXPERTD_ERR_IO: it cannot be written, or the path is not a regular file. EXPERTD_ERR_INVALID: the identity is not a
// line of text.
EXPERTD_FALLIBLE expertd_tuning_store(const char *path, const struct expertd_tuning_identity *identity,
                                      const struct expertd_tuning_table *table);

#ifdef __cplusplus
}
#endif

#endif
