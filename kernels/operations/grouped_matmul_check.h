// The part of a grouped matmul's argument check that expertd_grouped_matmul_check omits. Private to kernels/.
#ifndef EXPERTD_KERNELS_OPERATIONS_GROUPED_MATMUL_CHECK_H
#define EXPERTD_KERNELS_OPERATIONS_GROUPED_MATMUL_CHECK_H

#include "base/err.h"
#include "expertd/kernels/grouped_matmul.h"

// out: present, aligned and large enough. The public check skips it, since a caller may check its arguments before it has an
// output.
FALLIBLE grouped_matmul_check_out(const struct expertd_grouped_matmul_args *args);

#endif
