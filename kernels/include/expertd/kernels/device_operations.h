// The contract's operations on plain operands, on a device: what grouped_matmul, transposed_grouped_matmul and grouped_gemm mean,
// with the same arguments and the same refusals. Data, scales, existing_out, c, out and lhs_rows lie in the device's memory; sizes,
// dims, alpha and beta on the host, where they are checked before anything is launched. Bits are those of the device's arithmetic.
//
// Asynchronous: operands live until devices->table->wait. One list of products is under way at a time: a call first waits for all
// that the device was given before. One thread. Tilings and buffer counts are without effect: the kernel has one tiling. Refused
// beside what the host refuses: weights packed for the CPU, `interpret`, more groups than there is room for.
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

struct expertd_device_operations; // one device's: the list of products under way, on the host (pinned) and there

// EXPERTD_ERR_NOMEM. devices is borrowed for its life.
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
