// The contract's operations on plain operands, on a device: what grouped_matmul, transposed_grouped_matmul and grouped_gemm mean,
// with the same arguments and the same refusals. Data, scales, existing_out, c, out and lhs_rows lie in the device's memory; sizes,
// dims, alpha and beta on the host, where they are checked before anything is launched. Bits are those of the device's arithmetic.
//
// Asynchronous: operands live until devices->table->wait. One list of products is under way at a time: a call first waits for all
// that the device was given before. One thread. Tilings and buffer counts are without effect: the kernel has one tiling. Refused
// beside what the host refuses: weights packed for the CPU, `interpret`, more groups than there is room for.
#ifndef EXPERTD_KERNELS_DEVICE_OPERATIONS_H
#define EXPERTD_KERNELS_DEVICE_OPERATIONS_H

#include "kernels/devices.h"
#include "kernels/group_metadata.h"
#include "kernels/grouped_gemm.h"
#include "kernels/grouped_matmul.h"
#include "kernels/transposed_grouped_matmul.h"

struct device_operations; // one device's: the list of products under way, on the host (pinned) and there

// ERR_NOMEM. devices is borrowed for its life.
FALLIBLE device_operations_create(struct devices *devices, uint32_t number, uint32_t groups_max, struct device_operations **out);
void device_operations_destroy(struct device_operations *operations); // NULL is legal

FALLIBLE device_grouped_matmul(struct device_operations *operations, const struct grouped_matmul_args *args);
FALLIBLE device_transposed_grouped_matmul(struct device_operations *operations, const struct transposed_grouped_matmul_args *args);
FALLIBLE device_grouped_gemm(struct device_operations *operations, const struct grouped_gemm_args *args);

#endif
