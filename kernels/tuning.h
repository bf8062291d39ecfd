// Schedules found by trial: a table by class, kept in a file between runs, and the one that is in force in this process.
//
// The file is text: a line each for its version, the CPU and the kernels; a line for each class; a last line with the number of
// lines and a checksum over all before it. A file that is damaged, of another version or CPU, or for other kernels, is not used,
// and the caller is told why; what it says cannot change any result, only its speed.
#ifndef EXPERTD_KERNELS_TUNING_H
#define EXPERTD_KERNELS_TUNING_H

#include <stddef.h>
#include <stdio.h>

#include "base/err.h"
#include "kernels/grouped_matmul.h"
#include "kernels/schedule.h"

enum { TUNING_ENTRIES_MAX = 512, TUNING_NAME_MAX = 96 };

struct tuning_entry {
    struct schedule_class found_for;
    struct matmul_schedule schedule;
};

struct tuning_table {
    size_t count;
    struct tuning_entry entries[TUNING_ENTRIES_MAX];
};

// NULL where the table has nothing for the class.
const struct matmul_schedule *tuning_find(const struct tuning_table *table, const struct schedule_class *wanted);

// Adds or replaces; false, with the table as it was, where it is full or the entry is none that a file could hold: its schedule is
// none that schedule.h allows, or its dtype none.
bool tuning_put(struct tuning_table *table, const struct tuning_entry *entry);

// From now on products of all threads take their schedules from `table`, by the heuristic where it has none. NULL: by the heuristic
// alone, as at the start. The table is borrowed and must not change or end while it is in force.
void tuning_use(const struct tuning_table *table);

// What is in force for a class; the heuristic too where the table's is none that schedule.h allows. Any thread.
struct matmul_schedule tuning_schedule(const struct schedule_class *wanted);

// The class that a product of packed weights belongs to.
struct schedule_class tuning_class(const struct grouped_matmul_args *args, unsigned threads);

// A product to tune on.
struct tuning_job {
    const struct grouped_matmul_args *args; // of packed weights; its out is written: the same bits, whatever wins
    struct team *team;
    void *scratch;                 // grouped_matmul's
    void (*before)(void *context); // called before each trial, to point args at weights that no cache holds; NULL: none
    void *context;
    int64_t span_ns; // for all trials together, about
};

struct tuning_trial {
    size_t candidates, rounds;
    double heuristic_s, best_s; // medians
    struct matmul_schedule best;
};

// ERR_INVALID where a schedule would not count: the product is not of packed F32 or BF16 weights with sums out and no options.
// Tries every candidate, each in turn, and says which took the least median time: the heuristic unless another is 2 % better. No
// allocation. The table in force is not changed.
FALLIBLE tuning_measure(const struct tuning_job *job, struct tuning_trial *out);

// What schedules in a file were found on.
struct tuning_identity {
    char cpu[TUNING_NAME_MAX];     // without spaces at its ends
    char kernels[TUNING_NAME_MAX]; // kernel_float_name()
};
void tuning_identity_read(struct tuning_identity *out);

// The CPU of a file like Linux's /proc/cpuinfo: its "model name" with its family and model, on aarch64 its implementer and part by
// number, else "unknown".
void tuning_cpu_name(FILE *cpuinfo, char name[TUNING_NAME_MAX]);

// Fills `table`. ERR_IO where there is no such file, or it cannot be read; ERR_INVALID says what is wrong with it. The table is
// then empty.
FALLIBLE tuning_load(const char *path, const struct tuning_identity *identity, struct tuning_table *table);

// Whole or not at all: written beside the file, flushed to the disk and renamed over it. The file keeps its mode, its links and,
// where the program may give it away, its owner; a new one has 0644 less the umask. Of two that write at once the last one wins.
// ERR_IO, also where what is there is no file; ERR_INVALID where the identity is no line of text, and so could not be read back;
// the old file is then as it was. table: as tuning_put made it.
FALLIBLE tuning_store(const char *path, const struct tuning_identity *identity, const struct tuning_table *table);

#endif
