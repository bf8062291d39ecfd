#include "expert/config/quantisation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_MAX = 256, IGNORED_MAX = 1 << 20, IGNORED_EXPRESSIONS_MAX = 4096 };

// "OBJECT.NAME"
struct key {
    char text[KEY_MAX];
};

static struct key key_in(const char *object, const char *name) {
    struct key key;
    snprintf(key.text, sizeof key.text, "%s%s%s", object, object[0] ? "." : "", name);
    return key;
}

static struct key key_of(const struct quantisation *q, const char *name) {
    return key_in(q->object, name);
}

enum { SECTION_KEYS = 3, SECTION_PLACES = 2 * SECTION_KEYS };

// The key of place i, if the file has it; else NULL. All programs read the first. transformers, SGLang and vLLM read the second
// before the third, but vLLM reads the method of the third before that of the second. The last key is that of Mistral's
// params.json.
static const char *section_at(const struct config *config, size_t i, const struct config **place) {
    static const char *const SECTIONS[SECTION_KEYS] = {"quantization_config", "compression_config", "quantization"};
    const struct config *text = config_text(config);
    bool is_text = i % 2 == 1, is_known = i / 2 < SECTION_KEYS - 1 || strcmp(config_label(config), "params.json") == 0;
    *place = is_text ? text : config;
    bool exists = is_known && !(is_text && text == config) && config_has(*place, SECTIONS[i / 2]);
    bool is_empty = config_is_object(*place, SECTIONS[i / 2]) && config_object_size(*place, SECTIONS[i / 2]) == 0;
    return exists && !is_empty ? SECTIONS[i / 2] : NULL;
}

const char *quantisation_section(const struct config *config, const struct config **place) {
    const char *section = NULL;
    for (size_t i = 0; i < SECTION_PLACES && !section; i++) {
        section = section_at(config, i, place);
    }
    return section;
}

// The path of a section in the file.
static FALLIBLE name_section(struct quantisation *q, const struct config *place, const char *section, const char **out) {
    char text[CONFIG_KEY_TEXT_MAX];
    return quantisation_text(&q->texts, out, "%s", config_key_text(place, section, CONFIG_WHOLE, text));
}

// Without a section out->config stays NULL.
static FALLIBLE find_section(const struct config *config, struct quantisation *out) {
    const struct config *place, *first;
    const char *section = quantisation_section(config, &first), *other;
    if (!section) {
        return OK;
    }
    out->config = first;
    out->object = section;
    TRY(name_section(out, first, section, &out->section));
    for (size_t i = 0; i < SECTION_PLACES; i++) {
        section = section_at(config, i, &place);
        if (!section || config_equal(out->config, out->object, place, section)) {
            continue;
        }
        TRY(name_section(out, place, section, &other));
        if (!section_at(config, 0, &first)) {
            FAIL(EXPERTD_ERR_CHECKPOINT,
                 "%s: %s and %s differ, and programs read one or the other: keep one of them, as quantization_config in the "
                 "outermost "
                 "object",
                 config_path(out->config), out->section, other);
        }
        out->other_section = other;
    }
    return OK;
}

// ---- single values ----

static FALLIBLE read_method(struct quantisation *q) {
    struct key key = key_of(q, "quant_method");
    const char *const keys[] = {key.text, NULL};
    const char *text = "";
    bool found;
    TRY(config_string(q->config, keys, &text, &found));
    if (found) {
        snprintf(q->method, sizeof q->method, "%s", text);
    }
    return OK;
}

// AutoRound's key, or its older name.
static void read_packing(struct quantisation *q) {
    static const char *const KEYS[] = {"packing_format", "backend"};
    bool auto_round = strstr(q->method, "auto-round") || strstr(q->method, "auto_round") || strstr(q->method, "autoround");
    for (size_t i = 0; auto_round && !q->packing_key && i < sizeof KEYS / sizeof *KEYS; i++) {
        bool found = config_value_text(q->config, key_of(q, KEYS[i]).text, q->packing, sizeof q->packing);
        q->packing_key = found ? KEYS[i] : NULL;
    }
}

// The key must be absent or have this value.
static FALLIBLE expect_text(const struct quantisation *q, const char *name, const char *expected) {
    char text[64];
    struct key key = key_of(q, name);
    if (config_value_text(q->config, key.text, text, sizeof text) && strcasecmp(text, expected) != 0) {
        return config_refuse(q->config, (const char *const[]){key.text, NULL}, CONFIG_WHOLE,
                             ", whose layout of tensors is not supported: expected %s", expected);
    }
    return OK;
}

// ---- the form of GPTQ's zero points ----

// GPTQModel writes checkpoint_format and reads format too, AutoRound has packing_format.
struct form {
    const char *key, *value;
    bool as_is;
};
static const struct form FORMS[] = {
    {"checkpoint_format", "gptq", false},
    {"checkpoint_format", "gptq_v2", true},
    {"format", "gptq", false},
    {"format", "gptq_v2", true},
    {"packing_format", "auto_round:auto_gptq", false},
    {"packing_format", "auto_round:gptq", false},
    {"packing_format", "auto_gptq", false},
    {"packing_format", "gptq", false},
    {"packing_format", "auto_round:gptqmodel", true},
    {"packing_format", "auto_round", true},
    {"packing_format", "auto_round:exllamav2", true},
    {"packing_format", "auto_round:tritonv2", true},
    {"backend", "auto_round:exllamav2", true}, // older name of packing_format
    {"backend", "auto_round:tritonv2", true},
    {"backend", "auto_round:auto_gptq", false},
    {"backend", "auto_round:gptq", false},
    {"backend", "auto_gptq", false},
    {"backend", "gptq", false},
};
enum { FORM_COUNT = sizeof FORMS / sizeof *FORMS };

// The first key of the object that says a form; NULL: none. EXPERTD_ERR_CHECKPOINT: another key says the other form.
static FALLIBLE find_form(const struct config *config, const char *object, const struct form **out) {
    *out = NULL;
    for (size_t i = 0; i < FORM_COUNT; i++) {
        const struct form *form = &FORMS[i], *first = *out;
        struct key key = key_in(object, form->key);
        char text[64];
        if (!config_value_text(config, key.text, text, sizeof text) || strcasecmp(text, form->value) != 0) {
            continue;
        }
        if (first && first->as_is != form->as_is) {
            char names[2][CONFIG_KEY_TEXT_MAX];
            FAIL(EXPERTD_ERR_CHECKPOINT,
                 "%s: %s is %s, but %s is %s: the two give the stored zero points different meanings; remove the wrong one",
                 config_path(config), config_key_text(config, key_in(object, first->key).text, CONFIG_WHOLE, names[0]),
                 first->value, config_key_text(config, key.text, CONFIG_WHOLE, names[1]), form->value);
        }
        *out = first ? first : form;
    }
    return OK;
}

static FALLIBLE read_form(struct quantisation *q) {
    const struct form *form;
    TRY(find_form(q->config, q->object, &form));
    q->zero_points_are_stored_as_is = form && form->as_is;
    q->form_is_unknown = !form && q->packing_key && strcasecmp(q->packing, "auto") != 0;
    return OK;
}

static FALLIBLE refuse_other_forms(const struct quantisation *q) {
    static const char *const KEYS[] = {"checkpoint_format", "format"};
    for (size_t i = 0; i < 2; i++) {
        struct key key = key_of(q, KEYS[i]);
        char text[64];
        if (config_value_text(q->config, key.text, text, sizeof text) && strcasecmp(text, "gptq") != 0 &&
            strcasecmp(text, "gptq_v2") != 0) {
            return config_refuse(q->config, (const char *const[]){key.text, NULL}, CONFIG_WHOLE,
                                 ", whose layout of tensors is not supported: expected gptq or gptq_v2");
        }
    }
    return OK;
}

static FALLIBLE read_gptq(struct quantisation *q) {
    struct key top = key_of(q, "static_groups"), meta = key_of(q, "meta.static_groups");
    const char *const keys[] = {top.text, meta.text, NULL};
    bool found;
    TRY(refuse_other_forms(q));
    TRY(expect_text(q, "pack_dtype", "int32"));
    TRY(expect_text(q, "is_marlin_format", "false"));
    return config_bool(q->config, keys, &q->static_groups, &found);
}

// ---- modules that are not quantised ----

static FALLIBLE add_ignored(struct quantisation *q, const char *entry) {
    bool expression = strncmp(entry, "re:", 3) == 0, glob = strpbrk(entry, "*?[") != NULL;
    if ((expression || glob) && ++q->ignored_expressions > IGNORED_EXPRESSIONS_MAX) {
        return OK; // they take some KiB each, and only explain plain tensors
    }
    struct name_pattern *grown = realloc(q->ignored, (q->ignored_count + 1) * sizeof *grown);
    if (!grown) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu names of modules", q->ignored_count + 1);
    }
    q->ignored = grown;
    err_t e = name_pattern_init(&grown[q->ignored_count],
                                expression ? NAME_START
                                : glob     ? NAME_GLOB
                                           : NAME_COMPONENTS,
                                expression ? entry + 3 : entry);
    q->ignored_count += !err_is(e); // the list only explains plain tensors, so that an entry that is not valid does no harm
    return OK;
}

static FALLIBLE read_ignored(struct quantisation *q) {
    static const char *const LISTS[] = {"modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "exclude"};
    for (size_t l = 0; l < sizeof LISTS / sizeof *LISTS; l++) {
        struct key key = key_of(q, LISTS[l]);
        const char *const keys[] = {key.text, NULL};
        size_t count = config_list_length(q->config, key.text);
        for (size_t i = 0; i < count && q->ignored_count < IGNORED_MAX; i++) {
            const char *entry;
            bool found;
            if (!err_is(config_string_at(q->config, keys, i, &entry, &found)) && found) {
                TRY(add_ignored(q, entry));
            }
        }
    }
    return OK;
}

// ---- the section ----

static FALLIBLE read_base(struct quantisation *q) {
    struct key quark = key_of(q, "global_quant_config.weight");
    bool is_quark = config_object_size(q->config, quark.text) > 0;
    const char *path = q->section;
    TRY(is_quark ? quantisation_text(&q->texts, &path, "%s.global_quant_config.weight", q->section) : OK);
    return quantisation_read_setting(q->config, is_quark ? quark.text : q->object, path, &q->texts, &q->base);
}

// A section that is a text, say, must not count as absent.
static FALLIBLE check_object(const struct quantisation *q) {
    return config_is_object(q->config, q->object) ? OK
                                                  : config_refuse(q->config, (const char *const[]){q->object, NULL}, CONFIG_WHOLE,
                                                                  ": expected an object, as the quantiser writes it");
}

// Methods whose codes have another meaning than the formats of quantised/, if the tensors look the same.
static const struct {
    const char *method, *quantiser;
} FOREIGN_METHODS[] = {
    {"bitsandbytes", "bitsandbytes"},
    {"aqlm", "AQLM"},
    {"hqq", "HQQ"},
    {"eetq", "EETQ"},
    {"quip", "QuIP"},
    {"vptq", "VPTQ"},
    {"exl2", "EXL2"},
    {"exl3", "EXL3"},
    {"higgs", "HIGGS"},
    {"spqr", "SpQR"},
    {"bitnet", "BitNet"},
    {"quanto", "optimum-quanto"},
    {"torchao", "torchao"},
    {"fp_quant", "FP-Quant"},
    {"marlin", "Marlin"},
    {"squeezellm", "SqueezeLLM"},
    {"spinquant", "SpinQuant"},
    {"quarot", "QuaRot"},
};

static const char *quantiser_of(const char *method) {
    for (size_t i = 0; i < sizeof FOREIGN_METHODS / sizeof *FOREIGN_METHODS; i++) {
        if (strcmp(FOREIGN_METHODS[i].method, method) == 0) {
            return FOREIGN_METHODS[i].quantiser;
        }
    }
    return NULL;
}

// An object that may say that inputs are rotated, and its path in the file.
struct rotations {
    const struct config *config;
    const char *object, *path;
};

static err_t refuse_rotation(const struct rotations *of, const char *name) {
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL,
                      "%s: %s.%s rotates the inputs of the experts, which is not supported: take a checkpoint without rotations",
                      config_path(of->config), of->path, name);
}

// The value of `name` in an element of algo_config, or `absent`.
static bool element_says(const struct config *element, const char *name, bool absent) {
    char text[16];
    return config_value_text(element, name, text, sizeof text) ? strcmp(text, "true") == 0 : absent;
}

// Quark's algorithms. R2, and R1 unless it is online, are fused into the weights; R4 rotates the inputs of down.
static err_t visit_algorithm(void *context, const struct config *element) {
    const struct rotations of = {element, "", config_prefix(element)};
    char name[16] = "";
    (void)context;
    config_value_text(element, "name", name, sizeof name);
    bool older = strcasecmp(name, "quarot") == 0; // all rotations, unless it says otherwise
    if (!older && strcasecmp(name, "rotation") != 0) {
        return OK;
    }
    if (element_says(element, "r4", older)) {
        return refuse_rotation(&of, "r4");
    }
    if (element_says(element, "online_r1_rotation", false)) {
        return refuse_rotation(&of, "online_r1_rotation");
    }
    bool layers = config_list_length(element, "online_config.online_rotation_layers") > 0;
    return layers ? refuse_rotation(&of, "online_config.online_rotation_layers") : OK;
}

// Does the key ask for something? Not if it is absent, null, false, 0, "none" or an empty object.
static bool asks(const struct config *config, const char *key) {
    static const char *const NOTHING[] = {"false", "0", "none", "\"none\"", "\"\"", ""};
    char text[16];
    if (config_is_object(config, key)) {
        return config_object_size(config, key) > 0;
    }
    bool has = config_has(config, key) && config_value_text(config, key, text, sizeof text);
    for (size_t i = 0; has && i < sizeof NOTHING / sizeof *NOTHING; i++) {
        has = strcasecmp(text, NOTHING[i]) != 0;
    }
    return has;
}

// Rotations of the inputs that the quantiser's own code computes while the model runs. They may leave no tensor in the file, or,
// like Quark's shared_input_rotation_N, one outside the block.
static FALLIBLE refuse_rotations(const struct rotations *of) {
    static const char *const KEYS[] = {"transform_config.config_groups",      // compressed-tensors
                                       "rotation",                            // GPTQModel: "hadamard"
                                       "rotation_config", "spinquant_config", // AutoRound
                                       "hadamard_config",                     // AutoRound 0.12
                                       "use_hadamard",                        // SDNQ
                                       "convrot",                             // ComfyUI
                                       // by their names, of no known quantiser
                                       "rotate", "input_rotation", "online_rotation", "quarot"};
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        if (asks(of->config, key_in(of->object, KEYS[i]).text)) {
            return refuse_rotation(of, KEYS[i]);
        }
    }
    return config_each_element(of->config, key_in(of->object, "algo_config").text, visit_algorithm, NULL);
}

static FALLIBLE read_section(struct quantisation *q) {
    TRY(q->object[0] ? check_object(q) : OK); // "": the section is a file of its own
    TRY(read_method(q));
    q->foreign = quantiser_of(q->method);
    if (q->foreign) {
        return OK; // its keys have other meanings: EXL2's bits are an average, 4.25
    }
    read_packing(q);
    TRY(refuse_rotations(&(struct rotations){q->config, q->object, q->section}));
    if (strcmp(q->method, "awq") == 0) {
        TRY(expect_text(q, "version", "gemm"));
    }
    if (strcmp(q->method, "gptq") == 0) {
        TRY(read_gptq(q));
    }
    TRY(read_form(q));
    TRY(read_base(q));
    TRY(quantisation_read_overrides(q->config, q->object, &q->overrides));
    return read_ignored(q);
}

bool quantisation_names(const struct quantisation *q, const char *family) {
    return strstr(q->packing_key ? q->packing : q->method, family) != NULL;
}

bool quantisation_value(const struct quantisation *q, const char *name, char *text, size_t bytes) {
    return q->config && config_value_text(q->config, key_of(q, name).text, text, bytes);
}

// ---- a file beside config.json ----

static FALLIBLE compare_forms(const struct quantisation *q, const struct quantisation_file *beside) {
    const struct form *here, *there;
    TRY(find_form(q->config, q->object, &here));
    TRY(find_form(beside->config, beside->object, &there));
    if (there && q->zero_points_are_stored_as_is != there->as_is) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: %s.%s is %s, but %s of %s is %s: the two give the stored zero points different meanings; correct the wrong one",
             config_path(q->config), q->section, here ? here->key : "checkpoint_format", here ? here->value : "absent (gptq)",
             there->key, beside->name, there->value);
    }
    return OK;
}

// Compares what no tensor decides: shapes give bits and sizes. vLLM, SGLang and transformers read config.json, AutoGPTQ and
// GPTQModel the other file.
static FALLIBLE compare_beside(struct quantisation *q, const struct quantisation_file *beside) {
    struct quantisation_setting other;
    TRY(refuse_rotations(&(struct rotations){beside->config, beside->object, beside->name}));
    TRY(quantisation_read_setting(beside->config, beside->object, beside->name, &q->texts, &other));
    if (other.symmetric_text && q->base.symmetric_text && other.symmetric != q->base.symmetric) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s, but %s: correct the wrong one", config_path(q->config), q->base.symmetric_text,
             other.symmetric_text);
    }
    if (!q->base.symmetric_text) {
        q->base.symmetric = other.symmetric;
        q->base.symmetric_text = other.symmetric_text;
    }
    if (other.ordered_key && q->base.ordered_key && other.ordered != q->base.ordered) {
        bool yes = q->base.ordered == QUANTISATION_YES;
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is %s, but %s is %s: correct the wrong one", config_path(q->config),
             q->base.ordered_key, yes ? "true" : "false", other.ordered_key, yes ? "false" : "true");
    }
    if (!q->base.ordered_key) {
        q->base.ordered = other.ordered;
        q->base.ordered_key = other.ordered_key;
    }
    return compare_forms(q, beside);
}

static FALLIBLE read_all(const struct config *config, const struct quantisation_file *beside, struct quantisation *out) {
    bool is_beside = beside && beside->config;
    TRY(find_section(config, out));
    if (out->config) {
        TRY(read_section(out));
        return is_beside ? compare_beside(out, beside) : OK;
    }
    if (!is_beside) {
        return OK;
    }
    out->config = beside->config;
    out->object = beside->object;
    out->section = beside->name;
    snprintf(out->method, sizeof out->method, "%s", beside->method);
    return read_section(out);
}

// ---- MLX's section ----

// Its key is also that of an object in ModelOpt's file, which has neither of these members.
static bool find_mlx_section(const struct config *config, struct quantisation *out) {
    static const char SECTION[] = "quantization";
    const struct config *const places[] = {config, config_text(config)};
    for (size_t i = 0; i < 2 && !out->config; i++) {
        if (config_has(places[i], "quantization.bits") || config_has(places[i], "quantization.group_size")) {
            out->config = places[i];
            out->object = out->section = SECTION;
        }
    }
    return out->config != NULL;
}

static FALLIBLE read_mlx_section(struct quantisation *q) {
    TRY(quantisation_read_setting(q->config, q->object, q->section, &q->texts, &q->base));
    return quantisation_read_mlx_overrides(q->config, q->object, &q->overrides);
}

FALLIBLE quantisation_read_mlx(const struct config *config, struct quantisation *out) {
    *out = (struct quantisation){0};
    err_t e = find_mlx_section(config, out) ? read_mlx_section(out) : OK;
    out->is_read = true;
    if (err_is(e)) {
        quantisation_deinit(out);
    }
    return e;
}

FALLIBLE quantisation_read(const struct config *config, const struct quantisation_file *beside, struct quantisation *out) {
    *out = (struct quantisation){0};
    err_t e = read_all(config, beside, out);
    out->is_read = true;
    if (err_is(e)) {
        quantisation_deinit(out);
    }
    return e;
}

void quantisation_deinit(struct quantisation *q) {
    quantisation_overrides_deinit(&q->overrides);
    for (size_t i = 0; i < q->ignored_count; i++) {
        name_pattern_deinit(&q->ignored[i]);
    }
    free(q->ignored);
    quantisation_texts_deinit(&q->texts);
    *q = (struct quantisation){0};
}

// ---- one module ----

static void add_candidate(const struct quantisation *q, const struct quantisation_override *override,
                          struct quantisation_candidates *out) {
    struct quantisation_setting setting = override->alone ? (struct quantisation_setting){0} : q->base;
    quantisation_lay_over(&setting, &override->setting);
    for (size_t i = 0; i < out->count; i++) {
        if (quantisation_same_setting(&out->at[i], &setting)) {
            return;
        }
    }
    if (out->count < QUANTISATION_CANDIDATES_MAX) {
        out->path[out->count] = override->path;
        out->at[out->count++] = setting;
    }
}

static bool is_named_by_group(const struct quantisation *q, const struct quantisation_matches *matches) {
    for (size_t i = 0; i < matches->count; i++) {
        if (matches->by_name[i] && q->overrides.at[matches->at[i]].of_group) {
            return true;
        }
    }
    return false;
}

// vLLM compares all targets with the name of a module before it compares them with the module's class.
FALLIBLE quantisation_of_module(const struct quantisation *q, const char *module, struct quantisation_candidates *out) {
    const struct quantisation_override *chosen = NULL; // not of a group
    struct quantisation_matches matches;
    bool in_group = false;
    *out = (struct quantisation_candidates){0};
    TRY(quantisation_matching_overrides(&q->overrides, module, &matches));
    bool named = is_named_by_group(q, &matches);
    for (size_t i = 0; i < matches.count; i++) {
        const struct quantisation_override *override = &q->overrides.at[matches.at[i]];
        in_group |= override->of_group;
        if (override->of_group && (matches.by_name[i] || !named)) {
            add_candidate(q, override, out);
        } else if (!override->of_group && (!chosen || (override->exact && !chosen->exact))) {
            chosen = override;
        }
    }
    if (chosen && !chosen->excludes) {
        add_candidate(q, chosen, out);
    }
    out->in_no_group = q->overrides.count > 0 && q->overrides.at[0].of_group && !in_group; // groups are read first
    if (out->count == 0) {
        out->path[out->count] = q->section;
        out->at[out->count++] = q->base;
    }
    return OK;
}

FALLIBLE quantisation_leaves_out(const struct quantisation *q, const char *module, bool *is, const char **entry) {
    struct quantisation_matches matches;
    *is = false;
    TRY(quantisation_matching_overrides(&q->overrides, module, &matches));
    for (size_t i = 0; i < matches.count && !*is; i++) {
        *is = q->overrides.at[matches.at[i]].excludes;
        *entry = q->overrides.at[matches.at[i]].path;
    }
    for (size_t i = 0; i < q->ignored_count && !*is; i++) {
        TRY(name_pattern_matches(&q->ignored[i], module, is));
        *entry = q->ignored[i].text;
    }
    return OK;
}
