// Implements kernel_select.h: which backend this process computes with. A backend is a candidate if this CPU has its instructions.
// "auto" takes AMX if it passes its self-check; otherwise, as "portable" always does, it times the candidates of the common
// arithmetic and takes one that passes. A name forces a backend or fails with the reason.
#include "base/err.h"
#include "kernels/cpu/backend/backend.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#include "base/clock.h"
#include "kernels/cpu/amx/amx_tiles.h"
#include "kernels/cpu/backend/backends.h"

struct candidate {
    const struct kernel_backend *backend;
    bool (*runs_here)(void);
};

static bool runs_everywhere(void) {
    return true;
}

#if defined(__x86_64__)
// clang 14's __builtin_cpu_supports does not know F16C.
static bool has_f16c(void) {
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
}

static bool has_avx512vnni(void) {
    return has_avx512() && __builtin_cpu_supports("avx512vnni");
}

static bool has_avx512bf16(void) {
    return has_avx512vnni() && __builtin_cpu_supports("avx512bf16");
}

static bool has_amx(void) {
    return has_avx512bf16() && amx_is_usable();
}
#endif

#if defined(__aarch64__)
static bool has_neondot(void) {
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
}

static bool has_neonbf16(void) {
    return has_neondot() && (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
}
#endif

// Widest first. The scalar backends are last; they run everywhere and define the bits of the others.
static const struct candidate CANDIDATES[] = {
#if defined(__x86_64__)
    {&backend_amx, has_amx},
    {&backend_amxint8, has_amx},
    {&backend_avx512bf16, has_avx512bf16},
    {&backend_avx512vnni, has_avx512vnni},
    {&backend_avx512, has_avx512},
    {&backend_avx2, has_avx2},
#elif defined(__aarch64__)
    {&backend_neonbf16, has_neonbf16},      {&backend_neondot, has_neondot},         {&backend_neon, runs_everywhere},
#endif
    {&backend_scalar_amx, runs_everywhere},
    {&backend_scalar_sm90, runs_everywhere},
    {&backend_scalar, runs_everywhere},
};

#if defined(__aarch64__)
#define OTHER_CPU "x86-64"
static const char *const OTHER_CPU_NAMES[] = {"amx", "amxint8", "avx512bf16", "avx512vnni", "avx512", "avx2"};
#else
#define OTHER_CPU "aarch64"
static const char *const OTHER_CPU_NAMES[] = {"neonbf16", "neondot", "neon"};
#endif

static const char *const ARITHMETIC_NAMES[] = {
    [ARITHMETIC_CPU] = "cpu", [ARITHMETIC_CPU_AMX] = "cpu_amx", [ARITHMETIC_SM_90] = "sm_90"};

#define AUTOMATIC_NAMES "auto, portable"

enum {
    CANDIDATES_COUNT = sizeof CANDIDATES / sizeof *CANDIDATES,
    NAMES_MAX = 160,
    SPEED_ROWS = 6,
    SPEED_K = 256,
    SPEED_WARM = 4, // rounds that are not counted: the CPU powers its wide vector units up
    SPEED_ROUNDS = 15,
    SPEED_MARGIN_PERCENT = 10,
};

// The backend of the process, selected at start. Atomic, because the first call may come from any thread.
static _Atomic(const struct kernel_backend *) selected;

// The first backend that was passed over because its self-check failed, and the kernel whose results differed.
static _Atomic(const struct kernel_backend *) passed_over;
static _Atomic(const char *) passed_over_for;

static void pass_over(const struct kernel_backend *backend, const char *differs) {
    if (!atomic_load(&passed_over)) {
        atomic_store(&passed_over_for, differs);
        atomic_store(&passed_over, backend);
    }
}

const char *expertd_kernel_passed_over(const char **differs) {
    const struct kernel_backend *backend = atomic_load(&passed_over);
    *differs = backend ? atomic_load(&passed_over_for) : NULL;
    return backend ? backend->name : NULL;
}

// Whether this CPU can run candidate i. The answer is cached, because CPUID traps in a virtual machine.
static bool runs_here(size_t i) {
    enum { UNKNOWN, NO, YES };
    static atomic_int answers[CANDIDATES_COUNT];
    int answer = atomic_load_explicit(&answers[i], memory_order_relaxed);
    if (answer == UNKNOWN) {
        answer = CANDIDATES[i].runs_here() ? YES : NO;
        atomic_store_explicit(&answers[i], answer, memory_order_relaxed);
    }
    return answer == YES;
}

const struct kernel_backend *kernel_backend_at(size_t i, bool *usable) {
    if (i >= CANDIDATES_COUNT) {
        return NULL;
    }
    *usable = runs_here(i);
    return CANDIDATES[i].backend;
}

const struct element_kernels *backend_kernels(const struct kernel_backend *backend, enum expertd_dtype dtype) {
    return dtype == EXPERTD_DTYPE_F32 ? &backend->f32 : dtype == EXPERTD_DTYPE_I8 ? &backend->i8 : &backend->bf16;
}

const char *expertd_kernel_name_at(size_t i, bool *usable) {
    const struct kernel_backend *backend = kernel_backend_at(i, usable);
    return backend ? backend->name : NULL;
}

const struct kernel_backend *backend_twin(const struct kernel_backend *backend) {
    static const struct kernel_backend *const TWINS[] = {
        [ARITHMETIC_CPU] = &backend_scalar, [ARITHMETIC_CPU_AMX] = &backend_scalar_amx, [ARITHMETIC_SM_90] = &backend_scalar_sm90};
    return TWINS[backend->arithmetic];
}

// Time of one tile of rows by one panel of bf16 zeros.
static int64_t block_ns(const struct kernel_backend *backend, const struct panel_args *args) {
    int64_t start = clock_now_ns();
    backend->bf16.panel(args);
    return clock_now_ns() - start;
}

static int compare_ns(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

// medians[i]: the median time of backends[i]. Each round times all backends, so that noise from other processes affects all alike.
static void time_backends(const struct kernel_backend *const *backends, size_t count, int64_t *medians) {
    uint16_t x[SPEED_K] = {0};
    _Alignas(64) uint16_t panel[SPEED_K * EXPERTD_KERNEL_PANEL] = {0};
    const void *rows[SPEED_ROWS] = {x, x, x, x, x, x};
    float out[SPEED_ROWS * EXPERTD_KERNEL_PANEL];
    struct panel_args args = {rows, SPEED_ROWS, panel, SPEED_K, out, EXPERTD_KERNEL_PANEL, EXPERTD_KERNEL_PANEL};
    int64_t spans[CANDIDATES_COUNT][SPEED_WARM + SPEED_ROUNDS];
    for (size_t round = 0; round < SPEED_WARM + SPEED_ROUNDS; round++) {
        for (size_t i = 0; i < count; i++) {
            spans[i][round] = block_ns(backends[i], &args);
        }
    }
    for (size_t i = 0; i < count; i++) {
        qsort(spans[i] + SPEED_WARM, SPEED_ROUNDS, sizeof spans[i][0], compare_ns);
        medians[i] = spans[i][SPEED_WARM + SPEED_ROUNDS / 2];
    }
    // Backends that share one kernel get the same time, the lowest measured.
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < count; j++) {
            bool same = backends[i]->bf16.panel == backends[j]->bf16.panel;
            medians[i] = same && medians[j] < medians[i] ? medians[j] : medians[i];
        }
    }
}

// The backends of an arithmetic that this CPU can run, widest first, without the scalar one.
static size_t usable_backends(enum kernel_arithmetic arithmetic, const struct kernel_backend **out) {
    size_t count = 0;
    for (size_t i = 0; i < CANDIDATES_COUNT; i++) {
        const struct kernel_backend *backend = CANDIDATES[i].backend;
        if (backend->arithmetic == arithmetic && backend != backend_twin(backend) && runs_here(i)) {
            out[count++] = backend;
        }
    }
    return count;
}

// The backend of an arithmetic that is to be used; `otherwise` if none is usable and passes its self-check.
// It is the widest backend whose bf16 kernel is within SPEED_MARGIN_PERCENT of the fastest one. They must be timed: VDPBF16PS
// issues once a cycle on Zen 4 and beats two fmas on widened bf16; on Sapphire Rapids it issues once in two cycles and loses to
// them (108 against 178 GFLOP/s, one thread). The results have the same bits, so the choice affects speed only. Of two backends
// with the same bf16 kernel the wider one has the faster int8 kernel.
static const struct kernel_backend *choose_best(enum kernel_arithmetic arithmetic, const struct kernel_backend *otherwise) {
    const struct kernel_backend *backends[CANDIDATES_COUNT];
    int64_t medians[CANDIDATES_COUNT], best = CLOCK_NEVER;
    size_t count = usable_backends(arithmetic, backends);
    time_backends(backends, count, medians);
    for (size_t i = 0; i < count; i++) {
        best = medians[i] < best ? medians[i] : best;
    }
    // A self-check takes longer than the timing, so backends are checked in order of preference: first those near the fastest one.
    for (int rest = 0; rest < 2; rest++) {
        for (size_t i = 0; i < count; i++) {
            int near = medians[i] <= best + best * SPEED_MARGIN_PERCENT / 100;
            if (near == rest) {
                continue;
            }
            const char *differs = backend_self_check(backends[i]);
            if (!differs) {
                return backends[i];
            }
            pass_over(backends[i], differs);
        }
    }
    return otherwise;
}

static const struct kernel_backend *choose_portable(void) {
    return choose_best(ARITHMETIC_CPU, &backend_scalar);
}

// AMX multiplies bf16 several times as fast as vectors do, so it is not timed.
static const struct kernel_backend *choose_auto(void) {
    const struct kernel_backend *amx = choose_best(ARITHMETIC_CPU_AMX, NULL);
    return amx ? amx : choose_portable();
}

// The names that this machine can use, for an error message: "auto, portable, avx2, scalar".
static const char *usable_names(char *names, size_t size) {
    size_t used = (size_t)snprintf(names, size, AUTOMATIC_NAMES);
    for (size_t i = 0; i < CANDIDATES_COUNT; i++) {
        if (runs_here(i)) {
            used += (size_t)snprintf(names + used, size - used, ", %s", CANDIDATES[i].backend->name);
        }
    }
    return names;
}

static FALLIBLE refuse_other_cpu(const char *name) {
    char here[NAMES_MAX];
    for (size_t i = 0; i < sizeof OTHER_CPU_NAMES / sizeof *OTHER_CPU_NAMES; i++) {
        if (strcmp(name, OTHER_CPU_NAMES[i]) == 0) {
            FAIL(EXPERTD_ERR_UNAVAILABLE, "kernel backend %s: it is for " OTHER_CPU "; this machine has %s", name,
                 usable_names(here, sizeof here));
        }
    }
    return OK;
}

static FALLIBLE choose_named(const char *name, const struct kernel_backend **out) {
    char names[NAMES_MAX] = AUTOMATIC_NAMES, here[NAMES_MAX];
    for (size_t i = 0; i < CANDIDATES_COUNT; i++) {
        const struct kernel_backend *backend = CANDIDATES[i].backend;
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, ", %s", backend->name);
        if (strcmp(name, backend->name) != 0) {
            continue;
        }
        if (!runs_here(i)) {
            FAIL(EXPERTD_ERR_UNAVAILABLE,
                 "kernel backend %s: this CPU lacks its instructions, or the system does not let them be used; this machine has %s",
                 name, usable_names(here, sizeof here));
        }
        const char *wrong = backend_self_check(backend);
        if (wrong) {
            FAIL(EXPERTD_ERR_UNAVAILABLE,
                 "kernel backend %s: its %s differs from the scalar twin (%s) on this CPU, so its answers would not be those of "
                 "numerics %s; choose another, auto or portable",
                 name, wrong, backend_twin(backend)->name, ARITHMETIC_NAMES[backend->arithmetic]);
        }
        *out = backend;
        return OK;
    }
    TRY(refuse_other_cpu(name));
    FAIL(EXPERTD_ERR_CONFIG, "unknown kernel backend %s: the names are %s; this machine has %s", name, names,
         usable_names(here, sizeof here));
}

FALLIBLE expertd_kernel_select(const char *name) {
    const struct kernel_backend *backend;
    if (strcmp(name, "auto") == 0) {
        backend = choose_auto();
    } else if (strcmp(name, "portable") == 0) {
        backend = choose_portable();
    } else {
        TRY(choose_named(name, &backend));
    }
    atomic_store(&selected, backend);
    return OK;
}

const struct kernel_backend *kernel_selected(void) {
    const struct kernel_backend *backend = atomic_load(&selected);
    if (!backend) {
        const struct kernel_backend *best = choose_auto();
        // If another thread has selected one meanwhile, that one stays.
        backend = atomic_compare_exchange_strong(&selected, &backend, best) ? best : backend;
    }
    return backend;
}

const char *expertd_kernel_selected_name(void) {
    return kernel_selected()->name;
}

// Compares the kernels for packed weights, the only ones that tuned schedules depend on.
static bool same_packed_kernels(const struct element_kernels *a, const struct element_kernels *b) {
    return a->panel == b->panel && a->macrokernel == b->macrokernel && a->small_m == b->small_m &&
           memcmp(a->slices, b->slices, sizeof a->slices) == 0 && a->quantised == b->quantised &&
           a->quantised_large_m == b->quantised_large_m;
}

static bool same_float_kernels(const struct kernel_backend *a, const struct kernel_backend *b) {
    return same_packed_kernels(&a->f32, &b->f32) && same_packed_kernels(&a->bf16, &b->bf16);
}

const char *expertd_kernel_float_name(void) {
    const struct kernel_backend *chosen = kernel_selected();
    const char *name = chosen->name;
    for (size_t i = 0; i < CANDIDATES_COUNT; i++) { // widest first, so the last match is the narrowest
        name = same_float_kernels(CANDIDATES[i].backend, chosen) ? CANDIDATES[i].backend->name : name;
    }
    return name;
}

FALLIBLE expertd_kernel_select_arithmetic(const char *arithmetic) {
    for (size_t i = 0; i < sizeof ARITHMETIC_NAMES / sizeof *ARITHMETIC_NAMES; i++) {
        if (strcmp(arithmetic, ARITHMETIC_NAMES[i]) == 0) {
            struct kernel_backend any = {.arithmetic = (enum kernel_arithmetic)i};
            atomic_store(&selected, choose_best(any.arithmetic, backend_twin(&any)));
            return OK;
        }
    }
    FAIL(EXPERTD_ERR_UNAVAILABLE, "unknown arithmetic %s: this build computes as %s, %s or %s", arithmetic,
         ARITHMETIC_NAMES[ARITHMETIC_CPU], ARITHMETIC_NAMES[ARITHMETIC_CPU_AMX], ARITHMETIC_NAMES[ARITHMETIC_SM_90]);
}

// All other dtypes have the same bits in every arithmetic.
const char *expertd_kernel_arithmetic_name(enum expertd_dtype dtype) {
    return ARITHMETIC_NAMES[dtype == EXPERTD_DTYPE_BF16 ? kernel_selected()->arithmetic : ARITHMETIC_CPU];
}
