#include "expert/layout/zero_points.h"

// And nothing in config.json says so: overrides may make single modules symmetric or asymmetric.
static bool only_zero_points_differ(const struct quantised_matrix *a, const struct quantised_matrix *b) {
    const struct quantised_matrix *without = a->format.zero_points ? b : a;
    struct quantised_matrix likewise = *a;
    likewise.format.zero_points = b->format.zero_points;
    return a->format.zero_points != b->format.zero_points && quantised_same_format(&likewise, b) && !without->is_symmetric;
}

static const char *const PART_NAMES[PART_COUNT] = {"gate", "up", "down"};

enum { SEEN_MAX = 32 }; // more formats than a layer has

// One matrix in each format of a layer's gate and up, or of its down.
struct seen_formats {
    struct {
        uint32_t expert;
        int part;
        const struct quantised_matrix *matrix;
    } all[SEEN_MAX];
    size_t count;
};

static FALLIBLE check_matrix(const char *path, const struct layer_tensors *layer, uint32_t expert, int part,
                             struct seen_formats *seen) {
    const struct quantised_matrix *matrix = &layer->experts[expert].quantised[part];
    for (size_t i = 0; i < seen->count; i++) {
        const struct quantised_matrix *other = seen->all[i].matrix;
        if (quantised_same_format(matrix, other)) {
            return OK;
        }
        if (only_zero_points_differ(matrix, other)) {
            char texts[2][QUANTISED_NAME_MAX];
            FAIL(EXPERTD_ERR_CHECKPOINT,
                 "%s: %s: expert %u's %s is %s, but expert %u's %s is %s: only one of them has zero points: is a tensor missing?",
                 path, layer->prefix, expert, PART_NAMES[part], quantised_name(matrix, texts[0]), seen->all[i].expert,
                 PART_NAMES[seen->all[i].part], quantised_name(other, texts[1]));
        }
    }
    if (seen->count < SEEN_MAX) {
        seen->all[seen->count].expert = expert;
        seen->all[seen->count].part = part;
        seen->all[seen->count++].matrix = matrix;
    }
    return OK;
}

FALLIBLE zero_points_check(const char *path, const struct layer_tensors *layer) {
    struct seen_formats gate_up = {.count = 0}, down = {.count = 0};
    for (uint32_t e = 0; e < layer->params.num_experts; e++) {
        for (int part = 0; part < PART_COUNT; part++) {
            if (layer->experts[e].quantised[part].codes.data) {
                TRY(check_matrix(path, layer, e, part, part == PART_DOWN ? &down : &gate_up));
            }
        }
    }
    return OK;
}

FALLIBLE zero_points_check_shared(const char *path, const char *name, const struct expert_source *shared) {
    const struct quantised_matrix *gate = &shared->quantised[PART_GATE], *up = &shared->quantised[PART_UP];
    char texts[2][QUANTISED_NAME_MAX];
    if (gate->codes.data && up->codes.data && only_zero_points_differ(gate, up)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s: gate is %s, but up is %s: only one of them has zero points: is a tensor missing?",
             path, name, quantised_name(gate, texts[0]), quantised_name(up, texts[1]));
    }
    return OK;
}
