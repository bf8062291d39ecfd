#include "expert/layout/stacked_experts.h"

#include <string.h>

#include "expert/quantised/quantised_tensors.h"

struct stack {
    struct tensor_finder *finder;
    const struct expert_layout *layout;
    bool alternate;
    uint64_t experts, width, hidden; // E, I, H (or L)
    struct layer_tensors *out;
};

// The tensor of a part: `rows` rows of `columns` for each expert.
struct part {
    const char *name;
    uint64_t rows, columns;
    char module[TENSOR_NAME_MAX];
};

static FALLIBLE part_of(const struct stack *s, const char *name, uint64_t rows, uint64_t columns, struct part *out) {
    *out = (struct part){.name = name, .rows = rows, .columns = columns};
    return expert_names_module(s->layout, s->out->prefix, 0, name, out->module);
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

// ---- plain tensors ----

static FALLIBLE take_plain(const struct stack *s, const struct part *p, bool *transposed, const struct safetensors_entry **out) {
    const struct tensor_shape rows = {3, {s->experts, p->rows, p->columns}}, columns = {3, {s->experts, p->columns, p->rows}};
    const bool may_be_transposed = s->layout->set->place == NAMES_IN_MODULE; // GGUF files have rows only
    const struct tensor_shape shapes[2] = {rows, may_be_transposed ? columns : rows};
    char name[TENSOR_NAME_MAX];
    int which;
    TRY(quantised_explain(s->finder, p->module));
    TRY(expert_names_check_plain(s->finder, p->module));
    TRY(expert_names_weight(s->finder, p->module, true, name));
    TRY(tensor_take_either(s->finder, name, shapes, &which, out));
    *transposed = which == 1;
    return OK;
}

// Takes both tensors of a fused pair and determines whether they are transposed. A square tensor fits both orientations; then the
// other tensor decides. At most one of them is square, since 2I = H and I = H exclude each other.
static FALLIBLE take_pair(const struct stack *s, const struct part *gate_up, const struct part *down,
                          const struct safetensors_entry *entries[2], bool *transposed) {
    bool of[2];
    TRY(take_plain(s, gate_up, &of[0], &entries[0]));
    TRY(take_plain(s, down, &of[1], &entries[1]));
    *transposed = 2 * s->width == s->hidden ? of[1] : of[0];
    if (s->width != s->hidden && *transposed != of[1]) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s and %s of the same experts have different orientations: one of them is transposed",
             checkpoint_path(s->finder->checkpoint), entries[0]->name, entries[1]->name);
    }
    return OK;
}

static void set_gate_up(const struct stack *s, const struct safetensors_entry *entry, bool transposed) {
    const uint64_t row = transposed ? 1 : s->hidden; // stride of the 2I rows
    const size_t n_stride = s->alternate ? 2 * row : row, k_stride = transposed ? 2 * s->width : 1;
    for (uint64_t e = 0; e < s->experts; e++) {
        struct expertd_weight_source *weight = s->out->experts[e].weight;
        uint64_t first = e * 2 * s->width * s->hidden;
        weight[PART_GATE] = matrix_at(entry, first, n_stride, k_stride);
        weight[PART_UP] = matrix_at(entry, first + (s->alternate ? row : s->width * row), n_stride, k_stride);
    }
}

static void set_part(const struct stack *s, const struct part *p, enum expert_part part, const struct safetensors_entry *entry,
                     bool transposed) {
    for (uint64_t e = 0; e < s->experts; e++) {
        s->out->experts[e].weight[part] =
            matrix_at(entry, e * p->rows * p->columns, transposed ? 1 : p->columns, transposed ? p->rows : 1);
    }
}

static FALLIBLE take_pair_plain(const struct stack *s, const struct part *gate_up, const struct part *down) {
    const struct safetensors_entry *entries[2] = {NULL, NULL};
    bool transposed = false;
    TRY(take_pair(s, gate_up, down, entries, &transposed));
    set_gate_up(s, entries[0], transposed);
    set_part(s, down, PART_DOWN, entries[1], transposed);
    return OK;
}

static bool is_spelled_weight(const char *name) {
    size_t length = strlen(name), suffix = strlen(".weight");
    return length > suffix && strcmp(name + length - suffix, ".weight") == 0;
}

// Takes a tensor whose orientation no other tensor confirms. If it is square, a tensor X.weight is in rows, since MLX and Step-3.5
// have no other; a parameter X may be either.
static FALLIBLE take_alone(const struct stack *s, const struct part *p, bool *transposed, const struct safetensors_entry **out) {
    const struct safetensors_entry *entry = NULL;
    TRY(take_plain(s, p, transposed, &entry));
    INVARIANT(entry != NULL);
    *out = entry;
    if (p->rows != p->columns || (is_spelled_weight(entry->name) && !s->layout->set->down_is_untransposed)) {
        return OK;
    }
    char shape[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
    FAIL(
        EXPERTD_ERR_CHECKPOINT,
        "%s: tensor %s is %s and may be transposed: its rows and columns are equal in number, and no other tensor tells; store one "
        "tensor for each expert, or gate and up in one tensor",
        checkpoint_file_of(s->finder->checkpoint, entry), entry->name,
        expertd_tensor_shape_text(entry->view.shape, entry->view.rank, shape));
}

static FALLIBLE take_part_plain(const struct stack *s, const struct part *p, enum expert_part part) {
    const struct safetensors_entry *entry = NULL;
    bool transposed = false;
    TRY(take_alone(s, p, &transposed, &entry));
    set_part(s, p, part, entry, transposed);
    return OK;
}

static FALLIBLE take_gate_up_plain(const struct stack *s, const struct part *p) {
    const struct safetensors_entry *entry = NULL;
    bool transposed = false;
    TRY(take_alone(s, p, &transposed, &entry));
    set_gate_up(s, entry, transposed);
    return OK;
}

// DBRX's tensors [E * I, H], down not transposed.
static FALLIBLE take_rows_of_all(const struct stack *s, const struct part *p, enum expert_part part) {
    const struct tensor_shape shape = {2, {s->experts * s->width, s->hidden}};
    const struct safetensors_entry *entry = NULL;
    char name[TENSOR_NAME_MAX];
    TRY(expert_names_weight(s->finder, p->module, true, name));
    TRY(tensor_take(s->finder, name, &shape, &entry));
    for (uint64_t e = 0; e < s->experts; e++) {
        bool down = part == PART_DOWN;
        s->out->experts[e].weight[part] = matrix_at(entry, e * s->width * s->hidden, down ? 1 : s->hidden, down ? s->hidden : 1);
    }
    return OK;
}

static FALLIBLE is_rows_of_all(const struct stack *s, const struct part *p, bool *is) {
    char name[TENSOR_NAME_MAX];
    TRY(expert_names_weight(s->finder, p->module, true, name));
    const struct safetensors_entry *entry = tensor_look(s->finder, name);
    *is = s->layout->set->down_is_untransposed && (!entry || entry->view.rank == 2);
    return OK;
}

// ---- quantised tensors ----

static struct quantised_module module_of(const struct stack *s, const struct part *p) {
    return (struct quantised_module){.name = p->module, .experts = s->experts, .n = p->rows, .k = p->columns, .first = true};
}

static void set_quantised(const struct stack *s, enum expert_part part, const struct quantised_matrix *first) {
    for (uint64_t e = 0; e < s->experts; e++) {
        s->out->experts[e].quantised[part] = quantised_of_expert(first, e);
    }
}

static FALLIBLE take_part_quantised(const struct stack *s, const struct part *p, enum expert_part part) {
    const struct quantised_module module = module_of(s, p);
    struct quantised_matrix first;
    TRY(quantised_take(s->finder, &module, &first));
    set_quantised(s, part, &first);
    return OK;
}

static FALLIBLE take_gate_up_quantised(const struct stack *s, const struct part *p) {
    struct quantised_module module = module_of(s, p);
    struct quantised_matrix gate, up;
    TRY(quantised_take_gate_up(s->finder, &module, s->alternate, &gate, &up));
    set_quantised(s, PART_GATE, &gate);
    set_quantised(s, PART_UP, &up);
    return OK;
}

static FALLIBLE take_pair_quantised(const struct stack *s, const struct part *gate_up, const struct part *down) {
    struct quantised_module modules[2] = {module_of(s, gate_up), module_of(s, down)};
    struct quantised_fused first;
    TRY(quantised_take_fused(s->finder, &modules[0], &modules[1], s->alternate, &first));
    set_quantised(s, PART_GATE, &first.gate);
    set_quantised(s, PART_UP, &first.up);
    set_quantised(s, PART_DOWN, &first.down);
    return OK;
}

// ---- biases ----

static FALLIBLE take_bias(const struct stack *s, const struct part *p, const struct safetensors_entry **out) {
    const struct tensor_shape shape = {2, {s->experts, p->rows}};
    char name[TENSOR_NAME_MAX];
    TRY(expert_names_bias(s->finder, p->module, true, name));
    return tensor_take(s->finder, name, &shape, out);
}

static FALLIBLE take_part_bias(const struct stack *s, const struct part *p, enum expert_part part) {
    const struct safetensors_entry *entry = NULL;
    TRY(take_bias(s, p, &entry));
    for (uint64_t e = 0; e < s->experts; e++) {
        s->out->experts[e].bias[part] = vector_at(entry, e * p->rows, 1);
    }
    return OK;
}

static FALLIBLE take_gate_up_bias(const struct stack *s, const struct part *p) {
    const struct safetensors_entry *entry = NULL;
    size_t stride = s->alternate ? 2 : 1;
    TRY(take_bias(s, p, &entry));
    for (uint64_t e = 0; e < s->experts; e++) {
        struct vector_source *bias = s->out->experts[e].bias;
        bias[PART_GATE] = vector_at(entry, e * p->rows, stride);
        bias[PART_UP] = vector_at(entry, e * p->rows + (s->alternate ? 1 : s->width), stride);
    }
    return OK;
}

// ---- the layout ----

static FALLIBLE take_fused(const struct stack *s) {
    struct part gate_up, down;
    TRY(part_of(s, s->layout->set->gate_up, 2 * s->width, s->hidden, &gate_up));
    TRY(part_of(s, s->layout->set->down, s->hidden, s->width, &down));
    bool codes[2] = {quantised_exists(s->finder, gate_up.module), quantised_exists(s->finder, down.module)};
    if (!codes[0] && !codes[1]) {
        TRY(take_pair_plain(s, &gate_up, &down));
    } else if (codes[0] && codes[1]) {
        TRY(take_pair_quantised(s, &gate_up, &down));
    } else {
        TRY(codes[0] ? take_gate_up_quantised(s, &gate_up) : take_gate_up_plain(s, &gate_up));
        TRY(codes[1] ? take_part_quantised(s, &down, PART_DOWN) : take_part_plain(s, &down, PART_DOWN));
    }
    if (s->out->params.expert_has_bias) {
        TRY(take_gate_up_bias(s, &gate_up));
        TRY(take_part_bias(s, &down, PART_DOWN));
    }
    return OK;
}

static FALLIBLE take_part(const struct stack *s, enum expert_part part) {
    const struct expert_name_set *set = s->layout->set;
    const char *name = part == PART_GATE ? set->gate : part == PART_UP ? set->up : set->down;
    struct part p;
    bool rows_of_all;
    TRY(part_of(s, name, part == PART_DOWN ? s->hidden : s->width, part == PART_DOWN ? s->width : s->hidden, &p));
    TRY(is_rows_of_all(s, &p, &rows_of_all));
    TRY(quantised_exists(s->finder, p.module) ? take_part_quantised(s, &p, part)
        : rows_of_all                         ? take_rows_of_all(s, &p, part)
                                              : take_part_plain(s, &p, part));
    return s->out->params.expert_has_bias ? take_part_bias(s, &p, part) : OK;
}

FALLIBLE stacked_experts_take(struct tensor_finder *finder, const struct expert_layout *layout, bool alternate,
                              struct layer_tensors *out) {
    const struct layer_params *params = &out->params;
    const struct stack s = {.finder = finder,
                            .layout = layout,
                            .alternate = alternate,
                            .experts = params->num_experts,
                            .width = params->intermediate_size,
                            .hidden = expert_row_size(params),
                            .out = out};
    if (layout->set->gate_up) {
        return take_fused(&s);
    }
    for (int part = layout->set->gate ? PART_GATE : PART_UP; part < PART_COUNT; part++) {
        TRY(take_part(&s, (enum expert_part)part));
    }
    return OK;
}
