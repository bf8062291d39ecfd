#include "expert/quantised/quantised_tensors.h"

#include <stdio.h>
#include <string.h>

#include "expert/quantised/quantised_formats.h"
#include "expertd/kernels/weights.h"

enum { WORD_BITS = 32, BLOCK_K = 32, BLOCK_BYTES = 16, DEFAULT_BLOCK = 128 };

static const uint8_t AWQ_ORDER[8] = {0, 4, 1, 5, 2, 6, 3, 7};

// ---- which format ----

static const struct safetensors_entry *look(const struct tensor_finder *finder, const char *module, const char *suffix) {
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
    const struct safetensors_entry *codes = look(finder, module, format->codes);
    return codes && is_among(format->codes_dtypes, codes->view.dtype) ? codes : NULL;
}

static const struct safetensors_entry *scales_of(const struct tensor_finder *finder, const char *module,
                                                 const struct stored_format *format) {
    const struct safetensors_entry *scales = look(finder, module, format->scales);
    return scales && is_among(format->scale_dtypes, scales->view.dtype) ? scales : NULL;
}

static bool has_format(const struct tensor_finder *finder, const char *module, const struct stored_format *format) {
    return codes_of(finder, module, format) && scales_of(finder, module, format) &&
           (!format->global || look(finder, module, format->global));
}

bool quantised_exists(const struct tensor_finder *finder, const char *module) {
    for (size_t i = 0; i < STORED_FORMAT_COUNT; i++) {
        if (has_format(finder, module, &STORED_FORMATS[i])) {
            return true;
        }
    }
    return false;
}

static bool does_write(const struct quantisation *config, const struct stored_format *format) {
    return config->method[0] ? is_listed(format->methods, config->method) : !format->needs_method;
}

static void add_text(char *text, size_t bytes, const char *module, const char *suffix) {
    size_t used = strlen(text);
    snprintf(text + used, bytes - used, "%s%s%s", used ? " or " : "", module, suffix);
}

FALLIBLE quantised_explain(const struct tensor_finder *finder, const char *module) {
    char wanted[1024] = "", quantised[TENSOR_QUANTISED_TEXT_MAX];
    const struct safetensors_entry *codes = NULL;
    for (size_t i = 0; i < STORED_FORMAT_COUNT; i++) {
        const struct stored_format *format = &STORED_FORMATS[i];
        const struct safetensors_entry *mine = codes_of(finder, module, format), *scales = look(finder, module, format->scales);
        if (!mine) {
            continue;
        }
        codes = mine;
        const char *file = checkpoint_file_of(finder->checkpoint, codes);
        if (scales_of(finder, module, format)) { // so it is the global scale
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s%s is missing, the global scale beside %s", file, module, format->global,
                 scales->name);
        }
        if (scales) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is %s, which no scales of %s are that are read here", file, scales->name,
                 expertd_dtype_name(scales->view.dtype), codes->name);
        }
        add_text(wanted, sizeof wanted, module, format->scales);
    }
    if (codes) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is %s%s, but its scales are missing: %s",
             checkpoint_file_of(finder->checkpoint, codes), codes->name, expertd_dtype_name(codes->view.dtype),
             tensor_quantised_text(finder, quantised), wanted);
    }
    return OK;
}

// The first whose tensors are there and that the method writes. EXPERTD_ERR_CHECKPOINT where it writes none of those whose tensors
// are there.
static FALLIBLE find_format(const struct tensor_finder *finder, const struct quantisation *config, const char *module,
                            const struct stored_format **out) {
    const struct stored_format *other = NULL;
    for (size_t i = 0; i < STORED_FORMAT_COUNT; i++) {
        const struct stored_format *format = &STORED_FORMATS[i];
        if (has_format(finder, module, format) && does_write(config, format)) {
            *out = format;
            return OK;
        }
        other = !other && has_format(finder, module, format) ? format : other;
    }
    if (!other) {
        TRY(quantised_explain(finder, module));
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: no tensor %s... holds codes, though its layer is quantised: is the download complete?",
             checkpoint_path(finder->checkpoint), module);
    }
    const struct safetensors_entry *codes = codes_of(finder, module, other);
    FAIL(EXPERTD_ERR_CHECKPOINT,
         "%s: tensor %s and %s%s look like %s, which is read where quant_method is one of %s: here it is \"%s\"",
         checkpoint_file_of(finder->checkpoint, codes), codes->name, module, other->scales, other->name, other->methods,
         config->method);
}

// ---- one matrix on its way out of its tensors ----

struct taking {
    struct tensor_finder *finder;
    const struct quantised_place *place;
    const struct stored_format *format;
    const struct quantisation *config;
    const struct safetensors_entry *codes, *scales;
    unsigned bits;
    struct quantised_matrix *out;
};

static const char *file_of(const struct taking *t, const struct safetensors_entry *entry) {
    return checkpoint_file_of(t->finder->checkpoint, entry);
}

static uint64_t ceiling(uint64_t a, uint64_t b) {
    return a / b + (a % b != 0);
}

// The dimensions after that of the experts.
static bool has_shape(const struct taking *t, const struct safetensors_entry *entry, const struct tensor_shape *shape) {
    const struct expertd_tensor_view *view = &entry->view;
    uint32_t first = t->place->experts > 0;
    return view->rank == shape->rank + first && (!first || view->shape[0] == t->place->experts) &&
           memcmp(view->shape + first, shape->dims, shape->rank * sizeof *shape->dims) == 0;
}

static err_t wrong_shape(const struct taking *t, const struct safetensors_entry *entry, const struct tensor_shape *wanted) {
    char found[EXPERTD_TENSOR_SHAPE_TEXT_MAX], text[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
    const struct quantised_place *p = t->place;
    struct tensor_shape whole = {.rank = wanted->rank + (p->experts > 0), .dims = {p->experts}};
    memcpy(whole.dims + (p->experts > 0), wanted->dims, wanted->rank * sizeof *wanted->dims);
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL, "%s: tensor %s is %s, config.json leads to %s: weights [%llu, %llu] as %s",
                      file_of(t, entry), entry->name, expertd_tensor_shape_text(entry->view.shape, entry->view.rank, found),
                      expertd_tensor_shape_text(whole.dims, whole.rank, text), (unsigned long long)p->n, (unsigned long long)p->k,
                      t->format->name);
}

static void add_range(struct taking *t, const struct safetensors_entry *entry) {
    struct quantised_matrix *out = t->out;
    uint64_t experts = t->place->experts ? t->place->experts : 1;
    INVARIANT(out->ranges < QUANTISED_RANGES);
    out->range[out->ranges++] = (struct byte_range){entry->view.data, entry->view.bytes / experts};
    tensor_mark(t->finder, entry);
}

// ---- codes ----

static bool are_words(const struct stored_format *format) {
    return format->layout == CODES_WORDS || format->layout == CODES_WORDS_AWQ || format->layout == CODES_WORDS_BY_DEPTH;
}

static struct tensor_shape codes_shape(const struct taking *t, unsigned bits) {
    uint64_t n = t->place->n, k = t->place->k;
    switch (t->format->layout) {
    case CODES_PAIRS:
        return (struct tensor_shape){2, {n, ceiling(k, 2)}};
    case CODES_BLOCKS:
        return (struct tensor_shape){3, {n, ceiling(k, BLOCK_K), BLOCK_BYTES}};
    case CODES_WORDS:
        return (struct tensor_shape){2, {n, ceiling(k * bits, WORD_BITS)}};
    case CODES_WORDS_AWQ:
        return (struct tensor_shape){2, {k, ceiling(n * bits, WORD_BITS)}};
    case CODES_WORDS_BY_DEPTH:
        return (struct tensor_shape){2, {ceiling(k * bits, WORD_BITS), n}};
    default:
        return (struct tensor_shape){2, {n, k}};
    }
}

static FALLIBLE check_units(const struct taking *t, size_t word) {
    enum code_layout layout = t->format->layout;
    const struct quantised_place *p = t->place;
    bool by_depth = layout == CODES_WORDS_BY_DEPTH; // its words of zero points are along N
    uint64_t k_unit = layout == CODES_BLOCKS ? BLOCK_K : layout == CODES_PAIRS ? 2 : by_depth ? word : 1;
    uint64_t n_unit = by_depth || layout == CODES_WORDS_AWQ ? word : 1;
    if (p->k % k_unit != 0 || p->n % n_unit != 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s: weights [%llu, %llu] cannot be %s, which takes multiples of %llu and %llu",
             file_of(t, t->codes), t->codes->name, (unsigned long long)p->n, (unsigned long long)p->k, t->format->name,
             (unsigned long long)n_unit, (unsigned long long)k_unit);
    }
    return OK;
}

static struct expertd_code_words code_words(const struct taking *t, size_t word) {
    size_t n = t->place->n;
    struct expertd_code_words c = {.data = t->codes->view.data, .bits = t->bits, .word = word};
    c.flip = are_words(t->format) && t->bits == 8 ? 0x80 : 0; // offset binary, of which INT4 is made and INT8 is not
    switch (t->format->layout) {
    case CODES_WORDS_AWQ:
        c.n_stride = 1, c.n_word_stride = word, c.k_stride = n, c.k_word_stride = word * n;
        c.order = AWQ_ORDER;
        return c;
    case CODES_WORDS_BY_DEPTH:
        c.n_stride = word, c.n_word_stride = word * word, c.k_stride = 1, c.k_word_stride = word * n;
        return c;
    case CODES_WORDS:
        c.n_stride = t->codes->view.shape[1] * word; // words may have codes to spare
        break;
    default:
        c.n_stride = t->place->k;
        break;
    }
    c.n_word_stride = word * c.n_stride, c.k_stride = 1, c.k_word_stride = word;
    return c;
}

static enum expertd_weight_code code_of(const struct taking *t) {
    if (t->format->code_of_dtype) {
        return t->codes->view.dtype == EXPERTD_DTYPE_F8_E5M2 ? EXPERTD_CODE_E5M2 : EXPERTD_CODE_E4M3;
    }
    return are_words(t->format) && t->bits == 8 ? EXPERTD_CODE_INT8 : t->format->code;
}

static FALLIBLE take_codes(struct taking *t) {
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

// What a scale spans, and how they lie.
struct span {
    uint64_t columns, k; // k 0: all
    uint64_t n_stride, g_stride;
};

static bool has_scales(const struct taking *t, uint32_t rank, uint64_t first, uint64_t second) {
    return has_shape(t, t->scales, &(struct tensor_shape){rank, {first, second}});
}

static bool spans_all(const struct taking *t, struct span *out) {
    unsigned may = t->format->scale_layouts;
    uint64_t n = t->place->n;
    if ((may & SCALES_TENSOR) && (has_scales(t, 0, 0, 0) || has_scales(t, 1, 1, 0) || has_scales(t, 2, 1, 1))) {
        *out = (struct span){.columns = n};
        return true;
    }
    *out = (struct span){.columns = 1, .n_stride = 1};
    return ((may & SCALES_COLUMN) && (has_scales(t, 1, n, 0) || has_scales(t, 2, n, 1))) ||
           ((may & SCALES_DEPTH) && has_scales(t, 2, 1, n));
}

static bool spans_groups(const struct taking *t, uint64_t group_k, struct span *out) {
    unsigned may = t->format->scale_layouts;
    uint64_t n = t->place->n, k = t->place->k, groups = group_k ? ceiling(k, group_k) : 0;
    if (group_k == 0 || (k % group_k != 0 && !(may & SCALES_SHORT))) {
        return false;
    }
    bool rows = (may & SCALES_GROUPS) && has_scales(t, 2, n, groups), depth = (may & SCALES_DEPTH) && has_scales(t, 2, groups, n);
    *out = (struct span){.columns = 1, .k = group_k, .n_stride = rows ? groups : 1, .g_stride = rows ? 1 : n};
    return rows || depth;
}

static bool spans_blocks(const struct taking *t, uint64_t block_n, uint64_t block_k, struct span *out) {
    uint64_t rows = ceiling(t->place->n, block_n), groups = ceiling(t->place->k, block_k);
    *out = (struct span){.columns = block_n, .k = block_k, .n_stride = groups, .g_stride = 1};
    return (t->format->scale_layouts & SCALES_GRID) && has_scales(t, 2, rows, groups);
}

// The number of groups that the tensor's shape speaks of; 0: of none.
static uint64_t groups_of_shape(const struct taking *t) {
    const struct expertd_tensor_view *view = &t->scales->view;
    uint32_t first = t->place->experts > 0;
    if (view->rank != 2 + first) {
        return 0;
    }
    return view->shape[first + ((t->format->scale_layouts & SCALES_DEPTH) == 0)];
}

// As config.json says, where it does; else as the shape can only be read.
static bool spans(const struct taking *t, const struct quantisation_setting *said, struct span *out) {
    uint64_t k = t->place->k, fixed = t->format->scale_k, groups = groups_of_shape(t);
    if (fixed || (said->group_k && said->group_k != QUANTISATION_WHOLE_K)) {
        return (!fixed || !said->group_k || said->group_k == fixed) && spans_groups(t, fixed ? fixed : said->group_k, out);
    }
    if (said->group_k == QUANTISATION_WHOLE_K) {
        return spans_all(t, out);
    }
    if (said->block_n) {
        return spans_blocks(t, said->block_n, said->block_k, out);
    }
    return spans_all(t, out) || spans_blocks(t, DEFAULT_BLOCK, DEFAULT_BLOCK, out) ||
           (groups > 0 && k % groups == 0 && spans_groups(t, k / groups, out));
}

static const char *said_text(const struct quantisation_setting *said, char *text, size_t bytes) {
    size_t used = said->bits ? (size_t)snprintf(text, bytes, "%u bits, ", said->bits) : 0;
    if (said->group_k == QUANTISATION_WHOLE_K) {
        snprintf(text + used, bytes - used, "one scale for all of K");
    } else if (said->group_k) {
        snprintf(text + used, bytes - used, "groups of %u k", said->group_k);
    } else if (said->block_n) {
        snprintf(text + used, bytes - used, "blocks of %u x %u", said->block_n, said->block_k);
    } else {
        snprintf(text + used, bytes - used, "nothing of what a scale spans");
    }
    return text;
}

static err_t no_span(const struct taking *t) {
    char found[EXPERTD_TENSOR_SHAPE_TEXT_MAX], said[96] = "nothing of its sizes";
    const struct quantisation_setting *first = t->config->count ? &t->config->settings[0] : NULL;
    const char *more = t->config->count > 1 ? ", among others" : "";
    const struct safetensors_entry *s = t->scales;
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL,
                      "%s: tensor %s is %s, which are no scales of weights [%llu, %llu] as %s; config.json says %s%s",
                      file_of(t, s), s->name, expertd_tensor_shape_text(s->view.shape, s->view.rank, found),
                      (unsigned long long)t->place->n, (unsigned long long)t->place->k, t->format->name,
                      first ? said_text(first, said, sizeof said) : said, more);
}

// The settings are of different modules, and which are this one's is in patterns of names: the tensors tell.
static FALLIBLE choose_span(const struct taking *t, struct span *out) {
    const struct quantisation_setting none = {0};
    size_t count = t->config->count ? t->config->count : 1;
    for (size_t i = 0; i < count; i++) {
        const struct quantisation_setting *said = t->config->count ? &t->config->settings[i] : &none;
        bool bits = said->bits == 0 || said->bits == t->bits || (t->format->layout == CODES_ROWS && said->bits < t->bits);
        if (bits && spans(t, said, out)) {
            return OK;
        }
    }
    return no_span(t);
}

static FALLIBLE take_scales(struct taking *t) {
    struct span span = {0};
    TRY(choose_span(t, &span));
    struct quantised_matrix *out = t->out;
    enum expertd_dtype dtype = t->scales->view.dtype;
    out->format.scale = dtype == EXPERTD_DTYPE_U8 ? EXPERTD_DTYPE_F8_E8M0 : dtype;
    out->format.scale_k = span.k;
    out->format.scale_of_panel = span.columns % EXPERTD_KERNEL_PANEL == 0 || span.columns >= t->place->n;
    out->scales = t->scales->view.data;
    out->scales_tensor = t->scales;
    out->scale_columns = span.columns;
    out->scale_n_stride = span.n_stride;
    out->scale_g_stride = span.g_stride;
    add_range(t, t->scales);
    return OK;
}

// ---- zero points, the global scale, the order of k, and what is not used ----

static struct tensor_shape zeros_shape(const struct taking *t, size_t word, size_t groups) {
    uint64_t n = t->place->n;
    if (t->format->layout == CODES_WORDS) {
        return (struct tensor_shape){2, {ceiling(n, word), groups}};
    }
    return t->format->layout == CODES_ROWS ? (struct tensor_shape){2, {n, groups}} : (struct tensor_shape){2, {groups, n / word}};
}

static FALLIBLE take_zeros(struct taking *t) {
    const struct safetensors_entry *zeros = look(t->finder, t->place->module, t->format->zeros);
    struct expertd_code_words *c = &t->out->zeros;
    size_t n = t->place->n, word = t->out->codes.word, groups = quantised_scales(&t->out->format, t->place->k);
    if (!zeros && t->format->needs_zeros) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s%s is missing, the zero points of %s", file_of(t, t->codes), t->place->module,
             t->format->zeros, t->codes->name);
    }
    if (!zeros) {
        return OK;
    }
    struct tensor_shape shape = zeros_shape(t, word, groups);
    if (zeros->view.dtype != t->codes->view.dtype) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is %s, the zero points of %s are %s", file_of(t, zeros), zeros->name,
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
        c->add = t->format->layout == CODES_WORDS_BY_DEPTH && !t->config->zero_points_in_full;
        break;
    }
    t->out->format.zero_points = true;
    t->out->zeros_tensor = zeros;
    add_range(t, zeros);
    return OK;
}

static FALLIBLE take_global(struct taking *t) {
    const struct safetensors_entry *global = look(t->finder, t->place->module, t->format->global);
    if (!global) {
        return OK;
    }
    struct tensor_shape scalar = {0}, vector = {1, {1}};
    if (!expertd_dtype_is_float16_or_32(global->view.dtype) || (!has_shape(t, global, &scalar) && !has_shape(t, global, &vector))) {
        char found[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is %s %s, a global scale is one number of F32, F16 or BF16", file_of(t, global),
             global->name, expertd_dtype_name(global->view.dtype),
             expertd_tensor_shape_text(global->view.shape, global->view.rank, found));
    }
    t->out->global = global->view.data;
    t->out->global_tensor = global;
    t->out->global_dtype = global->view.dtype;
    t->out->format.global = t->format->global_is;
    add_range(t, global);
    return OK;
}

// Whether the k are sorted is said by config.json; the first expert is asked too, for those that leave it out.
static FALLIBLE take_order(struct taking *t) {
    const struct safetensors_entry *order = look(t->finder, t->place->module, t->format->scale_of_k);
    struct quantised_matrix *out = t->out;
    uint64_t k = t->place->k, span = out->format.scale_k;
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
        return OK; // one scale: there is nothing to sort
    }
    out->ordered = t->config->in_activation_order;
    for (uint64_t i = 0; t->place->first && i < k && !out->ordered; i++) {
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

// A bias that was put there by the quantiser, for a layer that has none, is zeros; else it is left, and then refused.
static void take_extras(struct taking *t) {
    for (size_t i = 0; i < STORED_EXTRAS && t->format->extras[i]; i++) {
        const struct safetensors_entry *extra = look(t->finder, t->place->module, t->format->extras[i]);
        if (extra && (strcmp(t->format->extras[i], ".bias") != 0 || is_zero(extra))) {
            tensor_mark(t->finder, extra);
        }
    }
}

// ---- the whole ----

static FALLIBLE check_left_out(const struct taking *t) {
    const char *entry;
    if (t->place->first && quantisation_leaves_out(t->config, t->place->module, &entry)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is %s, but %s leaves its module out with \"%.128s\": one of the two is wrong",
             file_of(t, t->codes), t->codes->name, expertd_dtype_name(t->codes->view.dtype), t->config->section, entry);
    }
    return OK;
}

static FALLIBLE take(struct taking *t) {
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

FALLIBLE quantised_take(struct tensor_finder *finder, const struct quantised_place *place, struct quantised_matrix *out) {
    struct taking t = {.finder = finder, .place = place, .out = out};
    *out = (struct quantised_matrix){0};
    TRY(tensor_quantisation(finder, &t.config));
    TRY(find_format(finder, t.config, place->module, &t.format));
    out->stored = t.format->name;
    t.codes = codes_of(finder, place->module, t.format);
    t.scales = scales_of(finder, place->module, t.format);
    if (place->experts && (t.format->zeros || t.format->global || t.format->scale_of_k)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s: %s of all experts in one tensor is not read here", file_of(&t, t.codes),
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
