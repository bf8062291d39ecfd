// 16 by 16 words at a time.
#if defined(__x86_64__)
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/backends.h"
#include "kernels/cpu/turn_avx512.h"

enum { PACK_LANES = TURN_LINES, PACK_WORDS = TURN_WORDS };

PANEL_INLINE void turn_words(const char *src, size_t stride, uint32_t *dst) {
    turn_words_to(src, stride, dst, KERNEL_PANEL);
}

#define PACK_TARGET(name) avx512_##name
#include "kernels/cpu/pack_body.h"
#endif
