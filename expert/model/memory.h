// How much memory this process may still take without pushing the machine, or its control group, over the edge.
// Reads /proc and /sys/fs/cgroup; any thread; nothing is cached.
#ifndef EXPERTD_EXPERT_MODEL_MEMORY_H
#define EXPERTD_EXPERT_MODEL_MEMORY_H

#include <stdint.h>

#include "base/err.h"

enum { MEMORY_LIMIT_TEXT_MAX = 320 };

struct memory_limit {
    uint64_t bytes;                     // UINT64_MAX: nothing says
    char what[MEMORY_LIMIT_TEXT_MAX];   // what sets it: "MemAvailable of /proc/meminfo", "memory.max of control group /a/b"
    char hidden[MEMORY_LIMIT_TEXT_MAX]; // the first file that may not be read and could hold a lesser limit; "": none
};

// The least of MemAvailable and, for each control group from this process's upwards, memory.max (memory.limit_in_bytes in version
// 1) less what is in use and cannot be reclaimed. A file that is missing, says nothing or may not be read sets no limit.
// EXPERTD_ERR_NOMEM names one that is there and cannot be read for another reason.
FALLIBLE memory_available(struct memory_limit *out);

// The same below another root than "": for tests.
FALLIBLE memory_available_at(const char *root, struct memory_limit *out);

enum { MEMORY_TEXT_MAX = 32 };

// "12.3 GiB", "640 KiB" into text, for messages; returns text.
const char *memory_text(uint64_t bytes, char text[MEMORY_TEXT_MAX]);

#endif
