#include "base/process/surroundings.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/memory_cause.h"

enum {
    DESCRIPTORS_MIN = 32,       // gRPC's event engine, listeners and files of one idle program
    MAIN_STACK_MIN = 512 << 10, // of the main thread
    MAIN_STACK = 8 << 20,       // requested for the main thread
    THREAD_STACK_MIN = 2 << 20, // kernels need 1 MiB; 2 MiB is glibc's own size where the limit is unlimited
    THREAD_STACK_MAX = 8 << 20, // a larger limit would reserve that much address space for each thread
    MEMORY_MIN = 128 << 20,     // the stacks of a dozen threads, and the allocations of a start
};

// Opens the lowest free descriptor. Without /dev (a chroot) a descriptor of "/" for no access at all takes its place.
static int open_null(int flags) {
    int fd = open("/dev/null", flags);
    return fd >= 0 ? fd : open("/", O_PATH);
}

// A closed standard descriptor would become the next opened file's, and output would go into that file.
static FALLIBLE reserve_standard_streams(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && open_null(fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) {
            FAIL(EXPERTD_ERR_UNAVAILABLE, "descriptor %d is closed, and /dev/null cannot be opened in its place: %s", fd,
                 strerror(errno));
        }
    }
    return OK;
}

// The parent may have blocked or ignored any signal. SIGINT and SIGHUP stay ignored where they are: nohup asks for it.
static void reset_signals(void) {
    sigset_t none;
    sigemptyset(&none);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGCHLD, SIG_DFL);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
}

static FALLIBLE raise_stack_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= MAIN_STACK) { // RLIM_INFINITY is the greatest value
        return OK;
    }
    limit.rlim_cur = limit.rlim_max < MAIN_STACK ? limit.rlim_max : MAIN_STACK;
    if (limit.rlim_cur < MAIN_STACK_MIN) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "the stack is limited to %llu KiB: at least %d KiB are needed (ulimit -Hs, LimitSTACK)",
             (unsigned long long)limit.rlim_max >> 10, MAIN_STACK_MIN >> 10);
    }
    (void)setrlimit(RLIMIT_STACK, &limit); // the soft limit of a process may always be raised to its hard limit
    return OK;
}

// By default the stack of a thread has the size of the stack limit, also where a library creates the thread.
static FALLIBLE set_thread_stacks(void) {
    pthread_attr_t attributes;
    size_t bytes = 0;
    int failed = pthread_getattr_default_np(&attributes);
    failed = failed ? failed : pthread_attr_getstacksize(&attributes, &bytes);
    if (!failed && (bytes < THREAD_STACK_MIN || bytes > THREAD_STACK_MAX)) {
        failed = pthread_attr_setstacksize(&attributes, bytes < THREAD_STACK_MIN ? THREAD_STACK_MIN : THREAD_STACK_MAX);
        failed = failed ? failed : pthread_setattr_default_np(&attributes);
    }
    if (failed) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot set the stack size of threads: %s", strerror(failed));
    }
    return OK;
}

// The number of descriptors that can still be opened, at most `enough`: a parent may have left its own open.
static int count_free_descriptors(int enough) {
    int opened[DESCRIPTORS_MIN], count = 0;
    while (count < enough && (opened[count] = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0)) >= 0) {
        count++;
    }
    for (int i = 0; i < count; i++) {
        close(opened[i]);
    }
    return count;
}

static FALLIBLE raise_descriptor_limit(void) {
    struct rlimit limit = {0};
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit); // on error, continue with the lower limit
    }
    int available = count_free_descriptors(DESCRIPTORS_MIN);
    if (available < DESCRIPTORS_MIN) {
        FAIL(EXPERTD_ERR_UNAVAILABLE,
             "the process can open %d more files and needs at least %d: raise the limit on open files (ulimit -Hn, LimitNOFILE), "
             "or close those that the parent process leaves open",
             available, DESCRIPTORS_MIN);
    }
    return OK;
}

static FALLIBLE check_mapping(uint64_t bytes, bool writable) {
    const int protection = writable ? PROT_READ | PROT_WRITE : PROT_NONE;
    void *probe = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (probe == MAP_FAILED) {
        char cause[MEMORY_CAUSE_MAX];
        FAIL(EXPERTD_ERR_UNAVAILABLE, "the process needs %llu MiB of %s and cannot map them: %s", (unsigned long long)bytes >> 20,
             writable ? "writable memory" : "address space", memory_cause(errno, bytes, writable, cause));
    }
    munmap(probe, bytes);
    return OK;
}

FALLIBLE surroundings_check_memory(uint64_t bytes, uint64_t writable_bytes) {
    TRY(check_mapping(bytes, false));
    return check_mapping(writable_bytes, true);
}

FALLIBLE surroundings_prepare(void) {
    reset_signals();
    TRY(reserve_standard_streams());
    TRY(raise_stack_limit());
    TRY(set_thread_stacks());
    TRY(raise_descriptor_limit());
    return surroundings_check_memory(MEMORY_MIN, MEMORY_MIN); // libraries end the process when a small allocation fails
}
