#include "expert/foreign/gguf_config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/printable.h"
#include "expert/foreign/gguf_architectures.h"
#include "expert/foreign/gguf_metadata.h"
#include "expert/foreign/gguf_widths.h"

enum { NAMES_TEXT_MAX = 768 };

static const char ARCHITECTURE_KEY[] = "general.architecture", EXPERT_COUNT_KEY[] = "expert_count";

// Keys that have a part in the computation of experts, besides those that begin with "expert".
static const char *const GGUF_EXPERT_KEYS[] = {"moe_", "swiglu_", "router_", "interleave_moe", "hash_layer_count", NULL};

// Parts of the names of keys about experts; a key that has one is no other key, even if another part of it is damaged.
static const char *const GGUF_EXPERT_PARTS[] = {
    "expert", "_gating_func", "_weights_norm", "_weights_scale", "_group_used_count", "_shared_count", NULL};

// The file's own keys, which say nothing about the architecture.
static const char GENERAL[] = "general.";

// Keys of every architecture, which have their place outside the table.
static const char *const GGUF_COMMON_KEYS[] = {"expert_count", "expert_used_count", "expert_feed_forward_length", NULL};

// ---- the architecture

// "llama, qwen2moe, ..."
static const char *names_text(char text[NAMES_TEXT_MAX]) {
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < GGUF_ARCHITECTURE_COUNT && used < NAMES_TEXT_MAX; i++) {
        const char *name = GGUF_ARCHITECTURES[i].name;
        if (i == 0 || strcmp(name, GGUF_ARCHITECTURES[i - 1].name) != 0) {
            used += (size_t)snprintf(text + used, NAMES_TEXT_MAX - used, "%s%s", used ? ", " : "", name);
        }
    }
    return text;
}

static FALLIBLE read_name(struct gguf_metadata *m) {
    const struct gguf_value *value = gguf_find(m->file, ARCHITECTURE_KEY), *type = gguf_find(m->file, "general.type");
    char text[GGUF_FULL_KEY_MAX], shown[GGUF_FULL_KEY_MAX];
    if (type && type->kind == GGUF_STRING && !gguf_is_text(type, "model")) {
        snprintf(text, sizeof text, "%.*s", (int)(type->count < GGUF_NAME_MAX ? type->count : GGUF_NAME_MAX),
                 (const char *)type->data);
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: general.type is %s: the file holds no model; name the model's own file", m->path,
             printable_escape(text, shown, sizeof shown));
    }
    if (!value || value->kind != GGUF_STRING || value->count == 0 || value->count >= GGUF_NAME_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is %s: the file does not say what it is", m->path, ARCHITECTURE_KEY,
             !value                       ? "missing"
             : value->kind != GGUF_STRING ? "not a text"
                                          : "empty or too long");
    }
    snprintf(m->name, sizeof m->name, "%.*s", (int)value->count, (const char *)value->data);
    return OK;
}

static FALLIBLE unknown_architecture(const struct gguf_metadata *m) {
    char shown[GGUF_FULL_KEY_MAX], names[NAMES_TEXT_MAX];
    for (size_t i = 0; i < GGUF_REFUSED_COUNT; i++) {
        if (strcmp(m->name, GGUF_REFUSED[i].name) == 0) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is %s, which is not served: %s", m->path, ARCHITECTURE_KEY, m->name,
                 GGUF_REFUSED[i].reason);
        }
    }
    bool dense = !gguf_metadata_find(m, "expert_count");
    FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is %s, which is not served%s: expected one of %s", m->path, ARCHITECTURE_KEY,
         printable_escape(m->name, shown, sizeof shown),
         dense ? ", and the file has no expert_count: a model without experts has no layer to serve" : "", names_text(names));
}

// The vocabulary's size is a key of its own, or the length of the tokens' list.
static void find_vocabulary(const struct gguf_metadata *m, const char *key, double *number) {
    const struct gguf_value *tokens = gguf_find(m->file, "tokenizer.ggml.tokens");
    if (strcmp(key, "vocab_size") == 0 && tokens && tokens->kind == GGUF_ARRAY) {
        *number = (double)tokens->count;
    }
}

static FALLIBLE holds(const struct gguf_metadata *m, const struct gguf_condition *condition, bool *out) {
    double number = condition->absent;
    bool found;
    find_vocabulary(m, condition->key, &number);
    TRY(strcmp(condition->key, EXPERT_COUNT_KEY) == 0 ? gguf_metadata_greatest(m, condition->key, &number, &found)
                                                      : gguf_metadata_number(m, condition->key, &number, &found));
    *out = number == condition->value;
    return OK;
}

// The first condition of the row that does not hold; NULL: all hold.
static FALLIBLE first_broken(const struct gguf_metadata *m, const struct gguf_architecture *row,
                             const struct gguf_condition **out) {
    *out = NULL;
    for (size_t i = 0; i < GGUF_CONDITIONS && row->when[i].key; i++) {
        bool does = false;
        TRY(holds(m, &row->when[i], &does));
        if (!does) {
            *out = &row->when[i];
            return OK;
        }
    }
    return OK;
}

static FALLIBLE breaks_condition(const struct gguf_metadata *m, const struct gguf_condition *broken) {
    char full[GGUF_FULL_KEY_MAX];
    double number = broken->absent;
    bool found;
    TRY(gguf_metadata_number(m, broken->key, &number, &found));
    gguf_metadata_key(m, broken->key, full);
    if (!found && broken->absent == GATING_NONE) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: %s is missing: this architecture requires it, since llama.cpp has another default than the "
             "model's authors; convert the model again",
             m->path, full);
    }
    FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is %s%g, which is not supported with this architecture%s: expected %g", m->path, full,
         found ? "" : "missing and so taken as ", number, found ? "" : " and its other keys", broken->value);
}

static FALLIBLE find_row(struct gguf_metadata *m) {
    const struct gguf_condition *broken = NULL;
    bool known = false;
    for (size_t i = 0; i < GGUF_ARCHITECTURE_COUNT; i++) {
        const struct gguf_architecture *row = &GGUF_ARCHITECTURES[i];
        if (strcmp(row->name, m->name) != 0) {
            continue;
        }
        known = true;
        TRY(first_broken(m, row, &broken));
        if (!broken) {
            m->row = row;
            return OK;
        }
    }
    if (!known) {
        return unknown_architecture(m);
    }
    return breaks_condition(m, broken);
}

// ---- members

// "0|1" has the number?
static bool is_among(const char *only, double number) {
    for (const char *at = only; *at;) {
        char *end;
        if (strtod(at, &end) == number) {
            return true;
        }
        at = end + (*end == '|');
    }
    return false;
}

// For messages: other rows of the architecture may apply if the file says which function it has.
static const char *missing_gating(const struct gguf_metadata *m) {
    bool one_of_several = m->row->when[1].key && m->row->when[0].value == GATING_SOFTMAX;
    return one_of_several && !gguf_metadata_find(m, "expert_gating_func") ? " (expert_gating_func is missing and so taken as 1)"
                                                                          : "";
}

static FALLIBLE check_only(const struct gguf_metadata *m, const char *key, const struct gguf_value *value, const char *only) {
    char full[GGUF_FULL_KEY_MAX], text[GGUF_VALUE_TEXT_MAX];
    double number = 0;
    uint64_t count = value->kind == GGUF_ARRAY ? value->count : 1;
    for (uint64_t i = 0; only && i < count; i++) {
        if (!gguf_number(value, i, &number) || !is_among(only, number)) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is %s, which is not supported with this architecture%s: expected %s", m->path,
                 gguf_metadata_key(m, key, full), gguf_metadata_text(value, text), missing_gating(m), only);
        }
    }
    return OK;
}

// Do both have the same numbers? A number that is no list counts for every place of a list.
static bool same_numbers(const struct gguf_value *value, const struct gguf_value *other) {
    uint64_t counts[] = {value->kind == GGUF_ARRAY ? value->count : 1, other->kind == GGUF_ARRAY ? other->count : 1};
    bool lists = value->kind == GGUF_ARRAY && other->kind == GGUF_ARRAY;
    bool same = !lists || counts[0] == counts[1];
    for (uint64_t i = 0; same && i < counts[0]; i++) {
        for (uint64_t j = lists ? i : 0; same && j < (lists ? i + 1 : counts[1]); j++) {
            double a = 0, b = 0;
            same = gguf_number(value, i, &a) && gguf_number(other, j, &b) && a == b;
        }
    }
    return same;
}

static FALLIBLE check_same(const struct gguf_metadata *m, const char *key, const struct gguf_value *value, const char *other_key) {
    char full[GGUF_FULL_KEY_MAX], other_full[GGUF_FULL_KEY_MAX], text[GGUF_VALUE_TEXT_MAX], other_text[GGUF_VALUE_TEXT_MAX];
    const struct gguf_value *other = gguf_metadata_find(m, other_key);
    if (!other || !same_numbers(value, other)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is %s, but %s is %s: different values are not supported with this architecture",
             m->path, gguf_metadata_key(m, key, full), gguf_metadata_text(value, text), gguf_metadata_key(m, other_key, other_full),
             other ? gguf_metadata_text(other, other_text) : "missing");
    }
    return OK;
}

static FALLIBLE write_key(const struct gguf_metadata *m, const struct gguf_key *key) {
    const struct gguf_value *value = gguf_metadata_find(m, key->key);
    bool required = key->only && key->only[0] == '!';
    if (!value && required) {
        char full[GGUF_FULL_KEY_MAX];
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is missing: this architecture requires it", m->path,
             gguf_metadata_key(m, key->key, full));
    }
    if (!value) {
        if (key->row && key->absent) {
            fprintf(m->json, ",\n \"%s\": %s", key->row, key->absent);
        }
        return OK;
    }
    bool same = key->only && key->only[0] == '=';
    TRY(same ? check_same(m, key->key, value, key->only + 1) : check_only(m, key->key, value, required ? NULL : key->only));
    return key->row ? gguf_metadata_write(m, key->row, key->key, value) : OK;
}

static FALLIBLE write_sizes(const struct gguf_metadata *m) {
    static const struct gguf_key SIZES[] = {{"embedding_length", "hidden_size", NULL, NULL},
                                            {"expert_count", "num_experts", NULL, NULL},
                                            {"expert_used_count", "num_experts_per_tok", NULL, NULL}};
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
        TRY(write_key(m, &SIZES[i]));
    }
    return gguf_widths_write(m);
}

// Predicts block `block` further tokens? A file of the decoder alone has no tensor of it. If parts are missing, the tensors that
// show it may be in them.
static bool predicts_further(const struct gguf_metadata *m, double block) {
    char all[GGUF_FULL_KEY_MAX], further[GGUF_FULL_KEY_MAX];
    snprintf(all, sizeof all, "blk.%.0f.", block);
    snprintf(further, sizeof further, "blk.%.0f.nextn.", block);
    return !m->complete || gguf_metadata_has_tensor(m, further) || !gguf_metadata_has_tensor(m, all);
}

// The last nextn_predict_layers of the block_count blocks predict further tokens and belong to no decoder layer. Some files have
// the key although block_count does not count these blocks.
static FALLIBLE write_layers(const struct gguf_metadata *m) {
    double blocks = 0, further = 0;
    bool found, has_further;
    TRY(gguf_metadata_integer(m, "block_count", &blocks, &found));
    TRY(gguf_metadata_integer(m, "nextn_predict_layers", &further, &has_further));
    if (found && !(blocks >= 1 && blocks <= UINT32_MAX && further >= 0 && further < blocks)) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: %s.block_count is %g and %s.nextn_predict_layers is %g: expected at least one block besides those", m->path,
             m->name, blocks, m->name, further);
    }
    if (found) {
        double layers = further > 0 && predicts_further(m, blocks - further) ? blocks - further : blocks;
        fprintf(m->json, ",\n \"num_hidden_layers\": %.0f,\n \"n_layers\": %.0f", layers, layers);
    }
    return OK;
}

// ---- groups of experts

// The table's defaults stand for files that have neither key; half of the grouping would be completed by a guess. One group is
// no grouping, whatever is used of it.
static FALLIBLE check_groups(const struct gguf_metadata *m) {
    double groups = 0, used = 0;
    bool has_groups, has_used;
    TRY(gguf_metadata_number(m, "expert_group_count", &groups, &has_groups));
    TRY(gguf_metadata_number(m, "expert_group_used_count", &used, &has_used));
    if (has_groups != has_used && (has_used || groups > 1)) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: %s.expert_group_%s is %g, but %s.expert_group_%s is missing: expected both keys or neither; convert the model "
             "again, or name another file of it",
             m->path, m->name, has_groups ? "count" : "used_count", has_groups ? groups : used, m->name,
             has_groups ? "used_count" : "count");
    }
    return OK;
}

// ---- unknown keys

static bool is_about_experts(const char *key) {
    bool is = false;
    for (const char *const *part = GGUF_EXPERT_PARTS; *part; part++) {
        is = is || strstr(key, *part) != NULL;
    }
    for (const char *const *start = GGUF_EXPERT_KEYS; *start; start++) {
        is = is || strncmp(key, *start, strlen(*start)) == 0;
    }
    return is;
}

static bool is_known(const struct gguf_metadata *m, const char *key) {
    bool known = strcmp(key, gguf_widths_key(m)) == 0 || gguf_widths_is_shared_key(m, key);
    for (const char *const *common = GGUF_COMMON_KEYS; *common; common++) {
        known = known || strcmp(key, *common) == 0;
    }
    for (size_t i = 0; i < GGUF_CONDITIONS && m->row->when[i].key; i++) {
        known = known || strcmp(key, m->row->when[i].key) == 0;
    }
    for (size_t i = 0; i < GGUF_ROW_KEYS && m->row->keys[i].key; i++) {
        known = known || strcmp(key, m->row->keys[i].key) == 0;
    }
    return known;
}

// "expert_count" of "qwen3moe.expert_count"; NULL: the key has no architecture's name before it. *own: this architecture's?
static const char *below_architecture(const struct gguf_metadata *m, const char *key, bool *own) {
    size_t length = strlen(m->name);
    const char *dot = strchr(key, '.');
    *own = strncmp(key, m->name, length) == 0 && key[length] == '.';
    return *own ? key + length + 1 : dot && strncmp(key, GENERAL, strlen(GENERAL)) != 0 ? dot + 1 : NULL;
}

// Says the value nothing: 0, or a list of zeros?
static bool is_nothing(const struct gguf_value *value) {
    double number = 0;
    bool nothing = value->kind != GGUF_STRING && (value->kind != GGUF_ARRAY || value->count <= GGUF_LAYERS_MAX);
    for (uint64_t i = 0; nothing && i < (value->kind == GGUF_ARRAY ? value->count : 1); i++) {
        nothing = gguf_number(value, i, &number) && number == 0;
    }
    return nothing;
}

// A key about experts that the table does not have, or that another architecture's name stands before, may change the computation,
// unless it says nothing.
static FALLIBLE check_unknown_keys(const struct gguf_metadata *m) {
    for (size_t i = 0; i < m->file->count; i++) {
        const char *key = m->file->pairs[i].key;
        bool own;
        const char *below = below_architecture(m, key, &own);
        if (!below || !is_about_experts(below) || (own && is_known(m, below))) {
            continue;
        }
        char text[GGUF_VALUE_TEXT_MAX];
        const struct gguf_value *value = &m->file->pairs[i].value;
        if (!is_nothing(value)) {
            FAIL(EXPERTD_ERR_CHECKPOINT,
                 "%s: %.128s is %s: this architecture (%s) has no such key, and ignoring it could change the outputs", m->path, key,
                 gguf_metadata_text(value, text), m->name);
        }
    }
    return OK;
}

// ---- the configuration

static FALLIBLE write_all(const struct gguf_metadata *m) {
    fprintf(m->json, "{\"model_type\": \"%s\"", m->row->model_type);
    TRY(write_layers(m));
    TRY(write_sizes(m));
    TRY(check_groups(m));
    for (size_t i = 0; i < GGUF_ROW_KEYS && m->row->keys[i].key; i++) {
        TRY(write_key(m, &m->row->keys[i]));
    }
    TRY(check_unknown_keys(m));
    fprintf(m->json, "%s%s}\n", m->row->constants ? ",\n " : "", m->row->constants ? m->row->constants : "");
    return OK;
}

static FALLIBLE check_experts(const struct gguf_metadata *m) {
    double experts = 0;
    bool found;
    TRY(gguf_metadata_greatest(m, EXPERT_COUNT_KEY, &experts, &found));
    if (experts == 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s.%s is %s: the model has no experts, so there is nothing to serve", m->path, m->name,
             EXPERT_COUNT_KEY, found ? "0" : "missing");
    }
    return OK;
}

static FALLIBLE name_key(struct config *config, const struct gguf_metadata *m, const char *row, const char *key) {
    char full[GGUF_FULL_KEY_MAX];
    return config_name_key(config, row, gguf_metadata_key(m, key, full));
}

static FALLIBLE name_keys(struct config *config, const struct gguf_metadata *m) {
    TRY(name_key(config, m, "num_hidden_layers", "block_count"));
    TRY(name_key(config, m, "n_layers", "block_count"));
    TRY(name_key(config, m, "hidden_size", "embedding_length"));
    TRY(name_key(config, m, "num_experts", EXPERT_COUNT_KEY));
    TRY(name_key(config, m, "num_experts_per_tok", "expert_used_count"));
    TRY(gguf_widths_name(m, config));
    for (size_t i = 0; i < GGUF_ROW_KEYS && m->row->keys[i].key; i++) {
        TRY(m->row->keys[i].row ? name_key(config, m, m->row->keys[i].row, m->row->keys[i].key) : OK);
    }
    return OK;
}

static FALLIBLE parse_text(const struct gguf_metadata *m, const char *text, size_t length, struct config **out) {
    TRY(config_parse(m->path, text, length, out));
    err_t e = name_keys(*out, m);
    if (err_is(e)) {
        config_destroy(*out);
        *out = NULL;
    }
    return e;
}

FALLIBLE gguf_config_make(const struct gguf *first, const struct gguf_config_parts *parts, struct config **out) {
    struct gguf_metadata m = {
        .file = first, .files = parts->files, .count = parts->count, .complete = parts->complete, .path = parts->files[0].path};
    char *text = NULL;
    size_t length = 0;
    *out = NULL;
    TRY(read_name(&m));
    TRY(find_row(&m));
    TRY(check_experts(&m));
    m.json = open_memstream(&text, &length);
    if (!m.json) {
        FAIL(EXPERTD_ERR_NOMEM, "%s: no memory for its metadata", m.path);
    }
    err_t e = write_all(&m);
    bool written = fclose(m.json) == 0;
    if (!err_is(e)) {
        e = written ? parse_text(&m, text, length, out)
                    : err_record(EXPERTD_ERR_NOMEM, NULL, "%s: no memory for its metadata", m.path);
    }
    free(text);
    return e;
}
