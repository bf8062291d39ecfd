#include "daemon/examine/inspect_print.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/printable.h"
#include "base/process/standard_output.h"

enum { ROW_BYTES = 512, TEXT_BYTES = 2 * EXPERTD_ERR_MESSAGE_MAX, LABEL_WIDTH = 13 };

static uint64_t stored_bytes(const struct inspection *inspection) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < inspection->count; i++) {
        bytes += inspection->layers[i].stored_bytes;
    }
    return bytes;
}

static size_t served_layers(const struct inspection *inspection) {
    size_t served = 0;
    for (size_t i = 0; i < inspection->count; i++) {
        served += !inspection->layers[i].refusal;
    }
    return served;
}

// The longest run of layers that are served, consecutive in the list. Returns its length.
static size_t longest_served(const struct inspection *inspection, size_t *first) {
    size_t longest = 0, run = 0;
    for (size_t i = 0; i < inspection->count; i++) {
        run = inspection->layers[i].refusal ? 0 : run + 1;
        if (run > longest) {
            longest = run;
            *first = i + 1 - run;
        }
    }
    return longest;
}

// ---- tables

static void put(const char *label, const char *text) {
    char escaped[TEXT_BYTES];
    printf("%-*s%s\n", LABEL_WIDTH, label, printable_escape(text, escaped, sizeof escaped));
}

static void put_head(const struct inspection *inspection) {
    char text[TEXT_BYTES], size[MEMORY_TEXT_MAX];
    put("model", inspection->name);
    if (inspection->folder[0] && strcmp(inspection->folder, inspection->name) != 0) {
        put("folder", inspection->folder);
    }
    put("model type", inspection->model_type[0] ? inspection->model_type : "not recognised");
    if (inspection->numerics_id[0]) {
        snprintf(text, sizeof text, "%s, numerics id %s", expertd_dtype_name(inspection->compute_dtype), inspection->numerics_id);
        put("computes in", text);
    }
    if (inspection->tensors) {
        const uint64_t bytes = stored_bytes(inspection);
        int used = snprintf(text, sizeof text, "%zu tensors", inspection->tensors);
        if (bytes) {
            snprintf(text + used, sizeof text - (size_t)used, "; those of the layers below have %s", memory_text(bytes, size));
        }
        put("on disk", text);
    }
}

static const char *shared_text(const struct layer_params *params, char text[32]) {
    snprintf(text, 32, "%u", params->shared_intermediate_size);
    return shared_has_expert(params->shared) ? text : "-";
}

static const char *size_text(uint64_t bytes, char text[MEMORY_TEXT_MAX]) {
    return bytes ? memory_text(bytes, text) : "-";
}

// A layer's row without its number: equal rows are joined.
static void layer_row(const struct inspected_layer *layer, char row[ROW_BYTES]) {
    const struct layer_params *p = &layer->params;
    char shared[32], disk[MEMORY_TEXT_MAX], memory[MEMORY_TEXT_MAX], format[2 * QUANTISATION_NAME_MAX];
    if (layer->refusal) {
        snprintf(row, ROW_BYTES, "refused");
        return;
    }
    snprintf(row, ROW_BYTES, "%7u %5u %7u %7u %7s %10s %10s  %s", p->num_experts, p->routing.top_k, p->hidden_size,
             p->intermediate_size, shared_text(p, shared), size_text(layer->stored_bytes, disk), size_text(layer->bytes, memory),
             printable_escape(layer->format, format, sizeof format));
}

static void put_run(const struct inspection *inspection, size_t first, size_t end, const char *row) {
    char numbers[32], text[TEXT_BYTES];
    const uint32_t a = inspection->layers[first].layer, b = inspection->layers[end - 1].layer;
    snprintf(numbers, sizeof numbers, a == b ? "%u" : "%u-%u", a, b);
    printf("%-9s%s%s%s\n", numbers, row, inspection->layers[first].refusal ? ": " : "",
           inspection->layers[first].refusal ? printable_escape(inspection->layers[first].refusal, text, sizeof text) : "");
}

// row: the text of layer_row.
static bool same_row(const struct inspected_layer *a, const char *row, const struct inspected_layer *b, const char *other) {
    if (a->refusal || b->refusal) {
        return a->refusal && b->refusal && strcmp(a->refusal, b->refusal) == 0;
    }
    return strcmp(row, other) == 0;
}

// Layers of one run have consecutive numbers and equal rows, or are refused with the same text.
static void put_layers(const struct inspection *inspection) {
    char row[ROW_BYTES], next[ROW_BYTES];
    if (inspection->count == 0) {
        return;
    }
    printf("\n%-9s%7s %5s %7s %7s %7s %10s %10s  %s\n", "layers", "experts", "top-k", "hidden", "width", "shared", "disk", "memory",
           "format");
    for (size_t first = 0, end; first < inspection->count; first = end) {
        const struct inspected_layer *layers = inspection->layers;
        layer_row(&layers[first], row);
        for (end = first + 1; end < inspection->count && layers[end].layer == layers[end - 1].layer + 1; end++) {
            layer_row(&layers[end], next);
            if (!same_row(&layers[first], row, &layers[end], next)) {
                break;
            }
        }
        put_run(inspection, first, end, row);
    }
    puts("(disk and memory of each layer; width, shared: intermediate sizes of a routed and of the shared expert)");
}

static void put_shards(const struct inspection *inspection) {
    if (inspection->shards_count == 0) {
        return;
    }
    printf("\n%-9s%12s %15s %12s %12s %12s  %s\n", "shards", "weights", "largest shard", "loading", "scratch", "together", "");
    for (size_t i = 0; i < inspection->shards_count; i++) {
        const struct inspected_shards *s = &inspection->shards[i];
        char weights[MEMORY_TEXT_MAX], largest[MEMORY_TEXT_MAX], loading[MEMORY_TEXT_MAX], scratch[MEMORY_TEXT_MAX],
            together[MEMORY_TEXT_MAX];
        const uint64_t more = s->scratch > s->staging ? s->scratch : s->staging;
        printf("%-9u%12s %15s %12s %12s %12s  %s\n", s->shards, memory_text(s->weights, weights), memory_text(s->largest, largest),
               memory_text(s->staging, loading), memory_text(s->scratch, scratch), memory_text(s->weights + more, together),
               s->fit ? "fits" : "does not fit");
    }
    char have[MEMORY_TEXT_MAX], what[2 * MEMORY_LIMIT_TEXT_MAX];
    printf("(host memory without devices and messages; loading until the model is served, scratch from then on)\navailable: %s "
           "(%s)\n",
           memory_text(inspection->available.bytes, have), printable_escape(inspection->available.what, what, sizeof what));
    if (inspection->loading.bytes < inspection->available.bytes) {
        printf("of it for weights and loading: %s (%s)\n", memory_text(inspection->loading.bytes, have), inspection->loading.what);
    }
}

static void put_notes(const struct checkpoint_notes *notes) {
    for (size_t i = 0; notes && i < notes->count; i++) {
        char text[TEXT_BYTES];
        const struct checkpoint_note *note = &notes->notes[i];
        if (note->count > 1) {
            snprintf(text, sizeof text, "%s (the first of %" PRIu64 ")", note->text, note->count);
        }
        printf("%s", i == 0 ? "\n" : "");
        put("note", note->count > 1 ? text : note->text);
    }
}

static void put_result(const struct inspection *inspection) {
    size_t first = 0, longest = longest_served(inspection, &first);
    char text[TEXT_BYTES];
    putchar('\n');
    if (inspection->refusal.code == EXPERTD_ERR_OK) {
        printf("%-*s%zu layer%s\n", LABEL_WIDTH, "served", inspection->count, inspection->count == 1 ? "" : "s");
        return;
    }
    put("refused", inspection->refusal.message);
    if (longest > 0 && longest < inspection->count) {
        snprintf(text, sizeof text, "--layers %u-%u would be served", inspection->layers[first].layer,
                 inspection->layers[first + longest - 1].layer);
        put("", text);
    }
}

FALLIBLE inspect_print_table(const struct inspection *inspection) {
    put_head(inspection);
    put_layers(inspection);
    put_shards(inspection);
    put_notes(inspection->notes);
    put_result(inspection);
    return standard_output_flush();
}

// ---- JSON

static json_t *text_json(const char *text) {
    char escaped[TEXT_BYTES];
    size_t at;
    return !text[0] ? json_null() : json_string(printable_is(text, &at) ? text : printable_escape(text, escaped, sizeof escaped));
}

static json_t *number_json(uint64_t number) {
    return json_integer(number > INT64_MAX ? INT64_MAX : (json_int_t)number);
}

static json_t *layer_json(const struct inspected_layer *layer) {
    const struct layer_params *p = &layer->params;
    json_t *object = json_pack("{s:I, s:b}", "layer", (json_int_t)layer->layer, "served", layer->refusal == NULL);
    if (layer->refusal) {
        json_object_set_new(object, "refusal", text_json(layer->refusal));
        return object;
    }
    json_object_set_new(object, "prefix", text_json(layer->prefix));
    json_object_set_new(object, "num_experts", number_json(p->num_experts));
    json_object_set_new(object, "top_k", number_json(p->routing.top_k));
    json_object_set_new(object, "hidden_size", number_json(p->hidden_size));
    json_object_set_new(object, "intermediate_size", number_json(p->intermediate_size));
    json_object_set_new(object, "shared_intermediate_size",
                        shared_has_expert(p->shared) ? number_json(p->shared_intermediate_size) : json_null());
    json_object_set_new(object, "format", text_json(layer->format));
    json_object_set_new(object, "stored_bytes", number_json(layer->stored_bytes));
    json_object_set_new(object, "memory_bytes", layer->bytes ? number_json(layer->bytes) : json_null());
    json_object_set_new(object, "experts_memory_bytes", layer->bytes ? number_json(layer->experts_bytes) : json_null());
    return object;
}

static json_t *shards_json(const struct inspected_shards *s) {
    return json_pack("{s:I, s:o, s:o, s:o, s:o, s:b}", "shards", (json_int_t)s->shards, "weights_bytes", number_json(s->weights),
                     "largest_shard_bytes", number_json(s->largest), "loading_bytes", number_json(s->staging), "scratch_bytes",
                     number_json(s->scratch), "fits", s->fit);
}

static json_t *refusal_json(const struct err_copy *refusal) {
    return refusal->code == EXPERTD_ERR_OK
               ? json_null()
               : json_pack("{s:s, s:o}", "reason", expertd_err_name(refusal->code), "message", text_json(refusal->message));
}

static json_t *notes_json(const struct checkpoint_notes *notes) {
    json_t *array = json_array();
    for (size_t i = 0; notes && i < notes->count; i++) {
        json_array_append_new(array, json_pack("{s:s, s:o, s:o}", "kind", notes->notes[i].kind, "count",
                                               number_json(notes->notes[i].count), "message", text_json(notes->notes[i].text)));
    }
    return array;
}

static json_t *inspection_json(const struct inspection *inspection) {
    json_t *layers = json_array(), *shards = json_array();
    for (size_t i = 0; i < inspection->count; i++) {
        json_array_append_new(layers, layer_json(&inspection->layers[i]));
    }
    for (size_t i = 0; i < inspection->shards_count; i++) {
        json_array_append_new(shards, shards_json(&inspection->shards[i]));
    }
    const bool measured = inspection->shards_count > 0;
    return json_pack("{s:o, s:o, s:o, s:b, s:o, s:o, s:o, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "model",
                     text_json(inspection->name), "folder", text_json(inspection->folder), "model_type",
                     text_json(inspection->model_type), "served", inspection->refusal.code == EXPERTD_ERR_OK, "refusal",
                     refusal_json(&inspection->refusal), "compute_dtype",
                     inspection->numerics_id[0] ? json_string(expertd_dtype_name(inspection->compute_dtype)) : json_null(),
                     "numerics_id", text_json(inspection->numerics_id), "tensors", (json_int_t)inspection->tensors, "served_layers",
                     (json_int_t)served_layers(inspection), "stored_bytes", number_json(stored_bytes(inspection)),
                     "memory_available_bytes", measured ? number_json(inspection->available.bytes) : json_null(),
                     "memory_loading_bytes", measured ? number_json(inspection->loading.bytes) : json_null(), "layers", layers,
                     "shards", shards, "notes", notes_json(inspection->notes));
}

FALLIBLE inspect_print_json(const struct inspection *inspection) {
    json_t *object = inspection_json(inspection);
    int failed = object ? json_dumpf(object, stdout, JSON_INDENT(2)) : -1;
    json_decref(object);
    if (!object) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the description as JSON");
    }
    (void)failed; // standard_output_flush reports it
    putchar('\n');
    return standard_output_flush();
}

void inspect_print_error_json(err_t e) {
    json_t *object =
        json_pack("{s:{s:s, s:o}}", "error", "reason", expertd_err_name(e.code), "message", text_json(expertd_err_message()));
    if (object && json_dumpf(object, stdout, JSON_INDENT(2)) == 0) {
        putchar('\n');
    }
    json_decref(object);
    (void)fflush(stdout); // the message is printed to standard error as well
}
