// Copies with non-temporal stores: unlike an ordinary store, they do not read a line before writing it, and evict nothing from the
// caches.
#ifndef EXPERTD_KERNELS_CPU_COMMON_NONTEMPORAL_STORE_H
#define EXPERTD_KERNELS_CPU_COMMON_NONTEMPORAL_STORE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    STREAM_LINE = 64,
    STREAM_BYTES_MIN =
        1 << 20, // least size of an output for which this is faster: it would leave a core's caches before it is read
};

#if defined(__x86_64__)
#include <immintrin.h>

// `from` and `to` are aligned to STREAM_LINE. Other threads may read the copy after stream_end.
static inline void stream_lines(char *to, const char *from, size_t bytes) {
    for (size_t i = 0; i < bytes; i += sizeof(__m128i)) {
        _mm_stream_si128((__m128i *)(to + i), _mm_load_si128((const __m128i *)(from + i)));
    }
}

static inline void stream_end(void) {
    _mm_sfence();
}
#else
static inline void stream_lines(char *to, const char *from, size_t bytes) {
    memcpy(to, from, bytes);
}

static inline void stream_end(void) {
}
#endif

// Copies complete lines with non-temporal stores if both pointers are aligned to STREAM_LINE, and all other bytes with memcpy.
static inline void stream_bytes(void *to, const void *from, size_t bytes) {
    size_t lines = 0;
    if ((((uintptr_t)to | (uintptr_t)from) % STREAM_LINE) == 0) {
        lines = bytes / STREAM_LINE * STREAM_LINE;
        stream_lines(to, from, lines);
    }
    memcpy((char *)to + lines, (const char *)from + lines, bytes - lines);
}

static inline void stream_copy(float *to, const float *from, size_t count) {
    stream_bytes(to, from, count * sizeof *to);
}

#endif
