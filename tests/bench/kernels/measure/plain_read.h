// A plain read of the same bytes as a product's weights, by the same threads in runs of the same size: the upper limit of a product
// whose weights come from DRAM. Only the hardware prefetches. It follows each stream separately, so that four streams continue
// while one waits at the start of a page (one thread of Zen 3: 18 GB/s with one stream, 23 with four; 14 with prefetch instructions
// at any distance).
#ifndef EXPERTD_TESTS_BENCH_KERNELS_MEASURE_PLAIN_READ_H
#define EXPERTD_TESTS_BENCH_KERNELS_MEASURE_PLAIN_READ_H

#include <stddef.h>
#include <stdint.h>

#include "expertd/kernels/team.h"

struct read_piece {
    const void *data; // 64-byte aligned
    size_t bytes;     // a multiple of 64
};

enum plain_read_way {
    READ_STRAIGHT, // sequentially
    READ_STREAMS,  // four parts of a run, interleaved
};

// The time in nanoseconds to read all pieces once.
int64_t plain_read_ns(const struct read_piece *pieces, size_t count, enum plain_read_way way, struct expertd_team *team);

// Flushes all pieces from the caches. False: the machine cannot (not x86).
int plain_read_forget(const struct read_piece *pieces, size_t count, struct expertd_team *team);

#endif
