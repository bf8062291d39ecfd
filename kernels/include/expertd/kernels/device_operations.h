// grouped_matmul, transposed_grouped_matmul and grouped_gemm on unpacked operands, computed by a device. Arguments, checks and
// errors are those of the CPU's functions. Data, scales, existing_out, c, out and lhs_rows point to device memory; group sizes,
// dims, alpha and beta point to host memory and are checked before anything is launched. Bits are those of the device's arithmetic.
//
// Calls are asynchronous: operands must live until expertd_devices_wait. One list of products is in progress at a time: a call
// first waits for all earlier work of the device. Use from one thread. Tilings and buffer counts have no effect. In addition to the
// CPU's errors, these are refused: weights packed for the CPU, `interpret`, and more than groups_max groups.
#ifndef EXPERTD_KERNELS_DEVICE_OPERATIONS_H
#define EXPERTD_KERNELS_DEVICE_OPERATIONS_H

#include "expertd/kernels/devices.h"
#include "expertd/kernels/group_metadata.h"
#include "expertd/kernels/grouped_gemm.h"
#include "expertd/kernels/grouped_matmul.h"
#include "expertd/kernels/transposed_grouped_matmul.h"

#ifdef __cplusplus
extern "C" {
#endif

struct expertd_device_operations; // holds the list of products in progress, in pinned host memory and on the device

// For device `number` of `devices`, and up to groups_max groups per call. `devices` is borrowed until destroy. EXPERTD_ERR_NOMEM,
// and the errors of expertd_devices_check.
EXPERTD_FALLIBLE expertd_device_operations_create(struct expertd_devices *devices, uint32_t number, uint32_t groups_max,
                                                  struct expertd_device_operations **out);
void expertd_device_operations_destroy(struct expertd_device_operations *operations); // NULL is legal

EXPERTD_FALLIBLE expertd_device_grouped_matmul(struct expertd_device_operations *operations,
                                               const struct expertd_grouped_matmul_args *args);
EXPERTD_FALLIBLE expertd_device_transposed_grouped_matmul(struct expertd_device_operations *operations,
                                                          const struct expertd_transposed_grouped_matmul_args *args);
EXPERTD_FALLIBLE expertd_device_grouped_gemm(struct expertd_device_operations *operations,
                                             const struct expertd_grouped_gemm_args *args);

#ifdef __cplusplus
}
#endif

#endif
