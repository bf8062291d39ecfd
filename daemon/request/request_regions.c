#include "daemon/request/request_regions.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FALLIBLE pin(struct request_regions *regions, struct region_registry *registry, const struct wire_extent *extent,
                    const char *field, uint8_t **data) {
    if (!registry) {
        FAIL_FIELD(EXPERTD_ERR_REGION_UNKNOWN, field, "%s: region %" PRIu64 " is not open: this service has no shared memory",
                   field, extent->region);
    }
    INVARIANT(regions->num_pins < REQUEST_PINS_MAX);
    err_t e = region_pin(registry, extent->region, extent->offset, extent->length, &regions->pins[regions->num_pins], data);
    if (err_is(e)) {
        return err_record(e.code, field, "%s: %s", field, expertd_err_message());
    }
    regions->num_pins++;
    return OK;
}

FALLIBLE request_regions_view(struct request_regions *regions, struct region_registry *registry, const struct wire_tensor *tensor,
                              const char *field, struct expertd_tensor_view *out) {
    *out = tensor->view;
    if (!tensor->has_extent) {
        return OK;
    }
    char extent_field[EXPERTD_ERR_FIELD_MAX];
    uint8_t *data;
    snprintf(extent_field, sizeof extent_field, "%s.extent", field);
    TRY(pin(regions, registry, &tensor->extent, extent_field, &data));
    out->data = data;
    out->bytes = tensor->extent.length;
    return OK;
}

FALLIBLE request_regions_copy(struct request_regions *regions, struct region_registry *registry, const struct wire_tensor *tensor,
                              const char *field, uint64_t bytes_max, struct expertd_tensor_view *out) {
    TRY(request_regions_view(regions, registry, tensor, field, out));
    if (!tensor->has_extent) {
        return OK;
    }
    if (out->bytes > bytes_max) {
        FAIL_FIELD(EXPERTD_ERR_TOO_LARGE, field, "%s: %" PRIu64 " bytes, at most %" PRIu64 " for this layer", field, out->bytes,
                   bytes_max);
    }
    INVARIANT(regions->num_copies < REQUEST_COPIES_MAX);
    void *copy = malloc(out->bytes ? out->bytes : 1);
    if (!copy) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a copy of %s", field);
    }
    memcpy(copy, out->data, out->bytes);
    regions->copies[regions->num_copies++] = copy;
    regions->copied_bytes += out->bytes;
    out->data = copy;
    return OK;
}

FALLIBLE request_regions_output(struct request_regions *regions, struct region_registry *registry, const struct wire_extent *extent,
                                uint64_t bytes) {
    TRY(pin(regions, registry, extent, "output", &regions->output));
    if (extent->length != bytes) {
        FAIL_FIELD(EXPERTD_ERR_TENSOR_BYTES, "output.length", "output.length: %" PRIu64 " bytes for an answer of %" PRIu64,
                   extent->length, bytes);
    }
    return OK;
}

void request_regions_release(struct request_regions *regions, struct region_registry *registry) {
    for (size_t i = 0; i < regions->num_pins; i++) {
        region_unpin(registry, regions->pins[i]);
    }
    for (size_t i = 0; i < regions->num_copies; i++) {
        free(regions->copies[i]);
    }
    *regions = (struct request_regions){0};
}
