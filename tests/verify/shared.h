// Requests through shared memory: every tensor and the answer lie in a region.
#ifndef EXPERTD_TESTS_VERIFY_SHARED_H
#define EXPERTD_TESTS_VERIFY_SHARED_H

#include "client/c/region.h"

// Copies the request's tensors into the region. *out is the request with extents instead of data, and with an extent for the
// answer, [T, H] of request->output_dtype. EXPERTD_ERR_TOO_LARGE if the region is too small.
FALLIBLE shared_place(const struct client_region *region, const struct wire_request *request, struct wire_request *out);

// Sets *view to the answer's data in the region. EXPERTD_ERR_MALFORMED if the answer names another extent than requested.
FALLIBLE shared_answer(const struct client_region *region, const struct wire_request *placed, const struct wire_tensor *answer,
                       struct expertd_tensor_view *view);

#endif
