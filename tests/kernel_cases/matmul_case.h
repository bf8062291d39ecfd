// Shared by the cases of grouped_matmul with plain and with quantised weights.
#ifndef EXPERTD_TESTS_KERNEL_CASES_MATMUL_CASE_H
#define EXPERTD_TESTS_KERNEL_CASES_MATMUL_CASE_H

#include "case.h"
#include "expertd/kernels/from_tensors.h"

// Reads tensors and attributes, without checking them against each other.
FALLIBLE matmul_case_read(const struct kernel_case *c, struct expertd_grouped_matmul_tensors *tensors,
                          struct expertd_matmul_options *options);

// Runs checked arguments and compares the answer.
FALLIBLE matmul_case_run(const struct kernel_case *c, struct expertd_grouped_matmul_args *args);

#endif
