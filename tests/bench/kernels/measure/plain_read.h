// The same bytes as a product's weights, read by the same threads in runs of the same size and nothing done with them: what a
// product whose weights come from DRAM cannot exceed. What fetches ahead is the hardware: it follows each stream by itself, so that
// four at once go on where one waits at the start of each page (one thread of Zen 3: 18 GB/s, and 23; by instructions that fetch
// ahead 14, at any distance).
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
    READ_STRAIGHT, // line after line
    READ_STREAMS,  // four parts of a run in turns
};

// Nanoseconds to read all pieces once.
int64_t plain_read_ns(const struct read_piece *pieces, size_t count, enum plain_read_way way, struct expertd_team *team);

// Takes all pieces out of the caches where the machine can (x86); true where it has.
int plain_read_forget(const struct read_piece *pieces, size_t count, struct expertd_team *team);

#endif
