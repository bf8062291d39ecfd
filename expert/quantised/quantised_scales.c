#include <stdio.h>
#include <string.h>

#include "expert/quantised/quantised_take.h"
#include "expertd/kernels/weights.h"

enum { DEFAULT_BLOCK = 128, MX_GROUP = 32 }; // the group of all MX formats

// The n and k that share a scale, and the strides of the scales.
struct scale_span {
    uint64_t columns, k; // columns of n; k 0: all
    uint64_t n_stride, g_stride;
    uint64_t restart; // columns after which a block begins anew; 0: none
    bool doubtful;    // as many blocks begin anew after n / parts columns as do not
    bool of_parts;    // one scale for each of the stacked matrices
};

// The shape of the scales without the dimension of the experts. Dimensions of 1 that a matrix does not need are left out: block
// scales may be [N / 128, 1, K / 128, 1].
static struct tensor_shape shape_of_scales(const struct take *t) {
    const struct expertd_tensor_view *view = &t->scales->view;
    uint32_t first = t->module->experts > 0, rank = view->rank;
    struct tensor_shape shape = {0};
    if (first && (rank == 0 || view->shape[0] != t->module->experts)) {
        return (struct tensor_shape){.rank = EXPERTD_TENSOR_RANK_MAX}; // fits nothing
    }
    shape.rank = rank - first;
    memcpy(shape.dims, view->shape + first, shape.rank * sizeof *shape.dims);
    for (uint32_t i = shape.rank; i-- > 0 && shape.rank > 2;) {
        if (shape.dims[i] == 1) {
            memmove(shape.dims + i, shape.dims + i + 1, (shape.rank - i - 1) * sizeof *shape.dims);
            shape.rank--;
        }
    }
    return shape;
}

static bool has_scales(const struct take *t, uint32_t rank, uint64_t first, uint64_t second) {
    struct tensor_shape shape = shape_of_scales(t);
    return shape.rank == rank && (rank < 1 || shape.dims[0] == first) && (rank < 2 || shape.dims[1] == second);
}

// One number for all experts.
static bool is_shared_scalar(const struct take *t) {
    const struct expertd_tensor_view *view = &t->scales->view;
    return t->module->experts > 0 && (view->rank == 0 || (view->rank == 1 && view->shape[0] == 1));
}

// One scale for each of the matrices that are stacked along n.
static bool spans_parts(const struct take *t, struct scale_span *out) {
    uint64_t parts = t->module->parts;
    if (parts < 2 || t->module->n % parts != 0 ||
        !(has_scales(t, 1, parts, 0) || has_scales(t, 2, parts, 1) || has_scales(t, 2, 1, parts))) {
        return false;
    }
    *out = (struct scale_span){.columns = t->module->n / parts, .n_stride = 1, .of_parts = true};
    return true;
}

static bool spans_all(const struct take *t, struct scale_span *out) {
    unsigned may = t->format->scale_layouts;
    uint64_t n = t->module->n;
    if ((may & SCALES_TENSOR) &&
        (has_scales(t, 0, 0, 0) || has_scales(t, 1, 1, 0) || has_scales(t, 2, 1, 1) || is_shared_scalar(t))) {
        *out = (struct scale_span){.columns = n};
        return true;
    }
    if ((may & SCALES_TENSOR) && spans_parts(t, out)) {
        return true;
    }
    *out = (struct scale_span){.columns = 1, .n_stride = 1};
    bool across = (may & SCALES_N_MAJOR) || ((may & SCALES_CHANNEL) && t->module->experts > 0);
    return ((may & SCALES_CHANNEL) && (has_scales(t, 1, n, 0) || has_scales(t, 2, n, 1))) || (across && has_scales(t, 2, 1, n));
}

static bool spans_groups(const struct take *t, uint64_t group_k, struct scale_span *out) {
    unsigned may = t->format->scale_layouts;
    uint64_t n = t->module->n, k = t->module->k, groups = group_k ? take_ceiling(k, group_k) : 0;
    if (group_k == 0 || (k % group_k != 0 && !(may & SCALES_SHORT))) {
        return false;
    }
    bool rows = (may & SCALES_GROUPS) && !t->transposed && has_scales(t, 2, n, groups),
         n_major = ((may & SCALES_N_MAJOR) || t->transposed) && has_scales(t, 2, groups, n);
    *out = (struct scale_span){.columns = 1, .k = group_k, .n_stride = rows ? groups : 1, .g_stride = rows ? 1 : n};
    return rows || n_major;
}

static bool spans_grid(const struct take *t, uint64_t rows, uint64_t block_n, uint64_t block_k, struct scale_span *out) {
    uint64_t groups = take_ceiling(t->module->k, block_k);
    *out = (struct scale_span){.columns = block_n, .k = block_k, .n_stride = groups, .g_stride = 1};
    if (t->transposed) {
        *out = (struct scale_span){.columns = block_n, .k = block_k, .n_stride = 1, .g_stride = rows};
    }
    return (t->format->scale_layouts & SCALES_GRID) &&
           (t->transposed ? has_scales(t, 2, groups, rows) : has_scales(t, 2, rows, groups));
}

bool take_scales_fit(const struct take *t) {
    struct scale_span span;
    return spans_groups(t, t->format->scale_k, &span);
}

// Blocks of the whole tensor; or, if only that fits, those of the stacked matrices, whose last blocks are short.
static bool spans_blocks(const struct take *t, uint64_t block_n, uint64_t block_k, struct scale_span *out) {
    uint64_t n = t->module->n, parts = t->module->parts ? t->module->parts : 1, rows = take_ceiling(n, block_n);
    uint64_t part = n % parts == 0 ? n / parts : n, rows_of_parts = n / part * take_ceiling(part, block_n);
    if (spans_grid(t, rows, block_n, block_k, out)) {
        out->doubtful = part < n && part % block_n != 0 && rows == rows_of_parts;
        return true;
    }
    if (part == n || !spans_grid(t, rows_of_parts, block_n, block_k, out)) {
        return false;
    }
    out->restart = part;
    return true;
}

// The number of groups by the shape of the scales; 0: none.
static uint64_t groups_of_shape(const struct take *t) {
    struct tensor_shape shape = shape_of_scales(t);
    bool n_major = (t->format->scale_layouts & SCALES_N_MAJOR) || t->transposed;
    return shape.rank == 2 ? shape.dims[!n_major] : 0;
}

// The size of the groups, if the shape of the scales tells it; 0: it does not. Groups of 128 with a short last one may be as many
// as groups of 96.
static uint64_t equal_groups(const struct take *t) {
    uint64_t k = t->module->k, groups = groups_of_shape(t), equal = groups ? k / groups : 0;
    if (groups == 0 || k % groups != 0) {
        return 0;
    }
    for (uint64_t usual = 16; (t->format->scale_layouts & SCALES_SHORT) && usual < k; usual *= 2) {
        if (usual != equal && take_ceiling(k, usual) == groups && (equal & (equal - 1)) != 0) {
            return 0;
        }
    }
    return equal;
}

static enum expertd_dtype scale_dtype(const struct take *t) {
    enum expertd_dtype dtype = t->scales->view.dtype;
    enum expertd_dtype bytes = t->format->scales_are_e4m3 ? EXPERTD_DTYPE_F8_E4M3 : EXPERTD_DTYPE_F8_E8M0;
    return dtype == EXPERTD_DTYPE_U8 ? bytes : dtype;
}

// Determines the weights that share a scale: from config.json if it specifies sizes, else from the shape of the scales.
static bool spans(const struct take *t, const struct quantisation_setting *setting, struct scale_span *out) {
    uint64_t fixed = t->format->scale_k;
    if (fixed || (setting->group_k && setting->group_k != QUANTISATION_ALL_K)) {
        return (!fixed || !setting->group_k || setting->group_k == fixed) && spans_groups(t, fixed ? fixed : setting->group_k, out);
    }
    if (setting->group_k == QUANTISATION_ALL_K) {
        return spans_all(t, out);
    }
    if (setting->block_n) {
        return spans_blocks(t, setting->block_n, setting->block_k, out);
    }
    return spans_all(t, out) || spans_blocks(t, DEFAULT_BLOCK, DEFAULT_BLOCK, out) || spans_groups(t, equal_groups(t), out) ||
           (scale_dtype(t) == EXPERTD_DTYPE_F8_E8M0 && spans_groups(t, MX_GROUP, out));
}

static const char *span_text(const struct quantisation_setting *setting, char *text, size_t bytes) {
    if (setting->group_k == QUANTISATION_ALL_K) {
        snprintf(text, bytes, "one scale for all of K (%s)", setting->span_key);
    } else if (setting->group_k) {
        snprintf(text, bytes, "groups of %u k (%s)", setting->group_k, setting->span_key);
    } else if (setting->block_n) {
        snprintf(text, bytes, "blocks of %u x %u (%s)", setting->block_n, setting->block_k, setting->span_key);
    } else {
        snprintf(text, bytes, "nothing about the size of a group");
    }
    return text;
}

static err_t no_span(const struct take *t, const struct quantisation_setting *setting) {
    char found[EXPERTD_TENSOR_SHAPE_TEXT_MAX], text[512];
    const struct safetensors_entry *s = t->scales;
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL,
                      "%s: tensor %s is %s, which does not fit the scales of weights [%llu, %llu] as %s; config.json says %s: one "
                      "of the two is wrong",
                      take_file(t, s), s->name, expertd_tensor_shape_text(s->view.shape, s->view.rank, found),
                      (unsigned long long)t->module->n, (unsigned long long)t->module->k, t->format->name,
                      span_text(setting, text, sizeof text));
}

static err_t other_bits(const struct take *t, const struct quantisation_setting *setting) {
    char found[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
    const struct safetensors_entry *c = t->codes;
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL,
                      "%s: tensor %s is %s, which holds codes of %u bits for weights [%llu, %llu], but %s is %u: one of the two is "
                      "wrong",
                      take_file(t, c), c->name, expertd_tensor_shape_text(c->view.shape, c->view.rank, found), t->bits,
                      (unsigned long long)t->module->n, (unsigned long long)t->module->k, setting->bits_key, setting->bits);
}

// Elements of 8 bits may hold codes of fewer.
static bool has_bits(const struct take *t, const struct quantisation_setting *setting) {
    return setting->bits == 0 || setting->bits == t->bits || (t->format->layout == CODES_ROWS && setting->bits < t->bits);
}

static bool has_mode(const struct take *t, const struct quantisation_setting *setting) {
    return !t->format->mlx_mode || !setting->mode_text || strcmp(setting->mode, t->format->mlx_mode) == 0;
}

// Words and bytes with two codes hold integers or floating-point numbers; their dtype does not tell which.
static bool has_kind(const struct take *t, const struct quantisation_setting *setting) {
    bool packed = t->format->layout != CODES_ROWS, integers = t->format->code == EXPERTD_CODE_INT4;
    bool fits = !packed || setting->kind == QUANTISATION_ANY_KIND || integers == (setting->kind == QUANTISATION_INTEGERS);
    return fits && has_mode(t, setting);
}

static err_t other_kind(const struct take *t, const struct quantisation_setting *setting) {
    return err_record(
        EXPERTD_ERR_CHECKPOINT, NULL,
        "%s: tensor %s is %s beside %s in %s, which is %s, but %s: codes of another kind, which are not supported, or "
        "one of the two is wrong",
        take_file(t, t->codes), t->codes->name, expertd_dtype_name(t->codes->view.dtype), t->scales->name,
        expertd_dtype_name(t->scales->view.dtype), t->format->name, has_mode(t, setting) ? setting->kind_text : setting->mode_text);
}

static void note_no_group(const struct take *t) {
    checkpoint_notes_add(checkpoint_notes_of(t->finder->checkpoint), "module_in_no_group",
                         "%s.config_groups has no target that names %s, but its codes and scales exist: their shapes decide",
                         t->config->section, t->module->name);
}

// One scale for a whole matrix has one meaning, and so has one for each row of FP8: the group size of config.json is then about
// the modules of another format. ModelOpt writes such files.
static bool spans_more(const struct take *t, const struct quantisation_setting *setting, struct scale_span *out) {
    uint64_t experts = t->module->experts ? t->module->experts : 1, parts = t->module->parts ? t->module->parts : 1;
    bool one = t->scales->view.bytes <= experts * parts * expertd_dtype_size(t->scales->view.dtype), fp8 = t->format->code_of_dtype;
    if (!(one || fp8) || !spans_all(t, out)) {
        return false;
    }
    char shape[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
    checkpoint_notes_add(checkpoint_notes_of(t->finder->checkpoint), "scales_span_more",
                         "tensor %s is %s, one scale for %s, but %s says otherwise: the tensor decides", t->scales->name,
                         expertd_tensor_shape_text(t->scales->view.shape, t->scales->view.rank, shape),
                         one ? "a whole matrix" : "a row", setting->span_key ? setting->span_key : "config.json");
    return true;
}

static bool fits_setting(const struct take *t, const struct quantisation_setting *setting, struct scale_span *out) {
    *out = (struct scale_span){0};
    return has_bits(t, setting) && has_kind(t, setting) && spans(t, setting, out);
}

// Do the two settings give this module's tensors different meanings?
static bool differ(const struct take *t, const struct quantisation_setting *a, const struct quantisation_setting *b) {
    struct scale_span of_a, of_b;
    (void)fits_setting(t, a, &of_a);
    (void)fits_setting(t, b, &of_b);
    return of_a.columns != of_b.columns || of_a.k != of_b.k || of_a.restart != of_b.restart ||
           (t->format->zeros && t->format->zeros_rule != ZEROS_ALWAYS && a->symmetric != b->symmetric) ||
           (t->format->scale_of_k && a->ordered != b->ordered);
}

// Engines choose differently among several groups that name a module.
static FALLIBLE check_others(const struct take *t, const struct quantisation_candidates *settings, size_t chosen) {
    for (size_t i = chosen + 1; i < settings->count; i++) {
        struct scale_span span;
        if (fits_setting(t, &settings->at[i], &span) && differ(t, &settings->at[chosen], &settings->at[i])) {
            FAIL(EXPERTD_ERR_CHECKPOINT,
                 "%s: %s and %s both name %s and fit tensor %s, but say different things about it: remove the wrong one",
                 config_path(t->config->config), settings->path[chosen], settings->path[i], t->module->name, t->codes->name);
        }
    }
    return OK;
}

// Does the section describe another quantiser's format? Then it says nothing about these tensors.
static bool is_of_another_format(const struct take *t) {
    static const char *const FAMILIES[] = {"awq", "gptq"};
    for (size_t i = 0; i < sizeof FAMILIES / sizeof *FAMILIES; i++) {
        if (quantisation_names(t->config, FAMILIES[i])) {
            return !t->format->family || strcmp(t->format->family, FAMILIES[i]) != 0;
        }
    }
    return false;
}

// The facts of the section, without an override, are about its own format: GPTQ's and AWQ's about their integers, blocks about FP8
// with scales that are not E8M0. Tensors of another format are read as without them.
static bool spans_alone(struct take *t, const struct quantisation_candidates *settings, struct scale_span *out) {
    bool grid = (t->format->scale_layouts & SCALES_GRID) && scale_dtype(t) != EXPERTD_DTYPE_F8_E8M0,
         other = is_of_another_format(t);
    struct quantisation_setting setting = other ? (struct quantisation_setting){0} : settings->at[0];
    if (settings->count > 1 || settings->path[0] != t->config->section || !(other || (setting.block_n && !grid))) {
        return false;
    }
    setting.block_n = setting.block_k = 0;
    setting.span_key = NULL;
    if (!fits_setting(t, &setting, out)) {
        return false;
    }
    checkpoint_notes_add(checkpoint_notes_of(t->finder->checkpoint), "section_of_another_format",
                         "tensor %s is %s, another format than %s describes: the shapes decide", t->codes->name, t->format->name,
                         t->config->section);
    t->setting = setting;
    return true;
}

// Takes the setting of config.json for this module that fits its tensors.
static FALLIBLE choose_span(struct take *t, struct scale_span *out) {
    struct quantisation_candidates settings;
    TRY(quantisation_of_module(t->config, t->module->name, &settings));
    if (settings.in_no_group && t->module->first) {
        note_no_group(t);
    }
    for (size_t i = 0; i < settings.count; i++) {
        t->setting = settings.at[i];
        if (fits_setting(t, &t->setting, out)) {
            return check_others(t, &settings, i);
        }
    }
    bool bits = false, kind = false;
    for (size_t i = 0; i < settings.count; i++) {
        t->setting = settings.at[i];
        bits |= has_bits(t, &t->setting);
        kind |= has_kind(t, &t->setting);
        if (has_bits(t, &t->setting) && has_kind(t, &t->setting) && spans_more(t, &t->setting, out)) {
            return OK;
        }
    }
    if (spans_alone(t, &settings, out)) {
        return OK;
    }
    return !kind ? other_kind(t, &settings.at[0]) : bits ? no_span(t, &settings.at[0]) : other_bits(t, &settings.at[0]);
}

static FALLIBLE check_restart(const struct take *t, const struct scale_span *span) {
    if (span->doubtful) {
        char shape[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: tensor %s is %s: its blocks of %llu rows may run through gate and up, or begin anew at up; the number of blocks "
             "is the same: store gate and up separately",
             take_file(t, t->scales), t->scales->name,
             expertd_tensor_shape_text(t->scales->view.shape, t->scales->view.rank, shape), (unsigned long long)span->columns);
    }
    return OK;
}

// Without a size in config.json two scales may be one for gate and one for up, or those of two blocks.
static FALLIBLE check_parts(const struct take *t, const struct scale_span *span) {
    struct scale_span blocks;
    char shape[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
    if (!span->of_parts || t->setting.span_key || !spans_blocks(t, DEFAULT_BLOCK, DEFAULT_BLOCK, &blocks)) {
        return OK;
    }
    FAIL(EXPERTD_ERR_CHECKPOINT,
         "%s: tensor %s is %s: one scale for gate and one for up, or blocks of %d x %d, and config.json says nothing about the "
         "size: "
         "add weight_block_size to its quantization_config, or store gate and up separately",
         take_file(t, t->scales), t->scales->name, expertd_tensor_shape_text(t->scales->view.shape, t->scales->view.rank, shape),
         DEFAULT_BLOCK, DEFAULT_BLOCK);
}

// The biases lie like the scales.
static FALLIBLE take_biases(struct take *t) {
    const struct safetensors_entry *biases = quantised_find(t->finder, t->module->name, t->format->biases);
    struct quantised_matrix *out = t->out;
    INVARIANT(biases); // the format was recognised by them
    const struct expertd_tensor_view *of_scales = &t->scales->view, *view = &biases->view;
    if (view->dtype != of_scales->dtype || view->rank != of_scales->rank ||
        memcmp(view->shape, of_scales->shape, view->rank * sizeof *view->shape) != 0) {
        char texts[2][EXPERTD_TENSOR_SHAPE_TEXT_MAX];
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is %s %s, but %s is %s %s: there must be one bias for each scale, of its dtype",
             take_file(t, biases), biases->name, expertd_dtype_name(view->dtype),
             expertd_tensor_shape_text(view->shape, view->rank, texts[0]), t->scales->name, expertd_dtype_name(of_scales->dtype),
             expertd_tensor_shape_text(of_scales->shape, of_scales->rank, texts[1]));
    }
    out->affine.biases = view->data;
    out->affine.dtype = view->dtype;
    out->format.minima = true;
    out->format.scale_of_panel = false;
    out->format.scale = out->affine.bits == 8 ? EXPERTD_DTYPE_F32 : view->dtype;
    take_range(t, biases);
    return OK;
}

FALLIBLE take_scales(struct take *t) {
    struct scale_span span = {0};
    TRY(choose_span(t, &span));
    TRY(check_parts(t, &span));
    TRY(check_restart(t, &span));
    struct quantised_matrix *out = t->out;
    out->format.scale = scale_dtype(t);
    out->format.scale_k = span.k;
    out->format.scale_of_panel = span.columns % EXPERTD_KERNEL_PANEL == 0 || span.columns >= t->module->n;
    out->scales = t->scales->view.data;
    out->scales_tensor = t->scales;
    out->scale_columns = span.columns;
    out->scale_n_stride = span.n_stride;
    out->scale_g_stride = span.g_stride;
    out->scale_restart = span.restart;
    take_range(t, t->scales);
    return t->format->biases ? take_biases(t) : OK;
}
