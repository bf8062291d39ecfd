// BFMLALT, then BFMLALB, of one pair of bf16. bfmlal.c is a file of its own, because it is compiled for FEAT_BF16.
#ifndef EXPERTD_TESTS_UNIT_KERNELS_CPU_BFMLAL_H
#define EXPERTD_TESTS_UNIT_KERNELS_CPU_BFMLAL_H

#include <stdint.h>

// *c is the addend and the result. x and w are two bf16 each, the odd one in the high half.
void bfmlal_pair(uint32_t x, uint32_t w, float *c);

#endif
