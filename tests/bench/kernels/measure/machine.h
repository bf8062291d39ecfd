// What figures depend on: the processor, its cores as this process may use them, its last-level cache. Reads /proc and /sys.
#ifndef EXPERTD_TESTS_BENCH_KERNELS_MEASURE_MACHINE_H
#define EXPERTD_TESTS_BENCH_KERNELS_MEASURE_MACHINE_H

#include <stdint.h>

struct machine {
    char cpu[128];        // "AMD EPYC 9B14 96-Core Processor"; "unknown" where nothing says
    unsigned cpus;        // that this process may run on
    uint64_t cache_bytes; // of the last-level cache; 0: nothing says
    char huge_pages[32];  // "always", "madvise", "never": of transparent huge pages; "unknown"
};

void machine_read(struct machine *out);

#endif
