#include <string.h>

#include "expert/quantised/quantised_take.h"
#include "expert/quantised/quantised_tensors.h"

// ---- zero points ----

// compressed-tensors stores zero points of packed codes in words, like them, or (its older versions) as signed bytes [N, G]; those
// of elements are signed bytes.
static bool are_bytes(const struct take *t, const struct safetensors_entry *zeros) {
    return t->format->layout == CODES_ROWS || (t->format->layout == CODES_WORDS && zeros->view.dtype == EXPERTD_DTYPE_I8);
}

static struct tensor_shape zeros_shape(const struct take *t, const struct safetensors_entry *zeros, size_t groups) {
    uint64_t n = t->module->n, word = t->out->codes.word;
    if (are_bytes(t, zeros)) {
        return (struct tensor_shape){2, {n, groups}};
    }
    return t->format->layout == CODES_WORDS ? (struct tensor_shape){2, {take_ceiling(n, word), groups}}
                                            : (struct tensor_shape){2, {groups, n / word}};
}

// Transposed codes may have transposed zero points too.
static bool are_transposed(const struct take *t, const struct safetensors_entry *zeros, size_t groups) {
    struct tensor_shape shape = zeros_shape(t, zeros, groups), swapped = {2, {shape.dims[1], shape.dims[0]}};
    return t->transposed && !take_has_shape(t, zeros, &shape) && take_has_shape(t, zeros, &swapped);
}

static FALLIBLE check_square(const struct take *t, const struct safetensors_entry *zeros, const struct tensor_shape *shape) {
    char found[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
    if (!t->transposed || shape->dims[0] != shape->dims[1] || shape->dims[0] == 1) {
        return OK;
    }
    FAIL(EXPERTD_ERR_CHECKPOINT,
         "%s: tensor %s is %s: it may be transposed as %s is, or not: its rows and columns are equal in number; store one tensor "
         "for each expert",
         take_file(t, zeros), zeros->name, expertd_tensor_shape_text(zeros->view.shape, zeros->view.rank, found), t->codes->name);
}

// One zero point for a matrix that has one scale.
static bool is_one(const struct take *t, const struct safetensors_entry *zeros) {
    bool of_matrix = t->out->scale_columns >= t->module->n && t->out->format.scale_k == 0 && are_bytes(t, zeros);
    for (uint32_t rank = 0; of_matrix && rank <= 2; rank++) {
        if (take_has_shape(t, zeros, &(struct tensor_shape){rank, {1, 1}})) {
            return true;
        }
    }
    return false;
}

// Scales of rows may be [N] or [N, 1], and so may zero points.
static bool has_zeros_shape(const struct take *t, const struct safetensors_entry *zeros, const struct tensor_shape *shape) {
    const struct tensor_shape vector = {1, {shape->dims[0]}};
    bool is_vector = are_bytes(t, zeros) && shape->dims[1] == 1 && take_has_shape(t, zeros, &vector);
    return is_vector || is_one(t, zeros) || take_has_shape(t, zeros, shape);
}

static FALLIBLE check_zeros_tensor(const struct take *t, const struct safetensors_entry *zeros, size_t groups) {
    struct tensor_shape shape = zeros_shape(t, zeros, groups);
    bool signed_bytes = are_bytes(t, zeros) && zeros->view.dtype == EXPERTD_DTYPE_I8;
    if (zeros->view.dtype != t->codes->view.dtype && !signed_bytes) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is %s, but the zero points of %s must be %s", take_file(t, zeros), zeros->name,
             expertd_dtype_name(zeros->view.dtype), t->codes->name, expertd_dtype_name(t->codes->view.dtype));
    }
    TRY(is_one(t, zeros) ? OK : check_square(t, zeros, &shape));
    return has_zeros_shape(t, zeros, &shape) || are_transposed(t, zeros, groups) ? OK : take_wrong_shape(t, zeros, &shape);
}

static struct expertd_code_words zero_words(const struct take *t, const struct safetensors_entry *zeros, size_t groups) {
    size_t n = t->module->n, word = t->out->codes.word;
    struct expertd_code_words c = {
        .data = zeros->view.data, .bits = t->bits, .word = word, .order = t->out->codes.order, .flip = t->out->codes.flip};
    if (are_bytes(t, zeros)) {
        c.bits = 8, c.word = word = 8, c.flip = 0;
        c.add = t->bits == 4 ? 8 : 0; // codes of 4 bits are offset binary, signed bytes are not
        c.n_stride = groups, c.n_word_stride = word * groups, c.k_stride = 1, c.k_word_stride = word;
        if (are_transposed(t, zeros, groups)) {
            c.n_stride = 1, c.n_word_stride = word, c.k_stride = n, c.k_word_stride = word * n;
        }
        if (is_one(t, zeros)) {
            c.n_stride = c.n_word_stride = c.k_stride = c.k_word_stride = 0;
        }
    } else if (are_transposed(t, zeros, groups)) {
        size_t row = take_ceiling(n, word) * word; // codes of a row of words
        c.n_stride = 1, c.n_word_stride = word, c.k_stride = row, c.k_word_stride = word * row;
    } else if (t->format->layout == CODES_WORDS) {
        c.n_stride = 1, c.n_word_stride = groups * word, c.k_stride = word, c.k_word_stride = word * word;
    } else {
        c.n_stride = 1, c.n_word_stride = word, c.k_stride = n, c.k_word_stride = word * n;
        c.add = t->format->layout == CODES_WORDS_N_MAJOR && !t->config->zero_points_are_stored_as_is;
    }
    return c;
}

static bool is_symmetric(const struct take *t) {
    enum quantisation_answer said = t->setting.symmetric;
    return said == QUANTISATION_YES ? t->format->zeros_rule != ZEROS_ALWAYS
                                    : said == QUANTISATION_UNSAID && t->format->zeros_rule == ZEROS_IF_ASYMMETRIC;
}

static FALLIBLE check_no_zeros(const struct take *t) {
    const struct safetensors_entry *codes = t->codes;
    if (t->format->zeros_rule == ZEROS_IF_ASYMMETRIC && t->setting.symmetric == QUANTISATION_NO) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s, but there is no tensor %s%s, the zero points of %s: one of the two is wrong",
             take_file(t, codes), t->setting.symmetric_text, t->module->name, t->format->zeros, codes->name);
    }
    if (t->format->needs_zeros && !(t->format->zeros_rule == ZEROS_UNLESS_SAID && is_symmetric(t))) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s%s is missing, the zero points of %s: is the download complete?",
             take_file(t, codes), t->module->name, t->format->zeros, codes->name);
    }
    return OK;
}

// Engines do not read the zero points of symmetric codes, and of AWQ's only some do. Loading checks that they mean nothing else.
static void take_unused_zeros(struct take *t, const struct safetensors_entry *zeros, struct expertd_code_words words) {
    struct quantised_matrix *out = t->out;
    bool gptq = t->format->zeros_rule == ZEROS_UNLESS_SAID;
    unsigned middle = are_bytes(t, zeros) ? 0 : 1u << (t->bits - 1), form = middle - (gptq && words.add);
    words.flip = words.add = 0;
    out->unused_zeros = words;
    out->unused_middle = (uint8_t)middle;
    out->unused_may_be_less_one = gptq;
    out->unused_may_be_zero = t->format->zeros_rule != ZEROS_AND_MIDDLE;
    out->symmetric_text = t->setting.symmetric_text;
    unsigned stored = t->module->first ? expertd_quantised_code(&words, 0, 0) : form;
    if (stored != form) {
        checkpoint_notes_add(checkpoint_notes_of(t->finder->checkpoint), "symmetric_zero_points",
                             "tensor %s stores zero point %u instead of %u, but %s, so the codes are symmetric: they are read so, "
                             "as other programs do that do not read this tensor",
                             zeros->name, stored, form,
                             t->setting.symmetric_text ? t->setting.symmetric_text : "symmetric is absent");
    }
}

// Asymmetric zero points of GPTQ mean one thing in its first form and another in gptq_v2. Without any section, nothing tells.
static FALLIBLE check_form(const struct take *t, const struct safetensors_entry *zeros) {
    if (t->format->zeros_rule == ZEROS_UNLESS_SAID && !t->config->config) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: tensor %s has zero points of GPTQ, but there is no quantization_config to tell whether they are stored minus one "
             "(checkpoint_format gptq) or unchanged (gptq_v2): add quantization_config with quant_method and checkpoint_format",
             take_file(t, zeros), zeros->name);
    }
    if (t->format->zeros_rule == ZEROS_UNLESS_SAID && t->config->form_is_unknown) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: %s.%s is %s, which does not tell whether %s holds the zero points or the zero points minus one: expected "
             "auto_round:auto_gptq (minus one) or auto_round:gptqmodel",
             config_path(t->config->config), t->config->section, t->config->packing_key, t->config->packing, zeros->name);
    }
    return OK;
}

FALLIBLE take_zeros(struct take *t) {
    const struct safetensors_entry *zeros = quantised_find(t->finder, t->module->name, t->format->zeros);
    size_t groups = quantised_scales(&t->out->format, t->module->k);
    t->out->is_symmetric = is_symmetric(t);
    if (!zeros) {
        return t->format->zeros ? check_no_zeros(t) : OK;
    }
    TRY(check_zeros_tensor(t, zeros, groups));
    struct expertd_code_words words = zero_words(t, zeros, groups);
    t->out->zeros_tensor = zeros;
    take_range(t, zeros);
    if (t->out->is_symmetric) {
        take_unused_zeros(t, zeros, words);
        return OK;
    }
    TRY(check_form(t, zeros));
    t->out->zeros = words;
    t->out->format.zero_points = true;
    t->out->zeros_are_doubted = t->format->zeros_rule == ZEROS_UNLESS_SAID && t->setting.symmetric == QUANTISATION_UNSAID;
    return OK;
}

// ---- the global scale ----
// The numbers of a global scale's tensor for each expert: 1, or one for each of the stacked matrices. 0: another shape.
static uint64_t global_numbers(const struct take *t, const struct safetensors_entry *global) {
    const struct expertd_tensor_view *view = &global->view;
    uint64_t elements = 1, experts = t->module->experts, parts = t->module->parts;
    for (uint32_t i = 0; i < view->rank; i++) {
        elements *= view->shape[i]; // the file holds them all, so the product does not overflow
    }
    if (elements == 1 && view->rank <= 2) {
        return 1;
    }
    if (view->rank > 3 || (experts > 0 && view->shape[0] != experts)) {
        return 0;
    }
    experts = experts ? experts : 1;
    return elements == experts ? 1 : parts > 1 && elements == experts * parts && t->module->n % parts == 0 ? parts : 0;
}

FALLIBLE take_global(struct take *t) {
    const struct safetensors_entry *global = quantised_find(t->finder, t->module->name, t->format->global);
    if (!global) {
        return OK;
    }
    uint64_t numbers = global_numbers(t, global);
    if (!expertd_dtype_is_float16_or_32(global->view.dtype) || numbers == 0) {
        char found[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is %s %s, but a global scale must be one number%s of F32, F16 or BF16",
             take_file(t, global), global->name, expertd_dtype_name(global->view.dtype),
             expertd_tensor_shape_text(global->view.shape, global->view.rank, found), t->module->experts ? " per expert" : "");
    }
    t->out->global = global->view.data;
    t->out->global_tensor = global;
    t->out->global_dtype = global->view.dtype;
    t->out->global_columns = numbers > 1 ? t->module->n / numbers : 0;
    t->out->format.global = t->format->global_is;
    take_range(t, global);
    return OK;
}

// ---- the order of k ----

static int32_t scale_of_k(const void *order, uint64_t k) {
    int32_t scale;
    memcpy(&scale, (const char *)order + k * sizeof scale, sizeof scale);
    return scale;
}

static FALLIBLE check_no_order(const struct take *t) {
    uint64_t span = t->out->format.scale_k;
    bool sorted = t->setting.ordered == QUANTISATION_YES && span > 0 && span < t->module->k && !t->config->static_groups;
    if (t->format->scale_of_k && sorted) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: %s says that k was sorted by activations, but there is no tensor %s%s that gives the order: the file is "
             "incomplete, or config.json is wrong",
             take_file(t, t->codes), t->setting.ordered_key, t->module->name, t->format->scale_of_k);
    }
    return OK;
}

// The k are sorted by scale if config.json says so, or, as some files omit desc_act, if it says nothing and the first g_idx of the
// part is not in consecutive groups.
FALLIBLE take_order(struct take *t) {
    const struct safetensors_entry *order = quantised_find(t->finder, t->module->name, t->format->scale_of_k);
    struct quantised_matrix *out = t->out;
    uint64_t k = t->module->k, span = out->format.scale_k;
    struct tensor_shape shape = {1, {k}};
    if (!order) {
        return check_no_order(t);
    }
    if (order->view.dtype != EXPERTD_DTYPE_I32) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is %s, but the scale of each k must be I32", take_file(t, order), order->name,
             expertd_dtype_name(order->view.dtype));
    }
    if (!take_has_shape(t, order, &shape)) {
        return take_wrong_shape(t, order, &shape);
    }
    out->scale_of_k = order->view.data;
    out->ordered_key = t->setting.ordered_key;
    out->order_is_actorder = !t->format->order_may_be_unsaid;
    take_range(t, order);
    if (span == 0 || span >= k) {
        return OK; // one scale: nothing to sort
    }
    out->ordered = t->setting.ordered == QUANTISATION_YES;
    bool decides = t->module->decides_order && t->format->order_may_be_unsaid && t->setting.ordered == QUANTISATION_UNSAID;
    for (uint64_t i = 0; decides && i < k && !out->ordered; i++) {
        out->ordered = scale_of_k(order->view.data, i) != (int32_t)(i / span);
    }
    return OK;
}

// ---- ignored tensors ----

// Loading compares it with config.json. In another form it says nothing that is known.
void take_original_shape(struct take *t) {
    const struct safetensors_entry *shape = quantised_find(t->finder, t->module->name, t->format->original_shape);
    if (!shape) {
        return;
    }
    bool wide = shape->view.dtype == EXPERTD_DTYPE_I64;
    if ((wide || shape->view.dtype == EXPERTD_DTYPE_I32) && shape->view.bytes == 2 * expertd_dtype_size(shape->view.dtype)) {
        t->out->original_shape = shape;
        t->out->original_n = t->module->n;
        take_range(t, shape);
    }
    tensor_mark(t->finder, shape);
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

bool quantised_is_number(const struct safetensors_entry *entry, uint64_t experts) {
    uint64_t elements = 1, most = 2; // for gate and up
    for (uint32_t d = 0; d < entry->view.rank; d++) {
        elements *= entry->view.shape[d];
    }
    bool of_each = entry->view.rank > 0 && entry->view.shape[0] == experts;
    return elements <= (of_each ? most * experts : most);
}

// Quantisers add a bias of zeros to layers without a bias. Any other bias and a vector for the inputs are not taken, so that
// block_leftovers_check refuses them.
void take_extras(struct take *t) {
    for (size_t i = 0; i < STORED_EXTRAS && t->format->extras[i]; i++) {
        const struct safetensors_entry *extra = quantised_find(t->finder, t->module->name, t->format->extras[i]);
        bool is_bias = strcmp(t->format->extras[i], ".bias") == 0;
        if (extra && (is_bias ? is_zero(extra) : quantised_is_number(extra, t->module->experts))) {
            tensor_mark(t->finder, extra);
        }
    }
}
