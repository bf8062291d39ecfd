// Which signals a thread that this program starts may be interrupted by. Those sent to the process are for the thread that waits
// for them (the daemon's loop, or whatever a program has that links the kernels). Those that a thread raises by what it does
// itself stay with it: a fault whose signal is blocked ends the process at once, without its handler and what that would say.
#ifndef EXPERTD_BASE_THREAD_SIGNALS_H
#define EXPERTD_BASE_THREAD_SIGNALS_H

#include <signal.h>

// Threads inherit the mask that they are made under: blocks, in the calling thread, what a new one is not to take. *before is for
// thread_signals_restore, once the threads are made. Any thread.
void thread_signals_block(sigset_t *before);
void thread_signals_restore(const sigset_t *before);

#endif
