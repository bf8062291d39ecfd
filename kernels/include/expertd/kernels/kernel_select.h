// The instruction set that this process computes with: the fastest that its CPU has, or one by name, chosen once at start.
//
// What "auto" chooses from gives the same bits, whichever it is; "amx" and "scalar_sm90" have bf16 sums of their own, which the
// numerics_id tells. Each is compared with its scalar twin on boundary vectors when it is chosen, and refused where it differs.
#ifndef EXPERTD_KERNELS_KERNEL_SELECT_H
#define EXPERTD_KERNELS_KERNEL_SELECT_H

#include <stdbool.h>
#include <stddef.h>

#include "expertd/base/dtype.h"
#include "expertd/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

// Chooses for all threads: `name` from configuration, or "auto" (tried and checked in some 10 ms). Before the first operation.
// EXPERTD_ERR_CONFIG for an unknown name, EXPERTD_ERR_UNAVAILABLE for one that this CPU lacks; both messages list what there is.
EXPERTD_FALLIBLE expertd_kernel_select(const char *name);

// Chooses the fastest that computes as `arithmetic` says ("cpu", "cpu_amx", "sm_90": the last part of a numerics_id), the scalar
// twin where this CPU has no other. EXPERTD_ERR_UNAVAILABLE for one that this build does not know.
EXPERTD_FALLIBLE expertd_kernel_select_arithmetic(const char *arithmetic);

// The chosen one's name: "avx2", "scalar", ...; "auto" is chosen at the first call where nobody chose. Never NULL. Any thread.
const char *expertd_kernel_selected_name(void);

// The name of the first one that a choice by speed did not take because its *differs ("bf16 sum", ...) was not its twin's: an
// emulator or a defective CPU, and a slower one computes. NULL, *differs too: there was none. Any thread.
const char *expertd_kernel_passed_over(const char **differs);

// The name under which products of f32, bf16 and quantised weights are tuned: the narrowest instruction set that shares its kernels
// for them with the chosen one. avx512vnni is "avx512" here.
const char *expertd_kernel_float_name(void);

// The last part of the numerics_id of layers computed in `dtype` by the chosen one: "cpu", "cpu_amx" or "sm_90".
const char *expertd_kernel_arithmetic_name(enum expertd_dtype dtype);

// The i-th instruction set of this build, widest first, "scalar" last; *usable: this CPU runs it. NULL past the end, *usable as it
// was.
const char *expertd_kernel_name_at(size_t i, bool *usable);

#ifdef __cplusplus
}
#endif

#endif
