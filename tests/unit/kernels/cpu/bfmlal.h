// BFMLALT, then BFMLALB, of a pair: in a file of its own, which the build file compiles for FEAT_BF16.
#ifndef EXPERTD_TESTS_UNIT_KERNELS_CPU_BFMLAL_H
#define EXPERTD_TESTS_UNIT_KERNELS_CPU_BFMLAL_H

#include <stdint.h>

// *c is the addend and the result; x and w are two bf16 each, the odd one high.
void bfmlal_pair(uint32_t x, uint32_t w, float *c);

#endif
