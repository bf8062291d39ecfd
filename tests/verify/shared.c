#include "tests/verify/shared.h"

#include <inttypes.h>
#include <string.h>

struct layout {
    const struct client_region *region;
    uint64_t next;
};

static FALLIBLE take(struct layout *layout, uint64_t bytes, struct wire_extent *out) {
    uint64_t left = layout->region->bytes - layout->next;
    if (bytes > left) {
        FAIL(EXPERTD_ERR_TOO_LARGE, "the region of %" PRIu64 " bytes is too small for this request; let --tokens name fewer",
             layout->region->bytes);
    }
    *out = (struct wire_extent){layout->region->id, layout->next, bytes};
    uint64_t rounded = (bytes + CLIENT_REGION_ALIGN - 1) / CLIENT_REGION_ALIGN * CLIENT_REGION_ALIGN;
    layout->next += rounded < left ? rounded : left;
    return OK;
}

static FALLIBLE place_tensor(struct layout *layout, struct wire_tensor *tensor) {
    if (!tensor->present) {
        return OK;
    }
    TRY(take(layout, tensor->view.bytes, &tensor->extent));
    if (tensor->view.bytes > 0) {
        memcpy(layout->region->data + tensor->extent.offset, tensor->view.data, tensor->view.bytes);
    }
    tensor->has_extent = true;
    return OK;
}

FALLIBLE shared_place(const struct client_region *region, const struct wire_request *request, struct wire_request *out) {
    struct layout layout = {.region = region};
    *out = *request;
    struct wire_tensor *tensors[] = {&out->hidden,  &out->hidden_scale, &out->router_logits, &out->ids,
                                     &out->weights, &out->token_ids,    &out->router_input};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        TRY(place_tensor(&layout, tensors[i]));
    }
    const uint64_t *shape = request->hidden.view.shape;
    out->has_output = true;
    return take(&layout, shape[0] * shape[1] * expertd_dtype_size(request->output_dtype), &out->output);
}

FALLIBLE shared_answer(const struct client_region *region, const struct wire_request *placed, const struct wire_tensor *answer,
                       struct expertd_tensor_view *view) {
    *view = answer->view;
    if (!answer->has_extent || answer->extent.region != region->id || answer->extent.offset != placed->output.offset ||
        answer->extent.length != placed->output.length) {
        FAIL(EXPERTD_ERR_MALFORMED, "the answer names another extent than the requested one");
    }
    view->data = region->data + placed->output.offset;
    view->bytes = placed->output.length;
    return OK;
}
