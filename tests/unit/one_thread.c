// Loaded before a test that is listed nowhere as one that starts threads: it ends where it starts one, for ThreadSanitizer's build
// leaves it out (tests/CMakeLists.txt).
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

// NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name): glibc's names are reserved
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
    (void)thread;
    (void)attributes;
    (void)start;
    (void)argument;
    fputs("This test starts a thread: add it to several_threads in tests/CMakeLists.txt, so that ThreadSanitizer sees it\n",
          stderr);
    abort();
}
