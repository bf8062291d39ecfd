#include "expert/config/quantisation_setting.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_MAX = 128, KEYS_MAX = 4, BITS_MAX = 64 };

// ---- texts ----

void quantisation_texts_deinit(struct quantisation_texts *texts) {
    for (size_t i = 0; i < texts->count; i++) {
        free(texts->texts[i]);
    }
    free(texts->texts);
    *texts = (struct quantisation_texts){0};
}

FALLIBLE quantisation_text(struct quantisation_texts *texts, const char **out, const char *format, ...) {
    va_list args;
    char *text = NULL, **grown = realloc(texts->texts, (texts->count + 1) * sizeof *grown);
    texts->texts = grown ? grown : texts->texts;
    va_start(args, format);
    int length = grown ? vasprintf(&text, format, args) : -1;
    va_end(args);
    if (length < 0) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a key of config.json");
    }
    texts->texts[texts->count++] = text;
    *out = text;
    return OK;
}

// ---- keys ----

// An object of config.json whose keys are read.
struct object {
    const struct config *config;
    const char *name, *path;
    struct quantisation_texts *texts;
};

// The alternative names of one key in the object, as config.h's functions take them.
struct names {
    char text[KEYS_MAX][KEY_MAX];
    const char *all[KEYS_MAX + 1];
};

static void set_names(const struct object *o, const char *const *keys, struct names *out) {
    size_t i = 0;
    for (; keys[i]; i++) {
        INVARIANT(i < KEYS_MAX);
        snprintf(out->text[i], KEY_MAX, "%s%s%s", o->name, o->name[0] ? "." : "", keys[i]);
        out->all[i] = out->text[i];
    }
    out->all[i] = NULL;
}

// The path of the first of the keys that is present, for messages.
static FALLIBLE said_by(const struct object *o, const char *const *keys, const struct names *names, const char **out) {
    size_t i = 0;
    while (keys[i + 1] && !config_has(o->config, names->all[i])) {
        i++;
    }
    return quantisation_text(o->texts, out, "%s.%s", o->path, keys[i]);
}

static FALLIBLE read_bits(const struct object *o, struct quantisation_setting *out) {
    static const char *const KEYS[] = {"bits", "num_bits", "w_bit", NULL};
    struct names names;
    bool found;
    set_names(o, KEYS, &names);
    TRY(config_u32_in(o->config, names.all, CONFIG_WHOLE, (struct config_range){1, BITS_MAX}, &out->bits, &found));
    return found ? said_by(o, KEYS, &names, &out->bits_key) : OK;
}

// -1 means all of K; 0 is a way to leave it out.
static FALLIBLE read_group(const struct object *o, struct quantisation_setting *out) {
    static const char *const KEYS[] = {"group_size", "q_group_size", NULL};
    struct names names;
    double number;
    bool found;
    set_names(o, KEYS, &names);
    TRY(config_f64(o->config, names.all, &number, &found));
    if (!found) {
        return OK;
    }
    if (!(number == -1 || (number >= 0 && number < (double)QUANTISATION_ALL_K)) || number != floor(number)) {
        return config_refuse(o->config, names.all, CONFIG_WHOLE, ": expected a number of consecutive k, or -1 for all of K");
    }
    out->group_k = number == -1 ? QUANTISATION_ALL_K : (uint32_t)number;
    return out->group_k ? said_by(o, KEYS, &names, &out->span_key) : OK;
}

// [n, k], or "128x128".
static FALLIBLE read_block(const struct object *o, const char *name, struct quantisation_setting *out) {
    const char *const keys[] = {name, NULL};
    struct names names;
    char text[64], n[10], k[10], end; // up to nine digits: they fit into 32 bits
    uint32_t sizes[2] = {0, 0};
    size_t count = 0;
    bool found;
    set_names(o, keys, &names);
    if (!config_value_text(o->config, names.all[0], text, sizeof text)) {
        return OK;
    }
    if (sscanf(text, "%9[0-9]x%9[0-9]%c", n, k, &end) == 2) {
        sizes[0] = (uint32_t)strtoul(n, NULL, 10);
        sizes[1] = (uint32_t)strtoul(k, NULL, 10);
        count = 2;
    } else {
        TRY(config_u32_list(o->config, names.all, sizes, 2, &count, &found));
    }
    if (count != 2 || sizes[0] == 0 || sizes[1] == 0) {
        return config_refuse(o->config, names.all, CONFIG_WHOLE,
                             ": expected two positive integers, the rows and columns of a block");
    }
    out->block_n = sizes[0];
    out->block_k = sizes[1];
    return said_by(o, keys, &names, &out->span_key);
}

// Quark's name of a block is that of a number in other quantisers' sections.
static FALLIBLE read_quark_block(const struct object *o, struct quantisation_setting *out) {
    static const char *const KEYS[] = {"block_size", NULL};
    struct names names;
    set_names(o, KEYS, &names);
    return config_list_length(o->config, names.all[0]) > 0 ? read_block(o, KEYS[0], out) : OK;
}

static FALLIBLE read_strategy(const struct object *o, struct quantisation_setting *out) {
    static const char *const KEYS[] = {"strategy", NULL};
    struct names names;
    const char *strategy = "";
    bool found;
    set_names(o, KEYS, &names);
    TRY(config_string(o->config, names.all, &strategy, &found));
    if (!found || (strcmp(strategy, "channel") != 0 && strcmp(strategy, "tensor") != 0)) {
        return OK;
    }
    if (out->group_k && out->group_k != QUANTISATION_ALL_K) {
        return config_refuse(o->config, names.all, CONFIG_WHOLE,
                             ", but %s is %u: the two contradict each other; correct the wrong one", out->span_key, out->group_k);
    }
    out->group_k = QUANTISATION_ALL_K;
    return said_by(o, KEYS, &names, &out->span_key);
}

static FALLIBLE read_flag(const struct object *o, const char *const *keys, enum quantisation_answer *out, const char **key) {
    struct names names;
    bool value, found;
    set_names(o, keys, &names);
    TRY(config_bool(o->config, names.all, &value, &found));
    if (!found) {
        return OK;
    }
    *out = value ? QUANTISATION_YES : QUANTISATION_NO;
    return said_by(o, keys, &names, key);
}

// GPTQ's sym and compressed-tensors' symmetric, and the opposite, zero_point of AWQ.
static FALLIBLE read_symmetry(const struct object *o, struct quantisation_setting *out) {
    static const char *const YES[] = {"sym", "symmetric", NULL}, *const NO[] = {"zero_point", NULL};
    enum quantisation_answer symmetric = QUANTISATION_UNSAID, asymmetric = QUANTISATION_UNSAID;
    const char *yes_key = NULL, *no_key = NULL;
    TRY(read_flag(o, YES, &symmetric, &yes_key));
    TRY(read_flag(o, NO, &asymmetric, &no_key));
    const char *yes = symmetric == QUANTISATION_YES ? "true" : "false", *no = asymmetric == QUANTISATION_YES ? "true" : "false";
    if (yes_key && no_key && symmetric == asymmetric) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is %s, but %s is %s: symmetric codes have no zero points; correct the wrong one",
             config_path(o->config), yes_key, yes, no_key, no);
    }
    if (yes_key) {
        out->symmetric = symmetric;
        return quantisation_text(o->texts, &out->symmetric_text, "%s is %s", yes_key, yes);
    }
    if (no_key) {
        out->symmetric = asymmetric == QUANTISATION_YES ? QUANTISATION_NO : QUANTISATION_YES;
        return quantisation_text(o->texts, &out->symmetric_text, "%s is %s", no_key, no);
    }
    return OK;
}

// compressed-tensors has "int" and "float", AutoRound "int", "mx_int", "mx_fp", "nv_fp" and "fp", Quark "int4", "uint4" and "fp4".
static FALLIBLE read_kind(const struct object *o, struct quantisation_setting *out) {
    static const char *const KEYS[] = {"type", "data_type", "dtype"};
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS && !out->kind_text; i++) {
        const char *const keys[] = {KEYS[i], NULL};
        struct names names;
        const char *text = "";
        bool found;
        set_names(o, keys, &names);
        TRY(config_string(o->config, names.all, &text, &found));
        if (!found) {
            continue;
        }
        out->kind = strstr(text, "int")                                ? QUANTISATION_INTEGERS
                    : strstr(text, "fp") || strcmp(text, "float") == 0 ? QUANTISATION_FLOATS
                                                                       : QUANTISATION_ANY_KIND;
        TRY(out->kind ? quantisation_text(o->texts, &out->kind_text, "%s.%s is %s", o->path, KEYS[i], text) : OK);
    }
    return OK;
}

static FALLIBLE read_mode(const struct object *o, struct quantisation_setting *out) {
    static const char *const KEYS[] = {"mode", NULL};
    struct names names;
    set_names(o, KEYS, &names);
    bool found = config_value_text(o->config, names.all[0], out->mode, sizeof out->mode);
    return found ? quantisation_text(o->texts, &out->mode_text, "%s.%s is %s", o->path, KEYS[0], out->mode) : OK;
}

// compressed-tensors: "group" and its older names sort k by activations; "weight" and "static" keep the groups consecutive.
static FALLIBLE read_actorder(const struct object *o, struct quantisation_setting *out) {
    static const char *const KEYS[] = {"actorder", NULL};
    static const struct {
        const char *text;
        enum quantisation_answer sorts;
    } ORDERS[] = {{"group", QUANTISATION_YES}, {"dynamic", QUANTISATION_YES}, {"true", QUANTISATION_YES},
                  {"weight", QUANTISATION_NO}, {"static", QUANTISATION_NO},   {"false", QUANTISATION_NO}};
    struct names names;
    char text[32];
    set_names(o, KEYS, &names);
    if (!config_value_text(o->config, names.all[0], text, sizeof text)) {
        return OK;
    }
    for (size_t i = 0; i < sizeof ORDERS / sizeof *ORDERS; i++) {
        if (strcasecmp(text, ORDERS[i].text) == 0) {
            out->ordered = ORDERS[i].sorts;
            return said_by(o, KEYS, &names, &out->ordered_key);
        }
    }
    return config_refuse(o->config, names.all, CONFIG_WHOLE, ": expected group, weight, dynamic, static or null");
}

FALLIBLE quantisation_read_setting(const struct config *config, const char *object, const char *path,
                                   struct quantisation_texts *texts, struct quantisation_setting *out) {
    static const char *const ORDERED[] = {"desc_act", NULL};
    const struct object o = {config, object, path, texts};
    *out = (struct quantisation_setting){0};
    TRY(read_bits(&o, out));
    TRY(read_group(&o, out));
    TRY(read_block(&o, "weight_block_size", out));
    TRY(read_block(&o, "block_structure", out));
    TRY(read_quark_block(&o, out));
    TRY(read_strategy(&o, out));
    TRY(read_symmetry(&o, out));
    TRY(read_kind(&o, out));
    TRY(read_mode(&o, out));
    TRY(read_flag(&o, ORDERED, &out->ordered, &out->ordered_key));
    return read_actorder(&o, out);
}

void quantisation_lay_over(struct quantisation_setting *base, const struct quantisation_setting *over) {
    if (over->bits_key) {
        base->bits = over->bits;
        base->bits_key = over->bits_key;
    }
    if (over->span_key) {
        base->group_k = over->group_k;
        base->block_n = over->block_n;
        base->block_k = over->block_k;
        base->span_key = over->span_key;
    }
    if (over->symmetric_text) {
        base->symmetric = over->symmetric;
        base->symmetric_text = over->symmetric_text;
    }
    if (over->kind_text) {
        base->kind = over->kind;
        base->kind_text = over->kind_text;
    }
    if (over->mode_text) {
        memcpy(base->mode, over->mode, sizeof base->mode);
        base->mode_text = over->mode_text;
    }
    if (over->ordered_key) {
        base->ordered = over->ordered;
        base->ordered_key = over->ordered_key;
    }
}

bool quantisation_same_setting(const struct quantisation_setting *a, const struct quantisation_setting *b) {
    return a->bits == b->bits && a->group_k == b->group_k && a->block_n == b->block_n && a->block_k == b->block_k &&
           a->symmetric == b->symmetric && a->ordered == b->ordered && a->kind == b->kind && strcmp(a->mode, b->mode) == 0;
}
