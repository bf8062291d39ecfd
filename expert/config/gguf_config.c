#include "expert/config/gguf_config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/printable.h"
#include "expert/config/gguf_architectures.h"

enum { NAME_MAX_BYTES = 64, KEY_MAX_BYTES = 256, LIST_MAX = 4096, NAMES_TEXT_MAX = 768, VALUE_TEXT_MAX = 96 };

static const double INTEGER_MAX = 0x1p53; // of those that a double has exactly

static const char ARCHITECTURE_KEY[] = "general.architecture";

// Keys that have a part in the computation of experts, besides those that begin with "expert".
static const char *const GGUF_EXPERT_KEYS[] = {"moe_", "swiglu_", "router_", "interleave_moe", "hash_layer_count", NULL};

// Parts of the names of keys about experts; a key that has one is no other key, even if another part of it is damaged.
static const char *const GGUF_EXPERT_PARTS[] = {
    "expert", "_gating_func", "_weights_norm", "_weights_scale", "_group_used_count", "_shared_count", NULL};

// The file's own keys, which say nothing about the architecture.
static const char GENERAL[] = "general.";

// Keys of every architecture, which have their place outside the table.
static const char *const GGUF_COMMON_KEYS[] = {"expert_count", "expert_used_count", "expert_feed_forward_length", NULL};

struct maker {
    const struct gguf *file;
    const struct safetensors *files; // [count], of all parts
    size_t count;
    const char *path;
    char name[NAME_MAX_BYTES];           // general.architecture
    const struct gguf_architecture *row; // of the table
    FILE *json;                          // the members so far
};

// "qwen3moe.expert_count"
static const char *full_key(const struct maker *m, const char *key, char out[KEY_MAX_BYTES]) {
    snprintf(out, KEY_MAX_BYTES, "%s.%s", m->name, key);
    return out;
}

static const struct gguf_value *value_of(const struct maker *m, const char *key) {
    char full[KEY_MAX_BYTES];
    return gguf_find(m->file, full_key(m, key, full));
}

// The value for messages: "0.5", "a list of 2 that begins with 0.5", "a text".
static const char *value_text(const struct gguf_value *value, char out[VALUE_TEXT_MAX]) {
    double number = 0;
    bool has = gguf_number(value, 0, &number);
    if (value->kind == GGUF_STRING) {
        snprintf(out, VALUE_TEXT_MAX, "a text");
    } else if (value->kind == GGUF_ARRAY && has) {
        snprintf(out, VALUE_TEXT_MAX, "a list of %" PRIu64 " that begins with %g", value->count, number);
    } else if (value->kind == GGUF_ARRAY) {
        snprintf(out, VALUE_TEXT_MAX, "a list of %" PRIu64, value->count);
    } else {
        snprintf(out, VALUE_TEXT_MAX, "%g", number);
    }
    return out;
}

// A number that is no list. *found false: there is no such key.
static FALLIBLE number_of(const struct maker *m, const char *key, double *out, bool *found) {
    char full[KEY_MAX_BYTES];
    const struct gguf_value *value = value_of(m, key);
    *found = value != NULL;
    if (value && (value->kind == GGUF_ARRAY || !gguf_number(value, 0, out))) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is a %s: expected a number", m->path, full_key(m, key, full),
             value->kind == GGUF_ARRAY ? "list" : "text");
    }
    return OK;
}

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

static FALLIBLE read_name(struct maker *m) {
    const struct gguf_value *value = gguf_find(m->file, ARCHITECTURE_KEY), *type = gguf_find(m->file, "general.type");
    char text[KEY_MAX_BYTES], shown[KEY_MAX_BYTES];
    if (type && type->kind == GGUF_STRING && !gguf_is_text(type, "model")) {
        snprintf(text, sizeof text, "%.*s", (int)(type->count < NAME_MAX_BYTES ? type->count : NAME_MAX_BYTES),
                 (const char *)type->data);
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: general.type is %s: the file holds no model; name the model's own file", m->path,
             printable_escape(text, shown, sizeof shown));
    }
    if (!value || value->kind != GGUF_STRING || value->count == 0 || value->count >= NAME_MAX_BYTES) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is %s: the file does not say what it is", m->path, ARCHITECTURE_KEY,
             !value                       ? "missing"
             : value->kind != GGUF_STRING ? "not a text"
                                          : "empty or too long");
    }
    snprintf(m->name, sizeof m->name, "%.*s", (int)value->count, (const char *)value->data);
    return OK;
}

static FALLIBLE unknown_architecture(const struct maker *m) {
    char shown[KEY_MAX_BYTES], names[NAMES_TEXT_MAX];
    FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is %s, which is not served: expected one of %s", m->path, ARCHITECTURE_KEY,
         printable_escape(m->name, shown, sizeof shown), names_text(names));
}

// The vocabulary's size is a key of its own, or the length of the tokens' list.
static void find_vocabulary(const struct maker *m, const char *key, double *number) {
    const struct gguf_value *tokens = gguf_find(m->file, "tokenizer.ggml.tokens");
    if (strcmp(key, "vocab_size") == 0 && tokens && tokens->kind == GGUF_ARRAY) {
        *number = (double)tokens->count;
    }
}

static FALLIBLE holds(const struct maker *m, const struct gguf_condition *condition, bool *out) {
    double number = condition->absent;
    bool found;
    find_vocabulary(m, condition->key, &number);
    TRY(number_of(m, condition->key, &number, &found));
    *out = number == condition->value;
    return OK;
}

// The first condition of the row that does not hold; NULL: all hold.
static FALLIBLE first_broken(const struct maker *m, const struct gguf_architecture *row, const struct gguf_condition **out) {
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

static FALLIBLE find_row(struct maker *m) {
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
    char full[KEY_MAX_BYTES];
    double number = broken->absent;
    bool found;
    TRY(number_of(m, broken->key, &number, &found));
    FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is %s%g, which is not supported with this architecture%s: expected %g", m->path,
         full_key(m, broken->key, full), found ? "" : "missing and so taken as ", number, found ? "" : " and its other keys",
         broken->value);
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
static const char *missing_gating(const struct maker *m) {
    bool one_of_several = m->row->when[1].key && m->row->when[0].value == GATING_SOFTMAX;
    return one_of_several && !value_of(m, "expert_gating_func") ? " (expert_gating_func is missing and so taken as 1)" : "";
}

static FALLIBLE check_only(const struct maker *m, const char *key, const struct gguf_value *value, const char *only) {
    char full[KEY_MAX_BYTES], text[VALUE_TEXT_MAX];
    double number = 0;
    uint64_t count = value->kind == GGUF_ARRAY ? value->count : 1;
    for (uint64_t i = 0; only && i < count; i++) {
        if (!gguf_number(value, i, &number) || !is_among(only, number)) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is %s, which is not supported with this architecture%s: expected %s", m->path,
                 full_key(m, key, full), value_text(value, text), missing_gating(m), only);
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

static FALLIBLE check_same(const struct maker *m, const char *key, const struct gguf_value *value, const char *other_key) {
    char full[KEY_MAX_BYTES], other_full[KEY_MAX_BYTES], text[VALUE_TEXT_MAX], other_text[VALUE_TEXT_MAX];
    const struct gguf_value *other = value_of(m, other_key);
    if (!other || !same_numbers(value, other)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is %s, but %s is %s: different values are not supported with this architecture",
             m->path, full_key(m, key, full), value_text(value, text), full_key(m, other_key, other_full),
             other ? value_text(other, other_text) : "missing");
    }
    return OK;
}

static FALLIBLE write_number(const struct maker *m, const char *key, const struct gguf_value *value, uint64_t i) {
    char full[KEY_MAX_BYTES];
    double number = 0;
    if (!gguf_number(value, i, &number) || !isfinite(number)) {
        bool is_text = (value->kind == GGUF_ARRAY ? value->element : value->kind) == GGUF_STRING;
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is %s", m->path, full_key(m, key, full),
             is_text ? "a text: expected a number" : "not a finite number");
    }
    if (gguf_is_integer(value) && fabs(number) > INTEGER_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is %.0f: expected an integer up to 2^53", m->path, full_key(m, key, full), number);
    }
    enum gguf_kind kind = value->kind == GGUF_ARRAY ? value->element : value->kind;
    if (kind == GGUF_BOOL) {
        fputs(number != 0 ? "true" : "false", m->json);
    } else {
        fprintf(m->json, gguf_is_integer(value) ? "%.0f" : "%.9g", number);
    }
    return OK;
}

static FALLIBLE write_value(const struct maker *m, const char *key, const struct gguf_value *value) {
    char full[KEY_MAX_BYTES];
    if (value->kind != GGUF_ARRAY) {
        return write_number(m, key, value, 0);
    }
    if (value->count > LIST_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s has %" PRIu64 " elements: expected at most %d", m->path, full_key(m, key, full),
             value->count, LIST_MAX);
    }
    fputc('[', m->json);
    for (uint64_t i = 0; i < value->count; i++) {
        fputs(i ? ", " : "", m->json);
        TRY(write_number(m, key, value, i));
    }
    fputc(']', m->json);
    return OK;
}

// Writes the member `row`; "a.b" is the member b of a.
static FALLIBLE write_member(const struct maker *m, const char *row, const char *key, const struct gguf_value *value) {
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

static FALLIBLE write_key(const struct maker *m, const struct gguf_key *key) {
    const struct gguf_value *value = value_of(m, key->key);
    bool required = key->only && key->only[0] == '!';
    if (!value && required) {
        char full[KEY_MAX_BYTES];
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is missing: this architecture requires it", m->path, full_key(m, key->key, full));
    }
    if (!value) {
        if (key->row && key->absent) {
            fprintf(m->json, ",\n \"%s\": %s", key->row, key->absent);
        }
        return OK;
    }
    bool same = key->only && key->only[0] == '=';
    TRY(same ? check_same(m, key->key, value, key->only + 1) : check_only(m, key->key, value, required ? NULL : key->only));
    return key->row ? write_member(m, key->row, key->key, value) : OK;
}

// The members of config.json for the experts' width, whichever of them the architecture reads.
static const char *const WIDTH_MEMBERS[] = {"moe_intermediate_size", "intermediate_size", "ffn_config.ffn_hidden_size"};

static const char *width_key(const struct maker *m) {
    return m->row->width ? m->row->width : "expert_feed_forward_length";
}

static FALLIBLE write_sizes(const struct maker *m) {
    static const struct gguf_key SIZES[] = {{"embedding_length", "hidden_size", NULL, NULL},
                                            {"expert_count", "num_experts", NULL, NULL},
                                            {"expert_used_count", "num_experts_per_tok", NULL, NULL}};
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
        TRY(write_key(m, &SIZES[i]));
    }
    for (size_t i = 0; i < sizeof WIDTH_MEMBERS / sizeof *WIDTH_MEMBERS; i++) {
        TRY(write_key(m, &(struct gguf_key){width_key(m), WIDTH_MEMBERS[i], NULL, NULL}));
    }
    return OK;
}

// Has a file a tensor whose name begins so? "blk.2."
static bool has_tensor(const struct maker *m, const char *prefix) {
    size_t length = strlen(prefix);
    for (size_t f = 0; f < m->count; f++) {
        for (size_t i = 0; i < m->files[f].count; i++) {
            if (strncmp(m->files[f].entries[i].name, prefix, length) == 0) {
                return true;
            }
        }
    }
    return false;
}

// Predicts block `block` further tokens? A file of the decoder alone has no tensor of it.
static bool predicts_further(const struct maker *m, double block) {
    char all[KEY_MAX_BYTES], further[KEY_MAX_BYTES];
    snprintf(all, sizeof all, "blk.%.0f.", block);
    snprintf(further, sizeof further, "blk.%.0f.nextn.", block);
    return has_tensor(m, further) || !has_tensor(m, all);
}

static FALLIBLE integer_of(const struct maker *m, const char *key, double *out, bool *found) {
    char full[KEY_MAX_BYTES];
    TRY(number_of(m, key, out, found));
    if (*out != floor(*out)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is %g: expected an integer", m->path, full_key(m, key, full), *out);
    }
    return OK;
}

// The last nextn_predict_layers of the block_count blocks predict further tokens and belong to no decoder layer. Some files have
// the key although block_count does not count these blocks.
static FALLIBLE write_layers(const struct maker *m) {
    double blocks = 0, further = 0;
    bool found, has_further;
    TRY(integer_of(m, "block_count", &blocks, &found));
    TRY(integer_of(m, "nextn_predict_layers", &further, &has_further));
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
static FALLIBLE check_groups(const struct maker *m) {
    double groups = 0, used = 0;
    bool has_groups, has_used;
    TRY(number_of(m, "expert_group_count", &groups, &has_groups));
    TRY(number_of(m, "expert_group_used_count", &used, &has_used));
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

static bool is_known(const struct maker *m, const char *key) {
    bool known = strcmp(key, width_key(m)) == 0;
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
static const char *below_architecture(const struct maker *m, const char *key, bool *own) {
    size_t length = strlen(m->name);
    const char *dot = strchr(key, '.');
    *own = strncmp(key, m->name, length) == 0 && key[length] == '.';
    return *own ? key + length + 1 : dot && strncmp(key, GENERAL, strlen(GENERAL)) != 0 ? dot + 1 : NULL;
}

// A key about experts that the table does not have, or that another architecture's name stands before, may change the computation,
// unless it says nothing.
static FALLIBLE check_unknown_keys(const struct maker *m) {
    for (size_t i = 0; i < m->file->count; i++) {
        const char *key = m->file->pairs[i].key;
        bool own;
        const char *below = below_architecture(m, key, &own);
        if (!below || !is_about_experts(below) || (own && is_known(m, below))) {
            continue;
        }
        double number = 0;
        char text[VALUE_TEXT_MAX];
        const struct gguf_value *value = &m->file->pairs[i].value;
        if (value->kind == GGUF_ARRAY || !gguf_number(value, 0, &number) || number != 0) {
            FAIL(EXPERTD_ERR_CHECKPOINT,
                 "%s: %.128s is %s: this architecture (%s) has no such key, and ignoring it could change the outputs", m->path, key,
                 value_text(value, text), m->name);
        }
    }
    return OK;
}

// ---- the configuration

static FALLIBLE write_all(const struct maker *m) {
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

static FALLIBLE check_experts(const struct maker *m) {
    double experts = 0;
    bool found;
    TRY(number_of(m, "expert_count", &experts, &found));
    if (experts == 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s.expert_count is %s: the model has no experts, so there is nothing to serve", m->path,
             m->name, found ? "0" : "missing");
    }
    return OK;
}

static FALLIBLE name_key(struct config *config, const struct maker *m, const char *row, const char *key) {
    char full[KEY_MAX_BYTES];
    return config_name_key(config, row, full_key(m, key, full));
}

static FALLIBLE name_keys(struct config *config, const struct maker *m) {
    TRY(name_key(config, m, "num_hidden_layers", "block_count"));
    TRY(name_key(config, m, "n_layers", "block_count"));
    TRY(name_key(config, m, "hidden_size", "embedding_length"));
    TRY(name_key(config, m, "num_experts", "expert_count"));
    TRY(name_key(config, m, "num_experts_per_tok", "expert_used_count"));
    for (size_t i = 0; i < sizeof WIDTH_MEMBERS / sizeof *WIDTH_MEMBERS; i++) {
        TRY(name_key(config, m, WIDTH_MEMBERS[i], width_key(m)));
    }
    for (size_t i = 0; i < GGUF_ROW_KEYS && m->row->keys[i].key; i++) {
        TRY(m->row->keys[i].row ? name_key(config, m, m->row->keys[i].row, m->row->keys[i].key) : OK);
    }
    return OK;
}

static FALLIBLE parse_text(const struct maker *m, const char *text, size_t length, struct config **out) {
    TRY(config_parse(m->path, text, length, out));
    err_t e = name_keys(*out, m);
    if (err_is(e)) {
        config_destroy(*out);
        *out = NULL;
    }
    return e;
}

FALLIBLE gguf_config_make(const struct gguf *first, const struct safetensors *files, size_t count, struct config **out) {
    struct maker m = {.file = first, .files = files, .count = count, .path = files[0].path};
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
