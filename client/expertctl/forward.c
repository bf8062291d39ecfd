// expertctl forward: sends hidden states from a file, reports and writes the answer.
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "client/expertctl/commands.h"
#include "client/expertctl/files/tensor_file.h"
#include "client/expertctl/print/json_out.h"

enum { INPUT_HIDDEN, INPUT_SCALE, INPUT_IDS, INPUT_WEIGHTS, INPUT_LOGITS, INPUT_TOKEN_IDS, INPUT_ROUTER_INPUT, INPUT_COUNT };

// One run of the command: its inputs, the output as far as calls have answered, and the measurements.
struct run {
    struct tensor_file inputs[INPUT_COUNT]; // zeroed: not given
    uint64_t tokens;                        // T
    struct expertd_tensor_view output;      // [T, H]; data is owned
    uint64_t calls, latency_ns;
    uint64_t weights_id, placement_epoch;
    bool have_timings;
    struct wire_timings timings; // added up over the calls
};

static FALLIBLE open_inputs(const struct ctl_options *o, struct run *run) {
    const char *specs[INPUT_COUNT] = {o->hidden,        o->hidden_scale, o->ids,         o->weights,
                                      o->router_logits, o->token_ids,    o->router_input};
    static const char *const FLAGS[INPUT_COUNT] = {"--hidden",        "--hidden-scale", "--ids",         "--weights",
                                                   "--router-logits", "--token-ids",    "--router-input"};
    for (size_t i = 0; i < INPUT_COUNT; i++) {
        if (specs[i]) {
            enum expertd_dtype as = i == INPUT_HIDDEN ? o->hidden_dtype : EXPERTD_DTYPE_NONE;
            TRY_IN(tensor_file_open(specs[i], as, &run->inputs[i]), "%s", FLAGS[i]);
        }
    }
    const struct expertd_tensor_view *hidden = &run->inputs[INPUT_HIDDEN].view;
    if (hidden->rank != 2) {
        char text[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
        FAIL(EXPERTD_ERR_SHAPE_MISMATCH, "--hidden %s: its shape is %s; hidden states are [tokens, hidden size]", o->hidden,
             expertd_tensor_shape_text(hidden->shape, hidden->rank, text));
    }
    run->tokens = hidden->shape[0];
    for (size_t i = INPUT_SCALE; i < INPUT_COUNT; i++) {
        const struct expertd_tensor_view *view = &run->inputs[i].view;
        bool for_all = i == INPUT_SCALE && view->rank == 1; // [1]: one scale for all tokens
        uint32_t rank = i == INPUT_TOKEN_IDS ? 1 : 2;
        if (specs[i] && !for_all && (view->rank != rank || view->shape[0] != run->tokens)) {
            char text[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
            FAIL(EXPERTD_ERR_SHAPE_MISMATCH,
                 "%s %s: its shape is %s; a row for each of the %" PRIu64 " tokens of --hidden is expected", FLAGS[i], specs[i],
                 expertd_tensor_shape_text(view->shape, view->rank, text), run->tokens);
        }
    }
    return OK;
}

// Rows [first, first + count) of an input. A scale of rank 1 is for all tokens and is sent whole.
static struct wire_tensor rows_of(const struct run *run, int input, uint64_t first, uint64_t count) {
    const struct tensor_file *file = &run->inputs[input];
    struct wire_tensor tensor = {.present = file->path != NULL, .view = file->view};
    bool for_all = input == INPUT_SCALE && tensor.view.rank == 1;
    if (tensor.present && !for_all && tensor.view.shape[0] > 0) {
        uint64_t row_bytes = tensor.view.bytes / tensor.view.shape[0];
        tensor.view.data = (const uint8_t *)tensor.view.data + first * row_bytes;
        tensor.view.bytes = count * row_bytes;
        tensor.view.shape[0] = count;
    }
    return tensor;
}

static void fill_request(const struct ctl_options *o, const struct run *run, uint64_t first, uint64_t count,
                         struct wire_request *out) {
    *out = (struct wire_request){
        .id = first + 1,
        .layer = o->layer,
        .weights_id = o->weights_id,
        .routing = o->ids             ? WIRE_ROUTING_ROUTES
                   : o->router_logits ? WIRE_ROUTING_LOGITS
                                      : WIRE_ROUTING_NONE,
        .ids = rows_of(run, INPUT_IDS, first, count),
        .weights = rows_of(run, INPUT_WEIGHTS, first, count),
        .router_logits = rows_of(run, INPUT_LOGITS, first, count),
        .hidden_scale = rows_of(run, INPUT_SCALE, first, count),
        .token_ids = rows_of(run, INPUT_TOKEN_IDS, first, count),
        .router_input = rows_of(run, INPUT_ROUTER_INPUT, first, count),
        .shared = o->shared,
        .output_dtype = o->output_dtype,
        .timings = o->timings,
        .hidden = rows_of(run, INPUT_HIDDEN, first, count),
    };
    snprintf(out->model, sizeof out->model, "%s", o->model);
}

static void add_timings(struct wire_timings *sum, const struct wire_timings *t) {
    sum->queue += t->queue;
    sum->route += t->route;
    sum->exchange += t->exchange;
    sum->compute += t->compute;
    sum->combine += t->combine;
    sum->total += t->total;
    sum->batch_tokens += t->batch_tokens;
    sum->batch_requests += t->batch_requests;
}

// The first answer determines the dtype and width of the output.
static FALLIBLE reserve_output(const struct expertd_tensor_view *answer, struct run *run) {
    run->output = (struct expertd_tensor_view){.dtype = answer->dtype, .rank = 2, .shape = {run->tokens, answer->shape[1]}};
    TRY(expertd_tensor_bytes(answer->dtype, run->output.shape, 2, &run->output.bytes));
    run->output.data = malloc(run->output.bytes ? run->output.bytes : 1);
    if (!run->output.data) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for an answer of %" PRIu64 " bytes", run->output.bytes);
    }
    return OK;
}

static FALLIBLE store_answer(const struct client_reply *reply, uint64_t first, uint64_t count, struct run *run) {
    const struct expertd_tensor_view *answer = &reply->wire.output.view;
    if (!reply->wire.output.present || answer->rank != 2 || answer->shape[0] != count ||
        !expertd_dtype_is_float16_or_32(answer->dtype)) {
        FAIL(EXPERTD_ERR_MALFORMED, "the daemon's answer is not a matrix of %" PRIu64 " rows", count);
    }
    if (!run->output.data) {
        TRY(reserve_output(answer, run));
        run->weights_id = reply->wire.weights_id;
    }
    uint64_t row_bytes = run->output.shape[1] * expertd_dtype_size(run->output.dtype);
    if (answer->dtype != run->output.dtype || answer->shape[1] != run->output.shape[1] || answer->bytes != count * row_bytes ||
        reply->wire.weights_id != run->weights_id) {
        FAIL(EXPERTD_ERR_WEIGHTS_CHANGED, "the answers' weights, type or width changed between the calls; run it again");
    }
    if (answer->bytes) {
        memcpy((uint8_t *)run->output.data + first * row_bytes, answer->data, answer->bytes);
    }
    run->placement_epoch = reply->wire.placement_epoch;
    if (reply->wire.has_timings) {
        run->have_timings = true;
        add_timings(&run->timings, &reply->wire.timings);
    }
    return OK;
}

static FALLIBLE send_rows(struct client *client, const struct ctl_options *o, uint64_t first, uint64_t count, struct run *run) {
    struct wire_request request;
    fill_request(o, run, first, count, &request);
    struct client_reply reply;
    int64_t start_ns = clock_now_ns();
    TRY(client_forward(client, &request, o->timeout_us, &reply));
    run->latency_ns += (uint64_t)(clock_now_ns() - start_ns);
    run->calls++;
    err_t e = store_answer(&reply, first, count, run);
    client_reply_deinit(&reply);
    return e;
}

static FALLIBLE send_all(struct client *client, const struct ctl_options *o, struct run *run) {
    uint64_t step = o->split && o->split < run->tokens ? o->split : run->tokens;
    uint64_t first = 0;
    do { // at least one call, also without tokens
        uint64_t count = run->tokens - first < step ? run->tokens - first : step;
        err_t e = send_rows(client, o, first, count, run);
        if (err_is(e)) {
            return step < run->tokens ? err_context(e, "tokens %" PRIu64 " to %" PRIu64, first, first + count - 1) : e;
        }
        first += count;
    } while (first < run->tokens);
    return OK;
}

// ---- the report

struct summary {
    uint64_t elements, not_finite;
    double least, greatest, mean, rms; // of the finite elements
};

enum { SUMMARY_BLOCK = 1024 };

static struct summary summarise(const struct expertd_tensor_view *view) {
    struct summary s = {.least = INFINITY, .greatest = -INFINITY};
    size_t size = expertd_dtype_size(view->dtype);
    s.elements = view->bytes / size;
    double sum = 0, squares = 0;
    for (uint64_t at = 0; at < s.elements; at += SUMMARY_BLOCK) {
        float block[SUMMARY_BLOCK];
        size_t count = s.elements - at < SUMMARY_BLOCK ? (size_t)(s.elements - at) : SUMMARY_BLOCK;
        expertd_dtype_widen(view->dtype, (const uint8_t *)view->data + at * size, count, block);
        for (size_t i = 0; i < count; i++) {
            double x = (double)block[i];
            if (!isfinite(x)) {
                s.not_finite++;
                continue;
            }
            s.least = x < s.least ? x : s.least;
            s.greatest = x > s.greatest ? x : s.greatest;
            sum += x;
            squares += x * x;
        }
    }
    uint64_t finite = s.elements - s.not_finite;
    s.mean = finite ? sum / (double)finite : 0;
    s.rms = finite ? sqrt(squares / (double)finite) : 0;
    return s;
}

static json_t *timings_json(const struct wire_timings *t) {
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "queue_ns", (json_int_t)t->queue, "route_ns", (json_int_t)t->route,
                     "exchange_ns", (json_int_t)t->exchange, "compute_ns", (json_int_t)t->compute, "combine_ns",
                     (json_int_t)t->combine, "total_ns", (json_int_t)t->total, "batch_tokens", (json_int_t)t->batch_tokens,
                     "batch_requests", (json_int_t)t->batch_requests);
}

static FALLIBLE print_json(const struct ctl_options *o, const struct run *run, const char *address) {
    struct summary s = summarise(&run->output);
    bool any = s.elements > s.not_finite;
    char weights_id[JSON_HEX_TEXT];
    json_t *object = json_pack("{s:o, s:I, s:[I, I], s:s, s:s, s:I, s:I, s:f, s:o, s:{s:I, s:I, s:o, s:o, s:f, s:f}}", "address",
                               json_text(address), "layer", (json_int_t)o->layer, "shape", (json_int_t)run->output.shape[0],
                               (json_int_t)run->output.shape[1], "dtype", expertd_dtype_name(run->output.dtype), "weights_id",
                               json_hex(run->weights_id, weights_id), "placement_epoch", (json_int_t)run->placement_epoch, "calls",
                               (json_int_t)run->calls, "latency_seconds", (double)run->latency_ns / 1e9, "output",
                               o->output ? json_text(o->output) : json_null(), "summary", "elements", (json_int_t)s.elements,
                               "not_finite", (json_int_t)s.not_finite, "min", any ? json_real(s.least) : json_null(), "max",
                               any ? json_real(s.greatest) : json_null(), "mean", s.mean, "rms", s.rms);
    if (object && run->have_timings) {
        json_object_set_new(object, "timings", timings_json(&run->timings));
    }
    return json_print_take(object);
}

static void print_timings(const struct run *run) {
    const struct wire_timings *t = &run->timings;
    double calls = (double)run->calls;
    printf("timings     queue %.1f, route %.1f, exchange %.1f, compute %.1f, combine %.1f, total %.1f us%s\n",
           (double)t->queue / calls / 1e3, (double)t->route / calls / 1e3, (double)t->exchange / calls / 1e3,
           (double)t->compute / calls / 1e3, (double)t->combine / calls / 1e3, (double)t->total / calls / 1e3,
           run->calls > 1 ? " (mean of the calls)" : "");
    printf("batch       %.1f tokens of %.1f requests\n", t->batch_tokens / calls, t->batch_requests / calls);
}

static FALLIBLE print_text(const struct ctl_options *o, const struct run *run) {
    struct summary s = summarise(&run->output);
    char shape[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
    printf("layer       %u\n", o->layer);
    printf("output      %s %s\n", expertd_dtype_name(run->output.dtype), expertd_tensor_shape_text(run->output.shape, 2, shape));
    printf("latency     %.3f ms in %" PRIu64 " call%s\n", (double)run->latency_ns / 1e6, run->calls, run->calls == 1 ? "" : "s");
    if (s.elements > s.not_finite) {
        printf("values      min %.6g, max %.6g, mean %.6g, rms %.6g\n", s.least, s.greatest, s.mean, s.rms);
    }
    if (s.not_finite) {
        printf("not finite  %" PRIu64 " of %" PRIu64 "\n", s.not_finite, s.elements);
    }
    printf("weights     %016" PRIx64 "\n", run->weights_id);
    if (run->have_timings) {
        print_timings(run);
    }
    if (o->output) {
        bool as_bits = run->output.dtype == EXPERTD_DTYPE_BF16 && tensor_file_is_npy(o->output);
        printf("written     %s%s\n", o->output, as_bits ? " (bf16 bits as <u2: NumPy has no bf16)" : "");
    }
    return OK;
}

FALLIBLE command_forward(struct client *client, const struct ctl_options *options) {
    struct run run = {0};
    err_t e;
    if (options->output) { // report a wrong name before the calls
        char *path;
        const char *tensor;
        TRY_IN(tensor_file_split(options->output, &path, &tensor), "--output");
        free(path);
    }
    TRY_OUT(e, open_inputs(options, &run));
    TRY_OUT(e, send_all(client, options, &run));
    if (options->output) {
        TRY_OUT(e, err_context(tensor_file_save(options->output, &run.output), "--output"));
    }
    TRY_OUT(e, options->json ? print_json(options, &run, client_address(client)) : print_text(options, &run));
out:
    for (size_t i = 0; i < INPUT_COUNT; i++) {
        tensor_file_close(&run.inputs[i]);
    }
    free((void *)run.output.data);
    return e;
}
