// Preloaded into the unit tests that several_threads in tests/CMakeLists.txt does not list: aborts a test that starts a thread.
// ThreadSanitizer's build runs the listed tests only, so that an unlisted one would escape it.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

// NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name): glibc's names are reserved
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
    (void)thread;
    (void)attributes;
    (void)start;
    (void)argument;
    fputs("This test starts a thread: add it to several_threads in tests/CMakeLists.txt, so that it runs under ThreadSanitizer\n",
          stderr);
    abort();
}
