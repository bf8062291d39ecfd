// The shared memory of one request: extents become views of pinned regions, data that must not change after its check becomes a
// copy, and the answer is written to the caller's memory once, when it is committed.
//
// Owned by the request, used on its thread. A zeroed struct holds nothing. Errors name the field at fault.
#ifndef EXPERTD_DAEMON_REQUEST_REQUEST_REGIONS_H
#define EXPERTD_DAEMON_REQUEST_REQUEST_REGIONS_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/regions/region.h"
#include "proto/wire/wire.h"

// Pins: hidden, hidden_scale, the two of routes, token_ids, router_input, output. Copies: scale, and routes or token_ids.
enum { REQUEST_PINS_MAX = 7, REQUEST_COPIES_MAX = 3 };

struct request_regions {
    struct region *pins[REQUEST_PINS_MAX];
    void *copies[REQUEST_COPIES_MAX];
    size_t num_pins, num_copies;
    uint64_t copied_bytes;
    uint8_t *output; // where the answer is written; NULL: the answer is sent
};

// A view of `tensor`: of the message's bytes, or of its region, which stays pinned. registry NULL: shared memory is off. Errors of
// region_pin, with field FIELD.extent.
FALLIBLE request_regions_view(struct request_regions *regions, struct region_registry *registry, const struct wire_tensor *tensor,
                              const char *field, struct expertd_tensor_view *out);
// The same, but data in a region is copied, so that the caller cannot change it after its check. EXPERTD_ERR_TOO_LARGE: more than
// bytes_max.
FALLIBLE request_regions_copy(struct request_regions *regions, struct region_registry *registry, const struct wire_tensor *tensor,
                              const char *field, uint64_t bytes_max, struct expertd_tensor_view *out);
// Sets regions->output for an answer of `bytes` bytes. EXPERTD_ERR_TENSOR_BYTES: the extent has another length. Errors of
// region_pin.
FALLIBLE request_regions_output(struct request_regions *regions, struct region_registry *registry, const struct wire_extent *extent,
                                uint64_t bytes);
// Unpins and frees everything; legal twice.
void request_regions_release(struct request_regions *regions, struct region_registry *registry);

#endif
