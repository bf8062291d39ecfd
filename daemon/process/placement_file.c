#include "daemon/process/placement_file.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_reader.h"
#include "base/regular_file.h"

enum { FILE_BYTES_MAX = 64 << 20, KEY_MAX = 32, LAYERS_MAX = 4096, ROWS_MAX = 1 << 16 };

// Reads and unescapes a key. A key of KEY_MAX bytes or more is refused, because no known key is so long.
static FALLIBLE read_key(struct json_reader *reader, char key[KEY_MAX]) {
    struct json_reader lookahead = *reader;
    size_t length = 0;
    key[0] = '\0';
    TRY(json_reader_string(&lookahead, NULL, &length));
    if (lookahead.at - reader->at >= KEY_MAX) {
        FAIL(EXPERTD_ERR_CONFIG, "byte %td: unknown key", reader->at - reader->start);
    }
    TRY(json_reader_string(reader, key, &length));
    return json_reader_expect(reader, ':');
}

static FALLIBLE read_rows(struct json_reader *reader, struct placement_counts *out) {
    size_t capacity = 0;
    out->num_rows = 0;
    TRY(json_reader_expect(reader, '['));
    do {
        if (out->num_rows == capacity) {
            capacity = capacity ? 2 * capacity : 64;
            uint64_t *rows = capacity > ROWS_MAX ? NULL : realloc(out->rows, capacity * sizeof *rows);
            if (!rows) {
                FAIL(EXPERTD_ERR_CONFIG, "more than %zu counts", out->num_rows);
            }
            out->rows = rows;
        }
        TRY(json_reader_u64(reader, &out->rows[out->num_rows]));
        out->num_rows++;
    } while (json_reader_accept(reader, ','));
    return json_reader_expect(reader, ']');
}

// On success `file` owns layer->rows.
static FALLIBLE add_layer(struct placement_file *file, const struct placement_counts *layer) {
    for (size_t i = 0; i < file->count; i++) {
        if (file->layers[i].layer == layer->layer) {
            FAIL(EXPERTD_ERR_CONFIG, "layer %u is given twice", layer->layer);
        }
    }
    if (file->count == LAYERS_MAX) {
        FAIL(EXPERTD_ERR_CONFIG, "more than %d layers", LAYERS_MAX);
    }
    struct placement_counts *layers = realloc(file->layers, (file->count + 1) * sizeof *layers);
    if (!layers) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the counts of %zu layers", file->count + 1);
    }
    file->layers = layers;
    layers[file->count++] = *layer;
    return OK;
}

// "3": [120, 7, ...]
static FALLIBLE read_member(struct json_reader *reader, struct placement_counts *out) {
    char key[KEY_MAX], *end;
    TRY(read_key(reader, key));
    unsigned long layer = strtoul(key, &end, 10);
    if (key[0] < '0' || key[0] > '9' || *end || layer >= UINT32_MAX) {
        FAIL(EXPERTD_ERR_CONFIG, "byte %td: \"%s\" is not a layer number", reader->at - reader->start, key);
    }
    out->layer = (uint32_t)layer;
    err_t e = read_rows(reader, out);
    return err_is(e) ? err_context(e, "layer %u", out->layer) : OK;
}

// {"layer": 3, "rows": [120, 7, ...], ...}; other members are skipped.
static FALLIBLE read_element(struct json_reader *reader, struct placement_counts *out) {
    char key[KEY_MAX];
    uint64_t layer = UINT64_MAX;
    const char *from = reader->at;
    TRY(json_reader_expect(reader, '{'));
    do {
        TRY(read_key(reader, key));
        if (strcmp(key, "layer") == 0) {
            TRY(json_reader_u64(reader, &layer));
        } else if (strcmp(key, "rows") == 0) {
            TRY(read_rows(reader, out));
        } else {
            TRY(json_reader_skip(reader));
        }
    } while (json_reader_accept(reader, ','));
    TRY(json_reader_expect(reader, '}'));
    if (layer >= UINT32_MAX || out->num_rows == 0) {
        FAIL(EXPERTD_ERR_CONFIG, "byte %td: this layer has no \"%s\"", from - reader->start, out->num_rows ? "layer" : "rows");
    }
    out->layer = (uint32_t)layer;
    return OK;
}

// Reads either form: the members of an object or the elements of a list.
static FALLIBLE read_layers(struct json_reader *reader, struct placement_file *out) {
    bool is_list = json_reader_accept(reader, '[');
    TRY(is_list ? OK : json_reader_expect(reader, '{'));
    do {
        struct placement_counts layer = {0};
        err_t e = is_list ? read_element(reader, &layer) : read_member(reader, &layer);
        if (!err_is(e)) {
            e = add_layer(out, &layer);
        }
        if (err_is(e)) {
            free(layer.rows);
            return e;
        }
    } while (json_reader_accept(reader, ','));
    return json_reader_expect(reader, is_list ? ']' : '}');
}

static FALLIBLE read_all(struct json_reader *reader, struct placement_file *out) {
    char key[KEY_MAX];
    TRY(json_reader_expect(reader, '{'));
    do {
        TRY(read_key(reader, key));
        if (strcmp(key, "layers") == 0) {
            TRY(read_layers(reader, out));
        } else if (strcmp(key, "address") == 0) {
            TRY(json_reader_skip(reader));
        } else {
            FAIL(EXPERTD_ERR_CONFIG, "unknown key \"%s\": expected \"layers\"", key);
        }
    } while (json_reader_accept(reader, ','));
    TRY(json_reader_expect(reader, '}'));
    TRY(json_reader_end(reader));
    if (out->count == 0) {
        FAIL(EXPERTD_ERR_CONFIG, "the file has no \"layers\"");
    }
    return OK;
}

// The readers of base/ report EXPERTD_ERR_CHECKPOINT or EXPERTD_ERR_IO; a wrong file of counts is a configuration error.
static err_t as_config(err_t e) {
    return e.code == EXPERTD_ERR_CHECKPOINT || e.code == EXPERTD_ERR_IO ? (err_t){EXPERTD_ERR_CONFIG} : e;
}

FALLIBLE placement_file_parse(const char *text, size_t length, struct placement_file *out) {
    struct json_reader reader;
    *out = (struct placement_file){0};
    json_reader_init(&reader, text, length);
    return as_config(read_all(&reader, out));
}

FALLIBLE placement_file_read(const char *path, struct placement_file *out) {
    char *text;
    size_t length;
    *out = (struct placement_file){0};
    TRY(as_config(regular_file_read(path, FILE_BYTES_MAX, &text, &length)));
    err_t e = placement_file_parse(text, length, out);
    free(text);
    return err_is(e) ? err_context(e, "%s", path) : OK;
}

void placement_file_deinit(struct placement_file *file) {
    for (size_t i = 0; i < file->count; i++) {
        free(file->layers[i].rows);
    }
    free(file->layers);
    *file = (struct placement_file){0};
}

FALLIBLE placement_file_find(const struct placement_file *file, uint32_t layer, uint32_t num_experts, const uint64_t **rows) {
    *rows = NULL;
    for (size_t i = 0; i < file->count; i++) {
        const struct placement_counts *counts = &file->layers[i];
        if (counts->layer != layer) {
            continue;
        }
        if (counts->num_rows != num_experts) {
            FAIL(EXPERTD_ERR_CONFIG, "%zu counts for layer %u, which has %u experts", counts->num_rows, layer, num_experts);
        }
        *rows = counts->rows;
        return OK;
    }
    FAIL(EXPERTD_ERR_CONFIG, "no counts for layer %u", layer);
}
