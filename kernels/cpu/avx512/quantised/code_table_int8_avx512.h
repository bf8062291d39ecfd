// The high and low bytes of the integers 0 to 127 as bf16. Private to kernels/cpu.
#ifndef EXPERTD_KERNELS_CPU_AVX512_QUANTISED_CODE_TABLE_INT8_AVX512_H
#define EXPERTD_KERNELS_CPU_AVX512_QUANTISED_CODE_TABLE_INT8_AVX512_H

#include "kernels/cpu/avx512/quantised/code_tables_avx512.h"

#define INT8_FROM_8(m) ((m) < 16 ? 0x4100 + ((m)-8) * 16 : (m) < 32 ? 0x4180 + ((m)-16) * 8 : 0x4200 + ((m)-32) * 4)
#define INT8_FROM_2(m) ((m) < 4 ? 0x4000 + ((m)-2) * 64 : (m) < 8 ? 0x4080 + ((m)-4) * 32 : INT8_FROM_8(m))
#define INT8_BF16(m) ((m) == 0 ? 0 : (m) == 1 ? 0x3f80 : (m) < 64 ? INT8_FROM_2(m) : 0x4280 + ((m)-64) * 2)
#define INT8_HIGH(m) (uint8_t)(INT8_BF16(m) >> 8)
#define INT8_LOW(m) (uint8_t)(INT8_BF16(m))

#endif
