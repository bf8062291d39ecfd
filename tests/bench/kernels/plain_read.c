#include "tests/bench/kernels/plain_read.h"

#include <stdatomic.h>

#include "base/clock.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { RUN_BYTES = 256 << 10, LINE = 64, LINES_AT_ONCE = 4 };

typedef uint64_t line_vector __attribute__((vector_size(LINE)));

static _Atomic uint64_t sink;

// Inlined into a copy for each instruction set: the widest loads of each.
static inline __attribute__((always_inline)) void read_lines(const void *data, size_t bytes) {
    const line_vector *at = data, *end = at + bytes / LINE;
    line_vector a = {0}, b = {0}, c = {0}, d = {0}; // one register each
    for (; end - at >= LINES_AT_ONCE; at += LINES_AT_ONCE) {
        a ^= at[0];
        b ^= at[1];
        c ^= at[2];
        d ^= at[3];
    }
    for (; at < end; at++) {
        a ^= *at;
    }
    a ^= b ^ c ^ d;
    uint64_t all = 0;
    for (size_t i = 0; i < LINE / sizeof all; i++) {
        all ^= a[i];
    }
    atomic_store_explicit(&sink, all, memory_order_relaxed);
}

static void read_portable(const void *data, size_t bytes) {
    read_lines(data, bytes);
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static void read_avx512(const void *data, size_t bytes) {
    read_lines(data, bytes);
}

__attribute__((target("avx2"))) static void read_avx2(const void *data, size_t bytes) {
    read_lines(data, bytes);
}

__attribute__((target("clflushopt"))) static void forget_lines(const void *data, size_t bytes) {
    for (size_t at = 0; at < bytes; at += LINE) {
        _mm_clflushopt((char *)data + at);
    }
}
#endif

static void (*reader(void))(const void *, size_t) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        return read_avx512;
    }
    if (__builtin_cpu_supports("avx2")) {
        return read_avx2;
    }
#endif
    return read_portable;
}

struct walk {
    const struct read_piece *pieces;
    size_t runs; // of each piece, the last ones may be short or empty
    void (*visit)(const void *data, size_t bytes);
};

static void visit_run(void *context, size_t task, unsigned thread) {
    (void)thread;
    const struct walk *walk = context;
    const struct read_piece *piece = &walk->pieces[task / walk->runs];
    size_t at = task % walk->runs * RUN_BYTES;
    if (at < piece->bytes) {
        walk->visit((const char *)piece->data + at, piece->bytes - at < RUN_BYTES ? piece->bytes - at : RUN_BYTES);
    }
}

static void walk_pieces(const struct read_piece *pieces, size_t count, struct team *team, void (*visit)(const void *, size_t)) {
    struct walk walk = {.pieces = pieces, .runs = 1, .visit = visit};
    for (size_t i = 0; i < count; i++) {
        size_t runs = (pieces[i].bytes + RUN_BYTES - 1) / RUN_BYTES;
        walk.runs = runs > walk.runs ? runs : walk.runs;
    }
    team_run(team, count * walk.runs, visit_run, &walk);
}

int64_t plain_read_ns(const struct read_piece *pieces, size_t count, struct team *team) {
    void (*visit)(const void *, size_t) = reader();
    int64_t start_ns = clock_now_ns();
    walk_pieces(pieces, count, team, visit);
    int64_t span_ns = clock_now_ns() - start_ns;
    return span_ns > 0 ? span_ns : 1;
}

int plain_read_forget(const struct read_piece *pieces, size_t count, struct team *team) {
#if defined(__x86_64__)
    unsigned eax, ebx, ecx, edx;
    __asm__("cpuid" : "=a"(eax), "=b"(ebx), "=c"(ecx), "=d"(edx) : "a"(7), "c"(0));
    enum { CLFLUSHOPT_BIT = 23 };
    if (ebx >> CLFLUSHOPT_BIT & 1) {
        walk_pieces(pieces, count, team, forget_lines);
        return 1;
    }
#endif
    (void)pieces, (void)count, (void)team;
    return 0;
}
