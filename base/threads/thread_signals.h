// The signal mask of threads that the libraries create. These threads block signals that are sent to the process, so that another
// thread handles them: the daemon's loop, or a thread of a program that links the kernels. They do not block the signals of faults
// (SIGSEGV, SIGBUS, ...): a fault whose signal is blocked kills the process without calling the handler.
#ifndef EXPERTD_BASE_THREADS_THREAD_SIGNALS_H
#define EXPERTD_BASE_THREADS_THREAD_SIGNALS_H

#include <signal.h>

// A new thread inherits the signal mask of its creator. Call thread_signals_block before creating threads and
// thread_signals_restore(before) afterwards. Any thread.
void thread_signals_block(sigset_t *before);
void thread_signals_restore(const sigset_t *before);

#endif
