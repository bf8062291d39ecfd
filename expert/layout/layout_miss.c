#include "expert/layout/layout_miss.h"

#include <stdio.h>
#include <string.h>

#include "expert/quantised/quantised_tensors.h"
#include "expertd/base/tensor.h"

enum { KINDS_MAX = 6, KIND_NAME_MAX = 128 };

// Tensors whose names differ in numbers only.
struct kind {
    char name[KIND_NAME_MAX];
    const struct safetensors_entry *first;
    size_t count;
};

// Components by which a tensor outside the known modules is recognised as an expert's.
static const char *const LIKE_EXPERTS[] = {"expert", "switch_", "moe"};

static bool looks_like_expert(const char *name) {
    for (size_t i = 0; i < sizeof LIKE_EXPERTS / sizeof *LIKE_EXPERTS; i++) {
        if (strstr(name, LIKE_EXPERTS[i])) {
            return true;
        }
    }
    return false;
}

// Copies the name with each number that is a component of its own replaced by N.
static void replace_numbers(const char *name, char out[KIND_NAME_MAX]) {
    size_t used = 0;
    for (const char *at = name; *at && used < KIND_NAME_MAX - 1;) {
        size_t digits = at == name || at[-1] == '.' ? strspn(at, "0123456789") : 0;
        bool number = digits > 0 && (at[digits] == '.' || at[digits] == '\0');
        out[used++] = number ? 'N' : *at;
        at += number ? digits : 1;
    }
    out[used] = '\0';
}

// Returns false if there are more kinds than the table holds.
static bool count_kind(struct kind kinds[KINDS_MAX], const struct safetensors_entry *entry) {
    char name[KIND_NAME_MAX];
    replace_numbers(entry->name, name);
    for (size_t i = 0; i < KINDS_MAX; i++) {
        if (kinds[i].count == 0) {
            kinds[i].first = entry;
            memcpy(kinds[i].name, name, sizeof name);
        }
        if (strcmp(kinds[i].name, name) == 0) {
            kinds[i].count++;
            return true;
        }
    }
    return false;
}

static bool begins_with(const char *name, const char *start) {
    return strncmp(name, start, strlen(start)) == 0;
}

const char *layout_tensors_text(const struct checkpoint *checkpoint, const char *below, const char *except,
                                char text[LAYOUT_TENSORS_TEXT_MAX]) {
    struct kind kinds[KINDS_MAX] = {{.count = 0}};
    char shape[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
    size_t count = checkpoint_count(checkpoint), others = 0, used = 0;
    for (size_t i = below ? checkpoint_lower_bound(checkpoint, below) : 0; i < count; i++) {
        const struct safetensors_entry *entry = checkpoint_at(checkpoint, i);
        if (below && !begins_with(entry->name, below)) {
            break;
        }
        if ((below || looks_like_expert(entry->name)) && !(except && begins_with(entry->name, except))) {
            others += !count_kind(kinds, entry);
        }
    }
    snprintf(text, LAYOUT_TENSORS_TEXT_MAX, "nothing");
    for (size_t i = 0; i < KINDS_MAX && kinds[i].count > 0 && used < LAYOUT_TENSORS_TEXT_MAX; i++) {
        const struct expertd_tensor_view *view = &kinds[i].first->view;
        const char *dtype = view->dtype == EXPERTD_DTYPE_NONE ? "of another dtype" : expertd_dtype_name(view->dtype);
        used += (size_t)snprintf(text + used, LAYOUT_TENSORS_TEXT_MAX - used, "%s%zu x %s %s %s", i ? "; " : "", kinds[i].count,
                                 kinds[i].name, dtype, expertd_tensor_shape_text(view->shape, view->rank, shape));
    }
    if (others > 0 && used < LAYOUT_TENSORS_TEXT_MAX) {
        snprintf(text + used, LAYOUT_TENSORS_TEXT_MAX - used, "; and %zu others", others);
    }
    return text;
}

bool layout_has_like_experts(const struct checkpoint *checkpoint) {
    for (size_t i = 0; i < checkpoint_count(checkpoint); i++) {
        if (looks_like_expert(checkpoint_at(checkpoint, i)->name)) {
            return true;
        }
    }
    return false;
}

err_t layout_miss(const struct checkpoint *checkpoint, const char *module, bool gated) {
    char below[KIND_NAME_MAX * 2], text[LAYOUT_TENSORS_TEXT_MAX];
    snprintf(below, sizeof below, "a matrix of the experts of %s", module);
    TRY(checkpoint_require_parts(checkpoint, below));
    snprintf(below, sizeof below, "%s.", module);
    TRY(quantised_refuse_foreign(checkpoint, below));
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL,
                      "%s: the layout of the experts in %s is not known: it holds %s. Known are, per expert (N.), stacked or with "
                      "the number last: %s",
                      checkpoint_path(checkpoint), module, layout_tensors_text(checkpoint, below, NULL, text),
                      gated ? "gate_proj up_proj down_proj, w1 w3 w2, w1 v1 w2, gate_up_proj down_proj, fc1 fc2, input_linear "
                              "output_linear"
                            : "up_proj down_proj, fc1 fc2 (experts without a gate)");
}
