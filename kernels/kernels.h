// The grouped matmul library, whole: what a program that links it includes (pkg-config expertd-kernels).
//
//   operation                      header
//   grouped_matmul                 grouped_matmul.h; its weights: operand.h, weights.h (packed), quantised.h
//   transposed_grouped_matmul      transposed_grouped_matmul.h
//   make_group_metadata            group_metadata.h
//   grouped_gemm                   grouped_gemm.h
//   shapes and dtypes of tensors   from_tensors.h
//   tiling, CompilerParams         options.h
//   schedules of packed products   schedule.h
//   threads                        team.h
//   instruction sets               backend.h
//
// Nothing allocates but team_create: every operation says how much workspace it needs, and the caller lends it. Errors are values
// (base/err.h): the code, and in the calling thread a message and the name of the argument at fault.
#ifndef EXPERTD_KERNELS_KERNELS_H
#define EXPERTD_KERNELS_KERNELS_H

#include "kernels/backend.h"
#include "kernels/from_tensors.h"
#include "kernels/group_metadata.h"
#include "kernels/grouped_gemm.h"
#include "kernels/grouped_matmul.h"
#include "kernels/operand.h"
#include "kernels/options.h"
#include "kernels/quantised.h"
#include "kernels/schedule.h"
#include "kernels/team.h"
#include "kernels/transposed_grouped_matmul.h"
#include "kernels/weights.h"

#endif
