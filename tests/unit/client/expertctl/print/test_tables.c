// expertctl's tables: groups of equal layers, aligned columns.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/expertctl/print/layer_ranges.h"
#include "client/expertctl/print/table.h"

static struct describe_layer layer(uint32_t number, uint32_t top_k) {
    return (struct describe_layer){.layer = number,
                                   .weights_id = 100 + number,
                                   .hidden_size = 64,
                                   .num_experts = 8,
                                   .top_k = top_k,
                                   .quantisation = "",
                                   .numerics_id = "1/bf16/cpu",
                                   .ready = true};
}

// The ranges of `layers` as "1-2 4".
static const char *ranges_of(const struct describe_layer *layers, size_t count) {
    static char text[256];
    size_t used = 0;
    text[0] = '\0';
    for (size_t at = 0; at < count;) {
        struct layer_range range = layer_range_next(layers, count, at);
        char one[LAYER_RANGE_TEXT_MAX];
        assert_true(range.count >= 1 && range.first == &layers[at]);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", at ? " " : "", layer_range_text(&range, one));
        at += range.count;
    }
    return text;
}

static void equal_layers_become_one_range_whatever_their_weights(void **state) {
    (void)state;
    struct describe_layer layers[] = {layer(1, 2), layer(2, 2), layer(3, 2)};
    assert_string_equal(ranges_of(layers, 3), "1-3");
    assert_string_equal(ranges_of(layers, 1), "1");
    assert_string_equal(ranges_of(layers, 0), "");
}

static void a_gap_in_the_numbers_ends_a_range(void **state) {
    (void)state;
    struct describe_layer layers[] = {layer(1, 2), layer(2, 2), layer(4, 2), layer(6, 2), layer(7, 2)};
    assert_string_equal(ranges_of(layers, 5), "1-2 4 6-7");
}

static void every_shown_difference_ends_a_range(void **state) {
    (void)state;
    struct describe_layer base = layer(2, 2);
    struct describe_layer changed[10];
    for (size_t i = 0; i < 10; i++) {
        changed[i] = base;
    }
    changed[0].top_k = 3;
    changed[1].hidden_size = 128;
    changed[2].num_experts = 16;
    changed[3].has_shared_experts = true;
    changed[4].weight_dtype = EXPERTD_DTYPE_BF16;
    changed[5].quantisation = "mxfp4";
    changed[6].numerics_id = "1/f32/cpu";
    changed[7].ready = false;
    changed[8].has_router = true;
    changed[9].num_zero_experts = 1;
    for (size_t i = 0; i < 10; i++) {
        struct describe_layer layers[] = {layer(1, 2), changed[i]};
        assert_string_equal(ranges_of(layers, 2), "1 2");
    }
}

static void texts_that_are_missing_equal_empty_ones(void **state) {
    (void)state;
    struct describe_layer layers[] = {layer(1, 2), layer(2, 2)};
    layers[1].quantisation = NULL;
    assert_string_equal(ranges_of(layers, 2), "1-2");
}

static void a_range_shows_its_prefix_with_a_star_for_the_number(void **state) {
    (void)state;
    struct describe_layer layers[] = {layer(1, 2), layer(2, 2), layer(3, 2)};
    layers[0].prefix = "model.layers.1.mlp.experts";
    layers[1].prefix = "model.layers.2.mlp.experts";
    layers[2].prefix = "model.layers.3.block_sparse_moe.experts";
    char text[LAYER_PREFIX_TEXT_MAX];
    struct layer_range two = layer_range_next(layers, 3, 0), one = layer_range_next(layers, 3, 2);
    assert_int_equal(two.count, 2); // another prefix is another row
    assert_string_equal(layer_range_prefix(&two, text), "model.layers.*.mlp.experts");
    assert_string_equal(layer_range_prefix(&one, text), "model.layers.3.block_sparse_moe.experts");
}

static char *printed(const struct table *table) {
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    assert_non_null(stream);
    table_print(table, stream);
    fclose(stream);
    return text;
}

static void tables_align_their_columns(void **state) {
    (void)state;
    static const char *const NAMES[] = {"NAME", "N", "LAST", NULL};
    struct table table;
    table_init(&table, NAMES, 1u << 1);
    assert_false(err_is(table_row(&table)));
    assert_false(err_is(table_cell(&table, 0, "%s", "longer name")));
    assert_false(err_is(table_cell(&table, 1, "%d", 1)));
    assert_false(err_is(table_cell(&table, 2, "x")));
    assert_false(err_is(table_row(&table)));
    assert_false(err_is(table_cell(&table, 1, "%d", 12345)));
    char *text = printed(&table);
    assert_string_equal(text, "NAME             N  LAST\n"
                              "longer name      1  x\n"
                              "             12345  \n");
    free(text);
    table_deinit(&table);
}

static void tables_show_no_control_bytes(void **state) {
    (void)state;
    static const char *const NAMES[] = {"A", NULL};
    struct table table;
    table_init(&table, NAMES, 0);
    for (int i = 0; i < 40; i++) { // more than the first allocation
        assert_false(err_is(table_row(&table)));
        assert_false(err_is(table_cell(&table, 0, "%s", "a\x1b[31m\nb\xc2\x9b\xc3\xa9")));
    }
    char *text = printed(&table);
    assert_null(strchr(text, '\x1b'));
    assert_non_null(strstr(text, "a?[31m?b??\xc3\xa9\n"));
    free(text);
    table_deinit(&table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_layers_become_one_range_whatever_their_weights),
        cmocka_unit_test(a_gap_in_the_numbers_ends_a_range),
        cmocka_unit_test(every_shown_difference_ends_a_range),
        cmocka_unit_test(texts_that_are_missing_equal_empty_ones),
        cmocka_unit_test(a_range_shows_its_prefix_with_a_star_for_the_number),
        cmocka_unit_test(tables_align_their_columns),
        cmocka_unit_test(tables_show_no_control_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
