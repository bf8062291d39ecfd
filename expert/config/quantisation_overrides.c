#include "expert/config/quantisation_overrides.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OVERRIDES_MAX = 1 << 18, PATTERNS_MAX = 1 << 18, EXPRESSIONS_MAX = 4096, KEY_MAX = 256, PLAIN_BITS = 16 };

static const char EXPRESSION_CHARACTERS[] = "*+?^$()[]{}|\\"; // vLLM and SGLang know AutoRound's expressions by these

// How an object of overrides names its modules.
enum naming {
    BY_TARGETS,    // compressed-tensors: each member has a list `targets` of names, classes, and expressions after "re:"
    BY_SIGN,       // GPTQModel: expressions after "+:", "-:" (not quantised) or nothing
    BY_EXPRESSION, // AutoRound: a module's name, or an expression
    BY_GLOB,       // Quark
    BY_NAME,       // ModelOpt: a module or a container of modules
    BY_CLASS,      // Quark: "<class 'torch.nn.modules.linear.Linear'>"
    BY_MODULE,     // MLX: a module; its object counts alone
};

struct container {
    const char *key, *object; // the member's object that has the settings; "": the member itself
    enum naming naming;
};

static const struct container CONTAINERS[] = {
    {"config_groups", "weights", BY_TARGETS},
    {"dynamic", "", BY_SIGN},
    {"extra_config", "", BY_EXPRESSION},
    {"regex_config", "", BY_EXPRESSION},
    {"quantized_layers", "", BY_NAME},
    {"layer_quant_config", "weight", BY_GLOB},
    {"layer_type_quant_config", "weight", BY_CLASS}, // after layer_quant_config, which takes precedence
};

struct reader {
    const struct config *config;
    struct quantisation_overrides *out;
    const struct container *container;
    size_t patterns, expressions; // of all overrides
};

static FALLIBLE add_pattern(struct reader *reader, struct quantisation_override *override, enum name_match match,
                            const char *text) {
    reader->expressions += match != NAME_EXACT && match != NAME_COMPONENTS; // they take some KiB each
    if (++reader->patterns > PATTERNS_MAX || reader->expressions > EXPRESSIONS_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: %s: there are more than %d names of modules or %d expressions: the file may be damaged, download it again",
             config_path(reader->config), override->path, PATTERNS_MAX, EXPRESSIONS_MAX);
    }
    struct name_pattern *grown = realloc(override->patterns, (override->count + 1) * sizeof *grown);
    if (!grown) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the patterns of %s", override->path);
    }
    override->patterns = grown;
    TRY_IN(name_pattern_init(&grown[override->count], match, text), "%s: %s", config_path(reader->config), override->path);
    override->count++;
    return OK;
}

// Experts are linear layers, one by one or fused; no other class of torch is quantised there.
static bool names_linear(const char *target) {
    return strcmp(target, "Linear") == 0;
}

static FALLIBLE read_targets(struct reader *reader, const struct config *group, struct quantisation_override *override) {
    static const char *const KEYS[] = {"targets", NULL};
    size_t count;
    TRY(config_list(group, KEYS[0], "names of modules or classes", &count));
    override->of_group = true;
    override->any_linear = !config_has(group, KEYS[0]); // ModelOpt's groups may have none: then they are for all modules
    for (size_t i = 0; i < count; i++) {
        const char *target = "";
        bool found;
        TRY(config_string_at(group, KEYS, i, &target, &found));
        bool expression = strncmp(target, "re:", 3) == 0;
        override->any_linear |= names_linear(target);
        TRY(add_pattern(reader, override, expression ? NAME_START : NAME_EXACT, expression ? target + 3 : target));
    }
    return OK;
}

static FALLIBLE read_sign(struct reader *reader, const char *name, struct quantisation_override *override) {
    bool sign = strncmp(name, "-:", 2) == 0 || strncmp(name, "+:", 2) == 0;
    override->excludes = sign && name[0] == '-';
    return add_pattern(reader, override, NAME_START, sign ? name + 2 : name);
}

static FALLIBLE read_patterns(struct reader *reader, const struct config *member, struct quantisation_override *override) {
    const char *name = config_member_name(member);
    switch (reader->container->naming) {
    case BY_TARGETS:
        return read_targets(reader, member, override);
    case BY_SIGN:
        return read_sign(reader, name, override);
    case BY_EXPRESSION:
        override->exact = strpbrk(name, EXPRESSION_CHARACTERS) == NULL;
        return add_pattern(reader, override, override->exact ? NAME_EXACT : NAME_ANYWHERE, name);
    case BY_MODULE:
        override->exact = override->alone = true;
        return add_pattern(reader, override, NAME_EXACT, name);
    case BY_CLASS:
        override->any_linear = strstr(name, "Linear") != NULL;
        return OK;
    case BY_GLOB:
        return add_pattern(reader, override, NAME_GLOB, name);
    default:
        return add_pattern(reader, override, strpbrk(name, "*?[") ? NAME_GLOB : NAME_COMPONENTS, name);
    }
}

static FALLIBLE read_override(struct reader *reader, const struct config *member, struct quantisation_override *override) {
    struct quantisation_texts *texts = &reader->out->texts;
    const struct container *c = reader->container;
    TRY(quantisation_text(texts, &override->path, "%s%s%s", config_prefix(member), c->object[0] ? "." : "", c->object));
    TRY(read_patterns(reader, member, override));
    TRY(quantisation_read_setting(member, c->object, override->path, texts, &override->setting));
    override->excludes |= override->setting.bits >= PLAIN_BITS;
    return OK;
}

static err_t visit_member(void *context, const struct config *member) {
    struct reader *reader = context;
    struct quantisation_overrides *out = reader->out;
    const char *object = reader->container->object;
    if (object[0] && config_has(member, object) && !config_is_object(member, object)) {
        return config_refuse(member, (const char *const[]){object, NULL}, CONFIG_WHOLE,
                             ": expected an object with the weights' settings");
    }
    bool of_activations = object[0] && config_object_size(member, object) == 0;
    if (of_activations) {
        return OK;
    }
    if (out->count == OVERRIDES_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: %s: there are more than %d settings of modules: the file may be damaged, download it again", config_path(member),
             config_prefix(member), OVERRIDES_MAX);
    }
    struct quantisation_override *grown = realloc(out->at, (out->count + 1) * sizeof *grown);
    if (!grown) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu settings of modules", out->count + 1);
    }
    out->at = grown;
    grown[out->count] = (struct quantisation_override){0};
    return read_override(reader, member, &grown[out->count++]);
}

// The section also has numbers, texts, and modules with `false` or `true`.
static err_t visit_mlx_member(void *context, const struct config *member) {
    bool is_setting = config_has(member, "bits") || config_has(member, "group_size") || config_has(member, "mode");
    return is_setting ? visit_member(context, member) : OK;
}

// ---- the search for a module ----

struct quantisation_exact_name {
    const char *text;
    uint32_t override;
};

static int compare_names(const void *left, const void *right) {
    const struct quantisation_exact_name *a = left, *b = right;
    int order = strcmp(a->text, b->text);
    return order ? order : (a->override > b->override) - (a->override < b->override);
}

static void index_override(struct quantisation_overrides *out, uint32_t index) {
    const struct quantisation_override *override = &out->at[index];
    bool other = override->any_linear;
    for (size_t p = 0; p < override->count; p++) {
        bool exact = override->patterns[p].match == NAME_EXACT;
        other |= !exact;
        if (exact) {
            out->names[out->name_count++] = (struct quantisation_exact_name){override->patterns[p].text, index};
        }
    }
    if (other) {
        out->with_patterns[out->with_patterns_count++] = index;
    }
}

static FALLIBLE make_index(struct quantisation_overrides *out, size_t patterns) {
    out->names = calloc(patterns + 1, sizeof *out->names);
    out->with_patterns = calloc(out->count + 1, sizeof *out->with_patterns);
    if (!out->names || !out->with_patterns) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu names of modules", patterns);
    }
    for (size_t i = 0; i < out->count; i++) {
        index_override(out, (uint32_t)i);
    }
    qsort(out->names, out->name_count, sizeof *out->names, compare_names);
    return OK;
}

// The first entry of the name.
static size_t find_name(const struct quantisation_overrides *overrides, const char *module) {
    size_t low = 0, high = overrides->name_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(overrides->names[middle].text, module) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static FALLIBLE has_match(const struct quantisation_override *override, const char *module, bool *matches) {
    *matches = false;
    for (size_t i = 0; i < override->count && !*matches; i++) {
        if (override->patterns[i].match != NAME_EXACT) {
            TRY_IN(name_pattern_matches(&override->patterns[i], module, matches), "%s", override->path);
        }
    }
    return OK;
}

static void add_match(struct quantisation_matches *out, uint32_t override, bool by_name) {
    bool is_new = out->count == 0 || out->at[out->count - 1] != override;
    if (is_new && out->count < QUANTISATION_MATCHES_MAX) {
        out->by_name[out->count] = by_name;
        out->at[out->count++] = override;
    } else if (!is_new) {
        out->by_name[out->count - 1] |= by_name;
    }
}

// Merges the overrides that have the exact name with those that have a matching pattern.
FALLIBLE quantisation_matching_overrides(const struct quantisation_overrides *overrides, const char *module,
                                         struct quantisation_matches *out) {
    size_t name = find_name(overrides, module);
    *out = (struct quantisation_matches){0};
    for (size_t i = 0; i <= overrides->with_patterns_count; i++) {
        uint32_t next = i < overrides->with_patterns_count ? overrides->with_patterns[i] : UINT32_MAX;
        bool matches = false;
        for (; name < overrides->name_count && overrides->names[name].override < next &&
               strcmp(overrides->names[name].text, module) == 0;
             name++) {
            add_match(out, overrides->names[name].override, true);
        }
        if (next != UINT32_MAX) {
            TRY(has_match(&overrides->at[next], module, &matches));
        }
        if (matches || (next != UINT32_MAX && overrides->at[next].any_linear)) {
            add_match(out, next, matches);
        }
    }
    return OK;
}

// ---- all overrides ----

FALLIBLE quantisation_read_overrides(const struct config *config, const char *section, struct quantisation_overrides *out) {
    struct reader reader = {.config = config, .out = out};
    for (size_t i = 0; i < sizeof CONTAINERS / sizeof *CONTAINERS; i++) {
        char key[KEY_MAX];
        reader.container = &CONTAINERS[i];
        snprintf(key, sizeof key, "%s%s%s", section, section[0] ? "." : "", CONTAINERS[i].key);
        TRY(config_each_member(config, key, visit_member, &reader));
    }
    return make_index(out, reader.patterns);
}

FALLIBLE quantisation_read_mlx_overrides(const struct config *config, const char *section, struct quantisation_overrides *out) {
    static const struct container MODULES = {"", "", BY_MODULE};
    struct reader reader = {.config = config, .out = out, .container = &MODULES};
    TRY(config_each_value(config, section, visit_mlx_member, &reader));
    return make_index(out, reader.patterns);
}

void quantisation_overrides_deinit(struct quantisation_overrides *overrides) {
    for (size_t i = 0; i < overrides->count; i++) {
        for (size_t p = 0; p < overrides->at[i].count; p++) {
            name_pattern_deinit(&overrides->at[i].patterns[p]);
        }
        free(overrides->at[i].patterns);
    }
    free(overrides->at);
    free(overrides->names);
    free(overrides->with_patterns);
    quantisation_texts_deinit(&overrides->texts);
    *overrides = (struct quantisation_overrides){0};
}
