#include "expert/device/device_message.h"

#include <assert.h>

#include "expert/device/device_engine.h"

static void *piece(void *memory, struct device_message *m, size_t bytes) {
    void *at = memory ? (char *)memory + m->bytes : NULL;
    m->bytes += bytes;
    return at;
}

struct device_message device_message_in(void *memory, const struct device_message_counts *counts) {
    static_assert(_Alignof(struct expertd_device_tile) == sizeof(uint32_t), "all of it is words, and nothing needs to be aligned");
    struct device_message m = {0};
    m.ids = piece(memory, &m, counts->choices * sizeof *m.ids);
    m.weights = piece(memory, &m, counts->choices * sizeof *m.weights);
    m.choice_row = piece(memory, &m, counts->choices * sizeof *m.choice_row);
    m.shared_tokens = piece(memory, &m, counts->shared * sizeof *m.shared_tokens);
    m.shared_rows = piece(memory, &m, counts->tokens * sizeof *m.shared_rows);
    m.row_token = piece(memory, &m, counts->choices * sizeof *m.row_token);
    m.row_choice = piece(memory, &m, counts->weighed * sizeof *m.row_choice);
    m.tiles = piece(memory, &m, counts->tiles * sizeof *m.tiles);
    return m;
}

struct device_message device_message_most(void *memory, const struct model *model, const struct layer_limits *limits) {
    struct device_scratch_needs needs = device_scratch_needs_of(model, limits);
    struct device_message_counts most = {
        .choices = limits->max_choices,
        .tokens = limits->max_tokens,
        .shared = limits->max_tokens,
        .weighed = needs.weighs_inputs ? limits->max_choices : 0,
        .tiles = device_engine_tiles(limits, model),
    };
    return device_message_in(memory, &most);
}
