// How much more memory this process can use before the machine, its control group or its own limits run out.
// Reads /proc and /sys/fs/cgroup at each call; any thread.
#ifndef EXPERTD_EXPERT_MODEL_MEMORY_H
#define EXPERTD_EXPERT_MODEL_MEMORY_H

#include <stdint.h>

#include "base/err.h"

enum { MEMORY_LIMIT_TEXT_MAX = 320 };

struct memory_limit {
    uint64_t bytes;                     // UINT64_MAX: no limit known
    char what[MEMORY_LIMIT_TEXT_MAX];   // its source: "MemAvailable of /proc/meminfo", "memory.max of control group /a/b", ...
    char hidden[MEMORY_LIMIT_TEXT_MAX]; // the first file without read permission, which may contain a lower limit; "": none
};

// The minimum of MemAvailable; of RLIMIT_AS and RLIMIT_DATA minus what the process has; and, for its control group and each of its
// parents, of memory.max (version 1: memory.limit_in_bytes) minus the memory in use that cannot be reclaimed. A file that is
// missing, has no number, or is not readable for lack of permission sets no limit. EXPERTD_ERR_NOMEM names a file that cannot be
// read for another reason.
FALLIBLE memory_available(struct memory_limit *out);

// The same with `root` before every path; for tests.
FALLIBLE memory_available_at(const char *root, struct memory_limit *out);

enum { MEMORY_TEXT_MAX = 32 };

// "12.3 GiB", "640 KiB" into text, for messages; returns text.
const char *memory_text(uint64_t bytes, char text[MEMORY_TEXT_MAX]);

#endif
