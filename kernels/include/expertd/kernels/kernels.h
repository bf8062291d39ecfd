// The grouped matmul library, whole: what a program that links it includes (pkg-config expertd-kernels).
//
// In the headers and the library that are installed each function, tag, type, constant and macro has a prefix, expertd_ or EXPERTD_
// (install-headers); members of structures have none. In the project's own tree there is none.
//
//   operation                      header
//   grouped_matmul                 grouped_matmul.h; its weights: operand.h, weights.h (packed), quantised.h
//   transposed_grouped_matmul      transposed_grouped_matmul.h
//   expertd_make_group_metadata            group_metadata.h
//   grouped_gemm                   grouped_gemm.h
//   shapes and dtypes of tensors   from_tensors.h
//   tiling, CompilerParams         options.h
//   schedules of packed products   schedule.h; found by trial and kept in a file: tuning.h
//   threads, ours or a caller's    team.h
//   instruction sets               kernel_select.h
//   an expert's network            expert_matmul.h: gate and up with the activation (activation.h), down with bias and rounding
//   around it, row by row          routing.h, combine.h, normalise.h
//   the operations on a GPU        devices.h, device_operations.h, which this header does not bring
//
// Memory. Nothing allocates but expertd_team_create and expertd_team_create_on, and for their length expertd_tuning_load,
// expertd_tuning_store, expertd_tuning_identity_read and the first choice of kernels: every operation says how much workspace it
// needs, and the caller lends it for the length of the call. Operands, options and what they point to are borrowed for the length
// of the call; packed weights hold no reference to what they were packed from. vmem_limit_bytes (options.h) bounds what a thread
// keeps in the workspace; a team's threads have EXPERTD_TEAM_SCRATCH_BYTES each beside it. A caller's stack need have no more than
// 512 KiB left, but 1 MiB where packed weights are multiplied without a team.
//
// Threads. Operations may run at the same time in any number of threads, each with a workspace and a team of its own (or none); a
// team is used by one thread at a time, which is checked and ends the program. expertd_kernel_select and expertd_tuning_use set
// what the whole process computes with: before the first operation. An operation leaves the caller's floating-point mode as it was,
// and is not to be called from a signal handler.
//
// Errors are values (base/err.h): the code, and in the calling thread a message and the name of the argument at fault, until that
// thread's next error. Bad arguments of an operation never end the program, unless disable_bounds_checks says that there are none:
// what a struct says is looked at, the pointer to the struct itself is never NULL. That an output overlaps an operand is not looked
// for (an existing_out may be out itself). Functions on one row (expertd_routing_row, expertd_activation_row, expertd_combine_row,
// expertd_rms_normalise_row) check nothing.
#ifndef EXPERTD_KERNELS_KERNELS_H
#define EXPERTD_KERNELS_KERNELS_H

#include "expertd/kernels/activation.h"
#include "expertd/kernels/combine.h"
#include "expertd/kernels/expert_matmul.h"
#include "expertd/kernels/from_tensors.h"
#include "expertd/kernels/group_metadata.h"
#include "expertd/kernels/grouped_gemm.h"
#include "expertd/kernels/grouped_matmul.h"
#include "expertd/kernels/kernel_select.h"
#include "expertd/kernels/normalise.h"
#include "expertd/kernels/operand.h"
#include "expertd/kernels/options.h"
#include "expertd/kernels/quantised.h"
#include "expertd/kernels/routing.h"
#include "expertd/kernels/schedule.h"
#include "expertd/kernels/team.h"
#include "expertd/kernels/transposed_grouped_matmul.h"
#include "expertd/kernels/tuning.h"
#include "expertd/kernels/weights.h"

#endif
