// A request that computes nothing: every id is -1. Its tensors are in the message, or in a region shared with the daemon.
#ifndef EXPERTD_TESTS_BENCH_SERVICE_COST_REQUEST_H
#define EXPERTD_TESTS_BENCH_SERVICE_COST_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/c/region.h"

struct request_options {
    uint32_t layer, hidden; // the layer's number, and its hidden size
    size_t tokens;
    struct client_region *region; // holds the tensors and the output, from its beginning; NULL: they are in the message. Borrowed
};

struct request {
    struct proto_bytes bytes; // the message; the owner frees bytes.data
    size_t answer_bytes;      // length of the answering message
    uint8_t *output;          // the output in the region, which is poisoned; NULL without a region
    size_t output_bytes;
};

size_t request_region_bytes(const struct request_options *options); // the region size for the tensors and the output
struct request request_create(const struct request_options *options);
// Has the daemon written zeros to the output in the region? True without a region.
bool request_was_answered(const struct request *request);

#endif
