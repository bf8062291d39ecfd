// The tile unit (AMX-TILE, AMX-BF16, AMX-INT8) by Intel's manual: Bochs has one, but the package is built without it. What the
// kernels use: LDTILECFG, STTILECFG, TILERELEASE, TILEZERO, TILELOADD, TILELOADDT1, TILESTORED, TDPBF16PS, TDPBSSD.
#ifndef EXPERTD_TESTS_EMULATED_TILES_H
#define EXPERTD_TESTS_EMULATED_TILES_H

#include <stdbool.h>
#include <stdint.h>

#define TILES_CPUID_EDX (1u << 22 | 1u << 24 | 1u << 25) // leaf 7: AMX-BF16, AMX-TILE, AMX-INT8

// Executes the instruction that ends at `end`, where Bochs says that the undefined one does. False where it is none of these, or
// one that the manual makes undefined (operands that do not fit, tiles not configured). Ends the program where it touches memory
// that is not the program's.
bool tiles_execute(uint64_t end);

#endif
