// pack_body.h's packing by AVX2.
#if defined(__x86_64__)
#include "kernels/cpu/avx2/transpose_avx2.h"

enum { PACK_LANES = TRANSPOSE_LINES, PACK_WORDS = TRANSPOSE_LINE_WORDS };

PANEL_INLINE void transpose_words(const char *src, size_t stride, uint32_t *dst) {
    transpose_words_to(src, stride, dst, EXPERTD_KERNEL_PANEL);
}

#define PACK_TARGET(name) avx2_##name
#include "kernels/cpu/common/pack_body.h"
#endif
