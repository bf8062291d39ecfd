#include "expert/architecture/architecture.h"

#include <string.h>

#include "base/suggest.h"
#include "expert/architecture/architecture_table.h"
#include "expert/config/config.h"

enum { MODEL_TYPES_MAX = 256 }; // names in the table of served models

// names: ends with NULL.
static bool is_among(const char *const *names, const char *name) {
    for (size_t i = 0; names[i]; i++) {
        if (strcmp(names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

static const struct architecture *find_among(const struct architecture *rows, size_t count, const char *name, bool is_class) {
    for (size_t i = 0; i < count; i++) {
        if (is_among(is_class ? rows[i].classes : rows[i].model_types, name)) {
            return &rows[i];
        }
    }
    return NULL;
}

static const struct architecture *find_by_name(const char *name, bool is_class) {
    const struct architecture *served = find_among(ARCHITECTURES, ARCHITECTURE_COUNT, name, is_class);
    return served ? served : find_among(ARCHITECTURES_REFUSED, ARCHITECTURE_REFUSED_COUNT, name, is_class);
}

// The class takes precedence over model_type, because Ling's two generations have one model_type. The classes of multimodal models
// are mostly unknown: then the text model's type is tried, then the top one.
static FALLIBLE find_row(const struct config *config, const struct architecture **row, const char *names[2]) {
    static const char *const CLASSES[] = {"architectures", NULL}, *const TYPES[] = {"model_type", NULL};
    bool found;
    size_t count;
    *row = NULL;
    TRY(config_list(config, CLASSES[0], "class names", &count));
    if (count > 0) {
        TRY(config_string_at(config, CLASSES, 0, &names[0], &found));
        *row = found ? find_by_name(names[0], true) : NULL;
    }
    const struct config *const CONFIGS[] = {config_text(config), config};
    for (size_t i = 0; i < 2 && !*row; i++) {
        const char *type;
        TRY(config_string(CONFIGS[i], TYPES, &type, &found));
        if (found) {
            names[1] = names[1] ? names[1] : type;
            *row = find_by_name(type, false);
        }
    }
    return OK;
}

// The served model type whose name is closest to `name`; NULL: none is close.
static const char *nearest_model_type(const char *name) {
    const char *known[MODEL_TYPES_MAX];
    size_t count = 0;
    for (size_t i = 0; i < ARCHITECTURE_COUNT; i++) {
        for (const char *const *type = ARCHITECTURES[i].model_types; *type; type++) {
            INVARIANT(count < MODEL_TYPES_MAX);
            known[count++] = *type;
        }
    }
    return suggest_word(name, strlen(name), known, count);
}

// A file that was saved in the place of config.json is another JSON object, often an error of the hub.
static err_t no_model(const struct config *config) {
    char text[64];
    bool error = config_value_text(config, "error", text, sizeof text) || config_value_text(config, "message", text, sizeof text);
    return err_record(
        EXPERTD_ERR_CHECKPOINT, NULL,
        "%s: model_type and architectures are missing, so that it is no model's configuration%s%s%s: download the model's "
        "own config.json",
        config_path(config), error ? " (it says: " : "", error ? text : "", error ? ")" : "");
}

static err_t unknown(const struct config *config, const char *const names[2]) {
    if (!names[0] && !names[1]) {
        return no_model(config);
    }
    const char *type = names[1] ? names[1] : "", *nearest = nearest_model_type(type);
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL,
                      "%s: unknown model_type \"%.64s\" (architectures \"%.64s\"): %s%s%sdocs/models.md lists the served ones",
                      config_path(config), type, names[0] ? names[0] : "", nearest ? "the nearest served one is " : "",
                      nearest ? nearest : "", nearest ? "; " : "");
}

// transformers goes by model_type, other programs by the class: where both are known, they must mean one model.
static FALLIBLE check_type(const struct config *config, const struct architecture *row, const char *class) {
    static const char *const TYPES[] = {"model_type", NULL};
    const struct config *const CONFIGS[] = {config_text(config), config};
    for (size_t i = 0; i < 2 && class && find_by_name(class, true) == row; i++) {
        const char *type;
        bool found;
        TRY(config_string(CONFIGS[i], TYPES, &type, &found));
        bool same = !found || is_among(row->model_types, type) || is_among(row->shared_types, type);
        if (!same && find_by_name(type, false)) {
            return config_refuse(CONFIGS[i], TYPES, CONFIG_WHOLE,
                                 ", but architectures[0] is %s, which is %s: the two are different models", class,
                                 row->model_types[0]);
        }
    }
    return OK;
}

FALLIBLE architecture_find(const struct config *config, const struct architecture **out) {
    const char *names[2] = {NULL, NULL}; // the first of architectures, model_type
    const struct architecture *row;
    TRY(find_row(config, &row, names));
    if (!row) {
        return unknown(config, names);
    }
    if (row->refusal) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is not served: %s", config_path(config), row->model_types[0], row->refusal);
    }
    TRY(check_type(config, row, names[0]));
    *out = row;
    return OK;
}

const char *architecture_model_type(const struct architecture *architecture) {
    return architecture->model_types[0];
}
