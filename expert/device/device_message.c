#include "expert/device/device_message.h"

#include <assert.h>

#include "expert/layer/layer_sizes.h"
#include "kernels/device/device_plan.h"

static void *piece(void *memory, struct device_message *m, size_t bytes) {
    void *at = memory ? (char *)memory + m->bytes : NULL;
    m->bytes += bytes;
    return at;
}

struct device_message device_message_in(void *memory, const struct device_message_counts *counts) {
    static_assert(_Alignof(struct expertd_device_tile) == sizeof(uint32_t),
                  "every array consists of 4-byte words, so none needs padding");
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

// Each group's last tile may be partly empty; a group without rows has no tile. write_token_tiles needs space for the tiles over
// all tokens as one group.
size_t device_message_tiles(const struct layer_limits *limits, const struct model *model) {
    size_t groups = (size_t)model->max_experts * model->ranks,
           tokens = device_tiles_over(limits->max_tokens, DEVICE_TILE_ROWS_LEAST);
    size_t most = device_tiles_over(limits->max_choices, DEVICE_TILE_ROWS_LEAST) +
                  (groups < limits->max_choices ? groups : limits->max_choices);
    return most > tokens ? most : tokens;
}

struct device_message device_message_max(void *memory, const struct model *model, const struct layer_limits *limits) {
    struct layer_sizes sizes = layer_sizes_of(model);
    struct device_message_counts most = {
        .choices = limits->max_choices,
        .tokens = limits->max_tokens,
        .shared = limits->max_tokens,
        .weighed = sizes.weights_on_input ? limits->max_choices : 0,
        .tiles = device_message_tiles(limits, model),
    };
    return device_message_in(memory, &most);
}
