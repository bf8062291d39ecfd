// Copies of floats past the caches: a line is not read before it is written, as it is for an ordinary store, and pushes nothing
// out.
#ifndef EXPERTD_KERNELS_CPU_COMMON_NONTEMPORAL_STORE_H
#define EXPERTD_KERNELS_CPU_COMMON_NONTEMPORAL_STORE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    STREAM_LINE = 64,
    STREAM_BYTES_MIN = 1 << 20, // of outputs that are best written so: they outgrow a core's caches before anyone reads them
};

#if defined(__x86_64__)
#include <immintrin.h>

// `from` and `to` begin lines. Other threads see the copy after stream_end.
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

// Whole lines past the caches where both begin one, anything else as memcpy does.
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
