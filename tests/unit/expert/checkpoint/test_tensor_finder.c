// Taking tensors out of a checkpoint.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "expert/checkpoint/tensor_finder.h"
#include "tests/unit/expert/checkpoint/checkpoint_builder.h"

static char folder[64];

static int begin(void **state) {
    (void)state;
    struct builder builder = {.count = 0};
    strcpy(folder, "/tmp/expertd-finder-XXXXXX");
    if (!mkdtemp(folder)) {
        return -1;
    }
    builder_add(&builder, "vector", EXPERTD_DTYPE_F32, 1, 1, 2);
    builder_add(&builder, "table", EXPERTD_DTYPE_I64, 0, 2, 5, 2);
    builder_write_text(folder, "config.json", "{}");
    builder_write(&builder, 0, builder.count, folder, "model.safetensors");
    builder_clear(&builder);
    return 0;
}

static int end(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static void each_tensor_that_is_taken_counts_once(void **state) {
    (void)state;
    struct checkpoint *checkpoint;
    struct tensor_finder finder;
    const struct safetensors_entry *entry;
    const struct tensor_shape shape = {1, {2}};
    assert_false(err_is(checkpoint_open(folder, &checkpoint)));
    assert_false(err_is(tensor_finder_init(&finder, checkpoint)));
    assert_false(err_is(tensor_take_table(&finder, "table", 2, &entry)));
    assert_int_equal(finder.bytes, 5 * 2 * sizeof(int64_t));
    assert_true(tensor_is_taken(&finder, entry));
    for (int i = 0; i < 2; i++) {
        assert_false(err_is(tensor_take(&finder, "vector", &shape, &entry)));
        assert_int_equal(finder.bytes, 5 * 2 * sizeof(int64_t) + 2 * sizeof(float));
    }
    tensor_finder_deinit(&finder);
    checkpoint_close(checkpoint);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_tensor_that_is_taken_counts_once, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
