#include "expert/device/device_moves.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// The slot in device memory that holds an expert.
struct expert_slot {
    uint32_t rank, shape, slot;
};

static uint32_t count_free(const struct device_layer *layer, uint32_t place) {
    uint32_t count = 0;
    for (uint32_t s = 0; s < layer->places[place].slots; s++) {
        count += !layer->taken[place][s];
    }
    return count;
}

// Experts of any shape may move, so the shape with the fewest free slots counts. A rank with slots for all experts of a shape never
// runs out of them.
static uint32_t free_slots_of(const struct device_layer *layer, const struct expert_shapes *shapes, uint32_t num_experts,
                              uint32_t rank) {
    uint32_t all = 0, fewest = UINT32_MAX;
    for (uint32_t shape = 0; shape < layer->shapes; shape++) {
        uint32_t place = device_place(layer, rank, shape), count = count_free(layer, place);
        bool runs_out = layer->places[place].slots < expert_shapes_experts(shapes, num_experts, shape);
        all += count;
        fewest = runs_out && count < fewest ? count : fewest;
    }
    return fewest < all ? fewest : all;
}

void device_moves_free_slots(const struct device_weights *w, size_t layer, const struct model *model, uint32_t *free_slots) {
    const struct model_layer *of = &model->layers[layer];
    for (uint32_t rank = 0; rank < model->ranks; rank++) {
        free_slots[rank] = free_slots_of(&w->layers[layer], &of->shapes, of->params.num_experts, rank);
    }
}

void device_moves_finish(struct device_weights *w, size_t layer, const struct shards *now) {
    struct device_layer *own = &w->layers[layer];
    const struct placement *placement = now->placement;
    for (uint32_t rank = 0; rank < placement->ranks; rank++) {
        for (uint32_t shape = 0; shape < own->shapes; shape++) {
            uint32_t place = device_place(own, rank, shape);
            memset(own->taken[place], 0, own->places[place].slots);
        }
        for (uint32_t s = placement->rank_first[rank]; s < placement->rank_first[rank + 1]; s++) {
            uint32_t shape = now->shapes->of_expert[placement->rank_experts[s]];
            own->taken[device_place(own, rank, shape)][now->device_slots[s]] = 1;
        }
    }
}

static struct device_staging staging_of(const struct device_weights *w, uint32_t ranks, uint32_t rank) {
    return (struct device_staging){.devices = w->move_devices,
                                   .device = expertd_device_of_rank(w->move_devices, ranks, rank),
                                   .memory = w->move_staging.base,
                                   .bytes = w->move_staging.bytes};
}

static FALLIBLE copy_expert(const struct device_weights *w, size_t layer, uint32_t ranks, struct expert_slot from,
                            struct expert_slot to) {
    const struct device_layer *own = &w->layers[layer];
    const struct device_experts *from_place = &own->places[device_place(own, from.rank, from.shape)];
    const struct device_experts *to_place = &own->places[device_place(own, to.rank, to.shape)];
    struct device_staging source = staging_of(w, ranks, from.rank), staging = staging_of(w, ranks, to.rank);
    uint64_t want, got;
    TRY(device_experts_digest(from_place, from.slot, &source, &want));
    TRY(device_experts_copy(to_place, to.slot, &staging, from_place, from.slot, &source));
    TRY(device_experts_digest(to_place, to.slot, &staging, &got));
    if (got != want) {
        FAIL(EXPERTD_ERR_IO,
             "the copy on %s device %u has digest %016" PRIx64 ", its source on device %u %016" PRIx64
             ": memory of one of them is faulty: check both with nvidia-smi -q -d ECC",
             w->move_devices->table->kind, w->move_devices->numbers[staging.device], got, w->move_devices->numbers[source.device],
             want);
    }
    return OK;
}

// Sets out->slot to a free slot of the rank for the shape.
static FALLIBLE take_slot(const struct device_layer *layer, struct expert_slot *out) {
    uint32_t place = device_place(layer, out->rank, out->shape);
    for (uint32_t s = 0; s < layer->places[place].slots; s++) {
        if (!layer->taken[place][s]) {
            layer->taken[place][s] = 1;
            out->slot = s;
            return OK;
        }
    }
    FAIL(EXPERTD_ERR_NOMEM,
         "shard %u has no free slot on its device: raise move_bytes_max, which sets the number of slots reserved at start",
         out->rank);
}

// Sets to->device_slots[slot], of rank `rank`: the slot that already holds the expert, or a free one after a copy.
static FALLIBLE provide_expert(struct device_weights *w, size_t layer, const struct shards *from, struct shards *to, uint32_t rank,
                               uint32_t slot) {
    uint32_t expert = to->placement->rank_experts[slot], before = placement_slot(from->placement, rank, expert);
    if (before != PLACEMENT_NO_SLOT) {
        to->device_slots[slot] = from->device_slots[before];
        return OK;
    }
    uint32_t holder = from->placement->holder_first[expert], shape = from->shapes->of_expert[expert];
    struct expert_slot source = {from->placement->holders[holder], shape,
                                 from->device_slots[from->placement->holder_slots[holder]]};
    struct expert_slot target = {.rank = rank, .shape = shape};
    TRY(take_slot(&w->layers[layer], &target));
    TRY_IN(copy_expert(w, layer, from->placement->ranks, source, target), "expert %u to shard %u", expert, rank);
    to->device_slots[slot] = target.slot;
    return OK;
}

FALLIBLE device_moves_prepare(struct device_weights *w, size_t layer, const struct shards *from, struct shards *to) {
    w->move_devices->timeout_ns = w->options.devices->timeout_ns; // the engine set it after `move_devices` were opened
    const struct placement *placement = to->placement;
    to->device_slots = calloc(placement->copies, sizeof *to->device_slots);
    if (!to->device_slots) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the slots of %u experts", placement->copies);
    }
    for (uint32_t rank = 0; rank < placement->ranks; rank++) {
        for (uint32_t s = placement->rank_first[rank]; s < placement->rank_first[rank + 1]; s++) {
            err_t e = provide_expert(w, layer, from, to, rank, s);
            if (err_is(e)) {
                device_moves_finish(w, layer, from);
                return e;
            }
        }
    }
    return OK;
}
