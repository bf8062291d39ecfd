// The priority of threads that answer heartbeats: they must run while all CPUs compute.
#ifndef EXPERTD_BASE_THREADS_THREAD_PRIORITY_H
#define EXPERTD_BASE_THREADS_THREAD_PRIORITY_H

// Raises the calling thread's priority (its nice value becomes THREAD_URGENT_NICE), as far as the process may: root, CAP_SYS_NICE,
// or RLIMIT_NICE (systemd: LimitNICE). Without that right nothing changes. Other threads keep their priority.
enum { THREAD_URGENT_NICE = -15 };
void thread_raise_priority(void);

#endif
