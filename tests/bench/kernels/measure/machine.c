#include "tests/bench/kernels/measure/machine.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CACHES_MAX = 8, LINE_MAX_BYTES = 256 };

static void read_cpu(struct machine *out) {
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[LINE_MAX_BYTES];
    while (file && fgets(line, sizeof line, file)) {
        const char *value = strncmp(line, "model name", 10) == 0 ? strchr(line, ':') : NULL;
        if (value) {
            snprintf(out->cpu, sizeof out->cpu, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
            break;
        }
    }
    if (file) {
        fclose(file);
    }
}

// Parses sizes such as "307200K".
static void read_cache(struct machine *out) {
    for (int i = 0; i < CACHES_MAX; i++) {
        char path[80], line[LINE_MAX_BYTES];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        FILE *file = fopen(path, "re");
        if (!file) {
            return;
        }
        if (fgets(line, sizeof line, file)) {
            char *unit;
            uint64_t size = strtoull(line, &unit, 10);
            size <<= *unit == 'K' ? 10 : *unit == 'M' ? 20 : 0;
            out->cache_bytes = size > out->cache_bytes ? size : out->cache_bytes;
        }
        fclose(file);
    }
}

// The file contains "always [madvise] never": the selected word is in brackets.
static void read_huge_pages(struct machine *out) {
    char line[LINE_MAX_BYTES];
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
    if (file && fgets(line, sizeof line, file)) {
        const char *chosen = strchr(line, '[');
        if (chosen) {
            snprintf(out->huge_pages, sizeof out->huge_pages, "%.*s", (int)strcspn(chosen + 1, "]\n"), chosen + 1);
        }
    }
    if (file) {
        fclose(file);
    }
}

void machine_read(struct machine *out) {
    *out = (struct machine){.cpu = "unknown", .cpus = 1, .huge_pages = "unknown"};
    cpu_set_t mine;
    if (sched_getaffinity(0, sizeof mine, &mine) == 0 && CPU_COUNT(&mine) > 0) {
        out->cpus = (unsigned)CPU_COUNT(&mine);
    }
    read_cpu(out);
    read_cache(out);
    read_huge_pages(out);
}
