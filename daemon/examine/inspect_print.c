#include "daemon/examine/inspect_print.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

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

static void put_head(const struct inspection *inspection, const struct inspected_devices *devices) {
    const char *on_devices = devices->devices ? devices->start.numerics_id : "";
    char text[TEXT_BYTES], size[MEMORY_TEXT_MAX];
    put("model", inspection->name);
    if (inspection->folder[0] && strcmp(inspection->folder, inspection->name) != 0) {
        put("folder", inspection->folder);
    }
    put("model type", inspection->model_type[0] ? inspection->model_type : "not recognised");
    if (inspection->numerics_id[0]) {
        snprintf(text, sizeof text, "%s, numerics id %s%s%s", expertd_dtype_name(inspection->compute_dtype),
                 inspection->numerics_id, on_devices[0] ? ", on devices " : "", on_devices);
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

// The column of memory on devices; "": none are described.
static const char *device_column(const struct inspected_devices *devices, size_t layer, char text[MEMORY_TEXT_MAX]) {
    char size[MEMORY_TEXT_MAX];
    snprintf(text, MEMORY_TEXT_MAX, " %10s", devices->layer_bytes ? size_text(devices->layer_bytes[layer], size) : "-");
    return devices->devices ? text : "";
}

// A layer's row without its number: equal rows are joined.
static void layer_row(const struct inspection *inspection, const struct inspected_devices *devices, size_t index,
                      char row[ROW_BYTES]) {
    const struct inspected_layer *layer = &inspection->layers[index];
    const struct layer_params *p = &layer->params;
    char device[MEMORY_TEXT_MAX], shared[32], disk[MEMORY_TEXT_MAX], memory[MEMORY_TEXT_MAX], format[2 * QUANTISATION_NAME_MAX];
    const bool names_shared = layer->shared_format[0] && strcasecmp(layer->shared_format, layer->format) != 0;
    if (layer->refusal) {
        snprintf(row, ROW_BYTES, "refused");
        return;
    }
    snprintf(row, ROW_BYTES, "%7u %5u %7u %7u %7s %10s %10s%s  %s%s%s", p->num_experts, p->routing.top_k, p->hidden_size,
             p->intermediate_size, shared_text(p, shared), size_text(layer->stored_bytes, disk), size_text(layer->bytes, memory),
             device_column(devices, index, device), printable_escape(layer->format, format, sizeof format),
             names_shared ? "; shared " : "", names_shared ? layer->shared_format : "");
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
static void put_layers(const struct inspection *inspection, const struct inspected_devices *devices) {
    char row[ROW_BYTES], next[ROW_BYTES];
    if (inspection->count == 0) {
        return;
    }
    printf("\n%-9s%7s %5s %7s %7s %7s %10s %10s%s  %s\n", "layers", "experts", "top-k", "hidden", "width", "shared", "disk",
           "memory", devices->devices ? "    devices" : "", "format");
    for (size_t first = 0, end; first < inspection->count; first = end) {
        const struct inspected_layer *layers = inspection->layers;
        layer_row(inspection, devices, first, row);
        for (end = first + 1; end < inspection->count && layers[end].layer == layers[end - 1].layer + 1; end++) {
            layer_row(inspection, devices, end, next);
            if (!same_row(&layers[first], row, &layers[end], next)) {
                break;
            }
        }
        put_run(inspection, first, end, row);
    }
    printf("(disk and memory of each layer%s; width, shared: intermediate sizes of a routed and of the shared expert)\n",
           devices->devices ? ", on the host and on all devices" : "");
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

static bool fits(const struct device_weights_sizes *sizes) {
    return device_weights_needed(sizes) <= sizes->available;
}

static void put_device_rows(const struct inspected_devices *devices) {
    printf("\n%-9s%12s %12s %12s %12s %12s %12s  %s\n", "device", "weights", "for moves", "batches", "links", "together",
           "available", "");
    for (uint32_t d = 0; d < devices->devices->count; d++) {
        const struct device_weights_sizes *s = &devices->sizes[d];
        char name[32], text[6][MEMORY_TEXT_MAX];
        snprintf(name, sizeof name, "%s %" PRIu32, devices->devices->table->kind, devices->devices->numbers[d]);
        printf("%-9s%12s %12s %12s %12s %12s %12s  %s\n", name, memory_text(s->weights, text[0]), memory_text(s->moves, text[1]),
               memory_text(s->batches, text[2]), memory_text(s->links, text[3]), memory_text(device_weights_needed(s), text[4]),
               memory_text(s->available, text[5]), fits(s) ? "fits" : "does not fit");
    }
    puts("(device memory; for moves: of the weights, slots for experts that move there; links: left free for NCCL)");
}

static void put_widened(const struct inspected_devices *devices) {
    for (size_t i = 0; i < devices->widened.count; i++) {
        const struct widened_format *format = &devices->widened.formats[i];
        char stored[MEMORY_TEXT_MAX], bytes[MEMORY_TEXT_MAX], text[TEXT_BYTES];
        snprintf(text, sizeof text, "%s to %s in layers %s, %" PRIu64 " matrices: %s in the files, %s on devices. %s", format->name,
                 expertd_dtype_name(devices->start.compute_dtype), devices->widened_layers[i], format->matrices,
                 memory_text(format->stored_bytes, stored), memory_text(format->bytes, bytes), widened_reason(format));
        put("widened", text);
    }
}

static void put_devices(const struct inspection *inspection, const struct inspected_devices *devices) {
    const struct inspected_shards *host = &devices->start.shards[0];
    char text[TEXT_BYTES], size[3][MEMORY_TEXT_MAX];
    if (!devices->devices) {
        return;
    }
    if (devices->layer_bytes) {
        put_device_rows(devices);
    }
    if (devices->start.shards_count > 0) {
        snprintf(text, sizeof text, "%s of weights beside the devices, %s more while loading, then %s of scratch",
                 memory_text(host->weights, size[0]), memory_text(host->staging, size[1]), memory_text(host->scratch, size[2]));
        put("host", text);
    }
    put_widened(devices);
    const bool only_there = strcmp(devices->start.refusal.message, inspection->refusal.message) != 0;
    if (devices->start.refusal.code != EXPERTD_ERR_OK && only_there) {
        put("on devices", devices->start.refusal.message);
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

FALLIBLE inspect_print_table(const struct inspection *inspection, const struct inspected_devices *devices) {
    put_head(inspection, devices);
    put_layers(inspection, devices);
    put_shards(inspection);
    put_devices(inspection, devices);
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

static json_t *layer_json(const struct inspection *inspection, const struct inspected_devices *devices, size_t index) {
    const struct inspected_layer *layer = &inspection->layers[index];
    const struct layer_params *p = &layer->params;
    char widened[WIDENED_TEXT_MAX];
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
    json_object_set_new(object, "shared_format", layer->shared_format[0] ? text_json(layer->shared_format) : json_null());
    json_object_set_new(object, "stored_bytes", number_json(layer->stored_bytes));
    json_object_set_new(object, "memory_bytes", layer->bytes ? number_json(layer->bytes) : json_null());
    json_object_set_new(object, "experts_memory_bytes", layer->bytes ? number_json(layer->experts_bytes) : json_null());
    if (devices->layer_bytes) {
        json_object_set_new(object, "device_bytes", number_json(devices->layer_bytes[index]));
        json_object_set_new(object, "widened",
                            text_json(widened_names_text(&devices->widened, devices->layer_widened[index], widened)));
    }
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

static json_t *device_rows_json(const struct inspected_devices *devices) {
    json_t *array = json_array();
    for (uint32_t d = 0; devices->layer_bytes && d < devices->devices->count; d++) {
        const struct device_weights_sizes *s = &devices->sizes[d];
        json_array_append_new(array,
                              json_pack("{s:I, s:o, s:o, s:o, s:o, s:o, s:b}", "device", (json_int_t)devices->devices->numbers[d],
                                        "weights_bytes", number_json(s->weights), "moves_bytes", number_json(s->moves),
                                        "batches_bytes", number_json(s->batches), "links_bytes", number_json(s->links),
                                        "available_bytes", number_json(s->available), "fits", fits(s)));
    }
    return array;
}

static json_t *widened_json(const struct inspected_devices *devices) {
    json_t *array = json_array();
    for (size_t i = 0; i < devices->widened.count; i++) {
        const struct widened_format *format = &devices->widened.formats[i];
        json_array_append_new(array, json_pack("{s:s, s:s, s:o, s:o, s:o, s:s}", "format", format->name, "layers",
                                               devices->widened_layers[i], "matrices", number_json(format->matrices),
                                               "stored_bytes", number_json(format->stored_bytes), "bytes",
                                               number_json(format->bytes), "message", widened_reason(format)));
    }
    return array;
}

static json_t *devices_json(const struct inspected_devices *devices) {
    const struct inspected_shards *host = &devices->start.shards[0];
    const bool measured = devices->start.shards_count > 0;
    uint64_t reserved = 0;
    if (!devices->devices) {
        return json_null();
    }
    for (uint32_t d = 0; d < devices->devices->count; d++) {
        reserved += devices->sizes[d].weights + devices->sizes[d].batches;
    }
    return json_pack("{s:s, s:o, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "kind", devices->devices->table->kind, "name",
                     text_json(devices->devices->facts.name), "count", (json_int_t)devices->devices->count, "numerics_id",
                     text_json(devices->start.numerics_id), "reserved_bytes",
                     devices->layer_bytes ? number_json(reserved) : json_null(), "host_weights_bytes",
                     measured ? number_json(host->weights) : json_null(), "host_loading_bytes",
                     measured ? number_json(host->staging) : json_null(), "host_scratch_bytes",
                     measured ? number_json(host->scratch) : json_null(), "devices", device_rows_json(devices), "widened",
                     widened_json(devices), "refusal", refusal_json(&devices->start.refusal));
}

static json_t *inspection_json(const struct inspection *inspection, const struct inspected_devices *devices) {
    json_t *layers = json_array(), *shards = json_array();
    for (size_t i = 0; i < inspection->count; i++) {
        json_array_append_new(layers, layer_json(inspection, devices, i));
    }
    for (size_t i = 0; i < inspection->shards_count; i++) {
        json_array_append_new(shards, shards_json(&inspection->shards[i]));
    }
    const bool measured = inspection->shards_count > 0;
    return json_pack("{s:o, s:o, s:o, s:b, s:o, s:o, s:o, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "model",
                     text_json(inspection->name), "folder", text_json(inspection->folder), "model_type",
                     text_json(inspection->model_type), "served", inspection->refusal.code == EXPERTD_ERR_OK, "refusal",
                     refusal_json(&inspection->refusal), "compute_dtype",
                     inspection->numerics_id[0] ? json_string(expertd_dtype_name(inspection->compute_dtype)) : json_null(),
                     "numerics_id", text_json(inspection->numerics_id), "tensors", (json_int_t)inspection->tensors, "served_layers",
                     (json_int_t)served_layers(inspection), "stored_bytes", number_json(stored_bytes(inspection)),
                     "memory_available_bytes", measured ? number_json(inspection->available.bytes) : json_null(),
                     "memory_loading_bytes", measured ? number_json(inspection->loading.bytes) : json_null(), "layers", layers,
                     "shards", shards, "devices", devices_json(devices), "notes", notes_json(inspection->notes));
}

FALLIBLE inspect_print_json(const struct inspection *inspection, const struct inspected_devices *devices) {
    json_t *object = inspection_json(inspection, devices);
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
