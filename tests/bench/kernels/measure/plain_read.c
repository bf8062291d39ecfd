#include "tests/bench/kernels/measure/plain_read.h"

#include <stdatomic.h>

#include "base/clock.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 4")
#endif

enum { RUN_BYTES = 256 << 10, LINE = 64, SUMS = 4, STREAMS = 4 };

// As wide as the registers of the instruction set: gcc keeps wider vectors in memory, and reads at two thirds of the speed.
typedef uint64_t vector_16 __attribute__((vector_size(16)));
typedef uint64_t vector_32 __attribute__((vector_size(32)));
typedef uint64_t vector_64 __attribute__((vector_size(64)));

static volatile _Atomic uint64_t sink; // volatile: clang removes reads whose result is unused

// Reads the lines of `streams` parts alternately, then the remaining lines.
#define DEFINE_READ(name, vector)                                                                                                  \
    static inline __attribute__((always_inline)) void name(const char *data, size_t bytes, size_t streams) {                       \
        size_t part = bytes / LINE / streams * LINE;                                                                               \
        vector sums[SUMS] = {{0}};                                                                                                 \
        for (size_t at = 0; at < part; at += LINE) {                                                                               \
            UNROLL for (size_t s = 0; s < streams; s++) {                                                                          \
                const vector *line = (const vector *)(const void *)(data + s * part + at);                                         \
                UNROLL for (size_t v = 0; v < LINE / sizeof(vector); v++) {                                                        \
                    sums[v % SUMS] ^= line[v];                                                                                     \
                }                                                                                                                  \
            }                                                                                                                      \
        }                                                                                                                          \
        for (size_t at = streams * part; at < bytes; at += sizeof(vector)) {                                                       \
            sums[0] ^= *(const vector *)(const void *)(data + at);                                                                 \
        }                                                                                                                          \
        vector all = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];                                                                        \
        uint64_t word = 0;                                                                                                         \
        for (size_t i = 0; i < sizeof all / sizeof word; i++) {                                                                    \
            word ^= all[i];                                                                                                        \
        }                                                                                                                          \
        atomic_store_explicit(&sink, word, memory_order_relaxed);                                                                  \
    }

typedef void visit_function(const char *data, size_t bytes);

DEFINE_READ(read_16, vector_16)

static void read_portable(const char *data, size_t bytes) {
    read_16(data, bytes, 1);
}

static void read_streams_portable(const char *data, size_t bytes) {
    read_16(data, bytes, STREAMS);
}

#if defined(__x86_64__)
DEFINE_READ(read_32, vector_32)
DEFINE_READ(read_64, vector_64)

__attribute__((target("avx512f"))) static void read_avx512(const char *data, size_t bytes) {
    read_64(data, bytes, 1);
}

__attribute__((target("avx512f"))) static void read_streams_avx512(const char *data, size_t bytes) {
    read_64(data, bytes, STREAMS);
}

__attribute__((target("avx2"))) static void read_avx2(const char *data, size_t bytes) {
    read_32(data, bytes, 1);
}

__attribute__((target("avx2"))) static void read_streams_avx2(const char *data, size_t bytes) {
    read_32(data, bytes, STREAMS);
}

__attribute__((target("clflushopt"))) static void forget_lines(const char *data, size_t bytes) {
    for (size_t at = 0; at < bytes; at += LINE) {
        _mm_clflushopt((void *)(data + at));
    }
}
#endif

static visit_function *reader(enum plain_read_way way) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        return way == READ_STREAMS ? read_streams_avx512 : read_avx512;
    }
    if (__builtin_cpu_supports("avx2")) {
        return way == READ_STREAMS ? read_streams_avx2 : read_avx2;
    }
#endif
    return way == READ_STREAMS ? read_streams_portable : read_portable;
}

struct walk {
    const struct read_piece *pieces;
    size_t runs; // per piece; the last ones may be short or empty
    visit_function *visit;
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

static void walk_pieces(const struct read_piece *pieces, size_t count, struct expertd_team *team, visit_function *visit) {
    struct walk walk = {.pieces = pieces, .runs = 1, .visit = visit};
    for (size_t i = 0; i < count; i++) {
        size_t runs = (pieces[i].bytes + RUN_BYTES - 1) / RUN_BYTES;
        walk.runs = runs > walk.runs ? runs : walk.runs;
    }
    expertd_team_run(team, count * walk.runs, visit_run, &walk);
}

int64_t plain_read_ns(const struct read_piece *pieces, size_t count, enum plain_read_way way, struct expertd_team *team) {
    visit_function *visit = reader(way);
    int64_t start_ns = clock_now_ns();
    walk_pieces(pieces, count, team, visit);
    int64_t span_ns = clock_now_ns() - start_ns;
    return span_ns > 0 ? span_ns : 1;
}

int plain_read_forget(const struct read_piece *pieces, size_t count, struct expertd_team *team) {
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
