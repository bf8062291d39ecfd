#include "kernels/backend.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "kernels/cpu/backends.h"

struct candidate {
    const struct kernel_backend *backend;
    bool (*runs_here)(void);
};

static bool runs_everywhere(void) {
    return true;
}

#if defined(__x86_64__)
static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
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
#endif

// Widest first; the last is the definition, and runs everywhere.
static const struct candidate CANDIDATES[] = {
#if defined(__x86_64__)
    {&backend_avx512bf16, has_avx512bf16}, {&backend_avx512vnni, has_avx512vnni},
    {&backend_avx512, has_avx512},         {&backend_avx2, has_avx2},
#endif
    {&backend_scalar, runs_everywhere},
};

enum {
    CANDIDATES_COUNT = sizeof CANDIDATES / sizeof *CANDIDATES,
    NAMES_MAX = 128,
    SPEED_ROWS = 6,
    SPEED_K = 128,
    SPEED_ROUNDS = 24, // the first ones wake the wide units
};

// The one choice of the process, made at start; atomic because the first caller may be any thread.
static _Atomic(const struct kernel_backend *) selected;

const struct kernel_backend *kernel_backend_at(size_t i, int *usable) {
    if (i >= CANDIDATES_COUNT) {
        return NULL;
    }
    *usable = CANDIDATES[i].runs_here();
    return CANDIDATES[i].backend;
}

// The least time of a full row block against a panel of bf16 zeros.
static int64_t block_ns(const struct kernel_backend *backend) {
    uint16_t x[SPEED_K] = {0}, panel[SPEED_K * KERNEL_PANEL] = {0};
    const void *rows[SPEED_ROWS] = {x, x, x, x, x, x};
    float out[SPEED_ROWS * KERNEL_PANEL];
    struct panel_args args = {rows, SPEED_ROWS, panel, SPEED_K, out, KERNEL_PANEL, KERNEL_PANEL};
    int64_t best = CLOCK_NEVER;
    for (int round = 0; round < SPEED_ROUNDS; round++) {
        int64_t start = clock_now_ns();
        backend->panel_bf16(&args);
        int64_t span = clock_now_ns() - start;
        best = span < best ? span : best;
    }
    return best;
}

// The fastest that this CPU has, by trial: VDPBF16PS issues once a cycle on Zen 4 and beats two widened fmas, once in two cycles on
// Sapphire Rapids and loses to them (108 against 178 GF/s, one thread). Bits are the same, so nothing else hangs on the choice.
// One that fails its check has another arithmetic than the numerics_id says and is not used; the start-up log names the chosen.
static const struct kernel_backend *choose_best(void) {
    const struct kernel_backend *best = &backend_scalar;
    int64_t best_ns = CLOCK_NEVER;
    for (size_t i = 0; i + 1 < CANDIDATES_COUNT; i++) {
        const struct kernel_backend *backend = CANDIDATES[i].backend;
        if (!CANDIDATES[i].runs_here() || backend_self_check(backend)) {
            continue;
        }
        int64_t ns = block_ns(backend);
        if (ns < best_ns) {
            best = backend;
            best_ns = ns;
        }
    }
    return best;
}

static FALLIBLE choose_named(const char *name, const struct kernel_backend **out) {
    char names[NAMES_MAX] = "auto";
    for (size_t i = 0; i < CANDIDATES_COUNT; i++) {
        const struct kernel_backend *backend = CANDIDATES[i].backend;
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, ", %s", backend->name);
        if (strcmp(name, backend->name) != 0) {
            continue;
        }
        if (!CANDIDATES[i].runs_here()) {
            FAIL(ERR_UNAVAILABLE, "kernel backend %s: this CPU lacks its instructions; auto chooses the fastest that it has", name);
        }
        const char *wrong = backend_self_check(backend);
        if (wrong) {
            FAIL(ERR_UNAVAILABLE,
                 "kernel backend %s: its %s differs from the scalar twin on this CPU, so its answers would not be those of "
                 "numerics 1/cpu; choose another, or auto",
                 name, wrong);
        }
        *out = backend;
        return OK;
    }
    FAIL(ERR_CONFIG, "unknown kernel backend %s: the names are %s", name, names);
}

FALLIBLE kernel_select(const char *name) {
    const struct kernel_backend *backend;
    if (strcmp(name, "auto") == 0) {
        backend = choose_best();
    } else {
        TRY(choose_named(name, &backend));
    }
    atomic_store(&selected, backend);
    return OK;
}

const struct kernel_backend *kernel_selected(void) {
    const struct kernel_backend *backend = atomic_load(&selected);
    if (!backend) {
        const struct kernel_backend *best = choose_best();
        // Another thread may have chosen meanwhile: its choice stands.
        backend = atomic_compare_exchange_strong(&selected, &backend, best) ? best : backend;
    }
    return backend;
}

const char *kernel_arithmetic(void) {
    return "cpu";
}
