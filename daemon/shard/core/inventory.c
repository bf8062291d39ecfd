#include "daemon/shard/core/inventory.h"

static enum shard_copy_state state_of(enum copy_state state) {
    static const enum shard_copy_state STATES[COPY_STATES] = {
        [COPY_NONE] = SHARD_COPY_NONE,         [COPY_LOADING] = SHARD_COPY_LOADING, [COPY_READY] = SHARD_COPY_READY,
        [COPY_RETIRING] = SHARD_COPY_RETIRING, [COPY_FAILED] = SHARD_COPY_FAILED,   [COPY_RELEASED] = SHARD_COPY_NONE};
    return STATES[state];
}

static bool has_digest(enum copy_state state) {
    return state == COPY_READY || state == COPY_RETIRING;
}

void inventory_of(const struct holder_message *message, const uint32_t *layer_numbers, uint64_t bytes_used,
                  struct inventory_scratch *scratch, struct shard_inventory *out) {
    size_t count = 0, used = 0;
    for (size_t first = 0; first < message->count; count++) {
        const struct copy_report *report = &message->reports[first];
        struct shard_copies *copies = &scratch->copies[count];
        *copies = (struct shard_copies){.layer = layer_numbers[report->id.layer],
                                        .state = state_of(report->state),
                                        .experts = scratch->experts + used,
                                        .digests = has_digest(report->state) ? scratch->digests + used : NULL};
        for (; first < message->count; first++, used++, copies->count++) {
            const struct copy_report *next = &message->reports[first];
            if (next->id.layer != report->id.layer || next->state != report->state) {
                break;
            }
            scratch->experts[used] = next->id.expert;
            scratch->digests[used] = next->digest;
        }
    }
    *out = (struct shard_inventory){.sequence = message->sequence,
                                    .commands_seen = message->commands_seen,
                                    .complete = message->is_complete,
                                    .copies = scratch->copies,
                                    .count = count,
                                    .bytes_used = bytes_used};
}
