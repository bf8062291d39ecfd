// The shared memory of one request: its extents become pinned views, what must not change under us becomes a copy, and its answer
// goes into the caller's memory once, when it is committed.
//
// Owned by the request, on its thread; zeroed it holds nothing. Errors carry the field at fault.
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
    uint8_t *output; // where the answer goes; NULL: it is sent
};

// `tensor` as a view: of the message, or of its region, which is pinned then. registry NULL: shared memory is off. Those of
// region_pin, at FIELD.extent.
FALLIBLE request_regions_view(struct request_regions *regions, struct region_registry *registry, const struct wire_tensor *tensor,
                              const char *field, struct expertd_tensor_view *out);
// The same, and what lies in a region is copied: the caller cannot change what has been checked. EXPERTD_ERR_TOO_LARGE over
// bytes_max.
FALLIBLE request_regions_copy(struct request_regions *regions, struct region_registry *registry, const struct wire_tensor *tensor,
                              const char *field, uint64_t bytes_max, struct expertd_tensor_view *out);
// Where an answer of `bytes` bytes is to go. EXPERTD_ERR_TENSOR_BYTES where the extent has another length, and those of region_pin.
FALLIBLE request_regions_output(struct request_regions *regions, struct region_registry *registry, const struct wire_extent *extent,
                                uint64_t bytes);
// Lets go of everything; legal twice.
void request_regions_release(struct request_regions *regions, struct region_registry *registry);

#endif
