// Compares a daemon's answer with the scalar reference (the kernels' scalar twin), row by row. Owned by one thread.
#ifndef EXPERTD_TESTS_VERIFY_COMPARE_H
#define EXPERTD_TESTS_VERIFY_COMPARE_H

#include "tests/verify/cases.h"

struct comparison {
    uint64_t rows;      // compared
    uint64_t values;    // compared
    uint64_t differing; // with other bits; two NaNs count as equal, since the NaN's bits are not promised
    double error_max;   // max over rows of max|y - y*| / max|y*|; Inf if values differ and one is not finite
};

// The number of rows of `tokens` to compare. The reference is slow, so that of a large layer only some rows, evenly spread, are
// compared; rows are independent of each other.
uint64_t compare_rows(const struct layer_params *params, uint64_t tokens);

// Compares `answer`, the daemon's [T, H], and adds to *sum. EXPERTD_ERR_SHAPE_MISMATCH if the answer has another shape or output
// dtype than requested; EXPERTD_ERR_NOMEM; the reference's errors.
FALLIBLE compare_answer(const struct verify_case *verify_case, const struct model_layer *layer, enum expertd_dtype compute_dtype,
                        const struct expertd_tensor_view *answer, struct comparison *sum);

#endif
