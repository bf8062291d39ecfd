#include "expert/engine/layer_tuning.h"

#include <string.h>

#include "base/arena.h"

enum { ACTIVE_MAX = 8 }; // experts of a trial: the K of most models

static const uint32_t ROWS[] = {1, 4, 16, 64}; // per expert

// One matrix of one layer: the experts of one rank.
struct tuned {
    const struct layer_tuning_options *options;
    struct expertd_tuning_table *table;
    const struct expertd_packed_weights *weights;
    struct expertd_grouped_matmul_args args;
    int32_t *sizes;       // [groups]
    size_t active, first; // the next trial uses `active` experts, starting at `first`
    uint32_t rows;        // of each active expert
};

// Selects other experts for each trial, so that their weights come from memory as they do in service, not from a cache.
static void next_experts(void *context) {
    struct tuned *t = context;
    memset(t->sizes, 0, t->weights->groups * sizeof *t->sizes);
    for (size_t i = 0; i < t->active; i++) {
        t->sizes[(t->first + i) % t->weights->groups] = (int32_t)t->rows;
    }
    t->first = (t->first + t->active) % t->weights->groups;
}

static FALLIBLE find_class(struct tuned *t, void *scratch) {
    const struct layer_tuning_options *o = t->options;
    next_experts(t);
    t->args.m = t->rows * t->active;
    struct expertd_tuning_entry entry = {.found_for = expertd_tuning_class(&t->args, expertd_team_threads(o->team))};
    if (expertd_tuning_find(t->table, &entry.found_for)) {
        return OK;
    }
    struct expertd_tuning_job job = {
        .args = &t->args, .team = o->team, .scratch = scratch, .before = next_experts, .context = t, .span_ns = o->class_span_ns};
    struct expertd_tuning_trial trial;
    TRY(expertd_tuning_measure(&job, &trial));
    entry.schedule = trial.best;
    if (expertd_tuning_put(t->table, &entry) && o->found) {
        o->found(o->context, &entry, &trial);
    }
    return OK;
}

// The rows are zeros, since arena memory is zeroed. No kernel is faster with zeros.
static FALLIBLE lay_out(struct tuned *t, struct arena *memory, void **scratch) {
    const struct expertd_packed_weights *w = t->weights;
    size_t rows = ROWS[sizeof ROWS / sizeof *ROWS - 1] * t->active;
    size_t parts[] = {w->groups * sizeof(int32_t), rows * w->k * expertd_dtype_size(w->dtype), rows * w->n * sizeof(float),
                      expertd_packed_matmul_workspace_bytes(rows, w->groups)};
    size_t all = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        all += arena_rounded(parts[i]);
    }
    void *sizes, *lhs, *out;
    TRY(arena_init(memory, all));
    TRY(arena_take(memory, parts[0], &sizes));
    TRY(arena_take(memory, parts[1], &lhs));
    TRY(arena_take(memory, parts[2], &out));
    TRY(arena_take(memory, parts[3], scratch));
    t->sizes = sizes;
    t->args = (struct expertd_grouped_matmul_args){.lhs = lhs,
                                                   .lhs_stride = w->k,
                                                   .rhs = expertd_rhs_packed(w),
                                                   .group_sizes = sizes,
                                                   .num_groups = w->groups,
                                                   .num_actual_groups = w->groups,
                                                   .out = out,
                                                   .out_stride = w->n};
    return OK;
}

static FALLIBLE tune_matrix(const struct layer_tuning_options *options, const struct expertd_packed_weights *weights,
                            struct expertd_tuning_table *table) {
    struct tuned t = {.options = options, .table = table, .weights = weights};
    t.active = weights->groups < ACTIVE_MAX ? weights->groups : ACTIVE_MAX;
    if (!weights->data || t.active == 0) {
        return OK;
    }
    struct arena memory = {0};
    void *scratch = NULL;
    err_t e = lay_out(&t, &memory, &scratch);
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS && !err_is(e); i++) {
        t.rows = ROWS[i];
        e = find_class(&t, scratch);
    }
    arena_deinit(&memory);
    return e;
}

// The first run of experts in a shape. A placement gives every expert to some rank.
static const struct expert_weights *weights_of(const struct shards *shards, uint32_t shape) {
    uint32_t run = 0;
    while (shards_run_shape(shards, run) != shape) {
        run++;
    }
    return &shards->runs[run];
}

static FALLIBLE tune_layer(const struct layer_tuning_options *options, const struct shards *shards,
                           struct expertd_tuning_table *table) {
    for (uint32_t shape = 0; shape < shards->shapes->count; shape++) {
        const struct expert_weights *weights = weights_of(shards, shape);
        TRY(tune_matrix(options, &weights->up, table)); // gate has the same shape, and nearly always the same format
        TRY(tune_matrix(options, &weights->down, table));
    }
    return OK;
}

FALLIBLE layer_tuning_find(const struct layer_tuning_options *options, struct expertd_tuning_table *table) {
    err_t e = OK;
    for (size_t i = 0; i < options->model->num_layers && !err_is(e); i++) {
        const struct model_layer *layer = &options->model->layers[i];
        const struct shards *shards = shards_take(layer->in_force);
        e = tune_layer(options, shards, table);
        shards_release(layer->in_force, shards);
    }
    return e;
}
