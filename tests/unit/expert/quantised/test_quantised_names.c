// Suffixes of a module's tensors in the spellings that quantisers use.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "expert/quantised/quantised_names.h"

static void a_suffix_is_known_in_each_spelling(void **state) {
    (void)state;
    static const char *const SAME[][2] = {
        {"", ".weight"},
        {".weight", ".weight"},
        {"_weight", ".weight"},
        {".weight_scale_inv", ".weight_scale"},
        {"_scale_inv", ".weight_scale"},
        {"_scale", ".weight_scale"},
        {".scale", ".weight_scale"},
        {"_weight_scale", ".weight_scale"},
        {"_weight_scale_2", ".weight_scale_2"},
        {"_packed", ".weight_packed"},
        {"_blocks", ".blocks"},
        {"_scales", ".scales"},
        {".weight.absmax", ".weight.absmax"},
    };
    for (size_t i = 0; i < sizeof SAME / sizeof *SAME; i++) {
        assert_true(quantised_is_suffix(SAME[i][0], SAME[i][1]));
    }
}

static void other_names_are_no_suffix(void **state) {
    (void)state;
    static const char *const OTHER[][2] = {
        {".", ".weight"},
        {"_", ".weight"},
        {"weight", ".weight"},
        {"0.weight", ".weight"},
        {".weights", ".weight"},
        {".weight_scale_2", ".weight_scale"},
        {".scales", ".weight_scale"},
        {".weight_scale", ".scales"},
        {"", ".weight_packed"},
        {".global_scale", ".weight_scale"},
        {".input_scale", ".weight_scale"},
    };
    for (size_t i = 0; i < sizeof OTHER / sizeof *OTHER; i++) {
        assert_false(quantised_is_suffix(OTHER[i][0], OTHER[i][1]));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_suffix_is_known_in_each_spelling),
        cmocka_unit_test(other_names_are_no_suffix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
