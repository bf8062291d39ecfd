// How far ahead of their use lines of memory are fetched, and into which cache: CPUs differ. Private to cpu/.
#ifndef EXPERTD_KERNELS_CPU_COMMON_PREFETCH_DISTANCE_H
#define EXPERTD_KERNELS_CPU_COMMON_PREFETCH_DISTANCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Zen 4 follows a stream of loads by itself, as far ahead as memory needs. Prefetches into L1 take the places in which its misses
// wait, so what it must be told of is fetched into L2. (Family 19h without AVX-512 is Zen 3.)
static inline bool prefetch_as_zen4(void) {
#if defined(__x86_64__)
    return __builtin_cpu_is("amdfam19h") && __builtin_cpu_supports("avx512f");
#else
    return false;
#endif
}

// AMD's CPUs without AVX-512, measured on a Zen 3 alone.
static inline bool prefetch_as_zen3(void) {
#if defined(__x86_64__)
    return __builtin_cpu_is("amd") && !__builtin_cpu_supports("avx512f");
#else
    return false;
#endif
}

// AMD's later CPUs with AVX-512.
static inline bool prefetch_as_zen5(void) {
#if defined(__x86_64__)
    return __builtin_cpu_is("amd") && __builtin_cpu_supports("avx512f") && !prefetch_as_zen4();
#else
    return false;
#endif
}

// Intel's CPUs with AVX-512 follow a stream by themselves too, within 4 KiB of it, and leave L1 to others.
static inline bool prefetch_as_intel(void) {
#if defined(__x86_64__)
    return __builtin_cpu_is("intel") && __builtin_cpu_supports("avx512f");
#else
    return false;
#endif
}

// What is multiplied a block later goes into L2, and from there into L1 in time.
static inline bool prefetch_blocks_into_l2(void) {
    return prefetch_as_zen4() || prefetch_as_intel();
}

// Bytes ahead that a stream is fetched whose lines are multiplied as fast as they come: into L1, and from there on into L2 (0:
// not).
struct prefetch_stream {
    size_t near, more;
};

// Zen 4: the line at hand, which costs nothing. Four rows of bf16 read memory at .77 of a plain read with 4 KiB, .97 with none.
// Intel: one row of f32 on a Granite Rapids .63 with 4 KiB into L1, 1.0 with half a KiB and 3 KiB into L2 (bf16 .81, .97); with 2
// and 8 KiB an Emerald Rapids is 1.02 to 1.13 times as fast again in one row to six of either. Elsewhere memory needs 4 KiB (one
// row of bf16 on a Sapphire Rapids .69 with none, .97 with them).
static inline struct prefetch_stream prefetch_stream_ahead(void) {
    if (prefetch_as_intel()) {
        return (struct prefetch_stream){2048, 6144};
    }
    return (struct prefetch_stream){prefetch_as_zen4() ? 0 : 4096, 0};
}

// Into L2 alone, or L1 too. Inlined always: gcc 12 takes a function that does nothing else for one without effect.
static inline __attribute__((always_inline)) void prefetch_into(const void *line, bool far) {
    if (far) {
        __builtin_prefetch(line, 0, 2);
    } else {
        __builtin_prefetch(line);
    }
}

static inline __attribute__((always_inline)) void prefetch_streamed(const void *line, struct prefetch_stream ahead) {
    prefetch_into((const void *)((uintptr_t)line + ahead.near), false);
    if (ahead.more) {
        prefetch_into((const void *)((uintptr_t)line + ahead.near + ahead.more), true);
    }
}

// What a thread reads later, of rows that come from anywhere.
struct rows_ahead {
    const void *const *x;      // [rows]
    size_t rows, begin, bytes; // of each, from byte `begin` on
};

// Do they stay in L2 until they are read?
static inline bool prefetch_rows_stay(const struct rows_ahead *ahead) {
    enum { MOST_BYTES = 256 << 10 };
    return ahead->rows * ahead->bytes <= MOST_BYTES;
}

// One of `shares` shares of them into L2, as far as they stay there: all at once, some would be dropped.
static inline void prefetch_rows_share(const struct rows_ahead *ahead, size_t share, size_t shares) {
    enum { LINE = 64 };
    const size_t lines = (ahead->bytes + LINE - 1) / LINE;
    const size_t from = lines * share / shares * LINE, to = lines * (share + 1) / shares * LINE;
    for (size_t r = 0; r < ahead->rows && prefetch_rows_stay(ahead); r++) {
        for (size_t at = from; at < to; at += LINE) {
            prefetch_into((const void *)((uintptr_t)ahead->x[r] + ahead->begin + at), true);
        }
    }
}

// They are fetched line by line: `lines` each time, until all have been.
struct rows_walk {
    struct rows_ahead of;
    size_t row, at; // the next line
    size_t lines;
};

// In so many times.
static inline struct rows_walk prefetch_rows_begin(struct rows_ahead of, size_t times) {
    enum { LINE = 64 };
    const bool any = of.rows > 0 && of.bytes > 0 && prefetch_rows_stay(&of);
    return (struct rows_walk){.of = of, .lines = any ? (of.rows * ((of.bytes + LINE - 1) / LINE) + times - 1) / times : 0};
}

static inline __attribute__((always_inline)) void prefetch_rows_on(struct rows_walk *walk) {
    enum { LINE = 64 };
    for (size_t n = walk->lines; n > 0; n--) {
        prefetch_into((const void *)((uintptr_t)walk->of.x[walk->row] + walk->of.begin + walk->at), true);
        walk->at += LINE;
        if (walk->at >= walk->of.bytes) {
            walk->at = 0;
            walk->row++;
        }
        if (walk->row == walk->of.rows) {
            walk->lines = 0;
            return;
        }
    }
}

// Zen 4 drops a prefetch into L2 when too many are on their way: one in seven at a line each 16 cycles while another core reads
// memory, one in three at one each 4. So a line is asked for again, nearer, which costs little where it has come.
enum { PREFETCH_AGAIN = 8192 }; // bytes behind the fetches of a block (macrokernel_prefetch.h)
// Zen 5 drops some too, and is asked again in the same way for lines into L1: b2048 of bf16 .866 -> .885 of the roof.
enum { PREFETCH_AGAIN_NEAR = 2048 };

// Codes take longer to widen than Zen 4 looks ahead: from far into L2, again, then into L1. One row to eight of E4M3 are 1.1 to 1.5
// times as fast as by fetching 16 KiB ahead into L1, of MXFP4 and INT4 1.0 to 1.3 times as by 4 KiB.
struct prefetch_distance {
    size_t near, again, far; // bytes; far 0: into L1 alone, again 0: once is enough
};
#define PREFETCH_CODES_ZEN4 ((struct prefetch_distance){2048, 6144, 12288})
#define PREFETCH_CODES_INTEL ((struct prefetch_distance){2048, 0, 8192}) // prefetch_stream_ahead's

static inline __attribute__((always_inline)) void prefetch_line(const void *line, struct prefetch_distance ahead) {
    prefetch_into((const void *)((uintptr_t)line + ahead.near), false);
    if (ahead.far) {
        prefetch_into((const void *)((uintptr_t)line + ahead.far), true);
        if (ahead.again) {
            prefetch_into((const void *)((uintptr_t)line + ahead.again), true);
        }
    }
}

#endif
