// Lookup tables from codes to bf16: the high and the low bytes of 128 magnitudes, for VPERMI2B. Private to kernels/cpu.
#ifndef EXPERTD_KERNELS_CPU_AVX512_QUANTISED_CODE_TABLES_AVX512_H
#define EXPERTD_KERNELS_CPU_AVX512_QUANTISED_CODE_TABLES_AVX512_H

#include <stdint.h>

struct byte_table {
    uint8_t high[128], low[128];
};

#define TIMES_8(f, c) f((c)), f((c) + 1), f((c) + 2), f((c) + 3), f((c) + 4), f((c) + 5), f((c) + 6), f((c) + 7)
#define TIMES_64(f, c)                                                                                                             \
    TIMES_8(f, (c)), TIMES_8(f, (c) + 8), TIMES_8(f, (c) + 16), TIMES_8(f, (c) + 24), TIMES_8(f, (c) + 32), TIMES_8(f, (c) + 40),  \
        TIMES_8(f, (c) + 48), TIMES_8(f, (c) + 56)
// Subnormals: m * 2^-9 (E4M3) and m * 2^-16 (E5M2).
#define E4M3_SUBNORMAL(m) ((m) == 0 ? 0 : (m) == 1 ? 0x3b00 : (m) < 4 ? 0x3b80 + ((m)-2) * 0x40 : 0x3c00 + ((m)-4) * 0x20)
#define E5M2_SUBNORMAL(m) ((m) == 0 ? 0 : (m) == 1 ? 0x3780 : 0x3800 + ((m)-2) * 0x40)
#define E4M3_BF16(c) ((c) == 127 ? 0x7fc0 : (c) < 8 ? E4M3_SUBNORMAL(c) : ((c) << 4) + (120 << 7))
#define E5M2_BF16(c) ((c) > 124 ? 0x7fc0 : (c) == 124 ? 0x7f80 : (c) < 4 ? E5M2_SUBNORMAL(c) : ((c) << 5) + (112 << 7))
#define E4M3_HIGH(c) (uint8_t)(E4M3_BF16(c) >> 8)
#define E4M3_LOW(c) (uint8_t)(E4M3_BF16(c))
#define E5M2_HIGH(c) (uint8_t)(E5M2_BF16(c) >> 8)
#define E5M2_LOW(c) (uint8_t)(E5M2_BF16(c))

#endif
