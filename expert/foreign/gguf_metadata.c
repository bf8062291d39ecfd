#include "expert/foreign/gguf_metadata.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const double INTEGER_MAX = 0x1p53; // of those that a double has exactly

const char *gguf_metadata_key(const struct gguf_metadata *m, const char *key, char out[GGUF_FULL_KEY_MAX]) {
    snprintf(out, GGUF_FULL_KEY_MAX, "%s.%s", m->name, key);
    return out;
}

const struct gguf_value *gguf_metadata_find(const struct gguf_metadata *m, const char *key) {
    char full[GGUF_FULL_KEY_MAX];
    return gguf_find(m->file, gguf_metadata_key(m, key, full));
}

const char *gguf_metadata_text(const struct gguf_value *value, char out[GGUF_VALUE_TEXT_MAX]) {
    double number = 0;
    bool has = gguf_number(value, 0, &number);
    if (value->kind == GGUF_STRING) {
        snprintf(out, GGUF_VALUE_TEXT_MAX, "a text");
    } else if (value->kind == GGUF_ARRAY && has) {
        snprintf(out, GGUF_VALUE_TEXT_MAX, "a list of %" PRIu64 " that begins with %g", value->count, number);
    } else if (value->kind == GGUF_ARRAY) {
        snprintf(out, GGUF_VALUE_TEXT_MAX, "a list of %" PRIu64, value->count);
    } else {
        snprintf(out, GGUF_VALUE_TEXT_MAX, "%g", number);
    }
    return out;
}

// ---- numbers

FALLIBLE gguf_metadata_number(const struct gguf_metadata *m, const char *key, double *out, bool *found) {
    char full[GGUF_FULL_KEY_MAX];
    const struct gguf_value *value = gguf_metadata_find(m, key);
    *found = value != NULL;
    if (value && (value->kind == GGUF_ARRAY || !gguf_number(value, 0, out))) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is a %s: expected a number", m->path, gguf_metadata_key(m, key, full),
             value->kind == GGUF_ARRAY ? "list" : "text");
    }
    return OK;
}

FALLIBLE gguf_metadata_integer(const struct gguf_metadata *m, const char *key, double *out, bool *found) {
    char full[GGUF_FULL_KEY_MAX];
    TRY(gguf_metadata_number(m, key, out, found));
    if (*out != floor(*out)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is %g: expected an integer", m->path, gguf_metadata_key(m, key, full), *out);
    }
    return OK;
}

FALLIBLE gguf_metadata_greatest(const struct gguf_metadata *m, const char *key, double *out, bool *found) {
    const struct gguf_value *value = gguf_metadata_find(m, key);
    double greatest, number;
    if (!value || value->kind != GGUF_ARRAY || !gguf_number(value, 0, &greatest)) {
        return gguf_metadata_number(m, key, out, found);
    }
    for (uint64_t i = 1; gguf_number(value, i, &number); i++) {
        greatest = number > greatest ? number : greatest;
    }
    *out = greatest;
    *found = true;
    return OK;
}

// ---- values as JSON

static FALLIBLE write_number(const struct gguf_metadata *m, const char *key, const struct gguf_value *value, uint64_t i) {
    char full[GGUF_FULL_KEY_MAX];
    double number = 0;
    if (!gguf_number(value, i, &number) || !isfinite(number)) {
        bool is_text = (value->kind == GGUF_ARRAY ? value->element : value->kind) == GGUF_STRING;
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is %s", m->path, gguf_metadata_key(m, key, full),
             is_text ? "a text: expected a number" : "not a finite number");
    }
    if (gguf_is_integer(value) && fabs(number) > INTEGER_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is %.0f: expected an integer up to 2^53", m->path, gguf_metadata_key(m, key, full),
             number);
    }
    enum gguf_kind kind = value->kind == GGUF_ARRAY ? value->element : value->kind;
    if (kind == GGUF_BOOL) {
        fputs(number != 0 ? "true" : "false", m->json);
    } else {
        fprintf(m->json, gguf_is_integer(value) ? "%.0f" : "%.9g", number);
    }
    return OK;
}

static FALLIBLE write_value(const struct gguf_metadata *m, const char *key, const struct gguf_value *value) {
    char full[GGUF_FULL_KEY_MAX];
    if (value->kind != GGUF_ARRAY) {
        return write_number(m, key, value, 0);
    }
    if (value->count > GGUF_LAYERS_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s has %" PRIu64 " elements: expected at most %d", m->path,
             gguf_metadata_key(m, key, full), value->count, GGUF_LAYERS_MAX);
    }
    fputc('[', m->json);
    for (uint64_t i = 0; i < value->count; i++) {
        fputs(i ? ", " : "", m->json);
        TRY(write_number(m, key, value, i));
    }
    fputc(']', m->json);
    return OK;
}

FALLIBLE gguf_metadata_write(const struct gguf_metadata *m, const char *row, const char *key, const struct gguf_value *value) {
    const char *dot = strchr(row, '.');
    fputs(",\n ", m->json);
    if (dot) {
        fprintf(m->json, "\"%.*s\": {\"%s\": ", (int)(dot - row), row, dot + 1);
    } else {
        fprintf(m->json, "\"%s\": ", row);
    }
    TRY(write_value(m, key, value));
    fputs(dot ? "}" : "", m->json);
    return OK;
}

// ---- tensors

const struct safetensors_entry *gguf_metadata_tensor(const struct gguf_metadata *m, const char *name) {
    const struct safetensors_entry *found = NULL;
    for (size_t f = 0; f < m->count && !found; f++) {
        found = safetensors_find(&m->files[f], name);
    }
    return found;
}

bool gguf_metadata_has_tensor(const struct gguf_metadata *m, const char *prefix) {
    for (size_t f = 0; f < m->count; f++) {
        size_t at = safetensors_lower_bound(&m->files[f], prefix);
        if (at < m->files[f].count && strncmp(m->files[f].entries[at].name, prefix, strlen(prefix)) == 0) {
            return true;
        }
    }
    return false;
}
