// Whether the machine's memory suffices for the selected products.
#ifndef EXPERTD_TESTS_BENCH_KERNELS_MEMORY_CHECK_H
#define EXPERTD_TESTS_BENCH_KERNELS_MEMORY_CHECK_H

#include "tests/bench/kernels/selection.h"

// Call before the first row is measured: a machine that swaps or kills processes gives no figures. EXPERTD_ERR_NOMEM: the largest
// product does not fit; the message has the figures.
FALLIBLE check_memory(const struct selection *s);

#endif
