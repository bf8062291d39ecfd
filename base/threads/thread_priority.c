#include "base/threads/thread_priority.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>

enum { URGENT_NICE = -10, RELAXED_NICE = 5 };

// For PRIO_PROCESS, Linux takes 0 as the calling thread.
static int get_nice(void) {
    errno = 0;
    int nice = getpriority(PRIO_PROCESS, 0);
    return errno ? 0 : nice;
}

static int set_policy(int policy, int priority) {
    return sched_setscheduler(0, policy, &(struct sched_param){.sched_priority = priority}); // of the calling thread, on Linux
}

static atomic_bool has_realtime_threads; // of the process
static _Thread_local bool is_realtime;   // the calling thread

enum thread_urgency thread_make_urgent(void) {
    if (set_policy(SCHED_RR | SCHED_RESET_ON_FORK, sched_get_priority_min(SCHED_RR)) == 0) {
        is_realtime = true;
        atomic_store(&has_realtime_threads, true);
        return THREAD_REALTIME;
    }
    return setpriority(PRIO_PROCESS, 0, URGENT_NICE) == 0 ? THREAD_NICE : THREAD_ORDINARY;
}

// A process may always give up what it was allowed to take, except SCHED_RESET_ON_FORK: so that is not tried here.
enum thread_urgency thread_urgency_allowed(void) {
    int before = get_nice();
    if (set_policy(SCHED_RR, sched_get_priority_min(SCHED_RR)) == 0) {
        (void)set_policy(SCHED_OTHER, 0);
        return THREAD_REALTIME;
    }
    if (setpriority(PRIO_PROCESS, 0, URGENT_NICE) == 0) {
        (void)setpriority(PRIO_PROCESS, 0, before);
        return THREAD_NICE;
    }
    return THREAD_ORDINARY;
}

bool thread_boost(void) {
    if (!atomic_load_explicit(&has_realtime_threads, memory_order_relaxed) || is_realtime) {
        return false;
    }
    is_realtime = set_policy(SCHED_RR, sched_get_priority_min(SCHED_RR)) == 0;
    return is_realtime;
}

void thread_unboost(bool boosted) {
    if (boosted) {
        (void)set_policy(SCHED_OTHER, 0);
        is_realtime = false;
    }
}

void thread_relax(void) {
    (void)setpriority(PRIO_PROCESS, 0, get_nice() + RELAXED_NICE);
}

void thread_mutex_init(pthread_mutex_t *mutex) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    (void)pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
    if (pthread_mutex_init(mutex, &attributes) != 0) { // a kernel without priority inheritance
        pthread_mutex_init(mutex, NULL);
    }
    pthread_mutexattr_destroy(&attributes);
}

const char *thread_urgency_name(enum thread_urgency urgency) {
    static const char *const NAMES[] = {[THREAD_ORDINARY] = "ordinary", [THREAD_NICE] = "nice", [THREAD_REALTIME] = "realtime"};
    return NAMES[urgency];
}
