#include "expert/layout/expert_layout.h"

#include <stdlib.h>
#include <string.h>

#include "expert/architecture/architecture_names.h"
#include "expert/layout/flat_layout.h"
#include "expert/quantised/quantised_tensors.h"

// One tensor per matrix.
static const char *const PROJ_NAMES[PART_COUNT] = {"gate_proj", "up_proj", "down_proj"};
static const char *const W_NAMES[PART_COUNT] = {"w1", "w3", "w2"};
// HY-V4's shared expert as transformers 5.23 saves it, which renames every gate_proj of that model.
static const char *const LINEAR_GATE_NAMES[PART_COUNT] = {"linear_gate", "up_proj", "down_proj"};

// All experts in one tensor, gate and up fused.
struct fused_names {
    const char *gate_up, *down, *gate_up_bias, *down_bias;
};
static const struct fused_names FUSED_NAMES[] = {
    {"gate_up_proj", "down_proj", "gate_up_proj_bias", "down_proj_bias"},
    {"gate_up_proj.weight", "down_proj.weight", "gate_up_proj.bias", "down_proj.bias"},
    {"fc1.weight", "fc2.weight", "fc1.bias", "fc2.bias"},
    {"input_linear.weight", "output_linear.weight", "input_linear.bias", "output_linear.bias"},
};

// E, I and H (or L) of a layer.
struct sizes {
    uint64_t experts, width, hidden;
};

static struct sizes sizes_of(const struct layer_params *p) {
    return (struct sizes){p->num_experts, p->intermediate_size, expert_row_size(p)};
}

static const void *element_at(const struct safetensors_entry *entry, uint64_t element) {
    return (const char *)entry->view.data + element * expertd_dtype_size(entry->view.dtype);
}

static struct expertd_weight_source matrix_at(const struct safetensors_entry *entry, uint64_t element, size_t n_stride,
                                              size_t k_stride) {
    return (struct expertd_weight_source){
        .data = element_at(entry, element), .dtype = entry->view.dtype, .n_stride = n_stride, .k_stride = k_stride};
}

static struct vector_source vector_at(const struct safetensors_entry *entry, uint64_t element, size_t stride) {
    return (struct vector_source){.data = element_at(entry, element), .dtype = entry->view.dtype, .stride = stride};
}

// ---- one tensor per expert and matrix ----

static bool is_part_absent(const struct expertd_activation *activation, int part) {
    return part == PART_GATE && !expertd_activation_is_gated(activation);
}

// A matrix [n, k] of plain elements ("module.weight") or of codes (the names of a quantised format).
static FALLIBLE take_matrix(struct tensor_finder *finder, const char *module, uint64_t n, uint64_t k, bool first, int part,
                            struct expert_source *out) {
    char name[TENSOR_NAME_MAX];
    if (quantised_exists(finder, module)) {
        struct quantised_module matrix = {.name = module, .n = n, .k = k, .first = first};
        return quantised_take(finder, &matrix, &out->quantised[part]);
    }
    TRY(quantised_explain(finder, module));
    TRY(tensor_name(name, "%s.weight", module));
    return tensor_take_matrix(finder, name, n, k, &out->weight[part]);
}

// The matrices of one expert: "module.gate_proj.weight" and so on.
struct parts {
    const char *module;
    const char *const *names; // [PART_COUNT]
    const struct expertd_activation *activation;
    uint64_t width, hidden;
    bool with_bias;
    bool first; // the layer's first expert
};

static FALLIBLE take_parts(struct tensor_finder *finder, const struct parts *parts, struct expert_source *out) {
    char name[TENSOR_NAME_MAX];
    for (int part = 0; part < PART_COUNT; part++) {
        if (is_part_absent(parts->activation, part)) {
            continue;
        }
        uint64_t n = part == PART_DOWN ? parts->hidden : parts->width, k = part == PART_DOWN ? parts->width : parts->hidden;
        TRY(tensor_name(name, "%s.%s", parts->module, parts->names[part]));
        TRY(take_matrix(finder, name, n, k, parts->first, part, out));
        if (parts->with_bias) {
            TRY(tensor_name(name, "%s.%s.bias", parts->module, parts->names[part]));
            TRY(tensor_take_vector(finder, name, n, &out->bias[part]));
        }
    }
    return OK;
}

// The naming scheme, by the text after the expert's number: "w1" or "gate_proj".
static const char *const *part_names(const char *text) {
    return text[0] == 'w' && text[1] >= '1' && text[1] <= '3' ? W_NAMES : PROJ_NAMES;
}

static FALLIBLE resolve_separate(struct tensor_finder *finder, const char *first, struct layer_tensors *out) {
    const struct layer_params *p = &out->params;
    const char *after_number = first + strspn(first, "0123456789");
    const char *const *names = part_names(after_number[0] == '.' ? after_number + 1 : after_number);
    char module[TENSOR_NAME_MAX];
    for (uint32_t e = 0; e < p->num_experts; e++) {
        TRY(tensor_name(module, "%s.%u", out->prefix, e));
        struct parts parts = {module, names, &p->activation, p->intermediate_size, expert_row_size(p), p->expert_has_bias, e == 0};
        TRY(take_parts(finder, &parts, &out->experts[e]));
    }
    return OK;
}

// ---- all experts in one tensor ----

static FALLIBLE take_below(struct tensor_finder *finder, const char *module, const char *name, const struct tensor_shape shapes[2],
                           int *which, const struct safetensors_entry **out) {
    char full[TENSOR_NAME_MAX];
    TRY(tensor_name(full, "%s.%s", module, name));
    return tensor_take_either(finder, full, shapes, which, out);
}

// Takes both tensors of a fused pair and determines whether they are transposed. A square tensor fits both orientations; then the
// other tensor decides. At most one of them is square, since 2I = H and I = H exclude each other.
static FALLIBLE take_fused(struct tensor_finder *finder, const struct layer_tensors *out, const struct fused_names *names,
                           const struct safetensors_entry *entries[2], bool *transposed) {
    const struct sizes s = sizes_of(&out->params);
    const struct tensor_shape gate_up[2] = {{3, {s.experts, 2 * s.width, s.hidden}}, {3, {s.experts, s.hidden, 2 * s.width}}};
    const struct tensor_shape down[2] = {{3, {s.experts, s.hidden, s.width}}, {3, {s.experts, s.width, s.hidden}}};
    int which[2];
    TRY(take_below(finder, out->prefix, names->gate_up, gate_up, &which[0], &entries[0]));
    TRY(take_below(finder, out->prefix, names->down, down, &which[1], &entries[1]));
    *transposed = 2 * s.width == s.hidden ? which[1] : which[0];
    if (s.width != s.hidden && *transposed != which[1]) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s.%s and %s of the same experts have different orientations: one of them is transposed",
             checkpoint_path(finder->checkpoint), out->prefix, names->gate_up, names->down);
    }
    return OK;
}

static FALLIBLE take_fused_biases(struct tensor_finder *finder, bool interleaved, const struct fused_names *names,
                                  struct layer_tensors *out) {
    const struct sizes s = sizes_of(&out->params);
    const struct tensor_shape gate_up[2] = {{2, {s.experts, 2 * s.width}}, {2, {s.experts, 2 * s.width}}};
    const struct tensor_shape down[2] = {{2, {s.experts, s.hidden}}, {2, {s.experts, s.hidden}}};
    const struct safetensors_entry *entries[2] = {NULL, NULL};
    int which;
    TRY(take_below(finder, out->prefix, names->gate_up_bias, gate_up, &which, &entries[0]));
    TRY(take_below(finder, out->prefix, names->down_bias, down, &which, &entries[1]));
    for (uint64_t e = 0; e < s.experts; e++) {
        struct vector_source *bias = out->experts[e].bias;
        uint64_t first = e * 2 * s.width;
        bias[PART_GATE] = vector_at(entries[0], first, interleaved ? 2 : 1);
        bias[PART_UP] = vector_at(entries[0], first + (interleaved ? 1 : s.width), interleaved ? 2 : 1);
        bias[PART_DOWN] = vector_at(entries[1], e * s.hidden, 1);
    }
    return OK;
}

static FALLIBLE resolve_fused_plain(struct tensor_finder *finder, bool interleaved, const struct fused_names *names,
                                    struct layer_tensors *out) {
    const struct sizes s = sizes_of(&out->params);
    const struct safetensors_entry *entries[2] = {NULL, NULL};
    bool transposed = false;
    TRY(take_fused(finder, out, names, entries, &transposed));
    const uint64_t row = transposed ? 1 : s.hidden; // stride of the 2I rows
    const size_t n_stride = interleaved ? 2 * row : row, k_stride = transposed ? 2 * s.width : 1;
    for (uint64_t e = 0; e < s.experts; e++) {
        struct expertd_weight_source *weight = out->experts[e].weight;
        uint64_t first = e * 2 * s.width * s.hidden;
        weight[PART_GATE] = matrix_at(entries[0], first, n_stride, k_stride);
        weight[PART_UP] = matrix_at(entries[0], first + (interleaved ? row : s.width * row), n_stride, k_stride);
        weight[PART_DOWN] = matrix_at(entries[1], e * s.hidden * s.width, transposed ? 1 : s.width, transposed ? s.hidden : 1);
    }
    return OK;
}

// The module "prefix.gate_up_proj", to which quantisers append their suffixes.
static FALLIBLE fused_module(const struct layer_tensors *out, const char *name, char module[TENSOR_NAME_MAX]) {
    size_t length = strlen(name), suffix = strlen(".weight");
    bool weight = length > suffix && strcmp(name + length - suffix, ".weight") == 0;
    return tensor_name(module, "%s.%.*s", out->prefix, (int)(weight ? length - suffix : length), name);
}

static FALLIBLE is_fused_quantised(const struct tensor_finder *finder, const struct fused_names *names,
                                   const struct layer_tensors *out, bool *is) {
    char module[TENSOR_NAME_MAX];
    TRY(fused_module(out, names->gate_up, module));
    *is = quantised_exists(finder, module);
    return OK;
}

static FALLIBLE resolve_fused_quantised(struct tensor_finder *finder, bool interleaved, const struct fused_names *names,
                                        struct layer_tensors *out) {
    const struct sizes s = sizes_of(&out->params);
    char module[TENSOR_NAME_MAX];
    struct quantised_matrix gate_up, down;
    struct quantised_module matrix = {.name = module, .experts = s.experts, .n = 2 * s.width, .k = s.hidden, .first = true};
    TRY(fused_module(out, names->gate_up, module));
    TRY(quantised_take(finder, &matrix, &gate_up));
    matrix = (struct quantised_module){.name = module, .experts = s.experts, .n = s.hidden, .k = s.width, .first = true};
    TRY(fused_module(out, names->down, module));
    TRY(quantised_take(finder, &matrix, &down));
    for (uint64_t e = 0; e < s.experts; e++) {
        struct quantised_matrix *to = out->experts[e].quantised, fused = quantised_of_expert(&gate_up, e);
        TRY_IN(quantised_take_rows(&fused, 0, interleaved ? 2 : 1, &to[PART_GATE]), "%s.%s", out->prefix, names->gate_up);
        TRY_IN(quantised_take_rows(&fused, interleaved ? 1 : s.width, interleaved ? 2 : 1, &to[PART_UP]), "%s.%s", out->prefix,
               names->gate_up);
        to[PART_DOWN] = quantised_of_expert(&down, e);
    }
    return OK;
}

static FALLIBLE resolve_fused(struct tensor_finder *finder, bool interleaved, const struct fused_names *names,
                              struct layer_tensors *out) {
    bool quantised = false;
    TRY(is_fused_quantised(finder, names, out, &quantised));
    TRY(quantised ? resolve_fused_quantised(finder, interleaved, names, out)
                  : resolve_fused_plain(finder, interleaved, names, out));
    return out->params.expert_has_bias ? take_fused_biases(finder, interleaved, names, out) : OK;
}

static FALLIBLE take_stacked(struct tensor_finder *finder, int part, struct layer_tensors *out) {
    const struct sizes s = sizes_of(&out->params);
    uint64_t n = part == PART_DOWN ? s.hidden : s.width, k = part == PART_DOWN ? s.width : s.hidden;
    const struct tensor_shape shape = {3, {s.experts, n, k}};
    const struct safetensors_entry *entry = NULL;
    struct quantised_matrix codes = {0};
    char module[TENSOR_NAME_MAX], name[TENSOR_NAME_MAX];
    TRY(tensor_name(module, "%s.%s", out->prefix, PROJ_NAMES[part]));
    if (quantised_exists(finder, module)) {
        struct quantised_module matrix = {.name = module, .experts = s.experts, .n = n, .k = k, .first = true};
        TRY(quantised_take(finder, &matrix, &codes));
    } else {
        TRY(tensor_name(name, "%s.weight", module));
        TRY(tensor_take(finder, name, &shape, &entry));
    }
    for (uint64_t e = 0; e < s.experts; e++) {
        if (entry) {
            out->experts[e].weight[part] = matrix_at(entry, e * n * k, k, 1);
        } else {
            out->experts[e].quantised[part] = quantised_of_expert(&codes, e);
        }
    }
    return OK;
}

// gate, up [E, I, H] and down [E, H, I]: Step-3.5.
static FALLIBLE resolve_stacked(struct tensor_finder *finder, struct layer_tensors *out) {
    for (int part = 0; part < PART_COUNT; part++) {
        if (!is_part_absent(&out->params.activation, part)) {
            TRY(take_stacked(finder, part, out));
        }
    }
    return OK;
}

// w1 (gate), v1 (up) and w2 (down) [E * I, H], w2 not transposed: DBRX.
static FALLIBLE resolve_dbrx(struct tensor_finder *finder, struct layer_tensors *out) {
    static const char *const NAMES[PART_COUNT] = {"w1", "v1", "w2"};
    const struct sizes s = sizes_of(&out->params);
    const struct tensor_shape shape = {2, {s.experts * s.width, s.hidden}};
    char name[TENSOR_NAME_MAX];
    for (int part = 0; part < PART_COUNT; part++) {
        const struct safetensors_entry *entry = NULL;
        TRY(tensor_name(name, "%s.%s", out->prefix, NAMES[part]));
        TRY(tensor_take(finder, name, &shape, &entry));
        for (uint64_t e = 0; e < s.experts; e++) {
            bool down = part == PART_DOWN;
            out->experts[e].weight[part] = matrix_at(entry, e * s.width * s.hidden, down ? 1 : s.hidden, down ? s.hidden : 1);
        }
    }
    return OK;
}

// ---- detection ----

static bool exists_below(const struct tensor_finder *finder, const char *module, const char *name) {
    char full[TENSOR_NAME_MAX];
    return !err_is(tensor_name(full, "%s.%s", module, name)) && tensor_exists(finder, full);
}

static FALLIBLE resolve_layout(struct tensor_finder *finder, bool interleaved, struct layer_tensors *out) {
    char below[TENSOR_NAME_MAX];
    TRY(tensor_name(below, "%s.", out->prefix));
    const char *first = tensor_first_below(finder, below);
    if (!first) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: no tensor %s..., although config.json says that layer %u holds experts: is the download complete?",
             checkpoint_path(finder->checkpoint), below, out->params.layer);
    }
    const char *rest = first + strlen(below);
    if (rest[0] >= '0' && rest[0] <= '9') {
        return resolve_separate(finder, rest, out);
    }
    for (size_t i = 0; i < sizeof FUSED_NAMES / sizeof *FUSED_NAMES; i++) {
        bool quantised = false;
        TRY(is_fused_quantised(finder, &FUSED_NAMES[i], out, &quantised));
        bool exists = quantised || exists_below(finder, out->prefix, FUSED_NAMES[i].gate_up);
        if (expertd_activation_is_gated(&out->params.activation) && exists) {
            return resolve_fused(finder, interleaved, &FUSED_NAMES[i], out);
        }
    }
    if (exists_below(finder, out->prefix, "v1")) {
        return resolve_dbrx(finder, out);
    }
    if (exists_below(finder, out->prefix, "up_proj.weight") && !out->params.expert_has_bias) {
        return resolve_stacked(finder, out);
    }
    return tensor_unknown_layout(finder, below);
}

// Have two matrices the same plain dtype, or the same codes and scales?
static bool is_like(const struct expert_source *a, int part, const struct expert_source *b, int other) {
    const struct quantised_matrix *codes = &a->quantised[part], *others = &b->quantised[other];
    if (!codes->codes.data || !others->codes.data) {
        return !codes->codes.data == !others->codes.data && a->weight[part].dtype == b->weight[other].dtype;
    }
    return quantised_same_format(codes, others);
}

static const char *kind_name(const struct expert_source *e, int part, char text[QUANTISED_NAME_MAX]) {
    return e->quantised[part].codes.data ? quantised_name(&e->quantised[part], text) : expertd_dtype_name(e->weight[part].dtype);
}

// Compares expert e's matrix `part` with the first expert's `other`.
static FALLIBLE check_like(const struct tensor_finder *finder, const struct layer_tensors *out, uint32_t e, int part, int other) {
    const struct expert_source *source = &out->experts[e], *first = &out->experts[0];
    char texts[2][QUANTISED_NAME_MAX];
    if (is_like(source, part, first, other)) {
        return OK;
    }
    if (strcmp(kind_name(source, part, texts[0]), kind_name(first, other, texts[1])) == 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: %s: expert %u's %s and expert 0's %s are %s, but one has scales of %s, the other of %s: a layer must have one "
             "format",
             checkpoint_path(finder->checkpoint), out->prefix, e, PROJ_NAMES[part], PROJ_NAMES[other], texts[0],
             expertd_dtype_name(source->quantised[part].format.scale), expertd_dtype_name(first->quantised[other].format.scale));
    }
    FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s: expert %u's %s is %s, but expert 0's %s is %s: a layer must have one %s",
         checkpoint_path(finder->checkpoint), out->prefix, e, PROJ_NAMES[part], kind_name(source, part, texts[0]),
         PROJ_NAMES[other], kind_name(first, other, texts[1]), first->quantised[other].codes.data ? "format" : "dtype");
}

// All experts of a layer are packed alike; two dtypes in a layer are more likely a broken conversion than intended. Quantised down
// matrices may have another format than gate and up.
static FALLIBLE check_one_dtype(const struct tensor_finder *finder, struct layer_tensors *out) {
    const struct expertd_activation *activation = &out->params.activation;
    bool quantised = out->experts[0].quantised[PART_DOWN].codes.data || out->experts[0].quantised[PART_UP].codes.data;
    for (uint32_t e = 0; e < out->params.num_experts; e++) {
        for (int part = 0; part < PART_COUNT; part++) {
            if (!is_part_absent(activation, part)) {
                int like = quantised && part != PART_DOWN ? PART_UP : PART_DOWN;
                TRY(check_like(finder, out, e, part, like));
            }
        }
    }
    enum expertd_weight_code code = out->experts[0].quantised[PART_UP].format.code;
    enum expertd_dtype of_code = code == EXPERTD_CODE_E4M3   ? EXPERTD_DTYPE_F8_E4M3
                                 : code == EXPERTD_CODE_E5M2 ? EXPERTD_DTYPE_F8_E5M2
                                                             : EXPERTD_DTYPE_NONE;
    out->weight_dtype = quantised ? of_code : out->experts[0].weight[PART_DOWN].dtype;
    return OK;
}

// All blocks of a layer have one shape, so if one expert's k are sorted by scale, the k of all experts are sorted. Gate and up read
// the same input row, so both are sorted or neither.
static void share_order_of_gate_and_up(struct expert_source *e) {
    e->quantised[PART_GATE].ordered |= e->quantised[PART_UP].ordered && e->quantised[PART_GATE].codes.data;
    e->quantised[PART_UP].ordered |= e->quantised[PART_GATE].ordered && e->quantised[PART_UP].codes.data;
}

static void share_order(struct layer_tensors *out) {
    bool ordered[PART_COUNT] = {false};
    for (uint32_t e = 0; e < out->params.num_experts; e++) {
        share_order_of_gate_and_up(&out->experts[e]);
        for (int part = 0; part < PART_COUNT; part++) {
            ordered[part] |= out->experts[e].quantised[part].ordered;
        }
    }
    for (uint32_t e = 0; e < out->params.num_experts; e++) {
        for (int part = 0; part < PART_COUNT; part++) {
            out->experts[e].quantised[part].ordered = ordered[part];
        }
    }
}

FALLIBLE expert_layout_resolve(struct tensor_finder *finder, bool interleaved, struct layer_tensors *out) {
    out->experts = calloc(out->params.num_experts, sizeof *out->experts);
    if (!out->experts) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a table of %u experts", out->params.num_experts);
    }
    TRY(checkpoint_is_gguf(finder->checkpoint) ? flat_layout_resolve(finder, out) : resolve_layout(finder, interleaved, out));
    share_order(out);
    return check_one_dtype(finder, out);
}

// Gate and up are computed as one product.
static FALLIBLE check_shared(const struct tensor_finder *finder, const char *name, const struct expert_source *shared) {
    char texts[2][QUANTISED_NAME_MAX];
    bool gated = shared->weight[PART_GATE].data || shared->quantised[PART_GATE].codes.data;
    bool both = shared->quantised[PART_GATE].codes.data || shared->quantised[PART_UP].codes.data;
    if (!gated || !both || is_like(shared, PART_GATE, shared, PART_UP)) {
        return OK;
    }
    FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s: gate_proj is %s, but up_proj is %s: they must have one format",
         checkpoint_path(finder->checkpoint), name, kind_name(shared, PART_GATE, texts[0]), kind_name(shared, PART_UP, texts[1]));
}

FALLIBLE expert_layout_resolve_shared(struct tensor_finder *finder, const char *name, struct layer_tensors *out) {
    const struct layer_params *p = &out->params;
    char w2[TENSOR_NAME_MAX];
    if (checkpoint_is_gguf(finder->checkpoint)) {
        struct parts flat = {
            out->prefix, NAMES_GGUF.flat->shared, &p->shared_activation, p->shared_intermediate_size, p->hidden_size, false, true};
        TRY(take_parts(finder, &flat, &out->shared));
        return check_shared(finder, name, &out->shared);
    }
    TRY(tensor_name(w2, "%s.w2", name));
    bool w_names = exists_below(finder, name, "w2.weight") || quantised_exists(finder, w2);
    bool linear_gate = exists_below(finder, name, "linear_gate.weight");
    const char *const *names = w_names ? W_NAMES : linear_gate ? LINEAR_GATE_NAMES : PROJ_NAMES;
    struct parts parts = {name, names, &p->shared_activation, p->shared_intermediate_size, p->hidden_size, false, true};
    TRY(take_parts(finder, &parts, &out->shared));
    share_order_of_gate_and_up(&out->shared);
    return check_shared(finder, name, &out->shared);
}
