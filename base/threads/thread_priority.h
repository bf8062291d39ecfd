// The scheduling of single threads. With all CPUs in matrix products, a thread of ordinary priority answers a heartbeat after tens
// of milliseconds, in bad cases hundreds. A nice value does not help where Linux groups processes by session
// (sched_autogroup_enabled): another session gets its share all the same. Measured with twenty busy processes on two CPUs, a timer
// of 5 ms: late by up to 239 ms with nice 0, 85 ms with nice -10, .5 ms with SCHED_RR.
#ifndef EXPERTD_BASE_THREADS_THREAD_PRIORITY_H
#define EXPERTD_BASE_THREADS_THREAD_PRIORITY_H

#include <pthread.h>
#include <stdbool.h>

enum thread_urgency {
    THREAD_ORDINARY,
    THREAD_NICE,     // nice -10: needs CAP_SYS_NICE or RLIMIT_NICE (systemd: LimitNICE=-10)
    THREAD_REALTIME, // SCHED_RR with the lowest priority: needs CAP_SYS_NICE or RLIMIT_RTPRIO (LimitRTPRIO=1)
};

// Makes the calling thread run before others, as far as the process may. It must not compute for long. Threads that it creates are
// ordinary again, except for the nice value.
enum thread_urgency thread_make_urgent(void);
// What thread_make_urgent would return.
enum thread_urgency thread_urgency_allowed(void);
// The calling thread runs after others, and so do threads that it creates.
void thread_relax(void);

// Initialises a mutex that urgent threads and others take. While an urgent thread waits for it, the thread that holds it runs as
// urgently: otherwise busy CPUs would keep the holder, and so the urgent thread, from running.
void thread_mutex_init(pthread_mutex_t *mutex);

// gRPC's locks do not inherit priorities: an urgent thread would wait for an ordinary one that holds a lock and gets no CPU. So
// ordinary threads are urgent while they call gRPC. Two system calls, in processes that have realtime threads; otherwise nothing.
// True: pass it to thread_unboost. False: nothing was changed.
bool thread_boost(void);
void thread_unboost(bool boosted);

const char *thread_urgency_name(enum thread_urgency urgency); // "ordinary", "nice", "realtime"

#endif
