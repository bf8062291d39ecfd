// The properties of the machine that figures depend on: the processor, the CPUs of this process, the last-level cache.
// Reads /proc and /sys.
#ifndef EXPERTD_TESTS_BENCH_KERNELS_MEASURE_MACHINE_H
#define EXPERTD_TESTS_BENCH_KERNELS_MEASURE_MACHINE_H

#include <stdint.h>

struct machine {
    char cpu[128];        // "AMD EPYC 9B14 96-Core Processor", or "unknown"
    unsigned cpus;        // number of CPUs that this process may use
    uint64_t cache_bytes; // of the last-level cache; 0: unknown
    char huge_pages[32];  // transparent huge pages: "always", "madvise", "never" or "unknown"
};

void machine_read(struct machine *out);

#endif
