#include "base/threads/thread_priority.h"

#include <errno.h>
#include <sys/resource.h>

// For PRIO_PROCESS, Linux takes 0 as the calling thread.
int thread_priority(void) {
    errno = 0;
    int nice = getpriority(PRIO_PROCESS, 0);
    return errno ? 0 : nice;
}

bool thread_priority_change(int change) {
    return setpriority(PRIO_PROCESS, 0, thread_priority() + change) == 0;
}

// Lowering a priority again is always allowed.
bool thread_priority_may_change(int change) {
    int before = thread_priority();
    bool allowed = thread_priority_change(change);
    return (!allowed || setpriority(PRIO_PROCESS, 0, before) == 0) && allowed;
}
