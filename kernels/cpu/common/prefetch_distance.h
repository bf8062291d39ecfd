// Prefetch distances, and the cache level to prefetch into, for each kind of CPU. Private to kernels/.
#ifndef EXPERTD_KERNELS_CPU_COMMON_PREFETCH_DISTANCE_H
#define EXPERTD_KERNELS_CPU_COMMON_PREFETCH_DISTANCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Zen 4's hardware prefetcher follows a stream of loads, as far ahead as memory needs. Software prefetches into L1 take up the
// slots for outstanding misses, so kernels prefetch into L2. (Family 19h without AVX-512 is Zen 3.)
static inline bool prefetch_as_zen4(void) {
#if defined(__x86_64__)
    return __builtin_cpu_is("amdfam19h") && __builtin_cpu_supports("avx512f");
#else
    return false;
#endif
}

// AMD's CPUs without AVX-512. Measured on a Zen 3 only.
static inline bool prefetch_as_zen3(void) {
#if defined(__x86_64__)
    return __builtin_cpu_is("amd") && !__builtin_cpu_supports("avx512f");
#else
    return false;
#endif
}

// AMD's CPUs with AVX-512 after Zen 4.
static inline bool prefetch_as_zen5(void) {
#if defined(__x86_64__)
    return __builtin_cpu_is("amd") && __builtin_cpu_supports("avx512f") && !prefetch_as_zen4();
#else
    return false;
#endif
}

// Intel's CPUs with AVX-512. Their hardware prefetcher follows a stream too, up to 4 KiB ahead, but not into L1.
static inline bool prefetch_as_intel(void) {
#if defined(__x86_64__)
    return __builtin_cpu_is("intel") && __builtin_cpu_supports("avx512f");
#else
    return false;
#endif
}

// Whether the next block is prefetched into L2 first, and from there into L1.
static inline bool prefetch_blocks_into_l2(void) {
    return prefetch_as_zen4() || prefetch_as_intel();
}

// Prefetch distances of a stream whose lines are multiplied as fast as they arrive: `near` bytes ahead into L1, near + more bytes
// ahead into L2. more = 0: not into L2.
struct prefetch_stream {
    size_t near, more;
};

// Zen 4: no distance, which costs nothing. Four rows of bf16 read memory at .77 of a plain read with 4 KiB, .97 with none. Intel:
// one row of f32 on a Granite Rapids .63 with 4 KiB into L1, 1.0 with half a KiB and 3 KiB into L2 (bf16 .81, .97); with 2 and 8
// KiB an Emerald Rapids is 1.02 to 1.13 times as fast again, for one to six rows of f32 and of bf16. Other CPUs: 4 KiB (one row of
// bf16 on a Sapphire Rapids .69 with none, .97 with 4 KiB).
static inline struct prefetch_stream prefetch_stream_ahead(void) {
    if (prefetch_as_intel()) {
        return (struct prefetch_stream){2048, 6144};
    }
    return (struct prefetch_stream){prefetch_as_zen4() ? 0 : 4096, 0};
}

// far: into L2 only, else into L1 too. Always inlined: gcc 12 drops calls of a function that only prefetches.
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

// Rows that the thread reads later: bytes [begin, begin + bytes) of each.
struct prefetch_rows_ahead {
    const void *const *x; // [rows]
    size_t rows, begin, bytes;
};

// Whether the rows would stay in L2 until they are read.
static inline bool prefetch_rows_stay(const struct prefetch_rows_ahead *ahead) {
    enum { MOST_BYTES = 256 << 10 };
    return ahead->rows * ahead->bytes <= MOST_BYTES;
}

// Prefetches part `share` of `shares` of the rows into L2, if they would stay there. All of them at once would be too many: CPUs
// drop prefetches.
static inline void prefetch_rows_share(const struct prefetch_rows_ahead *ahead, size_t share, size_t shares) {
    enum { LINE = 64 };
    const size_t lines = (ahead->bytes + LINE - 1) / LINE;
    const size_t from = lines * share / shares * LINE, to = lines * (share + 1) / shares * LINE;
    for (size_t r = 0; r < ahead->rows && prefetch_rows_stay(ahead); r++) {
        for (size_t at = from; at < to; at += LINE) {
            prefetch_into((const void *)((uintptr_t)ahead->x[r] + ahead->begin + at), true);
        }
    }
}

// The same, `lines` lines at each call of prefetch_rows_on, until all have been prefetched.
struct rows_walk {
    struct prefetch_rows_ahead of;
    size_t row, at; // the next line: row, and byte in it
    size_t lines;   // per call; 0: none left
};

// Spreads the rows over `times` calls of prefetch_rows_on.
static inline struct rows_walk prefetch_rows_begin(struct prefetch_rows_ahead of, size_t times) {
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

// Zen 4 drops prefetches into L2 when too many are outstanding: one in seven at a line every 16 cycles while another core reads
// memory, one in three at a line every 4 cycles. So each line is prefetched again later, which costs little if it has arrived.
enum { PREFETCH_AGAIN = 8192 }; // bytes between the two prefetches of a block's line (macrokernel_prefetch.h)
// Zen 5 drops some too; lines into L1 are prefetched again: b2048 of bf16 .866 -> .885 of the roof.
enum { PREFETCH_AGAIN_NEAR = 2048 };

// Prefetch distances in bytes for codes: `far` ahead into L2, `again` ahead into L2 once more, `near` ahead into L1. Codes are
// widened too slowly for Zen 4's hardware prefetcher. One to eight rows of E4M3 are 1.1 to 1.5 times as fast as with 16 KiB ahead
// into L1, of MXFP4 and INT4 1.0 to 1.3 times as with 4 KiB.
struct prefetch_distance {
    size_t near, again, far; // far = 0: into L1 only; again = 0: once
};
#define PREFETCH_CODES_ZEN4 ((struct prefetch_distance){2048, 6144, 12288})
#define PREFETCH_CODES_INTEL ((struct prefetch_distance){2048, 0, 8192}) // the distances of prefetch_stream_ahead

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
