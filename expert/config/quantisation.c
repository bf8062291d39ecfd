#include "expert/config/quantisation.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEY_MAX = 256,
    ENTRY_MAX = 512,
    GROUPS_MAX = 1024, // entries of config_groups; known models have one to three
};

// "SECTION.NAME"
struct key {
    char text[KEY_MAX];
};

static struct key key_of(const struct quantisation *q, const char *name) {
    struct key key;
    snprintf(key.text, sizeof key.text, "%s.%s", q->section, name);
    return key;
}

static bool find_section(const struct config *config, struct quantisation *out) {
    static const char *const SECTIONS[] = {"quantization_config", "compression_config"};
    const struct config *const configs[] = {config, config_text(config)};
    for (size_t i = 0; i < 4 && !out->config; i++) {
        if (config_has(configs[i / 2], SECTIONS[i % 2])) {
            out->config = configs[i / 2];
            out->section = SECTIONS[i % 2];
        }
    }
    return out->config != NULL;
}

// A size; -1 means all of K.
static FALLIBLE read_size(const struct quantisation *q, const char *name, uint32_t *out) {
    struct key key = key_of(q, name);
    const char *const keys[] = {key.text, NULL};
    double number;
    bool found;
    TRY(config_f64(q->config, keys, &number, &found));
    if (!found) {
        return OK;
    }
    if (!(number == -1 || (number >= 0 && number < (double)QUANTISATION_ALL_K)) || number != floor(number)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is %g: expected an integer from 0, or -1 for all of K", config_path(q->config),
             key.text, number);
    }
    *out = number == -1 ? QUANTISATION_ALL_K : (uint32_t)number;
    return OK;
}

// [n, k], or "128x128".
static FALLIBLE read_block(const struct quantisation *q, const char *name, struct quantisation_setting *out) {
    struct key key = key_of(q, name);
    const char *const keys[] = {key.text, NULL};
    char text[64], n[10], k[10], end; // up to nine digits: they fit into 32 bits
    uint32_t sizes[2] = {0, 0};
    size_t count = 0;
    bool found;
    if (!config_value_text(q->config, key.text, text, sizeof text)) {
        return OK;
    }
    if (sscanf(text, "%9[0-9]x%9[0-9]%c", n, k, &end) == 2) {
        sizes[0] = (uint32_t)strtoul(n, NULL, 10);
        sizes[1] = (uint32_t)strtoul(k, NULL, 10);
        count = 2;
    } else {
        TRY(config_u32_list(q->config, keys, sizes, 2, &count, &found));
    }
    if (count != 2 || sizes[0] == 0 || sizes[1] == 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is %s: expected two positive integers", config_path(q->config), key.text, text);
    }
    out->block_n = sizes[0];
    out->block_k = sizes[1];
    return OK;
}

static FALLIBLE read_text(const struct quantisation *q, const char *name, char *out, size_t bytes) {
    struct key key = key_of(q, name);
    const char *const keys[] = {key.text, NULL};
    const char *text = "";
    bool found;
    TRY(config_string(q->config, keys, &text, &found));
    snprintf(out, bytes, "%s", found ? text : "");
    return OK;
}

static FALLIBLE read_flag(const struct quantisation *q, const char *name, bool *out) {
    struct key key = key_of(q, name);
    const char *const keys[] = {key.text, NULL};
    bool found;
    return config_bool(q->config, keys, out, &found);
}

// The key must be absent or have this value.
static FALLIBLE expect_text(const struct quantisation *q, const char *name, const char *expected) {
    char text[64];
    struct key key = key_of(q, name);
    if (config_value_text(q->config, key.text, text, sizeof text) && strcasecmp(text, expected) != 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is %s, whose layout of tensors is not supported: expected %s", config_path(q->config),
             key.text, text, expected);
    }
    return OK;
}

static FALLIBLE read_strategy(const struct quantisation *q, const char *name, struct quantisation_setting *out) {
    char strategy[32];
    TRY(read_text(q, name, strategy, sizeof strategy));
    if (strcmp(strategy, "channel") == 0 || strcmp(strategy, "tensor") == 0) {
        out->group_k = QUANTISATION_ALL_K;
    }
    return OK;
}

// A member of config_groups. Groups that have only activations are ignored.
static err_t read_group(void *context, const struct config *group) {
    struct quantisation *q = context;
    const struct quantisation weights = {.config = group, .section = "weights"};
    if (config_object_size(group, weights.section) == 0) {
        return OK;
    }
    if (q->count == QUANTISATION_SETTINGS_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: more than %d groups have weights, which is not supported", config_path(group),
             QUANTISATION_SETTINGS_MAX);
    }
    struct quantisation_setting *setting = &q->settings[q->count++];
    TRY(read_size(&weights, "num_bits", &setting->bits));
    TRY(read_size(&weights, "group_size", &setting->group_k));
    TRY(read_block(&weights, "block_structure", setting));
    return read_strategy(&weights, "strategy", setting);
}

// compressed-tensors and ModelOpt.
static FALLIBLE read_groups(struct quantisation *q) {
    struct key groups = key_of(q, "config_groups");
    size_t count = config_object_size(q->config, groups.text);
    if (count > GROUPS_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s has %zu groups, more than %d: the file may be damaged, download it again",
             config_path(q->config), groups.text, count, GROUPS_MAX);
    }
    return config_each_member(q->config, groups.text, read_group, q);
}

static FALLIBLE read_section_sizes(struct quantisation *q) {
    struct quantisation_setting setting = {0};
    TRY(read_size(q, "bits", &setting.bits));
    TRY(read_size(q, "group_size", &setting.group_k));
    TRY(read_block(q, "weight_block_size", &setting));
    bool specified = setting.bits || setting.group_k || setting.block_n;
    struct key dynamic = key_of(q, "dynamic");
    bool varies = config_object_size(q->config, dynamic.text) > 0; // GPTQModel: some modules have other sizes
    if (specified && !varies) {
        q->settings[q->count++] = setting;
    }
    return OK;
}

static FALLIBLE read_gptq(struct quantisation *q) {
    char form[32];
    TRY(read_text(q, "checkpoint_format", form, sizeof form));
    q->zero_points_are_stored_as_is = strcmp(form, "gptq_v2") == 0;
    if (!q->zero_points_are_stored_as_is) {
        TRY(expect_text(q, "checkpoint_format", "gptq"));
    }
    TRY(expect_text(q, "pack_dtype", "int32"));
    return read_flag(q, "desc_act", &q->in_activation_order);
}

bool quantisation_names(const struct quantisation *q, const char *family) {
    return strstr(q->packing[0] ? q->packing : q->method, family) != NULL;
}

// AutoRound stores zero points minus one in the packings that it names after auto-gptq, and unchanged in those of its own.
static FALLIBLE read_packing(struct quantisation *q) {
    static const char *const PLAIN[] = {"auto_round", "auto_round:exllamav2", "auto_round:tritonv2", "auto_round:triton"};
    if (!strstr(q->method, "auto-round") && !strstr(q->method, "auto_round")) {
        return OK;
    }
    TRY(read_text(q, "packing_format", q->packing, sizeof q->packing));
    if (q->packing[0] == '\0') {
        TRY(read_text(q, "backend", q->packing, sizeof q->packing));
    }
    for (size_t i = 0; i < sizeof PLAIN / sizeof *PLAIN; i++) {
        q->zero_points_are_stored_as_is |= strcmp(q->packing, PLAIN[i]) == 0;
    }
    return OK;
}

FALLIBLE quantisation_read(const struct config *config, struct quantisation *out) {
    *out = (struct quantisation){0};
    if (!find_section(config, out)) {
        return OK;
    }
    TRY(read_text(out, "quant_method", out->method, sizeof out->method));
    struct key transform = key_of(out, "transform_config.config_groups");
    if (config_object_size(out->config, transform.text) > 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s rotates the inputs and outputs of the experts, which is not supported",
             config_path(out->config), transform.text);
    }
    if (strcmp(out->method, "awq") == 0) {
        TRY(expect_text(out, "version", "gemm"));
    }
    if (strcmp(out->method, "gptq") == 0) {
        TRY(read_gptq(out));
    }
    TRY(read_packing(out));
    TRY(read_section_sizes(out));
    return out->count ? OK : read_groups(out);
}

// ---- modules left out ----

// Glob match: '*' matches any run of characters, '?' any one. Backtracks only to the last '*'.
static bool matches(const char *pattern, const char *name) {
    const char *star = NULL, *from = NULL;
    while (*name) {
        if (*pattern == '*') {
            star = pattern++;
            from = name;
        } else if (*pattern == '?' || *pattern == *name) {
            pattern++;
            name++;
        } else if (star) {
            pattern = star + 1;
            name = ++from;
        } else {
            return false;
        }
    }
    return pattern[strspn(pattern, "*")] == '\0';
}

// Converts a regular expression to a glob pattern, anchored at its beginning like Python's re.match; false: not convertible.
static bool pattern_of_expression(const char *expression, char out[ENTRY_MAX]) {
    size_t used = 0;
    expression += *expression == '^';
    for (; *expression && used < ENTRY_MAX - 2; used++) {
        if (expression[0] == '$' && expression[1] == '\0') {
            out[used] = '\0';
            return true;
        }
        if (expression[0] == '\\' && expression[1] == '.') {
            out[used] = '.';
            expression += 2;
        } else if (expression[0] == '.') {
            out[used] = expression[1] == '*' ? '*' : '?';
            expression += expression[1] == '*' ? 2 : 1;
        } else if (strchr("\\^$*+?()[]{}|", *expression)) {
            return false;
        } else {
            out[used] = *expression++;
        }
    }
    out[used] = '*';
    out[used + 1] = '\0';
    return *expression == '\0';
}

// Is the entry the module's name, or a run of its components ("mlp.experts")?
static bool names_module(const char *entry, const char *module) {
    size_t length = strlen(entry);
    for (const char *at = length ? strstr(module, entry) : NULL; at; at = strstr(at + 1, entry)) {
        bool begins = at == module || at[-1] == '.';
        if (begins && (at[length] == '\0' || at[length] == '.')) {
            return true;
        }
    }
    return false;
}

static bool leaves_out(const char *entry, const char *module) {
    char pattern[ENTRY_MAX];
    if (strlen(entry) > ENTRY_MAX - 8) {
        return false;
    }
    if (strncmp(entry, "re:", 3) == 0) {
        return pattern_of_expression(entry + 3, pattern) && matches(pattern, module);
    }
    if (strchr(entry, '*')) {
        snprintf(pattern, sizeof pattern, "%s.*", entry);
        return matches(entry, module) || matches(pattern, module);
    }
    return names_module(entry, module);
}

bool quantisation_leaves_out(const struct quantisation *q, const char *module, const char **entry) {
    static const char *const LISTS[] = {"modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules"};
    for (size_t l = 0; q->config && l < sizeof LISTS / sizeof *LISTS; l++) {
        struct key key = key_of(q, LISTS[l]);
        const char *const keys[] = {key.text, NULL};
        size_t count = config_list_length(q->config, key.text);
        for (size_t i = 0; i < count; i++) {
            bool found;
            if (!err_is(config_string_at(q->config, keys, i, entry, &found)) && found && leaves_out(*entry, module)) {
                return true;
            }
        }
    }
    return false;
}
