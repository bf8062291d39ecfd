// Selects the backend (the kernels for one instruction set) that this process computes with: the fastest on this CPU, the fastest
// of those with the common bits, or one by name.
//
// "auto" is the fastest: "amx" on a CPU that has it. All backends that "portable" chooses from give the same bits; "amx",
// "scalar_amx" and "scalar_sm90" sum bf16 products in another order, which the numerics_id shows. A backend is compared with its
// scalar twin on boundary values when it is selected, and not used where it differs.
#ifndef EXPERTD_KERNELS_KERNEL_SELECT_H
#define EXPERTD_KERNELS_KERNEL_SELECT_H

#include <stdbool.h>
#include <stddef.h>

#include "expertd/base/dtype.h"
#include "expertd/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

// Selects a backend for all threads: by name, or "auto" or "portable" (they measure and check for about 10 ms). Call it before the
// first operation.
// EXPERTD_ERR_CONFIG: unknown name. EXPERTD_ERR_UNAVAILABLE: this CPU lacks it. Both messages list the usable backends.
EXPERTD_FALLIBLE expertd_kernel_select(const char *name);

// Selects the fastest backend with the given arithmetic: "cpu", "cpu_amx" or "sm_90", the last part of a numerics_id. Where this
// CPU has no other, that is the scalar twin. EXPERTD_ERR_UNAVAILABLE: this build does not know the arithmetic.
EXPERTD_FALLIBLE expertd_kernel_select_arithmetic(const char *arithmetic);

// The selected backend's name: "avx2", "scalar", ... Selects "auto" where nothing is selected yet. Never NULL. Any thread.
const char *expertd_kernel_selected_name(void);

// The first backend that "auto" or "portable" rejected because it differs from its scalar twin, which points to an emulator or a
// defective CPU; a slower backend is then in use. *differs: the operation that differed ("bf16 sum", ...). NULL, *differs too: none
// was rejected. Any thread.
const char *expertd_kernel_passed_over(const char **differs);

// The name under which tuned schedules of f32, bf16 and quantised products are stored: the narrowest instruction set that has the
// same kernels for them as the selected backend. For avx512vnni it is "avx512".
const char *expertd_kernel_float_name(void);

// The arithmetic of the selected backend for products in `dtype`, as in a numerics_id: "cpu", "cpu_amx" or "sm_90".
const char *expertd_kernel_arithmetic_name(enum expertd_dtype dtype);

// The i-th backend of this build, widest first, "scalar" last. *usable: this CPU runs it. NULL past the end; *usable is then unset.
const char *expertd_kernel_name_at(size_t i, bool *usable);

#ifdef __cplusplus
}
#endif

#endif
