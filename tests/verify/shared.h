// The same requests through shared memory: every tensor in a region, and the answer too.
#ifndef EXPERTD_TESTS_VERIFY_SHARED_H
#define EXPERTD_TESTS_VERIFY_SHARED_H

#include "client/c/region.h"

// *out is `request` with its tensors copied into the region, and a place there for its answer, which is [T, H] of
// request->output_dtype. EXPERTD_ERR_TOO_LARGE where the region is too small.
FALLIBLE shared_place(const struct client_region *region, const struct wire_request *request, struct wire_request *out);

// The answer of such a request where it lies: *view gets its data. EXPERTD_ERR_MALFORMED where the answer names another place.
FALLIBLE shared_answer(const struct client_region *region, const struct wire_request *placed, const struct wire_tensor *answer,
                       struct expertd_tensor_view *view);

#endif
