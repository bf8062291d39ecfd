#include "tests/bench/kernels/layer_bench.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "expert/engine/engine.h"
#include "expert/layer/layer.h"
#include "expert/loader/model_load.h"
#include "expert/synthetic/synthetic.h"
#include "tests/bench/kernels/measure/device_rig.h"
#include "tests/bench/kernels/measure/plain_read.h"
#include "tests/flags/flags.h"

enum {
    PRESETS_MAX = 16,
    DTYPES_MAX = 2,
    SPIN_US = 50,
    SPARE_ROWS = 1009,
    MATRICES_GATED = 3,
    MATRICES_PLAIN = 2,
    OTHER_PIECES = 4
};

struct layer_selection {
    const char *presets[PRESETS_MAX];
    size_t num_presets;
    enum expertd_dtype dtypes[DTYPES_MAX];
    size_t num_dtypes;
    uint32_t threads[BENCH_LIST_MAX];
    size_t num_threads;
};

static err_t take_preset(void *context, const char *name, size_t length) {
    struct layer_selection *s = context;
    const char *names[PRESETS_MAX];
    size_t count = 0, found = 0;
    for (; count < PRESETS_MAX && synthetic_preset(count); count++) {
        names[count] = synthetic_preset(count);
    }
    TRY(flags_find("preset", name, length, names, count, "--list names them", &found));
    if (s->num_presets == PRESETS_MAX) {
        FAIL(EXPERTD_ERR_USAGE, "--shape names more than %d presets", PRESETS_MAX);
    }
    s->presets[s->num_presets++] = names[found];
    return OK;
}

static err_t take_dtype(void *context, const char *name, size_t length) {
    struct layer_selection *s = context;
    enum expertd_dtype dtype = length == 4 && memcmp(name, "bf16", 4) == 0  ? EXPERTD_DTYPE_BF16
                               : length == 3 && memcmp(name, "f32", 3) == 0 ? EXPERTD_DTYPE_F32
                                                                            : EXPERTD_DTYPE_NONE;
    if (dtype == EXPERTD_DTYPE_NONE || s->num_dtypes == DTYPES_MAX) {
        FAIL(EXPERTD_ERR_USAGE, "--dtype %.*s: layers can be measured in bf16 and f32", (int)length, name);
    }
    s->dtypes[s->num_dtypes++] = dtype;
    return OK;
}

static const char *presets_of(const struct bench_options *o, const struct device_rig *rig) {
    return o->shapes ? o->shapes : !rig ? "qwen3-30b-a3b,mixtral-8x7b" : rig->simulated ? "tiny" : "qwen3-30b-a3b,deepseek-v3";
}

static FALLIBLE select_layers(const struct bench_options *o, const struct machine *machine, const struct device_rig *rig,
                              struct layer_selection *s) {
    *s = (struct layer_selection){.num_threads = o->num_threads};
    memcpy(s->threads, o->threads, sizeof s->threads);
    if (s->num_threads == 0) {
        s->threads[s->num_threads++] = machine->cpus;
    }
    TRY(flags_names("--shape", presets_of(o, rig), take_preset, s));
    for (size_t i = 0; rig && rig->simulated && i < s->num_presets; i++) {
        if (strcmp(s->presets[i], "tiny") != 0) {
            FAIL(EXPERTD_ERR_USAGE, "--shape %s: a simulated device would take hours; use --shape tiny", s->presets[i]);
        }
    }
    return flags_names("--dtype", o->dtypes ? o->dtypes : "bf16", take_dtype, s);
}

// ---- one layer, T tokens

struct forward {
    const struct model_layer *layer;
    struct engine *engine;
    struct expertd_team *team;
    struct device_rig *rig; // NULL: the CPU computes
    struct layer_request request;
    uint16_t *hidden; // [T + SPARE_ROWS, H] BF16; each repetition begins at another row
    size_t repetition;
    uint64_t *load;             // [E] rows per expert in all repetitions so far
    uint64_t *load_before;      // [E] before the last repetition
    struct read_piece *pieces;  // [E + OTHER_PIECES]
    struct layer_timings spent; // in all repetitions so far
    uint64_t all_ns;
};

static void fill_hidden(const struct forward *f, size_t rows) {
    uint64_t state = 1;
    for (size_t i = 0; i < rows * f->layer->params.hidden_size; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        f->hidden[i] = expertd_bf16_from_f32((float)((int32_t)(state >> 32)) * 0x1p-31f);
    }
}

static FALLIBLE forward_init(struct forward *f, const struct model_layer *layer, uint32_t tokens) {
    const struct layer_params *p = &layer->params;
    f->layer = layer;
    f->hidden = malloc((tokens + SPARE_ROWS) * (size_t)p->hidden_size * sizeof *f->hidden);
    f->request = (struct layer_request){
        .tokens = tokens,
        .hidden = {.dtype = EXPERTD_DTYPE_BF16,
                   .rank = 2,
                   .shape = {tokens, p->hidden_size},
                   .bytes = (uint64_t)tokens * p->hidden_size * sizeof *f->hidden},
        .source = ROUTING_OWN,
        .shared = p->shared != SHARED_NONE,
        .output_dtype = EXPERTD_DTYPE_BF16,
        .output = malloc((size_t)tokens * p->hidden_size * sizeof *f->hidden),
    };
    f->load = calloc(p->num_experts, sizeof *f->load);
    f->load_before = calloc(p->num_experts, sizeof *f->load_before);
    f->pieces = calloc(p->num_experts + OTHER_PIECES, sizeof *f->pieces);
    if (!f->hidden || !f->request.output || !f->load || !f->load_before || !f->pieces) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %u tokens of %u values", tokens, p->hidden_size);
    }
    fill_hidden(f, tokens + SPARE_ROWS);
    return OK;
}

static void forward_deinit(struct forward *f) {
    free(f->hidden);
    free(f->request.output);
    free(f->load);
    free(f->load_before);
    free(f->pieces);
}

static size_t add_piece(struct forward *f, size_t count, const struct expertd_packed_weights *weights) {
    if (weights->data && weights->group_bytes) {
        f->pieces[count++] = (struct read_piece){weights->data[0], weights->group_bytes};
    }
    return count;
}

// Lists the weights that the last repetition read: the router, the experts that got rows, the shared experts.
static size_t gather_pieces(struct forward *f) {
    size_t count = add_piece(f, 0, &f->layer->router);
    if (f->request.shared) {
        count = add_piece(f, count, &f->layer->shared.gate);
        count = add_piece(f, count, &f->layer->shared.up);
        count = add_piece(f, count, &f->layer->shared.down);
    }
    const struct shards *shards = shards_take(f->layer->in_force);
    for (uint32_t e = 0; e < f->layer->params.num_experts; e++) {
        if (f->load[e] != f->load_before[e]) {
            f->pieces[count++] = (struct read_piece){shards->blocks[e]->data, shards->blocks[e]->bytes}; // one rank: slot e
        }
    }
    shards_release(f->layer->in_force, shards);
    return count;
}

static void add_spent(struct layer_timings *to, const struct layer_timings *from) {
    to->exchange += from->exchange;
    to->combine += from->combine;
    to->parts.input += from->parts.input;
    to->parts.router += from->parts.router;
    to->parts.plan += from->parts.plan;
    to->parts.gate_up += from->parts.gate_up;
    to->parts.down += from->parts.down;
    to->parts.shared += from->parts.shared;
}

static struct report_shares shares_of(const struct layer_timings *spent, double all_ns) {
    const struct layer_parts *parts = &spent->parts;
    return (struct report_shares){
        .hidden = (double)parts->input / all_ns,
        .router = (double)parts->router / all_ns,
        .plan = (double)parts->plan / all_ns,
        .dispatch = (double)spent->exchange / all_ns,
        .gate_up = (double)parts->gate_up / all_ns,
        .down = (double)parts->down / all_ns,
        .shared = (double)parts->shared / all_ns,
        .combine = (double)spent->combine / all_ns,
    };
}

static err_t run_forward(void *context, int64_t *span_ns) {
    struct forward *f = context;
    size_t first = f->repetition++ * f->request.tokens % SPARE_ROWS;
    f->request.hidden.data = f->hidden + first * f->layer->params.hidden_size;
    memcpy(f->load_before, f->load, f->layer->params.num_experts * sizeof *f->load);
    struct layer_timings timings;
    int64_t start_ns = clock_now_ns();
    TRY(layer_forward(f->engine, f->layer, &f->request, 1, f->load, &timings));
    *span_ns = clock_now_ns() - start_ns;
    if (f->repetition > 1) { // the first repetition does not count: it touches new pages
        add_spent(&f->spent, &timings);
        f->all_ns += (uint64_t)*span_ns;
    }
    return OK;
}

static double layer_bytes(void *context) {
    struct forward *f = context;
    size_t count = gather_pieces(f);
    double bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += (double)f->pieces[i].bytes;
    }
    return bytes;
}

static int64_t read_layer(void *context, enum plain_read_way way) {
    struct forward *f = context;
    if (f->rig) {
        return device_rig_read_ns(f->rig, layer_bytes(f));
    }
    size_t count = gather_pieces(f);
    plain_read_forget(f->pieces, count, f->team);
    int64_t span_ns = plain_read_ns(f->pieces, count, way, f->team);
    plain_read_forget(f->pieces, count, f->team);
    return span_ns;
}

static double layer_flops(const struct layer_params *p, uint32_t tokens) {
    double routed = (double)p->routing.top_k * p->intermediate_size *
                    (expertd_activation_is_gated(&p->activation) ? MATRICES_GATED : MATRICES_PLAIN);
    double shared = p->shared == SHARED_NONE
                        ? 0
                        : (double)p->shared_intermediate_size *
                              (expertd_activation_is_gated(&p->shared_activation) ? MATRICES_GATED : MATRICES_PLAIN);
    return 2.0 * tokens * p->hidden_size * (routed + shared + p->routing.num_experts);
}

// ---- all rows

struct layer_row {
    const struct model *model;
    struct expertd_team *team;
    struct engine *engine;
    struct device_rig *rig;
    const char *preset;
    uint32_t tokens, experts;
    double seconds;
};

static FALLIBLE bench_row(const struct layer_row *r, struct report *report) {
    const char *dtype = r->model->compute_dtype == EXPERTD_DTYPE_F32 ? "f32" : "bf16";
    struct report_row row = {.dtype = dtype, .threads = expertd_team_threads(r->team), .tokens = r->tokens};
    if (r->experts) {
        snprintf(row.shape, sizeof row.shape, "%s/%u T=%u", r->preset, r->experts, r->tokens);
    } else {
        snprintf(row.shape, sizeof row.shape, "%s T=%u", r->preset, r->tokens);
    }
    fprintf(stderr, "%s %s, %u threads ...\n", row.shape, row.dtype, row.threads);
    struct forward f = {.engine = r->engine, .team = r->team, .rig = r->rig};
    err_t e;
    TRY_OUT(e, forward_init(&f, &r->model->layers[0], r->tokens));
    struct measured work = {
        .context = &f,
        .run_ns = run_forward,
        .read_ns = read_layer,
        .flops = layer_flops(&f.layer->params, r->tokens),
        .bytes = layer_bytes,
        .peak = measure_peak_of(r->model->compute_dtype, r->team),
    };
    if (r->rig) {
        work.peak_rate = r->model->compute_dtype == EXPERTD_DTYPE_F32 ? device_rig_peak_f32 : device_rig_peak_bf16;
        work.peak_context = r->rig;
        work.peak_name = device_rig_peak_name(r->rig, r->model->compute_dtype);
    }
    TRY_OUT(e, measure(&work, r->team, r->seconds, &row.measured));
    row.shares = shares_of(&f.spent, (double)f.all_ns);
    e = report_add(report, &row);
out:
    forward_deinit(&f);
    return err_is(e) ? err_context(e, "%s, %u tokens", r->preset, r->tokens) : e;
}

static FALLIBLE bench_threads(const struct bench_options *o, const struct model *model, const char *preset, uint32_t threads,
                              struct report *report) {
    struct layer_row row = {.model = model, .rig = report->rig, .preset = preset, .experts = o->experts, .seconds = o->seconds};
    struct expertd_team_options team = {.threads = threads, .spin_us = SPIN_US};
    TRY(expertd_team_create(&team, &row.team));
    uint32_t tokens_max = 0;
    for (size_t t = 0; t < o->num_tokens; t++) {
        tokens_max = o->tokens[t] > tokens_max ? o->tokens[t] : tokens_max;
    }
    struct engine_options engine = {.model = model,
                                    .limits = layer_limits_for(model, tokens_max, 0),
                                    .team = row.team,
                                    .devices = row.rig ? row.rig->devices : NULL};
    err_t e = engine_create(&engine, &row.engine);
    for (size_t t = 0; t < o->num_tokens && !err_is(e); t++) {
        row.tokens = o->tokens[t];
        e = bench_row(&row, report);
    }
    engine_destroy(row.engine);
    expertd_team_destroy(row.team);
    return e;
}

static FALLIBLE load(const char *preset, uint32_t experts, enum expertd_dtype dtype, uint32_t threads, const struct device_rig *rig,
                     struct model *model) {
    char name[96], count[24] = "";
    if (experts) {
        snprintf(count, sizeof count, ",experts=%u", experts);
    }
    snprintf(name, sizeof name, "synthetic:%s,layers=1%s", preset, count);
    fprintf(stderr, "generating the weights of a layer of %s ...\n", preset);
    struct expertd_team *team;
    struct expertd_team_options options = {.threads = threads, .spin_us = SPIN_US};
    TRY(expertd_team_create(&options, &team));
    struct model_options load = {.model = name, .compute_dtype = dtype, .ranks = 1, .team = team};
    if (rig) {
        load.for_devices = true;
        load.arithmetic = rig->devices->facts.arithmetic;
        load.arithmetic_f32 = rig->devices->facts.arithmetic_f32;
    }
    err_t e = model_load(&load, model);
    expertd_team_destroy(team);
    return e;
}

static FALLIBLE bench_model(const struct bench_options *o, const struct layer_selection *s, const char *preset,
                            enum expertd_dtype dtype, struct report *report) {
    struct model model = {0};
    err_t e;
    TRY_OUT(e, load(preset, o->experts, dtype, s->threads[0], report->rig, &model));
    for (size_t t = 0; t < s->num_threads; t++) {
        TRY_OUT(e, bench_threads(o, &model, preset, s->threads[t], report));
    }
out:
    model_deinit(&model);
    return e;
}

FALLIBLE layer_bench(const struct bench_options *options, const struct machine *machine, struct report *report) {
    struct layer_selection s;
    TRY(select_layers(options, machine, report->rig, &s));
    struct read_piece none = {0};
    if (!report->rig && !plain_read_forget(&none, 0, NULL)) {
        fprintf(stderr, "this machine has no CLFLUSHOPT: weights of small batches may be read from a cache\n");
    }
    for (size_t p = 0; p < s.num_presets; p++) {
        for (size_t d = 0; d < s.num_dtypes; d++) {
            TRY(bench_model(options, &s, s.presets[p], s.dtypes[d], report));
        }
    }
    return OK;
}

void layer_bench_list(FILE *out) {
    fprintf(out, "presets:");
    for (size_t i = 0; synthetic_preset(i); i++) {
        fprintf(out, " %s", synthetic_preset(i));
    }
    fprintf(out, "\ndtypes: bf16 f32\n");
}
