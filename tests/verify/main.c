// expertd-verify: compares a running daemon's answers, bit for bit, with the scalar reference computed from the same model.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mapped.h"
#include "base/process/standard_output.h"
#include "base/process/surroundings.h"
#include "client/c/client.h"
#include "expert/loader/model_load.h"
#include "expertd/kernels/kernel_select.h"
#include "tests/verify/report.h"
#include "tests/verify/shared.h"
#include "tests/verify/verify_options.h"

enum {
    LAYERS_MAX = 4, // layers to check without --layers
    TIMED_CALLS_MAX = 15,
    TIMED_NS_MAX = NS_PER_S, // timing stops after this, however few calls it made
    EXIT_WRONG = 1,
};

// Error bounds for a daemon with another numerics id and the same dtype, for which equal bits are not promised. They are about
// twice the golden cases' bounds.
static const double BOUND_BF16 = 3e-2, BOUND_F32 = 1e-5;

struct verify {
    const struct verify_options *options;
    struct client *client;
    struct client_description description;
    const struct describe_model *served;
    size_t first, count;         // the layers to check: a range of served->layers
    struct client_region region; // with --shared-memory
    struct expertd_team *team;
    struct model model;
    struct report report;
};

static const struct describe_layer *served_layer(const struct verify *v, uint32_t number) {
    for (size_t i = 0; i < v->served->num_layers; i++) {
        if (v->served->layers[i].layer == number) {
            return &v->served->layers[i];
        }
    }
    return NULL;
}

// Sets v->served, v->first and v->count.
static FALLIBLE choose_layers(struct verify *v) {
    const struct verify_options *o = v->options;
    const struct describe_response *response = &v->description.response;
    if (response->num_models != 1 || response->models[0].num_layers == 0) {
        FAIL(EXPERTD_ERR_USAGE, "%s serves %zu models; this program checks a daemon that serves one", client_address(v->client),
             response->num_models);
    }
    v->served = &response->models[0];
    size_t all = v->served->num_layers;
    while (v->first < all && o->have_layers && v->served->layers[v->first].layer < o->first_layer) {
        v->first++;
    }
    while (v->first + v->count < all && (!o->have_layers || v->served->layers[v->first + v->count].layer <= o->last_layer)) {
        v->count++;
    }
    if (v->count == 0) {
        FAIL(EXPERTD_ERR_USAGE, "--layers %u-%u: none of them is served; expertctl models lists those that are", o->first_layer,
             o->last_layer);
    }
    if (!o->have_layers && v->count > LAYERS_MAX) {
        v->count = LAYERS_MAX;
        fprintf(stderr, "checking the first %d of %zu layers; --layers A-B checks others\n", LAYERS_MAX, all);
    }
    return OK;
}

static enum expertd_dtype dtype_of_numerics(const char *numerics_id) {
    return strstr(numerics_id, "/f32/") ? EXPERTD_DTYPE_F32 : EXPERTD_DTYPE_BF16;
}

// "int4" of "1/bf16/cpu+quantize_int4"; NULL: the weights were not quantised while loading.
static const char *quantise_of_numerics(const char *numerics_id) {
    static const char MARK[] = "+quantize_";
    const char *mark = strstr(numerics_id, MARK);
    return mark ? mark + strlen(MARK) : NULL;
}

// The part before "+widen" and others, which say how weights were converted while loading. The reference converts its own weights
// in the same way, but has an id without them if the layers under test have no such weights.
static bool is_same_arithmetic(const char *a, const char *b) {
    const size_t length = strcspn(a, "+");
    return length == strcspn(b, "+") && strncmp(a, b, length) == 0;
}

// Selects the daemon's arithmetic for the reference if this build has it. If not, check_identity reports that the ids differ.
static void choose_arithmetic(const char *numerics_id) {
    char name[32];
    const char *last = strrchr(numerics_id, '/');
    snprintf(name, sizeof name, "%s", last ? last + 1 : "");
    name[strcspn(name, "+")] = 0; // "+widen", "+widen_gpu" and "+quantize_..." do not change the arithmetic
    err_t unknown = expertd_kernel_select_arithmetic(name);
    (void)unknown;
}

static void show_progress(void *context, uint64_t done_bytes, uint64_t all_bytes) {
    (void)context;
    if (isatty(STDERR_FILENO) && all_bytes) {
        fprintf(stderr, "\rloading the model for the reference: %3.0f %%%s", 100.0 * (double)done_bytes / (double)all_bytes,
                done_bytes == all_bytes ? "\n" : "");
    }
}

static FALLIBLE load_model(struct verify *v) {
    const struct verify_options *o = v->options;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    struct expertd_team_options team = {.threads = o->threads       ? o->threads
                                                   : processors > 0 ? (unsigned)processors
                                                                    : 1,
                                        .spin_us = 0};
    const struct describe_layer *layers = &v->served->layers[v->first];
    enum expertd_dtype dtype = dtype_of_numerics(layers[0].numerics_id);
    if (o->compute_dtype != EXPERTD_DTYPE_NONE && o->compute_dtype != dtype) { // the router's choices would differ
        FAIL(EXPERTD_ERR_USAGE,
             "--compute-dtype: the daemon computes in %s (numerics id %s); start it with --compute-dtype %s, or leave it out here",
             expertd_dtype_name(dtype), layers[0].numerics_id, o->compute_dtype == EXPERTD_DTYPE_F32 ? "f32" : "bf16");
    }
    const bool for_devices = strstr(layers[0].numerics_id, "+widen_gpu") != NULL;
    choose_arithmetic(layers[0].numerics_id);
    TRY(expertd_team_create(&team, &v->team));
    struct model_options options = {
        .model = o->model,
        .hf_cache = o->hf_cache,
        .compute_dtype = dtype,
        .widen = strstr(layers[0].numerics_id, "+widen") && !for_devices,
        .for_devices = for_devices,
        .quantise = quantise_of_numerics(layers[0].numerics_id),
        .ranks = 1,
        .have_layers = true,
        .first_layer = layers[0].layer,
        .last_layer = layers[v->count - 1].layer,
        .team = v->team,
        .progress = show_progress,
    };
    return model_load(&options, &v->model);
}

static FALLIBLE check_identity(struct verify *v) {
    for (size_t i = 0; i < v->model.num_layers; i++) {
        const struct model_layer *mine = &v->model.layers[i];
        const struct describe_layer *theirs = served_layer(v, mine->params.layer);
        if (!theirs) {
            FAIL(EXPERTD_ERR_LAYER_UNKNOWN, "layer %u of %s is not served", mine->params.layer, v->options->model);
        }
        if (theirs->weights_id != mine->weights_id) {
            FAIL(EXPERTD_ERR_WEIGHTS_CHANGED,
                 "layer %u: the daemon serves weights %016" PRIx64 ", %s gives %016" PRIx64
                 ": was it started with another model, or has the folder changed since?",
                 mine->params.layer, theirs->weights_id, v->options->model, mine->weights_id);
        }
    }
    struct report *r = &v->report;
    r->model = v->model.name;
    r->numerics_id = v->model.numerics_id;
    r->daemon_numerics_id = v->served->layers[v->first].numerics_id;
    r->same_numerics = is_same_arithmetic(r->numerics_id, r->daemon_numerics_id);
    r->bound = v->model.compute_dtype == EXPERTD_DTYPE_F32 ? BOUND_F32 : BOUND_BF16;
    if (!r->same_numerics) {
        fprintf(stderr, "the daemon's arithmetic is %s, the reference's is %s: answers must agree within %.0e, not bit for bit\n",
                r->daemon_numerics_id, r->numerics_id, r->bound);
    }
    return OK;
}

static int compare_times(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static FALLIBLE time_calls(struct verify *v, const struct wire_request *request, struct report_row *row) {
    int64_t times[TIMED_CALLS_MAX], spent = 0;
    size_t count = 0;
    while (count < TIMED_CALLS_MAX && spent < TIMED_NS_MAX) {
        struct client_reply reply;
        int64_t start = clock_now_ns();
        TRY(client_forward(v->client, request, v->options->timeout_us, &reply));
        times[count] = clock_now_ns() - start;
        spent += times[count++];
        client_reply_deinit(&reply);
    }
    qsort(times, count, sizeof *times, compare_times);
    int64_t median = times[count / 2];
    row->p50_s = (double)median / 1e9;
    row->calls = count;
    return OK;
}

// Sends the request. *view is the answer's output, in the reply or in the region.
static FALLIBLE ask(struct verify *v, const struct wire_request *request, struct client_reply *reply,
                    struct expertd_tensor_view *view) {
    TRY(client_forward(v->client, request, v->options->timeout_us, reply));
    *view = reply->wire.output.view;
    return request->has_output ? shared_answer(&v->region, request, &reply->wire.output, view) : OK;
}

// Sends one request of one kind and compares the answer. Times the first request of a row.
static FALLIBLE check_case(struct verify *v, const struct model_layer *layer, enum case_kind kind, struct report_row *row) {
    struct case_options options = {.kind = kind,
                                   .layer = layer,
                                   .tokens = row->tokens,
                                   .max_top_k = v->description.response.max_top_k,
                                   .seed = v->options->seed};
    struct verify_case c;
    struct wire_request request;
    struct client_reply reply = {0};
    struct expertd_tensor_view answer;
    err_t e;
    TRY_OUT(e, case_init(&options, &c));
    c.request.id = row->requests + 1;
    request = c.request;
    if (v->options->shared_memory) {
        TRY_OUT(e, shared_place(&v->region, &c.request, &request));
    }
    TRY_OUT(e, ask(v, &request, &reply, &answer));
    TRY_OUT(e, compare_answer(&c, layer, v->model.compute_dtype, &answer, &row->found));
    if (row->calls == 0) {
        TRY_OUT(e, time_calls(v, &request, row));
    }
    row->requests++;
out:
    client_reply_deinit(&reply);
    case_deinit(&c);
    return err_context(e, "layer %u, %" PRIu64 " tokens, %s", layer->params.layer, row->tokens, case_name(kind));
}

static void report_progress(const struct model_layer *layer, uint64_t tokens) {
    uint64_t rows = compare_rows(&layer->params, tokens);
    fprintf(stderr, "checking layer %u with %" PRIu64 " token%s", layer->params.layer, tokens, tokens == 1 ? "" : "s");
    if (rows < tokens) {
        fprintf(stderr, " (the reference is slow: it computes %" PRIu64 " of them per request)", rows);
    }
    fputc('\n', stderr);
}

static FALLIBLE check_layer(struct verify *v, const struct model_layer *layer, uint64_t tokens) {
    struct report *r = &v->report;
    struct report_row *row = &r->rows[r->count];
    *row = (struct report_row){.params = &layer->params, .tokens = tokens};
    report_progress(layer, tokens);
    for (int kind = 0; kind < CASE_KIND_COUNT; kind++) {
        if (case_fits((enum case_kind)kind, layer)) {
            TRY(check_case(v, layer, (enum case_kind)kind, row));
        }
    }
    row->right = r->same_numerics ? row->found.differing == 0 : row->found.error_max <= r->bound;
    r->count++;
    return OK;
}

static FALLIBLE check_layers(struct verify *v) {
    const struct verify_options *o = v->options;
    uint32_t max_tokens = v->description.response.max_tokens;
    v->report.rows = calloc(v->model.num_layers * o->num_tokens, sizeof *v->report.rows);
    if (!v->report.rows) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the results of %zu layers", v->model.num_layers);
    }
    for (size_t i = 0; i < v->model.num_layers; i++) {
        for (size_t t = 0; t < o->num_tokens; t++) {
            if (o->tokens[t] > max_tokens) {
                fprintf(stderr, "%u tokens are left out: the daemon takes %u in one request\n", o->tokens[t], max_tokens);
                continue;
            }
            TRY(check_layer(v, &v->model.layers[i], o->tokens[t]));
        }
    }
    if (v->report.count == 0) {
        FAIL(EXPERTD_ERR_USAGE, "nothing was compared: the daemon takes %u tokens in one request, let --tokens name fewer",
             max_tokens);
    }
    return OK;
}

static FALLIBLE verify(struct verify *v) {
    TRY(client_create_tls(v->options->address, &v->options->tls, &v->client));
    TRY(client_describe(v->client, "", v->options->timeout_us, &v->description));
    TRY(choose_layers(v));
    if (v->options->shared_memory) {
        TRY(client_region_open(v->client, v->description.response.max_region_bytes, v->options->timeout_us, &v->region));
    }
    TRY(load_model(v));
    TRY(check_identity(v));
    TRY(check_layers(v));
    TRY(v->options->json ? report_print_json(&v->report) : report_print_table(&v->report));
    return standard_output_flush();
}

static void verify_deinit(struct verify *v) {
    free(v->report.rows);
    model_deinit(&v->model);
    expertd_team_destroy(v->team);
    client_region_close(&v->region);
    client_description_deinit(&v->description);
    client_destroy(v->client);
}

static int fail(err_t e) {
    fprintf(stderr, "expertd-verify: %s: %s\n", expertd_err_name(e.code), expertd_err_message());
    return e.code == EXPERTD_ERR_WEIGHTS_CHANGED ? EXIT_WRONG : err_exit_code(e.code);
}

int main(int argc, char **argv) {
    struct verify_options options;
    err_t e = surroundings_prepare();
    client_tune_process();
    e = err_is(e) ? e : verify_options_parse(argc, argv, &options);
    if (err_is(e)) {
        return fail(e);
    }
    if (options.help) {
        verify_options_help(stdout);
        e = standard_output_flush();
        return err_is(e) ? fail(e) : 0;
    }
    e = mapped_install_handler();
    if (err_is(e)) {
        return fail(e);
    }
    struct verify v = {.options = &options};
    e = verify(&v);
    int code = err_is(e) ? fail(e) : 0;
    if (code == 0 && !report_all_right(&v.report)) {
        fprintf(stderr, "expertd-verify: the daemon's answers differ from the reference; report this with the rows above\n");
        code = EXIT_WRONG;
    }
    verify_deinit(&v);
    return code;
}
