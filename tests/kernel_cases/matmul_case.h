// What the cases of grouped_matmul share, whatever kind their weights are of.
#ifndef EXPERTD_TESTS_KERNEL_CASES_MATMUL_CASE_H
#define EXPERTD_TESTS_KERNEL_CASES_MATMUL_CASE_H

#include "case.h"
#include "expertd/kernels/from_tensors.h"

// Tensors and attributes, not yet checked against each other.
FALLIBLE matmul_case_read(const struct kernel_case *c, struct expertd_grouped_matmul_tensors *tensors,
                          struct expertd_matmul_options *options);

// Runs what passed its check, and compares.
FALLIBLE matmul_case_run(const struct kernel_case *c, struct expertd_grouped_matmul_args *args);

#endif
