// The state that a process inherits from its parent, made safe: descriptors, signals, stack limits.
//
// A library that finds this state unusual may abort: libuv refuses to close descriptors 0 to 2, gRPC aborts without descriptors, a
// thread whose stack follows a small `ulimit -s` overruns it. The programs therefore call this first.
#ifndef EXPERTD_BASE_PROCESS_SURROUNDINGS_H
#define EXPERTD_BASE_PROCESS_SURROUNDINGS_H

#include <stdint.h>

#include "base/err.h"

// The first statement of main, before any thread exists and before anything is opened or printed.
//
// - Closed descriptors of 0 to 2 are opened on /dev/null in the wrong direction, so that their use still fails.
// - SIGPIPE and SIGXFSZ are ignored: the write fails with its error instead. SIGCHLD has its default action. No signal is blocked.
// - The limit on open files is raised to the hard limit.
// - The stack limit of this thread is raised, and the default stack size of threads is set: libraries' threads have it too.
// - 128 MiB of memory can be mapped.
//
// EXPERTD_ERR_UNAVAILABLE: a hard limit is too low for any program of this project. The message names the limit.
FALLIBLE surroundings_prepare(void);

// Can the process still map `bytes`, of which `writable_bytes` are writable? Nothing is mapped afterwards. EXPERTD_ERR_UNAVAILABLE
// names the limit that is too low.
FALLIBLE surroundings_check_memory(uint64_t bytes, uint64_t writable_bytes);

#endif
