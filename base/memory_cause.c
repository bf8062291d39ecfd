#include "base/memory_cause.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

static bool can_map(uint64_t bytes, int protection) {
    void *probe = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return probe != MAP_FAILED && munmap(probe, bytes) == 0;
}

// What RLIMIT_AS and RLIMIT_DATA count differs: pages without access belong to the address space only.
static const struct limit {
    int resource, protection;
    const char *text, *name, *mend;
} LIMITS[] = {
    {RLIMIT_AS, PROT_NONE, "the address space is", "RLIMIT_AS", "ulimit -v, LimitAS"},
    {RLIMIT_DATA, PROT_READ | PROT_WRITE, "writable memory is", "RLIMIT_DATA", "ulimit -d, LimitDATA"},
};

// NULL: neither limit refuses `bytes`.
static const struct limit *find_limit(uint64_t bytes, bool writable, struct rlimit *value) {
    for (size_t i = 0; i < (writable ? 2 : 1); i++) {
        if (getrlimit(LIMITS[i].resource, value) == 0 && value->rlim_cur != RLIM_INFINITY &&
            !can_map(bytes, LIMITS[i].protection)) {
            return &LIMITS[i];
        }
    }
    return NULL;
}

static const char *name_limit(const struct limit *limit, const struct rlimit *value, int error, char text[MEMORY_CAUSE_MAX]) {
    snprintf(text, MEMORY_CAUSE_MAX, "%s: %s limited to %llu MiB (%s): raise it (%s)", strerror(error), limit->text,
             (unsigned long long)value->rlim_cur >> 20, limit->name, limit->mend);
    return text;
}

const char *memory_cause(int error, uint64_t bytes, bool writable, char text[MEMORY_CAUSE_MAX]) {
    struct rlimit value;
    const struct limit *limit = error == ENOMEM ? find_limit(bytes, writable, &value) : NULL;
    if (limit) {
        return name_limit(limit, &value, error, text);
    }
    snprintf(text, MEMORY_CAUSE_MAX, "%s%s", strerror(error),
             error == ENOMEM ? ": the kernel has no more to give (vm.overcommit_memory, vm.max_map_count)" : "");
    return text;
}

static uint64_t default_stack_bytes(void) {
    pthread_attr_t attributes;
    size_t bytes = 0;
    if (pthread_getattr_default_np(&attributes) == 0) {
        (void)pthread_attr_getstacksize(&attributes, &bytes);
        pthread_attr_destroy(&attributes);
    }
    return bytes ? bytes : 8 << 20;
}

const char *memory_cause_of_thread(int error, char text[MEMORY_CAUSE_MAX]) {
    struct rlimit value;
    const struct limit *limit = find_limit(default_stack_bytes(), true, &value);
    if (limit) {
        return name_limit(limit, &value, error, text);
    }
    snprintf(text, MEMORY_CAUSE_MAX, "%s: raise the limit on processes (ulimit -u, TasksMax), or ask for fewer threads",
             strerror(error));
    return text;
}
