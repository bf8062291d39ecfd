// A busy neighbour: a thread that computes on one CPU of this process while it is told to, as another program's would. Owned by one
// thread.
#ifndef EXPERTD_TESTS_BENCH_KERNELS_MEASURE_NEIGHBOUR_H
#define EXPERTD_TESTS_BENCH_KERNELS_MEASURE_NEIGHBOUR_H

#include <stdbool.h>

#include "base/err.h"

struct neighbour;

FALLIBLE neighbour_create(struct neighbour **out); // idle at first: asleep. EXPERTD_ERR_UNAVAILABLE, EXPERTD_ERR_NOMEM
void neighbour_destroy(struct neighbour *n);       // NULL is legal

// Returns when it computes, or will no more.
void neighbour_set_busy(struct neighbour *n, bool busy);

// What a neighbour leaves of the speed of `threads` threads on `cpus` CPUs, where the scheduler is fair and all of it is used.
double neighbour_leaves(unsigned threads, unsigned cpus);

#endif
