#include "client/expertctl/bench/run/bench_region.h"

#include <inttypes.h>
#include <string.h>

static uint64_t aligned(uint64_t bytes) {
    return (bytes + CLIENT_REGION_ALIGN - 1) / CLIENT_REGION_ALIGN * CLIENT_REGION_ALIGN;
}

struct region_layout region_layout_of(const struct bench_pool *pool, uint32_t tokens_max) {
    uint64_t choices = pool->routed ? (uint64_t)tokens_max * pool->choices : 0;
    struct region_layout layout = {0};
    layout.scales = layout.hidden + aligned(tokens_max * pool->row_bytes);
    layout.ids = layout.scales + aligned(pool->scales ? tokens_max * sizeof(float) : 0);
    layout.weights = layout.ids + aligned(choices * sizeof(int32_t));
    layout.output = layout.weights + aligned(choices * sizeof(float));
    layout.slot_bytes = layout.output + aligned(tokens_max * pool->answer_bytes);
    return layout;
}

uint32_t region_max_tokens(const struct bench_target *target, const struct bench_pool *pool, uint32_t slots) {
    uint64_t slot_bytes = target->max_region_bytes / slots;
    uint32_t least = 0, most = target->max_tokens; // bisection
    while (least < most) {
        uint32_t middle = most - (most - least) / 2;
        bool fits = region_layout_of(pool, middle).slot_bytes <= slot_bytes;
        least = fits ? middle : least;
        most = fits ? most : middle - 1;
    }
    return least;
}

FALLIBLE region_check(const char *address, const struct bench_target *target, const struct bench_pool *pool, uint32_t tokens_max,
                      uint32_t slots) {
    uint64_t bytes = region_layout_of(pool, tokens_max).slot_bytes * slots;
    if (strncmp(address, "unix:", strlen("unix:")) != 0) {
        FAIL(EXPERTD_ERR_USAGE,
             "--region: memory is shared over the daemon's Unix socket, and %s is not one: give --address unix:PATH", address);
    }
    if (target->max_region_bytes == 0) {
        FAIL(EXPERTD_ERR_USAGE, "--region: the daemon shares no memory (--max-region-bytes 0): leave --region out");
    }
    if (bytes > target->max_region_bytes) {
        FAIL(EXPERTD_ERR_USAGE,
             "--region: %u calls in flight of up to %u tokens take %" PRIu64 " bytes, and a region has at most %" PRIu64
             ": give a lower --max-inflight or --concurrency, more --processes, or fewer --tokens",
             slots, tokens_max, bytes, target->max_region_bytes);
    }
    return OK;
}

FALLIBLE bench_region_open(const char *address, const struct bench_pool *pool, uint32_t tokens_max, uint32_t slots,
                           int64_t timeout_us, struct bench_region *out) {
    *out = (struct bench_region){.layout = region_layout_of(pool, tokens_max)};
    TRY(client_create(address, &out->client));
    return client_region_open(out->client, out->layout.slot_bytes * slots, timeout_us, &out->region);
}

void bench_region_close(struct bench_region *region) {
    client_region_close(&region->region);
}

static void name_extent(const struct bench_region *region, uint64_t offset, struct wire_tensor *tensor) {
    tensor->has_extent = true;
    tensor->extent = (struct wire_extent){region->region.id, offset, tensor->view.bytes};
}

static void copy_tensor(const struct bench_region *region, uint64_t offset, struct wire_tensor *tensor) {
    if (tensor->present) {
        memcpy(region->region.data + offset, tensor->view.data, tensor->view.bytes);
        name_extent(region, offset, tensor);
    }
}

void bench_region_fill(const struct bench_region *region, uint32_t slot, const struct calls_piece *pieces, size_t num_pieces,
                       const struct bench_pool *pool, struct wire_request *request) {
    const struct region_layout *layout = &region->layout;
    uint64_t start = slot * layout->slot_bytes, tokens = request->hidden.view.shape[0];
    uint8_t *to = region->region.data + start + layout->hidden;
    for (size_t i = 0; i < num_pieces; i++) {
        memcpy(to, pieces[i].data, pieces[i].bytes);
        to += pieces[i].bytes;
    }
    name_extent(region, start + layout->hidden, &request->hidden);
    copy_tensor(region, start + layout->scales, &request->hidden_scale);
    copy_tensor(region, start + layout->ids, &request->ids);
    copy_tensor(region, start + layout->weights, &request->weights);
    // Poisons the output: an answer that the daemon did not write must not look like that of the slot's previous call.
    memset(region->region.data + start + layout->output, 0xff, tokens * pool->answer_bytes);
    request->has_output = true;
    request->output = (struct wire_extent){region->region.id, start + layout->output, tokens * pool->answer_bytes};
}

struct wire_tensor bench_region_answer(const struct bench_region *region, uint32_t slot, const struct wire_tensor *output,
                                       const struct bench_pool *pool) {
    struct wire_tensor answer = *output;
    uint64_t offset = slot * region->layout.slot_bytes + region->layout.output;
    answer.present = output->present && output->has_extent && output->extent.region == region->region.id &&
                     output->extent.offset == offset && output->extent.length == output->view.shape[0] * pool->answer_bytes;
    answer.view.data = region->region.data + offset;
    answer.view.bytes = output->extent.length;
    return answer;
}
