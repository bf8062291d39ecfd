// Schedules found by trial: a table by class, kept in a file between runs, and the one that is in force in this process.
//
// The file is text: a line each for its version, the CPU and the kernels; a line for each class; a last line with the number of
// lines and a checksum over all before it. A file that is damaged, of another version or CPU, or for other kernels, is not used,
// and the caller is told why; what it says cannot change any result, only its speed.
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

// NULL where the table has nothing for the class.
const struct expertd_matmul_schedule *expertd_tuning_find(const struct expertd_tuning_table *table,
                                                          const struct expertd_schedule_class *wanted);

// Adds or replaces; false, with the table as it was, where it is full or the entry is none that a file could hold: its schedule is
// none that schedule.h allows, or its dtype none.
bool expertd_tuning_put(struct expertd_tuning_table *table, const struct expertd_tuning_entry *entry);

// From now on products of all threads take their schedules from `table`, by the heuristic where it has none. NULL: by the heuristic
// alone, as at the start. The table is borrowed and must not change or end while it is in force.
void expertd_tuning_use(const struct expertd_tuning_table *table);

// What is in force for a class; the heuristic too where the table's is none that schedule.h allows. Any thread.
struct expertd_matmul_schedule expertd_tuning_schedule(const struct expertd_schedule_class *wanted);

// The class that a product of packed weights belongs to.
struct expertd_schedule_class expertd_tuning_class(const struct expertd_grouped_matmul_args *args, unsigned threads);

// A product to tune on.
struct expertd_tuning_job {
    const struct expertd_grouped_matmul_args *args; // of packed weights; its out is written: the same bits, whatever wins
    struct expertd_team *team;
    void *scratch;                 // grouped_matmul's
    void (*before)(void *context); // called before each trial, to point args at weights that no cache holds; NULL: none
    void *context;
    int64_t span_ns; // for all trials together, about
};

struct expertd_tuning_trial {
    size_t candidates, rounds;
    double heuristic_s, best_s; // medians
    struct expertd_matmul_schedule best;
};

// EXPERTD_ERR_INVALID where a schedule would not count: the product is not of packed F32 or BF16 weights with sums out and no
// options. Tries every candidate, each in turn, and says which took the least median time: the heuristic unless another is 2 %
// better. No allocation. The table in force is not changed.
EXPERTD_FALLIBLE expertd_tuning_measure(const struct expertd_tuning_job *job, struct expertd_tuning_trial *out);

// What schedules in a file were found on.
struct expertd_tuning_identity {
    char cpu[EXPERTD_TUNING_NAME_MAX];     // without spaces at its ends
    char kernels[EXPERTD_TUNING_NAME_MAX]; // expertd_kernel_float_name()
};
void expertd_tuning_identity_read(struct expertd_tuning_identity *out);

// The CPU of a file like Linux's /proc/cpuinfo: its "model name" with its family and model, on aarch64 its implementer and part by
// number, else "unknown".
void expertd_tuning_cpu_name(FILE *cpuinfo, char name[EXPERTD_TUNING_NAME_MAX]);

// Fills `table`. EXPERTD_ERR_IO where there is no such file, or it cannot be read; EXPERTD_ERR_INVALID says what is wrong with it.
// The table is then empty.
EXPERTD_FALLIBLE expertd_tuning_load(const char *path, const struct expertd_tuning_identity *identity,
                                     struct expertd_tuning_table *table);

// Whole or not at all: written beside the file, flushed to the disk and renamed over it. The file keeps its mode, its links and,
// where the program may give it away, its owner; a new one has 0644 less the umask. Of two that write at once the last one wins.
// EXPERTD_ERR_IO, also where what is there is no file; EXPERTD_ERR_INVALID where the identity is no line of text, and so could not
// be read back; the old file is then as it was. table: as expertd_tuning_put made it.
EXPERTD_FALLIBLE expertd_tuning_store(const char *path, const struct expertd_tuning_identity *identity,
                                      const struct expertd_tuning_table *table);

#ifdef __cplusplus
}
#endif

#endif
