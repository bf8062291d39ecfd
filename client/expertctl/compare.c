// expertctl compare: sends the same rows to the same layers of two daemons, and reports how far the second one's answers are from
// the first one's. It shows what a quantisation costs in accuracy.
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/expertctl/commands.h"
#include "client/expertctl/files/tensor_file.h"
#include "client/expertctl/print/json_out.h"
#include "client/expertctl/print/table.h"

enum { MADE_ROWS = 64 }; // rows that are generated without --hidden
#define MADE_SEED UINT64_C(1)

// One daemon. Index 0 is the reference, index 1 is compared with it.
struct side {
    struct client *client;
    struct client_description description;
    const struct describe_model *model;
};

struct comparison {
    const struct ctl_options *options;
    struct side sides[2];
    struct tensor_file file;           // --hidden; zeroed: not given
    struct expertd_tensor_view hidden; // [T, H], of the file or generated
    float *made;                       // owned; NULL with --hidden
};

// The differences of one layer's answers; all relative to the reference.
struct difference {
    double rms;     // root of the sum of squared differences, over that of squared values
    double worst;   // over all rows: the greatest difference, divided by the greatest value of the row
    double cosine;  // the least of all rows
    bool equal;     // in every bit
    bool is_finite; // false: an answer has NaN or infinite values; the figures are then of no meaning
};

// ---- rows

static uint64_t next_word(uint64_t *state) { // SplitMix64
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static double uniform(uint64_t *state) { // in (0, 1)
    return ((double)(next_word(state) >> 11) + 0.5) * 0x1p-53;
}

// Rows of a standard normal distribution (Box and Muller).
static FALLIBLE make_rows(uint64_t width, struct comparison *c) {
    uint64_t count = MADE_ROWS * width, state = MADE_SEED;
    free(c->made);
    c->made = malloc(count * sizeof *c->made);
    if (!c->made) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %d rows of %" PRIu64 " values", MADE_ROWS, width);
    }
    for (uint64_t i = 0; i < count; i++) {
        double radius = sqrt(-2 * log(uniform(&state))), angle = 2 * M_PI * uniform(&state);
        c->made[i] = (float)(radius * cos(angle));
    }
    c->hidden = (struct expertd_tensor_view){
        .data = c->made, .bytes = count * sizeof *c->made, .dtype = EXPERTD_DTYPE_F32, .rank = 2, .shape = {MADE_ROWS, width}};
    return OK;
}

static FALLIBLE read_rows(struct comparison *c) {
    const struct ctl_options *o = c->options;
    char text[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
    TRY_IN(tensor_file_open(o->hidden, o->hidden_dtype, &c->file), "--hidden");
    c->hidden = c->file.view;
    if (c->hidden.rank != 2 || c->hidden.shape[0] == 0) {
        FAIL(EXPERTD_ERR_SHAPE_MISMATCH, "--hidden %s: its shape is %s; one row or more, [rows, hidden size], are expected",
             o->hidden, expertd_tensor_shape_text(c->hidden.shape, c->hidden.rank, text));
    }
    return OK;
}

// ---- calls

static FALLIBLE forward(const struct comparison *c, const struct side *side, uint32_t layer, uint64_t first, uint64_t count,
                        struct client_reply *out) {
    struct wire_request request = {.id = 1, .layer = layer, .output_dtype = EXPERTD_DTYPE_F32};
    uint64_t row_bytes = c->hidden.bytes / c->hidden.shape[0];
    snprintf(request.model, sizeof request.model, "%s", side->model->name);
    request.shared = c->options->shared;
    request.hidden = (struct wire_tensor){.present = true, .view = c->hidden};
    request.hidden.view.data = (const char *)c->hidden.data + first * row_bytes;
    request.hidden.view.shape[0] = count;
    request.hidden.view.bytes = count * row_bytes;
    TRY_IN(client_forward(side->client, &request, c->options->timeout_us, out), "%s, layer %u", client_address(side->client),
           layer);
    const struct expertd_tensor_view *answer = &out->wire.output.view;
    if (!out->wire.output.present || answer->dtype != EXPERTD_DTYPE_F32 || answer->rank != 2 || answer->shape[0] != count) {
        client_reply_deinit(out);
        FAIL(EXPERTD_ERR_MALFORMED, "%s, layer %u: the answer is not a matrix of %" PRIu64 " rows of f32",
             client_address(side->client), layer, count);
    }
    return OK;
}

// ---- differences

// Sums over all rows.
struct sums {
    double squares, differences;
};

static void add_row(const char *reference, const char *other, uint64_t width, struct sums *sums, struct difference *out) {
    double product = 0, squares = 0, others = 0, greatest = 0, worst = 0, differences = 0;
    for (uint64_t i = 0; i < width; i++) {
        float a, b; // the message's bytes may be misaligned
        memcpy(&a, reference + i * sizeof a, sizeof a);
        memcpy(&b, other + i * sizeof b, sizeof b);
        double difference = (double)a - (double)b;
        out->is_finite = out->is_finite && isfinite(a) && isfinite(b);
        product += (double)a * (double)b;
        squares += (double)a * (double)a;
        others += (double)b * (double)b;
        differences += difference * difference;
        greatest = fmax(greatest, fabs((double)a));
        worst = fmax(worst, fabs(difference));
    }
    double lengths = sqrt(squares) * sqrt(others);
    sums->squares += squares;
    sums->differences += differences;
    out->worst = fmax(out->worst, greatest > 0 ? worst / greatest : worst > 0 ? INFINITY : 0);
    out->cosine = fmin(out->cosine, lengths > 0 ? product / lengths : squares == others ? 1 : 0);
}

static FALLIBLE compare_rows(const struct comparison *c, uint32_t layer, uint64_t first, uint64_t count, struct sums *sums,
                             struct difference *out) {
    struct client_reply replies[2];
    TRY(forward(c, &c->sides[0], layer, first, count, &replies[0]));
    err_t e = forward(c, &c->sides[1], layer, first, count, &replies[1]);
    if (err_is(e)) {
        client_reply_deinit(&replies[0]);
        return e;
    }
    const struct expertd_tensor_view *a = &replies[0].wire.output.view, *b = &replies[1].wire.output.view;
    if (a->shape[1] == b->shape[1]) {
        uint64_t row_bytes = a->shape[1] * sizeof(float);
        out->equal = out->equal && memcmp(a->data, b->data, a->bytes) == 0;
        for (uint64_t row = 0; row < count; row++) {
            add_row((const char *)a->data + row * row_bytes, (const char *)b->data + row * row_bytes, a->shape[1], sums, out);
        }
    } else {
        e = err_record(EXPERTD_ERR_SHAPE_MISMATCH, NULL, "layer %u has rows of %" PRIu64 " values at %s, but of %" PRIu64 " at %s",
                       layer, a->shape[1], client_address(c->sides[0].client), b->shape[1], client_address(c->sides[1].client));
    }
    client_reply_deinit(&replies[0]);
    client_reply_deinit(&replies[1]);
    return e;
}

static FALLIBLE compare_layer(struct comparison *c, const struct describe_layer *layer, struct difference *out) {
    struct sums sums = {0};
    *out = (struct difference){.cosine = 1, .equal = true, .is_finite = true};
    if (!c->options->hidden && (!c->made || c->hidden.shape[1] != layer->hidden_size)) {
        TRY(make_rows(layer->hidden_size, c));
    }
    uint64_t rows = c->hidden.shape[0], step = c->options->split && c->options->split < rows ? c->options->split : rows;
    for (uint64_t first = 0; first < rows; first += step) {
        TRY(compare_rows(c, layer->layer, first, rows - first < step ? rows - first : step, &sums, out));
    }
    out->rms = sums.squares > 0 ? sqrt(sums.differences / sums.squares) : sums.differences > 0 ? INFINITY : 0;
    return OK;
}

// ---- the report

static const char *weights_text(const struct describe_layer *layer) {
    return layer->quantisation && layer->quantisation[0] ? layer->quantisation : expertd_dtype_name(layer->weight_dtype);
}

static json_t *number_or_null(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *layer_json(const struct describe_layer *const layers[2], const struct difference *d) {
    return json_pack("{s:I, s:[o, o], s:[o, o], s:b, s:b, s:o, s:o, s:o}", "layer", (json_int_t)layers[0]->layer, "weights",
                     json_text(weights_text(layers[0])), json_text(weights_text(layers[1])), "numerics_ids",
                     json_text(layers[0]->numerics_id), json_text(layers[1]->numerics_id), "equal_bits", d->equal, "finite",
                     d->is_finite, "relative_rms", number_or_null(d->rms), "worst", number_or_null(d->worst), "least_cosine",
                     number_or_null(d->cosine));
}

static FALLIBLE add_table_row(struct table *table, const struct describe_layer *const layers[2], const struct difference *d) {
    TRY(table_row(table));
    TRY(table_cell(table, 0, "%u", layers[0]->layer));
    TRY(table_cell(table, 1, "%s", weights_text(layers[0])));
    TRY(table_cell(table, 2, "%s", weights_text(layers[1])));
    TRY(table_cell(table, 3, "%.3g", d->rms));
    TRY(table_cell(table, 4, "%.3g", d->worst));
    TRY(table_cell(table, 5, "%.6f", d->cosine));
    return table_cell(table, 6, "%s", d->equal ? "equal bits" : d->is_finite ? "" : "NaN or infinite values");
}

static const struct describe_layer *layer_of(const struct describe_model *model, uint32_t number) {
    for (size_t i = 0; i < model->num_layers; i++) {
        if (model->layers[i].layer == number) {
            return &model->layers[i];
        }
    }
    return NULL;
}

// Layers that need inputs besides hidden states are left out; *reason says why.
static bool can_compare(const struct comparison *c, const struct describe_layer *layer, const char **reason) {
    const struct describe_layer *other = layer_of(c->sides[1].model, layer->layer);
    *reason = !other                      ? "the second daemon does not serve it"
              : !layer->has_router        ? "it has no router, and compare sends no routes"
              : layer->needs_token_ids    ? "it needs token ids, which compare does not send"
              : layer->needs_router_input ? "it needs router_input, which compare does not send"
                                          : NULL;
    return !*reason;
}

static FALLIBLE compare_all(struct comparison *c, struct table *table, json_t *array) {
    const struct describe_model *model = c->sides[0].model;
    size_t compared = 0;
    for (size_t i = 0; i < model->num_layers; i++) {
        const struct describe_layer *layer = &model->layers[i];
        const char *reason;
        struct difference difference;
        if (c->options->have_layer && layer->layer != c->options->layer) {
            continue;
        }
        if (!can_compare(c, layer, &reason)) {
            fprintf(stderr, "expertctl: layer %u is left out: %s\n", layer->layer, reason);
            continue;
        }
        const struct describe_layer *layers[2] = {layer, layer_of(c->sides[1].model, layer->layer)};
        TRY(compare_layer(c, layer, &difference));
        TRY(add_table_row(table, layers, &difference));
        json_array_append_new(array, layer_json(layers, &difference));
        compared++;
    }
    if (compared == 0) {
        FAIL(EXPERTD_ERR_USAGE, "no layer could be compared; expertctl models lists the layers that each daemon serves");
    }
    return OK;
}

static FALLIBLE print_comparison(const struct comparison *c, const struct table *table, json_t *array) {
    uint64_t rows = c->hidden.shape[0];
    if (c->options->json) {
        return json_print_take(json_pack("{s:[o, o], s:I, s:O}", "addresses", json_text(client_address(c->sides[0].client)),
                                         json_text(client_address(c->sides[1].client)), "rows", (json_int_t)rows, "layers", array));
    }
    table_print(table, stdout);
    printf("%" PRIu64 " rows %s; RMS and WORST are relative to the answers of %s\n", rows,
           c->options->hidden ? "of --hidden" : "of normal random values (--hidden FILE: rows of your own)",
           client_address(c->sides[0].client));
    return OK;
}

static FALLIBLE run(struct comparison *c) {
    static const char *const NAMES[] = {"LAYER", "WEIGHTS", "COMPARED", "RMS", "WORST", "LEAST COSINE", "", NULL};
    struct table table;
    json_t *array = json_array();
    table_init(&table, NAMES, 1u << 0 | 1u << 3 | 1u << 4 | 1u << 5);
    err_t e = compare_all(c, &table, array);
    e = err_is(e) ? e : print_comparison(c, &table, array);
    json_decref(array);
    table_deinit(&table);
    return e;
}

static FALLIBLE describe(const struct ctl_options *options, struct side *side) {
    TRY_IN(client_describe(side->client, options->model, options->timeout_us, &side->description), "%s",
           client_address(side->client));
    const struct describe_response *response = &side->description.response;
    if (response->num_models != 1) {
        FAIL(EXPERTD_ERR_USAGE, "%s serves %zu models: choose one with --model", client_address(side->client),
             response->num_models);
    }
    side->model = &response->models[0];
    return OK;
}

FALLIBLE command_compare(struct client *client, const struct ctl_options *options) {
    struct comparison c = {.options = options, .sides[0].client = client};
    err_t e;
    TRY_OUT(e, client_create_tls(options->with, &options->tls, &c.sides[1].client));
    TRY_OUT(e, describe(options, &c.sides[0]));
    TRY_OUT(e, describe(options, &c.sides[1]));
    if (options->hidden) {
        TRY_OUT(e, read_rows(&c));
    }
    TRY_OUT(e, run(&c));
out:
    tensor_file_close(&c.file);
    free(c.made);
    for (int i = 0; i < 2; i++) {
        client_description_deinit(&c.sides[i].description);
    }
    client_destroy(c.sides[1].client);
    return e;
}
