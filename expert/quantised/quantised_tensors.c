#include "expert/quantised/quantised_tensors.h"

#include <stdio.h>
#include <string.h>

#include "expert/quantised/quantised_blocks.h"
#include "expert/quantised/quantised_formats.h"
#include "expertd/kernels/weights.h"

enum { WORD_BITS = 32, BLOCK_K = 32, BLOCK_BYTES = 16, DEFAULT_BLOCK = 128 };

static const uint8_t AWQ_ORDER[8] = {0, 4, 1, 5, 2, 6, 3, 7};

// ---- the format ----

static const struct safetensors_entry *find_tensor(const struct tensor_finder *finder, const char *module, const char *suffix) {
    char name[TENSOR_NAME_MAX];
    return suffix && !err_is(tensor_name(name, "%s%s", module, suffix)) ? tensor_look(finder, name) : NULL;
}

static bool is_among(const enum expertd_dtype dtypes[STORED_DTYPES], enum expertd_dtype dtype) {
    for (size_t i = 0; i < STORED_DTYPES && dtypes[i] != EXPERTD_DTYPE_NONE; i++) {
        if (dtypes[i] == dtype) {
            return true;
        }
    }
    return false;
}

// Is the word one of "fp8|mxfp8"?
static bool is_listed(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = list; *at;) {
        size_t item = strcspn(at, "|");
        if (item == length && memcmp(at, word, length) == 0) {
            return true;
        }
        at += item + (at[item] == '|');
    }
    return false;
}

static const struct safetensors_entry *codes_of(const struct tensor_finder *finder, const char *module,
                                                const struct stored_format *format) {
    const struct safetensors_entry *codes = find_tensor(finder, module, format->codes);
    return codes && is_among(format->codes_dtypes, codes->view.dtype) ? codes : NULL;
}

static const struct safetensors_entry *scales_of(const struct tensor_finder *finder, const char *module,
                                                 const struct stored_format *format) {
    const struct safetensors_entry *scales = find_tensor(finder, module, format->scales);
    return scales && is_among(format->scale_dtypes, scales->view.dtype) ? scales : NULL;
}

static bool has_format(const struct tensor_finder *finder, const char *module, const struct stored_format *format) {
    return codes_of(finder, module, format) && scales_of(finder, module, format) &&
           (!format->global || find_tensor(finder, module, format->global));
}

bool quantised_exists(const struct tensor_finder *finder, const char *module) {
    if (quantised_blocks_find(finder, module)) {
        return true;
    }
    for (size_t i = 0; i < STORED_FORMAT_COUNT; i++) {
        if (has_format(finder, module, &STORED_FORMATS[i])) {
            return true;
        }
    }
    return false;
}

static bool is_written_by(const struct quantisation *config, const struct stored_format *format) {
    return config->method[0] ? is_listed(format->methods, config->method) : !format->needs_method;
}

static void add_text(char *text, size_t bytes, const char *module, const char *suffix) {
    size_t used = strlen(text);
    snprintf(text + used, bytes - used, "%s%s%s", used ? " or " : "", module, suffix);
}

FALLIBLE quantised_explain(const struct tensor_finder *finder, const char *module) {
    char candidates[1024] = "", quantised[TENSOR_QUANTISED_TEXT_MAX];
    const struct safetensors_entry *codes = NULL;
    for (size_t i = 0; i < STORED_FORMAT_COUNT; i++) {
        const struct stored_format *format = &STORED_FORMATS[i];
        const struct safetensors_entry *found = codes_of(finder, module, format),
                                       *scales = find_tensor(finder, module, format->scales);
        if (!found) {
            continue;
        }
        codes = found;
        const char *file = checkpoint_file_of(finder->checkpoint, codes);
        if (scales_of(finder, module, format)) { // then only the global scale can be missing
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s%s is missing, the global scale for %s: is the download complete?", file,
                 module, format->global, scales->name);
        }
        if (scales) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is %s, a dtype that is not supported for the scales of %s", file,
                 scales->name, expertd_dtype_name(scales->view.dtype), codes->name);
        }
        add_text(candidates, sizeof candidates, module, format->scales);
    }
    if (codes) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is %s%s, but its scales are missing: expected %s",
             checkpoint_file_of(finder->checkpoint, codes), codes->name, expertd_dtype_name(codes->view.dtype),
             tensor_quantised_text(finder, quantised), candidates);
    }
    return OK;
}

// The first format whose tensors exist and that quant_method writes. EXPERTD_ERR_CHECKPOINT: none.
static FALLIBLE find_format(const struct tensor_finder *finder, const struct quantisation *config, const char *module,
                            const struct stored_format **out) {
    const struct stored_format *other = NULL;
    for (size_t i = 0; i < STORED_FORMAT_COUNT; i++) {
        const struct stored_format *format = &STORED_FORMATS[i];
        if (has_format(finder, module, format) && is_written_by(config, format)) {
            *out = format;
            return OK;
        }
        other = !other && has_format(finder, module, format) ? format : other;
    }
    if (!other) {
        TRY(quantised_explain(finder, module));
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: no tensor %s... has codes, although its layer is quantised: is the download complete?",
             checkpoint_path(finder->checkpoint), module);
    }
    const struct safetensors_entry *codes = codes_of(finder, module, other);
    FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensors %s and %s%s look like %s, for which quant_method must be one of %s, but it is \"%s\"",
         checkpoint_file_of(finder->checkpoint, codes), codes->name, module, other->scales, other->name, other->methods,
         config->method);
}

// ---- one matrix ----

struct take {
    struct tensor_finder *finder;
    const struct quantised_module *module;
    const struct stored_format *format;
    const struct quantisation *config;
    const struct safetensors_entry *codes, *scales;
    unsigned bits;
    struct quantised_matrix *out;
};

static const char *file_of(const struct take *t, const struct safetensors_entry *entry) {
    return checkpoint_file_of(t->finder->checkpoint, entry);
}

static uint64_t ceiling(uint64_t a, uint64_t b) {
    return a / b + (a % b != 0);
}

// Compares the shape without the dimension of the experts.
static bool has_shape(const struct take *t, const struct safetensors_entry *entry, const struct tensor_shape *shape) {
    const struct expertd_tensor_view *view = &entry->view;
    uint32_t first = t->module->experts > 0;
    return view->rank == shape->rank + first && (!first || view->shape[0] == t->module->experts) &&
           memcmp(view->shape + first, shape->dims, shape->rank * sizeof *shape->dims) == 0;
}

static err_t wrong_shape(const struct take *t, const struct safetensors_entry *entry, const struct tensor_shape *expected) {
    char found[EXPERTD_TENSOR_SHAPE_TEXT_MAX], text[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
    const struct quantised_module *p = t->module;
    struct tensor_shape full = {.rank = expected->rank + (p->experts > 0), .dims = {p->experts}};
    memcpy(full.dims + (p->experts > 0), expected->dims, expected->rank * sizeof *expected->dims);
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL,
                      "%s: tensor %s is %s, but config.json requires %s, for weights [%llu, %llu] as %s: the file or config.json "
                      "(shapes, quantization_config) is wrong",
                      file_of(t, entry), entry->name, expertd_tensor_shape_text(entry->view.shape, entry->view.rank, found),
                      expertd_tensor_shape_text(full.dims, full.rank, text), (unsigned long long)p->n, (unsigned long long)p->k,
                      t->format->name);
}

static void add_range(struct take *t, const struct safetensors_entry *entry) {
    struct quantised_matrix *out = t->out;
    uint64_t experts = t->module->experts ? t->module->experts : 1;
    INVARIANT(out->ranges < QUANTISED_RANGES);
    out->range[out->ranges++] = (struct byte_range){entry->view.data, entry->view.bytes / experts};
    tensor_mark(t->finder, entry);
}

// ---- codes ----

static bool are_words(const struct stored_format *format) {
    return format->layout == CODES_WORDS || format->layout == CODES_WORDS_AWQ || format->layout == CODES_WORDS_N_MAJOR;
}

static struct tensor_shape codes_shape(const struct take *t, unsigned bits) {
    uint64_t n = t->module->n, k = t->module->k;
    switch (t->format->layout) {
    case CODES_PAIRS:
        return (struct tensor_shape){2, {n, ceiling(k, 2)}};
    case CODES_BLOCKS:
        return (struct tensor_shape){3, {n, ceiling(k, BLOCK_K), BLOCK_BYTES}};
    case CODES_WORDS:
        return (struct tensor_shape){2, {n, ceiling(k * bits, WORD_BITS)}};
    case CODES_WORDS_AWQ:
        return (struct tensor_shape){2, {k, ceiling(n * bits, WORD_BITS)}};
    case CODES_WORDS_N_MAJOR:
        return (struct tensor_shape){2, {ceiling(k * bits, WORD_BITS), n}};
    default:
        return (struct tensor_shape){2, {n, k}};
    }
}

static FALLIBLE check_units(const struct take *t, size_t word) {
    enum code_layout layout = t->format->layout;
    const struct quantised_module *p = t->module;
    bool n_major = layout == CODES_WORDS_N_MAJOR; // its words hold consecutive k, those of its zero points consecutive n
    uint64_t k_unit = layout == CODES_BLOCKS ? BLOCK_K : layout == CODES_PAIRS ? 2 : n_major ? word : 1;
    uint64_t n_unit = n_major || layout == CODES_WORDS_AWQ ? word : 1;
    if (p->k % k_unit != 0 || p->n % n_unit != 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: tensor %s: weights [%llu, %llu] cannot be stored as %s, which requires multiples of %llu and %llu",
             file_of(t, t->codes), t->codes->name, (unsigned long long)p->n, (unsigned long long)p->k, t->format->name,
             (unsigned long long)n_unit, (unsigned long long)k_unit);
    }
    return OK;
}

static struct expertd_code_words code_words(const struct take *t, size_t word) {
    size_t n = t->module->n;
    struct expertd_code_words c = {.data = t->codes->view.data, .bits = t->bits, .word = word};
    c.flip = are_words(t->format) && t->bits == 8 ? 0x80 : 0; // words hold offset binary; INT8 codes are two's complement
    switch (t->format->layout) {
    case CODES_WORDS_AWQ:
        c.n_stride = 1, c.n_word_stride = word, c.k_stride = n, c.k_word_stride = word * n;
        c.order = AWQ_ORDER;
        return c;
    case CODES_WORDS_N_MAJOR:
        c.n_stride = word, c.n_word_stride = word * word, c.k_stride = 1, c.k_word_stride = word * n;
        return c;
    case CODES_WORDS:
        c.n_stride = t->codes->view.shape[1] * word; // the last word of a row may have unused codes
        break;
    default:
        c.n_stride = t->module->k;
        break;
    }
    c.n_word_stride = word * c.n_stride, c.k_stride = 1, c.k_word_stride = word;
    return c;
}

static enum expertd_weight_code code_of(const struct take *t) {
    if (t->format->code_of_dtype) {
        return t->codes->view.dtype == EXPERTD_DTYPE_F8_E5M2 ? EXPERTD_CODE_E5M2 : EXPERTD_CODE_E4M3;
    }
    return are_words(t->format) && t->bits == 8 ? EXPERTD_CODE_INT8 : t->format->code;
}

static FALLIBLE take_codes(struct take *t) {
    t->bits = t->format->layout == CODES_ROWS ? 8 : 4;
    struct tensor_shape shape = codes_shape(t, t->bits), of_8 = codes_shape(t, 8);
    if (are_words(t->format) && t->format->layout != CODES_WORDS_AWQ && has_shape(t, t->codes, &of_8)) {
        t->bits = 8;
        shape = of_8;
    }
    if (!has_shape(t, t->codes, &shape)) {
        return wrong_shape(t, t->codes, &shape);
    }
    size_t word = are_words(t->format) ? WORD_BITS / t->bits : 8;
    TRY(check_units(t, word));
    t->out->codes = code_words(t, word);
    t->out->format.code = code_of(t);
    add_range(t, t->codes);
    return OK;
}

// ---- scales ----

// The n and k that share a scale, and the strides of the scales.
struct scale_span {
    uint64_t columns, k; // columns of n; k 0: all
    uint64_t n_stride, g_stride;
};

static bool has_scales(const struct take *t, uint32_t rank, uint64_t first, uint64_t second) {
    return has_shape(t, t->scales, &(struct tensor_shape){rank, {first, second}});
}

static bool spans_all(const struct take *t, struct scale_span *out) {
    unsigned may = t->format->scale_layouts;
    uint64_t n = t->module->n;
    if ((may & SCALES_TENSOR) && (has_scales(t, 0, 0, 0) || has_scales(t, 1, 1, 0) || has_scales(t, 2, 1, 1))) {
        *out = (struct scale_span){.columns = n};
        return true;
    }
    *out = (struct scale_span){.columns = 1, .n_stride = 1};
    return ((may & SCALES_CHANNEL) && (has_scales(t, 1, n, 0) || has_scales(t, 2, n, 1))) ||
           ((may & SCALES_N_MAJOR) && has_scales(t, 2, 1, n));
}

static bool spans_groups(const struct take *t, uint64_t group_k, struct scale_span *out) {
    unsigned may = t->format->scale_layouts;
    uint64_t n = t->module->n, k = t->module->k, groups = group_k ? ceiling(k, group_k) : 0;
    if (group_k == 0 || (k % group_k != 0 && !(may & SCALES_SHORT))) {
        return false;
    }
    bool rows = (may & SCALES_GROUPS) && has_scales(t, 2, n, groups),
         n_major = (may & SCALES_N_MAJOR) && has_scales(t, 2, groups, n);
    *out = (struct scale_span){.columns = 1, .k = group_k, .n_stride = rows ? groups : 1, .g_stride = rows ? 1 : n};
    return rows || n_major;
}

static bool spans_blocks(const struct take *t, uint64_t block_n, uint64_t block_k, struct scale_span *out) {
    uint64_t rows = ceiling(t->module->n, block_n), groups = ceiling(t->module->k, block_k);
    *out = (struct scale_span){.columns = block_n, .k = block_k, .n_stride = groups, .g_stride = 1};
    return (t->format->scale_layouts & SCALES_GRID) && has_scales(t, 2, rows, groups);
}

// The number of groups by the shape of the scales; 0: none.
static uint64_t groups_of_shape(const struct take *t) {
    const struct expertd_tensor_view *view = &t->scales->view;
    uint32_t first = t->module->experts > 0;
    if (view->rank != 2 + first) {
        return 0;
    }
    return view->shape[first + ((t->format->scale_layouts & SCALES_N_MAJOR) == 0)];
}

// Determines the weights that share a scale: from config.json if it specifies sizes, else from the shape of the scales.
static bool spans(const struct take *t, const struct quantisation_setting *setting, struct scale_span *out) {
    uint64_t k = t->module->k, fixed = t->format->scale_k, groups = groups_of_shape(t);
    if (fixed || (setting->group_k && setting->group_k != QUANTISATION_ALL_K)) {
        return (!fixed || !setting->group_k || setting->group_k == fixed) && spans_groups(t, fixed ? fixed : setting->group_k, out);
    }
    if (setting->group_k == QUANTISATION_ALL_K) {
        return spans_all(t, out);
    }
    if (setting->block_n) {
        return spans_blocks(t, setting->block_n, setting->block_k, out);
    }
    return spans_all(t, out) || spans_blocks(t, DEFAULT_BLOCK, DEFAULT_BLOCK, out) ||
           (groups > 0 && k % groups == 0 && spans_groups(t, k / groups, out));
}

static const char *setting_text(const struct quantisation_setting *setting, char *text, size_t bytes) {
    size_t used = setting->bits ? (size_t)snprintf(text, bytes, "%u bits, ", setting->bits) : 0;
    if (setting->group_k == QUANTISATION_ALL_K) {
        snprintf(text + used, bytes - used, "one scale for all of K");
    } else if (setting->group_k) {
        snprintf(text + used, bytes - used, "groups of %u k", setting->group_k);
    } else if (setting->block_n) {
        snprintf(text + used, bytes - used, "blocks of %u x %u", setting->block_n, setting->block_k);
    } else {
        snprintf(text + used, bytes - used, "nothing about the size of a group");
    }
    return text;
}

static err_t no_span(const struct take *t) {
    char found[EXPERTD_TENSOR_SHAPE_TEXT_MAX], text[96] = "nothing about sizes";
    const struct quantisation_setting *first = t->config->count ? &t->config->settings[0] : NULL;
    const char *more = t->config->count > 1 ? ", among others" : "";
    const struct safetensors_entry *s = t->scales;
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL,
                      "%s: tensor %s is %s, which does not fit the scales of weights [%llu, %llu] as %s; config.json says %s%s",
                      file_of(t, s), s->name, expertd_tensor_shape_text(s->view.shape, s->view.rank, found),
                      (unsigned long long)t->module->n, (unsigned long long)t->module->k, t->format->name,
                      first ? setting_text(first, text, sizeof text) : text, more);
}

// config.json assigns settings to modules by name patterns, which are not evaluated. The first setting that fits the tensors is
// used.
static FALLIBLE choose_span(const struct take *t, struct scale_span *out) {
    const struct quantisation_setting none = {0};
    size_t count = t->config->count ? t->config->count : 1;
    for (size_t i = 0; i < count; i++) {
        const struct quantisation_setting *setting = t->config->count ? &t->config->settings[i] : &none;
        bool bits = setting->bits == 0 || setting->bits == t->bits || (t->format->layout == CODES_ROWS && setting->bits < t->bits);
        if (bits && spans(t, setting, out)) {
            return OK;
        }
    }
    return no_span(t);
}

static FALLIBLE take_scales(struct take *t) {
    struct scale_span span = {0};
    TRY(choose_span(t, &span));
    struct quantised_matrix *out = t->out;
    enum expertd_dtype dtype = t->scales->view.dtype;
    out->format.scale = dtype == EXPERTD_DTYPE_U8 ? EXPERTD_DTYPE_F8_E8M0 : dtype;
    out->format.scale_k = span.k;
    out->format.scale_of_panel = span.columns % EXPERTD_KERNEL_PANEL == 0 || span.columns >= t->module->n;
    out->scales = t->scales->view.data;
    out->scales_tensor = t->scales;
    out->scale_columns = span.columns;
    out->scale_n_stride = span.n_stride;
    out->scale_g_stride = span.g_stride;
    add_range(t, t->scales);
    return OK;
}

// ---- zero points, the global scale, the order of k, ignored tensors ----

static struct tensor_shape zeros_shape(const struct take *t, size_t word, size_t groups) {
    uint64_t n = t->module->n;
    if (t->format->layout == CODES_WORDS) {
        return (struct tensor_shape){2, {ceiling(n, word), groups}};
    }
    return t->format->layout == CODES_ROWS ? (struct tensor_shape){2, {n, groups}} : (struct tensor_shape){2, {groups, n / word}};
}

static FALLIBLE take_zeros(struct take *t) {
    const struct safetensors_entry *zeros = find_tensor(t->finder, t->module->name, t->format->zeros);
    struct expertd_code_words *c = &t->out->zeros;
    size_t n = t->module->n, word = t->out->codes.word, groups = quantised_scales(&t->out->format, t->module->k);
    if (!zeros && t->format->needs_zeros) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s%s is missing, the zero points of %s: is the download complete?",
             file_of(t, t->codes), t->module->name, t->format->zeros, t->codes->name);
    }
    if (!zeros) {
        return OK;
    }
    struct tensor_shape shape = zeros_shape(t, word, groups);
    if (zeros->view.dtype != t->codes->view.dtype) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is %s, but the zero points of %s must be %s", file_of(t, zeros), zeros->name,
             expertd_dtype_name(zeros->view.dtype), t->codes->name, expertd_dtype_name(t->codes->view.dtype));
    }
    if (!has_shape(t, zeros, &shape)) {
        return wrong_shape(t, zeros, &shape);
    }
    *c = (struct expertd_code_words){
        .data = zeros->view.data, .bits = t->bits, .word = word, .order = t->out->codes.order, .flip = t->out->codes.flip};
    switch (t->format->layout) {
    case CODES_WORDS:
        c->n_stride = 1, c->n_word_stride = groups * word, c->k_stride = word, c->k_word_stride = word * word;
        break;
    case CODES_ROWS:
        c->n_stride = groups, c->n_word_stride = word * groups, c->k_stride = 1, c->k_word_stride = word;
        break;
    default:
        c->n_stride = 1, c->n_word_stride = word, c->k_stride = n, c->k_word_stride = word * n;
        c->add = t->format->layout == CODES_WORDS_N_MAJOR && !t->config->zero_points_are_stored_as_is;
        break;
    }
    t->out->format.zero_points = true;
    t->out->zeros_tensor = zeros;
    add_range(t, zeros);
    return OK;
}

static FALLIBLE take_global(struct take *t) {
    const struct safetensors_entry *global = find_tensor(t->finder, t->module->name, t->format->global);
    if (!global) {
        return OK;
    }
    struct tensor_shape scalar = {0}, vector = {1, {1}};
    if (!expertd_dtype_is_float16_or_32(global->view.dtype) || (!has_shape(t, global, &scalar) && !has_shape(t, global, &vector))) {
        char found[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is %s %s, but a global scale must be one number of F32, F16 or BF16",
             file_of(t, global), global->name, expertd_dtype_name(global->view.dtype),
             expertd_tensor_shape_text(global->view.shape, global->view.rank, found));
    }
    t->out->global = global->view.data;
    t->out->global_tensor = global;
    t->out->global_dtype = global->view.dtype;
    t->out->format.global = t->format->global_is;
    add_range(t, global);
    return OK;
}

// The k are sorted by scale if desc_act is true in config.json, or if the first expert's g_idx is not in consecutive groups,
// because some files omit desc_act.
static FALLIBLE take_order(struct take *t) {
    const struct safetensors_entry *order = find_tensor(t->finder, t->module->name, t->format->scale_of_k);
    struct quantised_matrix *out = t->out;
    uint64_t k = t->module->k, span = out->format.scale_k;
    struct tensor_shape shape = {1, {k}};
    if (!order) {
        return OK;
    }
    if (order->view.dtype != EXPERTD_DTYPE_I32 || !has_shape(t, order, &shape)) {
        return wrong_shape(t, order, &shape);
    }
    out->scale_of_k = order->view.data;
    add_range(t, order);
    if (span == 0 || span >= k) {
        return OK; // one scale: nothing to sort
    }
    out->ordered = t->config->in_activation_order;
    for (uint64_t i = 0; t->module->first && i < k && !out->ordered; i++) {
        int32_t scale;
        memcpy(&scale, (const char *)order->view.data + i * sizeof scale, sizeof scale);
        out->ordered = scale != (int32_t)(i / span);
    }
    return OK;
}

static bool is_zero(const struct safetensors_entry *entry) {
    const unsigned char *data = entry->view.data;
    for (uint64_t i = 0; i < entry->view.bytes; i++) {
        if (data[i] != 0) {
            return false;
        }
    }
    return true;
}

// Quantisers add a bias of zeros to layers without a bias; any other bias is not taken, so that tensor_none_left refuses it.
static void take_extras(struct take *t) {
    for (size_t i = 0; i < STORED_EXTRAS && t->format->extras[i]; i++) {
        const struct safetensors_entry *extra = find_tensor(t->finder, t->module->name, t->format->extras[i]);
        if (extra && (strcmp(t->format->extras[i], ".bias") != 0 || is_zero(extra))) {
            tensor_mark(t->finder, extra);
        }
    }
}

// ---- the matrix ----

static FALLIBLE check_left_out(const struct take *t) {
    const char *entry;
    if (t->module->first && quantisation_leaves_out(t->config, t->module->name, &entry)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is %s, but %s excludes its module by \"%.128s\": one of the two is wrong",
             file_of(t, t->codes), t->codes->name, expertd_dtype_name(t->codes->view.dtype), t->config->section, entry);
    }
    return OK;
}

static FALLIBLE take(struct take *t) {
    TRY(check_left_out(t));
    TRY(take_codes(t));
    TRY(take_scales(t));
    TRY(take_zeros(t));
    TRY(take_global(t));
    TRY(take_order(t));
    take_extras(t);
    err_t e = expertd_quantised_check(&t->out->format);
    return err_is(e) ? (err_context(e, "%s: tensor %s", file_of(t, t->codes), t->codes->name), (err_t){EXPERTD_ERR_CHECKPOINT})
                     : OK;
}

FALLIBLE quantised_take(struct tensor_finder *finder, const struct quantised_module *module, struct quantised_matrix *out) {
    if (quantised_blocks_find(finder, module->name)) {
        return quantised_blocks_take(finder, module, out);
    }
    struct take t = {.finder = finder, .module = module, .out = out};
    *out = (struct quantised_matrix){0};
    TRY(tensor_quantisation(finder, &t.config));
    TRY(find_format(finder, t.config, module->name, &t.format));
    out->stored = t.format->name;
    t.codes = codes_of(finder, module->name, t.format);
    t.scales = scales_of(finder, module->name, t.format);
    if (module->experts && (t.format->zeros || t.format->global || t.format->scale_of_k)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s: %s is not supported with all experts in one tensor", file_of(&t, t.codes),
             t.codes->name, t.format->name);
    }
    return take(&t);
}

struct quantised_matrix quantised_of_expert(const struct quantised_matrix *first, uint64_t e) {
    struct quantised_matrix m = *first;
    for (size_t i = 0; i < m.ranges; i++) {
        m.range[i].data = (const char *)m.range[i].data + e * m.range[i].bytes;
    }
    m.codes.data = m.range[0].data;
    m.scales = m.range[1].data;
    return m;
}
