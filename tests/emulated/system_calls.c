#include "system_calls.h"

#include <asm/prctl.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "bochs.h"
#include "memory.h"
#include "program.h"
#include "threads.h"

enum { ARGUMENTS = 6, KILLED = 128, NS_PER_S = 1000000000, REQUEST_TILES = 0x1023, PARTS_MAX = 16 };

struct call {
    uint64_t number, a[ARGUMENTS];
};

// Calls that are passed to the host. `addresses`: bit i is set if argument i is an address.
static const struct {
    long number;
    unsigned addresses;
} PASSED_ON[] = {
    {SYS_read, 1 << 1},
    {SYS_write, 1 << 1},
    {SYS_close, 0},
    {SYS_fstat, 1 << 1},
    {SYS_lseek, 0},
    {SYS_pread64, 1 << 1},
    {SYS_access, 1 << 0},
    {SYS_ioctl, 1 << 2},
    {SYS_getpid, 0},
    {SYS_fcntl, 0},
    {SYS_uname, 1 << 0},
    {SYS_getcwd, 1 << 0},
    {SYS_readlink, 1 << 0 | 1 << 1},
    {SYS_getrusage, 1 << 1},
    {SYS_sysinfo, 1 << 0},
    {SYS_getuid, 0},
    {SYS_getgid, 0},
    {SYS_geteuid, 0},
    {SYS_getegid, 0},
    {SYS_getdents64, 1 << 1},
    {SYS_sched_getaffinity, 1 << 2},
    {SYS_clock_getres, 1 << 1},
    {SYS_clock_nanosleep, 1 << 2 | 1 << 3},
    {SYS_openat, 1 << 1},
    {SYS_newfstatat, 1 << 1 | 1 << 2},
    {SYS_unlink, 1 << 0},
    {SYS_prlimit64, 1 << 2 | 1 << 3},
    {SYS_getrandom, 1 << 0},
};
// Calls that succeed without an effect.
static const long IGNORED[] = {SYS_rt_sigaction,    SYS_rt_sigprocmask, SYS_sigaltstack,
                               SYS_set_robust_list, SYS_prctl,          SYS_sched_setaffinity};
// Calls that fail silently: the C library has a fallback.
static const long DECLINED[] = {SYS_rseq, SYS_clone3, SYS_mremap, SYS_mbind, SYS_get_mempolicy, SYS_membarrier};

static bool is_among(const long *numbers, size_t count, uint64_t number) {
    for (size_t i = 0; i < count; i++) {
        if (numbers[i] == (long)number) {
            return true;
        }
    }
    return false;
}
#define IS_AMONG(numbers, number) is_among(numbers, sizeof(numbers) / sizeof *(numbers), number)

static int64_t outcome(long result) {
    return result == -1 ? -errno : result;
}

static int64_t pass_on(const struct call *call, unsigned addresses) {
    long a[ARGUMENTS];
    for (int i = 0; i < ARGUMENTS; i++) {
        void *host = memory_host(call->a[i]);
        memcpy(&a[i], addresses & 1u << i ? (const void *)&host : &call->a[i], sizeof a[i]);
    }
    return outcome(syscall((long)call->number, a[0], a[1], a[2], a[3], a[4], a[5]));
}

// mmap. A file is mapped by the host over the guest's bytes.
static int64_t map(const struct call *call) {
    uint64_t at = call->a[0], bytes = (call->a[1] + GUEST_PAGE - 1) & ~(GUEST_PAGE - 1);
    int flags = (int)call->a[3], file = (int)call->a[4];
    if (!(flags & MAP_FIXED)) {
        at = memory_reserve(bytes);
    }
    if (!at || !bytes || at % GUEST_PAGE || at > GUEST_BYTES || bytes > GUEST_BYTES - at) {
        return -ENOMEM;
    }
    int kind = flags & MAP_ANONYMOUS ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : flags & (MAP_PRIVATE | MAP_SHARED);
    int access = flags & MAP_SHARED && !(call->a[2] & PROT_WRITE) ? PROT_READ : PROT_READ | PROT_WRITE;
    if (flags & (MAP_FIXED | MAP_SHARED) || !(flags & MAP_ANONYMOUS)) { // anonymous memory is already part of the reservation
        void *got = mmap(memory_host(at), bytes, access, kind | MAP_FIXED, flags & MAP_ANONYMOUS ? -1 : file, (off_t)call->a[5]);
        if (got == MAP_FAILED) {
            return -errno;
        }
    }
    memory_protect(at, bytes, (int)call->a[2]);
    if (flags & MAP_FIXED) {
        cpu_set_mode(BOCHS_CPU);
    }
    return (int64_t)at;
}

static int64_t unmap_or_protect(const struct call *call) {
    uint64_t at = call->a[0], bytes = (call->a[1] + GUEST_PAGE - 1) & ~(GUEST_PAGE - 1);
    if (at % GUEST_PAGE || at > GUEST_BYTES || bytes > GUEST_BYTES - at) {
        return -EINVAL;
    }
    bool unmap = call->number == SYS_munmap;
    memory_protect(at, bytes, unmap ? 0 : (int)call->a[2]);
    cpu_set_mode(BOCHS_CPU);
    if (unmap && mmap(memory_host(at), bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                      0) == MAP_FAILED) {
        return -errno;
    }
    return 0;
}

static int64_t advise(const struct call *call) {
    bool drops = call->a[2] == MADV_DONTNEED;
    if (call->a[0] > GUEST_BYTES || call->a[1] > GUEST_BYTES - call->a[0]) {
        return -EINVAL;
    }
    return drops ? outcome(madvise(memory_host(call->a[0]), call->a[1], MADV_DONTNEED)) : 0;
}

static int64_t write_parts(const struct call *call) {
    struct iovec parts[PARTS_MAX];
    uint64_t count = call->a[2];
    if (count > PARTS_MAX) {
        return -EINVAL;
    }
    if (!memory_allows(call->a[1], count * sizeof *parts, false)) {
        return -EFAULT;
    }
    memcpy(parts, memory_host(call->a[1]), count * sizeof *parts);
    for (uint64_t i = 0; i < count; i++) {
        if (!memory_allows((uint64_t)(uintptr_t)parts[i].iov_base, parts[i].iov_len, false)) {
            return -EFAULT;
        }
        parts[i].iov_base = memory_host((uint64_t)(uintptr_t)parts[i].iov_base);
    }
    return outcome(writev((int)call->a[0], parts, (int)count));
}

static int64_t set_architecture(const struct call *call) {
    switch (call->a[0]) {
    case ARCH_SET_FS:
        thread_set_pointer(call->a[1]);
        return 0;
    case REQUEST_TILES:
        return 0;
    default:
        return -EINVAL;
    }
}

// FUTEX_WAIT has a relative timeout, or none. FUTEX_WAIT_BITSET has an absolute one, of the monotonic or the real-time clock.
static void wait_for(const struct call *call, bool absolute) {
    uint32_t now;
    if (!memory_allows(call->a[0], sizeof now, false) ||
        (call->a[3] && !memory_allows(call->a[3], sizeof(struct timespec), false))) {
        cpu_set_reg64(BOCHS_CPU, RAX, (uint64_t)-EFAULT);
        return;
    }
    memcpy(&now, memory_host(call->a[0]), sizeof now);
    if (now != (uint32_t)call->a[2]) {
        cpu_set_reg64(BOCHS_CPU, RAX, (uint64_t)-EAGAIN);
        return;
    }
    int64_t timeout_ns = -1;
    if (call->a[3]) {
        struct timespec t, base = {0};
        memcpy(&t, memory_host(call->a[3]), sizeof t);
        if (absolute) {
            clock_gettime(call->a[1] & FUTEX_CLOCK_REALTIME ? CLOCK_REALTIME : CLOCK_MONOTONIC, &base);
        }
        timeout_ns = (int64_t)(t.tv_sec - base.tv_sec) * NS_PER_S + t.tv_nsec - base.tv_nsec;
        timeout_ns = timeout_ns < 0 ? 0 : timeout_ns;
    }
    thread_wait(call->a[0], timeout_ns);
}

static void serve_futex(const struct call *call) {
    int64_t result = -ENOSYS;
    switch (call->a[1] & FUTEX_CMD_MASK) {
    case FUTEX_WAIT:
        wait_for(call, false);
        return;
    case FUTEX_WAIT_BITSET:
        wait_for(call, true);
        return;
    case FUTEX_WAKE:
    case FUTEX_WAKE_BITSET:
        result = threads_wake(call->a[0], (uint32_t)call->a[2]);
        break;
    }
    cpu_set_reg64(BOCHS_CPU, RAX, (uint64_t)result);
}

static int64_t start_thread(const struct call *call) {
    if (!(call->a[0] & CLONE_THREAD)) {
        fprintf(stderr, "emulated: the program may start threads, but no process\n");
        return -ENOSYS;
    }
    return thread_start(call->a[0], call->a[1], call->a[2], call->a[3], call->a[4]);
}

static int64_t serve_otherwise(const struct call *call) {
    for (size_t i = 0; i < sizeof PASSED_ON / sizeof *PASSED_ON; i++) {
        if (PASSED_ON[i].number == (long)call->number) {
            return pass_on(call, PASSED_ON[i].addresses);
        }
    }
    if (IS_AMONG(IGNORED, call->number)) {
        return 0;
    }
    if (!IS_AMONG(DECLINED, call->number)) {
        fprintf(stderr, "emulated: system call %" PRIu64 " is not served\n", call->number);
    }
    return -ENOSYS;
}

// Calls that return a number and do not switch threads.
static int64_t serve_simple(const struct call *call) {
    switch (call->number) {
    case SYS_mmap:
        return map(call);
    case SYS_munmap:
    case SYS_mprotect:
        return unmap_or_protect(call);
    case SYS_brk:
        return (int64_t)program_break(call->a[0]);
    case SYS_madvise:
        return advise(call);
    case SYS_writev:
        return write_parts(call);
    case SYS_arch_prctl:
        return set_architecture(call);
    case SYS_clone:
        return start_thread(call);
    case SYS_gettid:
        return thread_id();
    case SYS_set_tid_address:
        thread_clear_at_end(call->a[0]);
        return thread_id();
    default:
        return serve_otherwise(call);
    }
}

void serve_system_call(void) {
    static const unsigned ARGUMENT_REGISTERS[ARGUMENTS] = {RDI, RSI, RDX, R10, R8, R9};
    struct call call = {.number = cpu_get_reg64(BOCHS_CPU, RAX)};
    for (int i = 0; i < ARGUMENTS; i++) {
        call.a[i] = cpu_get_reg64(BOCHS_CPU, ARGUMENT_REGISTERS[i]);
    }
    switch (call.number) {
    case SYS_exit_group:
        program_end((int)call.a[0]);
    case SYS_tgkill: // abort()
        program_end(KILLED + (int)call.a[2]);
    case SYS_exit:
        thread_end();
        break;
    case SYS_futex:
        serve_futex(&call);
        break;
    case SYS_clock_gettime:
        thread_yield(pass_on(&call, 1 << 1));
        break;
    case SYS_sched_yield:
        thread_yield(0);
        break;
    default:
        cpu_set_reg64(BOCHS_CPU, RAX, (uint64_t)serve_simple(&call));
    }
}
