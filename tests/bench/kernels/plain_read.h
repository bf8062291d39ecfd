// The same bytes as a product's weights, read by the same threads in runs of the same size and nothing done with them: what a
// product whose weights come from DRAM cannot exceed.
#ifndef EXPERTD_TESTS_BENCH_KERNELS_PLAIN_READ_H
#define EXPERTD_TESTS_BENCH_KERNELS_PLAIN_READ_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/team.h"

struct read_piece {
    const void *data; // 64-byte aligned
    size_t bytes;     // a multiple of 64
};

// Nanoseconds to read all pieces once.
int64_t plain_read_ns(const struct read_piece *pieces, size_t count, struct team *team);

// Takes all pieces out of the caches where the machine can (x86); true where it has.
int plain_read_forget(const struct read_piece *pieces, size_t count, struct team *team);

#endif
