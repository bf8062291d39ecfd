// A daemon's answer against the scalar twin's, row by row. Owned by one thread.
#ifndef EXPERTD_TESTS_VERIFY_COMPARE_H
#define EXPERTD_TESTS_VERIFY_COMPARE_H

#include "tests/verify/cases.h"

struct comparison {
    uint64_t rows;      // compared
    uint64_t values;    // compared
    uint64_t differing; // whose bits are others (two NaNs count as equal: which NaN is not promised)
    double error_max;   // max over rows of max|y - y*| / max|y*|; Inf where one of them is not finite and they differ
};

// The twin computes some of a large layer's rows only, spread evenly: rows are independent of each other. This many of `tokens`.
uint64_t compare_rows(const struct layer_params *params, uint64_t tokens);

// `answer`: the daemon's [T, H]. Adds to *sum. EXPERTD_ERR_NOMEM, or what the twin says; EXPERTD_ERR_SHAPE_MISMATCH where the
// answer has not the request's shape and output dtype.
FALLIBLE compare_answer(const struct verify_case *verify_case, const struct model_layer *layer, enum expertd_dtype compute_dtype,
                        const struct expertd_tensor_view *answer, struct comparison *sum);

#endif
