#include "base/threads/thread_signals.h"

#include <stddef.h>

void thread_signals_block(sigset_t *before) {
    static const int OWN[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    sigset_t others;
    sigfillset(&others);
    for (size_t i = 0; i < sizeof OWN / sizeof *OWN; i++) {
        sigdelset(&others, OWN[i]);
    }
    pthread_sigmask(SIG_SETMASK, &others, before);
}

void thread_signals_restore(const sigset_t *before) {
    pthread_sigmask(SIG_SETMASK, before, NULL);
}
