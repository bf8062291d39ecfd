// Names the limit of this process that an allocation or a new thread met, and its mend. For messages of errors; any thread.
#ifndef EXPERTD_BASE_MEMORY_CAUSE_H
#define EXPERTD_BASE_MEMORY_CAUSE_H

#include <stdbool.h>
#include <stdint.h>

enum { MEMORY_CAUSE_MAX = 256 };

// error: the errno of the mapping that failed. bytes: its size. writable: private and writable, so that RLIMIT_DATA counts it.
// Writes "Cannot allocate memory: the address space is limited to 390 MiB (RLIMIT_AS): raise it (ulimit -v, LimitAS)"; without such
// a limit the error and the kernel's settings. Tries the mapping again to see which limit refuses it. Returns text.
const char *memory_cause(int error, uint64_t bytes, bool writable, char text[MEMORY_CAUSE_MAX]);

// error: the result of pthread_create, with the default stack size. Without a limit on memory: the limit on processes. Returns
// text.
const char *memory_cause_of_thread(int error, char text[MEMORY_CAUSE_MAX]);

#endif
