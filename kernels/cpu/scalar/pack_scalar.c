// Decoding and packing in portable C.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/backend/backends.h"

enum { PACK_LANES = 4, PACK_WORDS = 4 };

static inline void transpose_words(const char *src, size_t stride, uint32_t *dst) {
    for (size_t line = 0; line < PACK_LANES; line++) {
        for (size_t word = 0; word < 4; word++) {
            memcpy(&dst[word * EXPERTD_KERNEL_PANEL + line], src + line * stride + word * sizeof *dst, sizeof *dst);
        }
    }
}

#define PACK_TARGET(name) scalar_##name
#include "kernels/cpu/common/pack_body.h"
