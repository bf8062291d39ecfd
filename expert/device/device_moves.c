#include "expert/device/device_moves.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// An expert's place.
struct place {
    uint32_t rank, slot;
};

void device_moves_room(const struct device_weights *w, size_t layer, uint32_t ranks, uint32_t *room) {
    for (uint32_t rank = 0; rank < ranks; rank++) {
        room[rank] = 0;
        for (uint32_t s = 0; s < w->layers[layer].ranks[rank].slots; s++) {
            room[rank] += !w->layers[layer].taken[rank][s];
        }
    }
}

void device_moves_finish(struct device_weights *w, size_t layer, const struct shards *now) {
    const struct placement *placement = now->placement;
    for (uint32_t rank = 0; rank < placement->ranks; rank++) {
        memset(w->layers[layer].taken[rank], 0, w->layers[layer].ranks[rank].slots);
        for (uint32_t s = placement->rank_first[rank]; s < placement->rank_first[rank + 1]; s++) {
            w->layers[layer].taken[rank][now->device_slots[s]] = 1;
        }
    }
}

static struct device_lane lane_of(const struct device_weights *w, uint32_t ranks, uint32_t rank) {
    return (struct device_lane){.devices = w->movers,
                                .device = expertd_device_of_rank(w->movers, ranks, rank),
                                .staging = w->move_staging.base,
                                .staging_bytes = w->move_staging.bytes};
}

static FALLIBLE copy_expert(const struct device_weights *w, size_t layer, uint32_t ranks, struct place from, struct place to) {
    const struct device_experts *all = w->layers[layer].ranks;
    struct device_lane source = lane_of(w, ranks, from.rank), lane = lane_of(w, ranks, to.rank);
    uint64_t want, got;
    TRY(device_experts_digest(&all[from.rank], from.slot, &source, &want));
    TRY(device_experts_copy(&all[to.rank], to.slot, &lane, &all[from.rank], from.slot, &source));
    TRY(device_experts_digest(&all[to.rank], to.slot, &lane, &got));
    if (got != want) {
        FAIL(EXPERTD_ERR_IO,
             "the copy on %s device %u has digest %016" PRIx64 ", its source on device %u %016" PRIx64
             ": memory is not to be trusted",
             w->movers->table->kind, w->movers->numbers[lane.device], got, w->movers->numbers[source.device], want);
    }
    return OK;
}

static FALLIBLE take_slot(const struct device_weights *w, size_t layer, uint32_t rank, uint32_t *out) {
    for (uint32_t s = 0; s < w->layers[layer].ranks[rank].slots; s++) {
        if (!w->layers[layer].taken[rank][s]) {
            w->layers[layer].taken[rank][s] = 1;
            *out = s;
            return OK;
        }
    }
    FAIL(EXPERTD_ERR_NOMEM, "rank %u has no free slot on its device: raise move_bytes_max, by which they are reserved at the start",
         rank);
}

// Expert of slot `slot` of rank `rank` in the new set.
static FALLIBLE place_expert(struct device_weights *w, size_t layer, const struct shards *from, struct shards *to, uint32_t rank,
                             uint32_t slot) {
    uint32_t expert = to->placement->rank_experts[slot], before = placement_slot(from->placement, rank, expert);
    if (before != PLACEMENT_NO_SLOT) {
        to->device_slots[slot] = from->device_slots[before];
        return OK;
    }
    uint32_t holder = from->placement->holder_first[expert];
    struct place source = {from->placement->holders[holder], from->device_slots[from->placement->holder_slots[holder]]};
    struct place target = {.rank = rank};
    TRY(take_slot(w, layer, rank, &target.slot));
    TRY_IN(copy_expert(w, layer, from->placement->ranks, source, target), "expert %u to shard %u", expert, rank);
    to->device_slots[slot] = target.slot;
    return OK;
}

FALLIBLE device_moves_prepare(struct device_weights *w, size_t layer, const struct shards *from, struct shards *to) {
    w->movers->timeout_ns = w->options.devices->timeout_ns; // known since an engine is there
    const struct placement *placement = to->placement;
    to->device_slots = calloc(placement->copies, sizeof *to->device_slots);
    if (!to->device_slots) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the slots of %u experts", placement->copies);
    }
    for (uint32_t rank = 0; rank < placement->ranks; rank++) {
        for (uint32_t s = placement->rank_first[rank]; s < placement->rank_first[rank + 1]; s++) {
            err_t e = place_expert(w, layer, from, to, rank, s);
            if (err_is(e)) {
                device_moves_finish(w, layer, from);
                return e;
            }
        }
    }
    return OK;
}
