// A busy neighbour: a thread that occupies one CPU of this process on request, as another program would. Owned by one thread.
#ifndef EXPERTD_TESTS_BENCH_KERNELS_MEASURE_NEIGHBOUR_H
#define EXPERTD_TESTS_BENCH_KERNELS_MEASURE_NEIGHBOUR_H

#include <stdbool.h>

#include "base/err.h"

struct neighbour;

FALLIBLE neighbour_create(struct neighbour **out); // idle at first. EXPERTD_ERR_UNAVAILABLE, EXPERTD_ERR_NOMEM
void neighbour_destroy(struct neighbour *n);       // NULL is legal

// Returns when the thread has started or stopped computing.
void neighbour_set_busy(struct neighbour *n, bool busy);

// The share of the speed of `threads` threads on `cpus` CPUs that a fair scheduler leaves beside a neighbour.
double neighbour_leaves(unsigned threads, unsigned cpus);

#endif
