// The grouped matmul library: the header that a program includes, after `pkg-config expertd-kernels` or CMake's
// find_package(expertd-kernels). Every public function, tag, type, constant and macro begins with expertd_ or EXPERTD_.
//
//   operation or object                    header
//   grouped matmul                         grouped_matmul.h; its weights: operand.h, weights.h (packed), quantised.h
//   transposed grouped matmul (tgmm)       transposed_grouped_matmul.h
//   ragged grouped GEMM                    grouped_gemm.h
//   group metadata                         group_metadata.h
//   arguments from tensor views            from_tensors.h
//   tiling, CompilerParams                 options.h
//   schedules of packed products           schedule.h; measuring and storing them: tuning.h
//   threads, the library's or a caller's   team.h
//   choice of the backend                  kernel_select.h
//   an expert's network, fused             expert_matmul.h, with activation.h
//   steps on single rows                   routing.h, combine.h, normalise.h
//   the operations on a GPU                devices.h, device_operations.h; not included by this header
//
// Memory. No operation allocates: each has a function that returns its workspace size, and the caller provides the workspace for
// the length of the call. These functions do allocate: expertd_team_create, expertd_team_create_on, and until they return
// expertd_tuning_load, expertd_tuning_store, expertd_tuning_identity_read and the first selection of a backend. Operands, options
// and everything they point to are borrowed for the length of the call; packed weights keep no reference to their source.
// vmem_limit_bytes (options.h) bounds one thread's share of the workspace; a team's threads have EXPERTD_TEAM_SCRATCH_BYTES each in
// addition. A calling thread needs 512 KiB of free stack, or 1 MiB where it multiplies packed weights without a team.
//
// Threads. Operations may run in any number of threads at the same time, each with its own workspace and its own team (or none). A
// team is used by one thread at a time; a second one aborts the program. expertd_kernel_select and expertd_tuning_use act on the
// whole process: call them before the first operation. An operation leaves the caller's floating-point mode unchanged. No function
// may be called from a signal handler.
//
// Errors are values (expertd/base/err.h): a function returns a code; expertd_err_message() and expertd_err_field() give the calling
// thread's message and the name of the argument at fault until its next error. Invalid arguments of an operation never end the
// program, unless disable_bounds_checks is set: the fields of a struct are checked, while the pointer to the struct must not be
// NULL. Outputs that overlap operands are not detected. Functions on single rows (expertd_routing_row, expertd_activation_row,
// expertd_combine_row, expertd_rms_normalise_row) check nothing.
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
