// The request that computes nothing: every id is -1. Its tensors lie in the message, or in a region shared with the daemon.
#ifndef EXPERTD_TESTS_BENCH_SERVICE_COST_REQUEST_H
#define EXPERTD_TESTS_BENCH_SERVICE_COST_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/c/region.h"

struct request_options {
    uint32_t layer, hidden; // the layer's number, and its H
    size_t tokens;
    struct client_region *region; // where the tensors and the output go, from its beginning; NULL: the message. Borrowed
};

struct request {
    struct proto_bytes bytes; // the message; the owner frees bytes.data
    size_t answer_bytes;      // of the message that answers it
    uint8_t *output;          // in the region, poisoned here, or NULL
    size_t output_bytes;
};

size_t request_region_bytes(const struct request_options *options); // that the tensors and the output need
struct request request_create(const struct request_options *options);
// The daemon has written the output in the region, or there is none.
bool request_was_answered(const struct request *request);

#endif
