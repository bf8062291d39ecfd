#include "base/mapped.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

// The table is global because a signal handler has no context argument. A thread owns a slot after changing `start` from FREE to
// CLAIMED. It writes `end` and `path` before it publishes `start`, so the handler never sees an incomplete slot.
struct mapped_range {
    atomic_uintptr_t start;
    uintptr_t end;
    const char *path;
};

enum { FREE = 0, CLAIMED = 1 };

static struct mapped_range ranges[MAPPED_RANGES_MAX];
static atomic_flag reported = ATOMIC_FLAG_INIT; // used by the handler only

void mapped_add(const void *start, size_t bytes, const char *path) {
    for (size_t i = 0; i < MAPPED_RANGES_MAX; i++) {
        uintptr_t expected = FREE;
        if (atomic_load_explicit(&ranges[i].start, memory_order_relaxed) == FREE &&
            atomic_compare_exchange_strong(&ranges[i].start, &expected, CLAIMED)) {
            ranges[i].end = (uintptr_t)start + bytes;
            ranges[i].path = path;
            atomic_store_explicit(&ranges[i].start, (uintptr_t)start, memory_order_release);
            return;
        }
    }
}

void mapped_remove(const void *start) {
    for (size_t i = 0; i < MAPPED_RANGES_MAX; i++) {
        if (atomic_load_explicit(&ranges[i].start, memory_order_acquire) == (uintptr_t)start) {
            atomic_store_explicit(&ranges[i].start, FREE, memory_order_release);
            return;
        }
    }
}

static const char *path_at(uintptr_t address) {
    for (size_t i = 0; i < MAPPED_RANGES_MAX; i++) {
        uintptr_t start = atomic_load_explicit(&ranges[i].start, memory_order_acquire);
        if (start > CLAIMED && address >= start && address < ranges[i].end) {
            return ranges[i].path;
        }
    }
    return NULL;
}

// Writes the message with one call, so that output of other threads cannot split it.
static void report(const char *path) {
    char prefix[] = "expertd: the file ";
    char suffix[] = " changed or became unreadable while it was read: do not write into a checkpoint that is being served\n";
    const struct iovec parts[] = {
        {prefix, sizeof prefix - 1}, {(char *)(uintptr_t)path, strlen(path)}, {suffix, sizeof suffix - 1}};
    ssize_t written = writev(STDERR_FILENO, parts, sizeof parts / sizeof *parts);
    (void)written; // the process ends anyway
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
    (void)context;
    const char *path = path_at((uintptr_t)info->si_addr);
    if (!path) {
        signal(number, SIG_DFL); // not a registered file: the access faults again and the default action dumps core
        return;
    }
    // Several threads of a team may fault on the same file. The first one reports and ends the process; the others wait.
    while (atomic_flag_test_and_set(&reported)) {
        pause();
    }
    report(path);
    _exit(MAPPED_EXIT_CODE);
}

FALLIBLE mapped_install_handler(void) {
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, &action, NULL) != 0) {
        FAIL(EXPERTD_ERR_INTERNAL, "cannot install the SIGBUS handler");
    }
    return OK;
}
