#include "daemon/admin/mover.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/log/log.h"
#include "expert/engine/engine.h"
#include "expert/model/memory.h"
#include "shard/placement_steps.h"

enum { PAGE = 4096 };

struct mover {
    struct mover_options options;
    atomic_bool moving; // set by the thread that runs mover_apply
};

static bool is_on_devices(const struct mover *mover) {
    return mover->options.engine && engine_is_on_devices(mover->options.engine);
}

FALLIBLE mover_create(const struct mover_options *options, struct mover **out) {
    *out = calloc(1, sizeof **out);
    if (!*out) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the mover");
    }
    (*out)->options = *options;
    (*out)->options.copier.topology = options->model->topology;
    (*out)->options.copier.share = is_on_devices(*out);
    return OK;
}

void mover_destroy(struct mover *mover) {
    free(mover);
}

void mover_placement_deinit(struct mover_placement *placement) {
    free(placement->first);
    free(placement->holders);
    free(placement->rows);
    *placement = (struct mover_placement){0};
}

// field: the request's field that names the layer.
static FALLIBLE find_layer(const struct mover *mover, const char *field, uint32_t number, const struct model_layer **out) {
    *out = model_find_layer(mover->options.model, number);
    if (!*out) {
        FAIL_FIELD(EXPERTD_ERR_LAYER_UNKNOWN, field, "layer %u is not served", number);
    }
    return OK;
}

// The observed rows per expert, [num_experts]; 0 without metrics.
static void observed_rows(const struct mover *mover, const struct model_layer *layer, uint64_t *rows) {
    memset(rows, 0, layer->params.num_experts * sizeof *rows);
    if (mover->options.metrics) {
        metrics_expert_rows(mover->options.metrics, (size_t)(layer - mover->options.model->layers), rows);
    }
}

// ---- show and plan

// Copies a placement into `out`. rows NULL: the observed rows.
static FALLIBLE describe(const struct mover *mover, const struct model_layer *layer, const struct placement *placement,
                         const uint64_t *rows, uint64_t epoch, struct mover_placement *out) {
    size_t experts = placement->num_experts;
    *out = (struct mover_placement){
        .layer = layer->params.layer, .epoch = epoch, .ranks = placement->ranks, .num_experts = placement->num_experts};
    out->first = calloc(experts + 1, sizeof *out->first);
    out->holders = calloc(placement->copies, sizeof *out->holders);
    out->rows = calloc(experts, sizeof *out->rows);
    if (!out->first || !out->holders || !out->rows) {
        mover_placement_deinit(out);
        FAIL(EXPERTD_ERR_NOMEM, "no memory to describe a placement of %zu experts", experts);
    }
    memcpy(out->first, placement->holder_first, (experts + 1) * sizeof *out->first);
    memcpy(out->holders, placement->holders, placement->copies * sizeof *out->holders);
    if (rows) {
        memcpy(out->rows, rows, experts * sizeof *rows);
    } else {
        observed_rows(mover, layer, out->rows);
    }
    out->imbalance = placement_imbalance(placement, out->rows);
    return OK;
}

FALLIBLE mover_show(struct mover *mover, uint32_t number, struct mover_placement *out) {
    const struct model_layer *layer;
    *out = (struct mover_placement){0};
    TRY(find_layer(mover, "layers", number, &layer));
    const struct shards *shards = shards_take(layer->in_force);
    err_t e = describe(mover, layer, shards->placement, NULL, shards->placement->epoch, out);
    shards_release(layer->in_force, shards);
    return e;
}

static FALLIBLE check_plan(const struct mover_plan_options *options, const struct model_layer *layer) {
    if (options->policy != MOVER_CONTIGUOUS && options->policy != MOVER_BALANCED) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "policy", "policy %d is unknown: use contiguous or balanced", (int)options->policy);
    }
    if (options->policy == MOVER_CONTIGUOUS && options->replicas > 0) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "replicas", "%u replicas in a contiguous placement: only a balanced one has any",
                   options->replicas);
    }
    if (options->rows && options->num_rows != layer->params.num_experts) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "counts", "%zu counts for layer %u, which has %u experts", options->num_rows,
                   layer->params.layer, layer->params.num_experts);
    }
    return OK;
}

static FALLIBLE balance(const struct mover_plan_options *options, const struct model_layer *layer, uint32_t ranks,
                        const uint64_t *rows, struct placement **out) {
    struct placement_balance balance = {layer->params.num_experts, ranks, options->replicas, rows};
    bool any = false;
    for (uint32_t e = 0; e < layer->params.num_experts; e++) {
        any |= rows[e] > 0;
    }
    if (!any) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "counts", "no expert of layer %u has had a row yet: give counts, or plan after some load",
                   layer->params.layer);
    }
    err_t e = placement_balanced(&balance, 0, out);
    // Here the options come from a request, not from the configuration. The message is the same.
    return e.code == EXPERTD_ERR_CONFIG ? (err_t){EXPERTD_ERR_INVALID} : e;
}

static FALLIBLE check_writable(const struct mover *mover) {
    if (mover->options.is_read_only) {
        FAIL(EXPERTD_ERR_UNIMPLEMENTED, "experts are on shards in other processes (shard_hosts): they are placed by what the "
                                        "shards hold, by copies, replicas and "
                                        "the load, and not by commands");
    }
    return OK;
}

FALLIBLE mover_plan(struct mover *mover, const struct mover_plan_options *options, struct mover_placement *out) {
    const struct model_layer *layer;
    struct placement *placement = NULL;
    *out = (struct mover_placement){0};
    TRY(check_writable(mover));
    TRY(find_layer(mover, "layers", options->layer, &layer));
    TRY(check_plan(options, layer));
    uint32_t experts = layer->params.num_experts, ranks = mover->options.model->ranks;
    uint64_t epoch = shards_epoch(layer->in_force);
    uint64_t *rows = calloc(experts, sizeof *rows);
    if (!rows) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the load of %u experts", experts);
    }
    if (options->rows) {
        memcpy(rows, options->rows, experts * sizeof *rows);
    } else {
        observed_rows(mover, layer, rows);
    }
    err_t e;
    TRY_OUT(e, options->policy == MOVER_BALANCED ? balance(options, layer, ranks, rows, &placement)
                                                 : placement_contiguous(experts, ranks, 0, &placement));
    TRY_OUT(e, describe(mover, layer, placement, rows, epoch, out));
out:
    placement_destroy(placement);
    free(rows);
    return e;
}

// ---- apply

struct move {
    struct mover *mover;
    const struct model_layer *layer;
    struct placement *target;
    uint32_t copies_per_step;
    uint32_t *free_slots; // [ranks] free expert slots of each device before a step; NULL without devices
    struct mover_progress progress;
};

// During a move only this thread changes the set in force, so it reads the set without a reference.
static const struct shards *current(const struct move *move) {
    return move->layer->in_force->shards;
}

static FALLIBLE check_fits(const struct mover *mover, const struct mover_placement *p, const struct model_layer *layer) {
    uint64_t epoch = shards_epoch(layer->in_force);
    if (p->num_experts != layer->params.num_experts || p->ranks != mover->options.model->ranks) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "placement", "a placement of %u experts on %u shards: layer %u has %u experts on %u shards",
                   p->num_experts, p->ranks, p->layer, layer->params.num_experts, mover->options.model->ranks);
    }
    if (p->epoch != epoch) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "planned from placement %" PRIu64 " of layer %u, but %" PRIu64 " is in force: plan again",
             p->epoch, p->layer, epoch);
    }
    return OK;
}

// Both the growth that remains after the move and the temporary memory of a step must fit.
static FALLIBLE check_host_memory(struct move *move) {
    const struct mover_options *options = &move->mover->options;
    uint64_t block = (expert_shapes_bytes_max(&move->layer->shapes) + PAGE - 1) / PAGE * PAGE;
    INVARIANT(block > 0);
    uint64_t copies = options->move_bytes_max / block;
    uint32_t before = current(move)->placement->copies, after = move->target->copies;
    uint64_t growth = after > before ? (after - before) * block : 0;
    char need[MEMORY_TEXT_MAX], have[MEMORY_TEXT_MAX], untouched[MEMORY_TEXT_MAX];
    if (copies == 0 && move->progress.all_experts > 0) {
        FAIL(EXPERTD_ERR_NOMEM, "one expert of layer %u takes %s, and move_bytes_max is %s: raise it", move->layer->params.layer,
             memory_text(block, need), memory_text(options->move_bytes_max, have));
    }
    move->copies_per_step = copies < move->progress.all_experts ? (uint32_t)copies : move->progress.all_experts;
    if (move->copies_per_step == 0) { // a move that only removes copies has one step
        move->copies_per_step = 1;
    }
    struct memory_limit limit;
    TRY(memory_available(&limit));
    // Scratch whose pages are not allocated yet: the next batch may touch them at any time.
    uint64_t reserved = options->engine ? engine_scratch_untouched(options->engine) : 0;
    uint64_t left = limit.bytes > reserved ? limit.bytes - reserved : 0;
    if (growth + move->copies_per_step * block > left) {
        FAIL(EXPERTD_ERR_NOMEM,
             "%u more copies of experts of layer %u and the memory of a step need %s, and %s are free (%s, less the %s of "
             "scratch that no batch has used yet): lower the replicas or move_bytes_max",
             after > before ? after - before : 0, move->layer->params.layer,
             memory_text(growth + move->copies_per_step * block, need), memory_text(left, have), limit.what,
             memory_text(reserved, untouched));
    }
    uint64_t weights = model_weights_bytes(options->model);
    if (options->weights_bytes_max > 0 && weights + growth > options->weights_bytes_max) {
        FAIL(EXPERTD_ERR_NOMEM, "the weights would take %s, and memory_max is %s: lower the replicas, or raise memory_max",
             memory_text(weights + growth, need), memory_text(options->weights_bytes_max, have));
    }
    return OK;
}

// On devices, copies need free slots, which were reserved at the start according to move_bytes_max.
static FALLIBLE check_device_memory(struct move *move) {
    const struct placement *from = current(move)->placement, *to = move->target;
    move->copies_per_step = UINT32_MAX;
    move->free_slots = calloc(to->ranks, sizeof *move->free_slots);
    if (!move->free_slots) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory to move experts of layer %u", move->layer->params.layer);
    }
    engine_move_free_slots(move->mover->options.engine, move->layer, move->free_slots);
    for (uint32_t rank = 0; rank < to->ranks; rank++) {
        uint32_t slots = from->rank_first[rank + 1] - from->rank_first[rank] + move->free_slots[rank];
        uint32_t wanted = to->rank_first[rank + 1] - to->rank_first[rank];
        if (wanted > slots) {
            FAIL(EXPERTD_ERR_NOMEM,
                 "shard %u would hold %u experts of layer %u; its device has slots for %u of them, of which %u are free: raise "
                 "move_bytes_max, which determines the number of slots reserved at the start",
                 rank, wanted, move->layer->params.layer, slots, move->free_slots[rank]);
        }
    }
    return OK;
}

static FALLIBLE next_placement(struct move *move, uint64_t epoch, struct placement **out) {
    const struct placement *from = current(move)->placement;
    if (move->free_slots) {
        engine_move_free_slots(move->mover->options.engine, move->layer, move->free_slots);
    }
    TRY(placement_step(from, move->target, move->copies_per_step, move->free_slots, epoch, out));
    if (move->free_slots && placement_equal(from, *out)) {
        placement_destroy(*out);
        FAIL(EXPERTD_ERR_NOMEM,
             "layer %u: no device has a free slot for an expert: raise move_bytes_max, which determines the number reserved at the "
             "start",
             move->layer->params.layer);
    }
    return OK;
}

// One step: copies and verifies experts, switches between two batches, frees unused copies. On error, the placement in force stays.
static FALLIBLE run_step(struct move *move, uint64_t epoch) {
    const struct model_layer *layer = move->layer;
    const struct mover_options *options = &move->mover->options;
    struct placement *placement;
    struct shards *next;
    TRY(next_placement(move, epoch, &placement));
    uint32_t copied = placement_missing(current(move)->placement, placement);
    uint64_t bytes = shards_missing_bytes(&layer->shapes, current(move)->placement, placement);
    TRY_IN(shards_move(current(move), placement, &options->copier, &next), "layer %u", layer->params.layer);
    if (move->free_slots) {
        err_t e = engine_move_prepare(options->engine, layer, current(move), next);
        if (err_is(e)) {
            shards_destroy(next);
            return err_context(e, "layer %u", layer->params.layer);
        }
    }
    shards_switch(layer->in_force, next);
    if (move->free_slots) {
        engine_move_finish(options->engine, layer);
    }
    move->progress.moved_experts += copied;
    move->progress.moved_bytes += bytes;
    return OK;
}

static FALLIBLE run_steps(struct move *move, bool (*progress)(void *, const struct mover_progress *), void *context,
                          uint64_t *new_epoch) {
    while (!placement_equal(current(move)->placement, move->target)) {
        uint64_t epoch = model_epoch(move->mover->options.model) + 1;
        TRY(run_step(move, epoch));
        *new_epoch = epoch;
        bool continues = !progress || progress(context, &move->progress);
        if (!continues && !placement_equal(current(move)->placement, move->target)) {
            FAIL(EXPERTD_ERR_CANCELLED, "stopped after %u of %u experts; placement %" PRIu64 " of layer %u is in force",
                 move->progress.moved_experts, move->progress.all_experts, epoch, move->layer->params.layer);
        }
    }
    return OK;
}

static FALLIBLE apply(struct mover *mover, const struct mover_placement *p, const struct model_layer *layer,
                      bool (*progress)(void *, const struct mover_progress *), void *context, uint64_t *new_epoch) {
    TRY(check_fits(mover, p, layer));
    *new_epoch = p->epoch;
    struct move move = {.mover = mover, .layer = layer};
    struct placement_table table = {.num_experts = p->num_experts, .ranks = p->ranks, .first = p->first, .holders = p->holders};
    TRY(placement_from_table(&table, p->epoch, &move.target));
    move.progress.all_experts = placement_missing(current(&move)->placement, move.target);
    move.progress.all_bytes = shards_missing_bytes(&layer->shapes, current(&move)->placement, move.target);
    err_t e = is_on_devices(mover) ? check_device_memory(&move) : check_host_memory(&move);
    if (!err_is(e)) {
        e = run_steps(&move, progress, context, new_epoch);
    }
    log_line(err_is(e) ? LOG_LEVEL_WARNING : LOG_LEVEL_INFO, err_is(e) ? "move_ended" : "moved",
             "layer=%u epoch=%" PRIu64 " experts=%u of=%u bytes=%" PRIu64 " reason=%s", p->layer, *new_epoch,
             move.progress.moved_experts, move.progress.all_experts, move.progress.moved_bytes, expertd_err_name(e.code));
    placement_destroy(move.target);
    free(move.free_slots);
    return e;
}

FALLIBLE mover_apply(struct mover *mover, const struct mover_placement *placement,
                     bool (*progress)(void *context, const struct mover_progress *), void *context, uint64_t *new_epoch) {
    const struct model_layer *layer;
    uint64_t unused;
    TRY(check_writable(mover));
    TRY(find_layer(mover, "placement.layer", placement->layer, &layer));
    if (atomic_exchange(&mover->moving, true)) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "another move is under way: wait for its end");
    }
    err_t e = apply(mover, placement, layer, progress, context, new_epoch ? new_epoch : &unused);
    atomic_store(&mover->moving, false);
    return e;
}
