// The layout of the message that describes a batch to the first device. The message of every batch within the limits fits into the
// reserved size.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "expert/device/device_message.h"
#include "kernels/device/device_plan.h"

enum { PIECES = 8 };

// The addresses of the arrays, in order.
static void addresses_of(const struct device_message *m, const char *addresses[PIECES]) {
    const void *all[PIECES] = {m->ids,         m->weights,   m->choice_row, m->shared_tokens,
                               m->shared_rows, m->row_token, m->row_choice, m->tiles};
    for (size_t i = 0; i < PIECES; i++) {
        addresses[i] = all[i];
    }
}

static void every_piece_begins_where_the_one_before_it_ends(void **state) {
    (void)state;
    static const struct device_message_counts ALL[] = {
        {.choices = 8, .tokens = 1, .tiles = 8},
        {.choices = 8, .tokens = 1, .shared = 1, .weighed = 8, .tiles = 1},
        {.choices = 21, .tokens = 7, .shared = 3, .tiles = 5},
        {0},
    };
    for (size_t i = 0; i < sizeof ALL / sizeof *ALL; i++) {
        const struct device_message_counts *c = &ALL[i];
        size_t words[PIECES] = {c->choices, c->choices, c->choices, c->shared, c->tokens, c->choices, c->weighed, 5 * c->tiles};
        char memory[1024];
        const char *addresses[PIECES], *at = memory;
        struct device_message m = device_message_in(memory, c);
        addresses_of(&m, addresses);
        for (size_t p = 0; p < PIECES; p++) {
            assert_ptr_equal(addresses[p], at);
            at += words[p] * sizeof(uint32_t);
        }
        assert_int_equal(m.bytes, at - memory);
        assert_int_equal(device_message_in(NULL, c).bytes, m.bytes);
    }
}

static void no_offset_depends_on_the_number_of_tiles(void **state) {
    (void)state;
    char memory[1024];
    struct device_message_counts counts = {.choices = 8, .tokens = 2, .shared = 1, .weighed = 8};
    const char *before[PIECES], *after[PIECES];
    struct device_message m = device_message_in(memory, &counts);
    addresses_of(&m, before);
    counts.tiles = 9;
    m = device_message_in(memory, &counts);
    addresses_of(&m, after);
    assert_memory_equal(before, after, sizeof before);
}

static void a_batch_at_its_limits_fits(void **state) {
    (void)state;
    enum { TOKENS = 33, CHOICES = TOKENS * 4, EXPERTS = 8 };
    struct layer_limits limits = {.max_tokens = TOKENS, .max_top_k = 4, .max_choices = CHOICES};
    for (int weighs = 0; weighs < 2; weighs++) {
        struct model_layer layer = {.params = {.weights_on_input = weighs}};
        struct model model = {.layers = &layer, .num_layers = 1, .max_experts = EXPERTS, .ranks = 1};
        size_t reserved = device_message_max(NULL, &model, &limits).bytes;
        struct device_message_counts counts = {
            .choices = CHOICES, .tokens = TOKENS, .shared = TOKENS, .weighed = weighs ? CHOICES : 0};
        int32_t sizes[EXPERTS];
        for (size_t e = 0; e < EXPERTS; e++) { // the largest number of tiles: each expert's last tile has one row
            sizes[e] = e + 1 < EXPERTS ? DEVICE_TILE_ROWS_LEAST + 1 : CHOICES - (EXPERTS - 1) * (DEVICE_TILE_ROWS_LEAST + 1);
        }
        struct expertd_device_tile tiles[CHOICES];
        counts.tiles = device_cut_tiles(sizes, EXPERTS, 0, DEVICE_TILE_ROWS_LEAST, tiles);
        assert_true(counts.tiles > EXPERTS);
        assert_true(device_message_in(NULL, &counts).bytes <= reserved);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_piece_begins_where_the_one_before_it_ends),
        cmocka_unit_test(no_offset_depends_on_the_number_of_tiles),
        cmocka_unit_test(a_batch_at_its_limits_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
