// The scheduling priority (nice value) of single threads, which Linux keeps per thread. New threads inherit their creator's.
#ifndef EXPERTD_BASE_THREADS_THREAD_PRIORITY_H
#define EXPERTD_BASE_THREADS_THREAD_PRIORITY_H

#include <stdbool.h>

// With all CPUs in matrix products, a thread of the same priority answers a heartbeat after tens of milliseconds, in bad cases
// hundreds.
enum { THREAD_URGENT = -10, THREAD_RELAXED = 5 };

int thread_priority(void); // the calling thread's nice value, -20 (first) to 19 (last)
// Adds `change` to the calling thread's nice value. False: refused; raising a priority (a negative change) needs CAP_SYS_NICE or
// RLIMIT_NICE (LimitNICE= in a systemd unit).
bool thread_priority_change(int change);
// Would thread_priority_change(change) be allowed?
bool thread_priority_may_change(int change);

#endif
