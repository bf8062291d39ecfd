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
    bool has_codes;
    struct quantised_orientations fits;     // both: its own shape does not tell
    enum quantised_orientation orientation; // by all parts of the layer; QUANTISED_ANY: by its own shape and name
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

static bool may_be_transposed(const struct stack *s) {
    return s->layout->set->place == NAMES_IN_MODULE; // GGUF files have rows only
}

static FALLIBLE take_plain(const struct stack *s, const struct part *p, bool *transposed, const struct safetensors_entry **out) {
    const struct tensor_shape rows = {3, {s->experts, p->rows, p->columns}}, columns = {3, {s->experts, p->columns, p->rows}};
    const struct tensor_shape shapes[2] = {rows, may_be_transposed(s) ? columns : rows};
    char name[TENSOR_NAME_MAX];
    int which;
    TRY(quantised_explain(s->finder, p->module));
    TRY(expert_names_check_plain(s->finder, p->module));
    TRY(expert_names_weight(s->finder, p->module, true, name));
    TRY(tensor_take_either(s->finder, name, shapes, &which, out));
    *transposed = which == 1;
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

// If no other part tells the orientation of a square tensor, X.weight is in rows, since MLX and Step-3.5 have no other; a parameter
// X may be either.
static FALLIBLE take_oriented(const struct stack *s, const struct part *p, bool *transposed, const struct safetensors_entry **out) {
    const struct safetensors_entry *entry = NULL;
    TRY(take_plain(s, p, transposed, &entry));
    INVARIANT(entry != NULL);
    *out = entry;
    if (p->orientation != QUANTISED_ANY) {
        *transposed = p->orientation == QUANTISED_TRANSPOSED;
        return OK;
    }
    if (p->rows != p->columns || (expert_names_is_module_weight(entry->name) && !s->layout->set->down_is_untransposed)) {
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
    TRY(take_oriented(s, p, &transposed, &entry));
    set_part(s, p, part, entry, transposed);
    return OK;
}

static FALLIBLE take_gate_up_plain(const struct stack *s, const struct part *p) {
    const struct safetensors_entry *entry = NULL;
    bool transposed = false;
    TRY(take_oriented(s, p, &transposed, &entry));
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
    return (struct quantised_module){.name = p->module,
                                     .experts = s->experts,
                                     .n = p->rows,
                                     .k = p->columns,
                                     .orientation = p->orientation,
                                     .first = true,
                                     .decides_order = true};
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

// ---- orientations ----

static bool has_dims(const struct expertd_tensor_view *view, uint64_t first, uint64_t second, uint64_t third) {
    return view->rank == 3 && view->shape[0] == first && view->shape[1] == second && view->shape[2] == third;
}

static FALLIBLE find_orientations(const struct stack *s, struct part *p) {
    const struct quantised_module module = module_of(s, p);
    char name[TENSOR_NAME_MAX];
    p->has_codes = quantised_exists(s->finder, p->module);
    if (p->has_codes) {
        return quantised_orientations(s->finder, &module, &p->fits);
    }
    TRY(expert_names_weight(s->finder, p->module, true, name));
    const struct safetensors_entry *entry = tensor_look(s->finder, name);
    p->fits.rows = entry && has_dims(&entry->view, s->experts, p->rows, p->columns);
    p->fits.transposed = entry && may_be_transposed(s) && has_dims(&entry->view, s->experts, p->columns, p->rows);
    return OK;
}

// Does the part's shape tell an orientation?
static bool tells(const struct part *p) {
    return p->fits.rows != p->fits.transposed;
}

// The parts of a layer are written alike, so that one tells the orientation of a square one.
static FALLIBLE choose_orientation(const struct stack *s, struct part *parts, size_t count) {
    const struct part *first = NULL;
    for (size_t i = 0; i < count; i++) {
        TRY(find_orientations(s, &parts[i]));
        if (s->layout->set->down_is_untransposed) {
            continue;
        }
        if (first && tells(&parts[i]) && parts[i].fits.rows != first->fits.rows) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s and %s of the same experts have different orientations: one of them is transposed",
                 checkpoint_path(s->finder->checkpoint), first->module, parts[i].module);
        }
        first = !first && tells(&parts[i]) ? &parts[i] : first;
    }
    for (size_t i = 0; i < count && first; i++) {
        bool any = parts[i].fits.rows || parts[i].fits.transposed; // else taking it refuses its shape
        parts[i].orientation = !any ? QUANTISED_ANY : first->fits.rows ? QUANTISED_ROWS : QUANTISED_TRANSPOSED;
    }
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
    struct part parts[2], *gate_up = &parts[0], *down = &parts[1];
    TRY(part_of(s, s->layout->set->gate_up, 2 * s->width, s->hidden, gate_up));
    TRY(part_of(s, s->layout->set->down, s->hidden, s->width, down));
    TRY(choose_orientation(s, parts, 2));
    TRY(gate_up->has_codes ? take_gate_up_quantised(s, gate_up) : take_gate_up_plain(s, gate_up));
    TRY(down->has_codes ? take_part_quantised(s, down, PART_DOWN) : take_part_plain(s, down, PART_DOWN));
    if (s->out->params.expert_has_bias) {
        TRY(take_gate_up_bias(s, gate_up));
        TRY(take_part_bias(s, down, PART_DOWN));
    }
    return OK;
}

static FALLIBLE take_part(const struct stack *s, const struct part *p, enum expert_part part) {
    bool rows_of_all;
    TRY(is_rows_of_all(s, p, &rows_of_all));
    TRY(p->has_codes ? take_part_quantised(s, p, part) : rows_of_all ? take_rows_of_all(s, p, part) : take_part_plain(s, p, part));
    return s->out->params.expert_has_bias ? take_part_bias(s, p, part) : OK;
}

static FALLIBLE take_separate(const struct stack *s) {
    const struct expert_name_set *set = s->layout->set;
    const char *const names[PART_COUNT] = {[PART_GATE] = set->gate, [PART_UP] = set->up, [PART_DOWN] = set->down};
    size_t begin = set->gate ? PART_GATE : PART_UP;
    struct part parts[PART_COUNT];
    for (size_t i = begin; i < PART_COUNT; i++) {
        bool down = i == PART_DOWN;
        TRY(part_of(s, names[i], down ? s->hidden : s->width, down ? s->width : s->hidden, &parts[i]));
    }
    TRY(choose_orientation(s, parts + begin, PART_COUNT - begin));
    for (size_t i = begin; i < PART_COUNT; i++) {
        TRY(take_part(s, &parts[i], (enum expert_part)i));
    }
    return OK;
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
    return layout->set->gate_up ? take_fused(&s) : take_separate(&s);
}
