#include "base/threads/thread_priority.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

void thread_raise_priority(void) {
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), THREAD_URGENT_NICE); // of one thread, on Linux
}
