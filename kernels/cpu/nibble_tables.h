// bf16 of codes of 4 bits, each table twice: VPERMW looks at 5 bits. Private to cpu/quantised_*.
#ifndef EXPERTD_KERNELS_CPU_NIBBLE_TABLES_H
#define EXPERTD_KERNELS_CPU_NIBBLE_TABLES_H

#include <stdint.h>

#define TWICE(...)                                                                                                                 \
    { __VA_ARGS__, __VA_ARGS__ }
static const uint16_t E2M1_BF16[32] = TWICE(0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80,
                                            0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0);
static const uint16_t INT4_BF16[32] = TWICE(0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000,
                                            0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0);

#endif
