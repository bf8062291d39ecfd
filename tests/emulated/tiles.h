// The tile unit (AMX-TILE, AMX-BF16, AMX-INT8) after Intel's manual: the package is built without Bochs's own. It has the
// instructions that the kernels use: LDTILECFG, STTILECFG, TILERELEASE, TILEZERO, TILELOADD, TILELOADDT1, TILESTORED, TDPBF16PS,
// TDPBSSD.
#ifndef EXPERTD_TESTS_EMULATED_TILES_H
#define EXPERTD_TESTS_EMULATED_TILES_H

#include <stdbool.h>
#include <stdint.h>

#define TILES_CPUID_EDX (1u << 22 | 1u << 24 | 1u << 25) // leaf 7: AMX-BF16, AMX-TILE, AMX-INT8

// Executes the instruction that ends at `end`, which Bochs reported as undefined. Returns false if it is not one of these
// instructions, or if the manual defines it to fault (operands that do not fit, tiles that are not configured). Ends the program if
// the instruction accesses memory outside the program.
bool tiles_execute(uint64_t end);

#endif
