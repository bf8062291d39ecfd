// Tensors named on the command line.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/expertctl/tensor_file.h"

static char folder[] = "/tmp/expertd-tensor.XXXXXX";

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

static const char *in_folder(const char *name) {
    static char paths[4][128];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void assert_refused(err_t e, enum err_code code, const char *cause) {
    assert_int_equal(e.code, code);
    if (!strstr(err_message(), cause)) {
        fail_msg("'%s' does not speak of '%s'", err_message(), cause);
    }
}

static const float VALUES[4] = {1, 2, 3, 4};
static const struct tensor_view F32_2X2 = {.dtype = DTYPE_F32, .rank = 2, .shape = {2, 2}, .data = VALUES, .bytes = sizeof VALUES};

static void names_are_split_at_the_files_ending(void **state) {
    (void)state;
    char *path;
    const char *tensor;
    assert_false(err_is(tensor_file_split("a:b/x.safetensors:layers.0:input", &path, &tensor)));
    assert_string_equal(path, "a:b/x.safetensors");
    assert_string_equal(tensor, "layers.0:input");
    free(path);
    assert_false(err_is(tensor_file_split("x.safetensors", &path, &tensor)));
    assert_null(tensor);
    free(path);
    assert_false(err_is(tensor_file_split("a:b.npy", &path, &tensor)));
    assert_string_equal(path, "a:b.npy");
    free(path);
    assert_refused(tensor_file_split("x.npy:y", &path, &tensor), ERR_USAGE, "one tensor");
    assert_refused(tensor_file_split("x.bin", &path, &tensor), ERR_USAGE, "*.npy or *.safetensors");
    assert_refused(tensor_file_split("x.safetensors:", &path, &tensor), ERR_USAGE, "name is missing");
    assert_refused(tensor_file_split(".npy", &path, &tensor), ERR_USAGE, "*.npy or *.safetensors");
}

static void a_saved_tensor_opens_again(void **state) {
    (void)state;
    static const char *const SPECS[] = {"a.npy", "a.safetensors", "a.safetensors:x"};
    for (size_t i = 0; i < 3; i++) {
        struct tensor_file file;
        const char *spec = in_folder(SPECS[i]);
        assert_false(err_is(tensor_file_save(spec, &F32_2X2)));
        assert_false(err_is(tensor_file_open(spec, DTYPE_NONE, &file)));
        assert_int_equal(file.view.dtype, DTYPE_F32);
        assert_memory_equal(file.view.data, VALUES, sizeof VALUES);
        unlink(file.path);
        tensor_file_close(&file);
    }
}

static void a_missing_tensor_is_answered_with_those_that_are_there(void **state) {
    (void)state;
    const char *path = in_folder("two.safetensors");
    struct safetensors_entry entries[] = {{"first", F32_2X2}, {"second", F32_2X2}};
    struct tensor_file file;
    assert_false(err_is(safetensors_write(path, entries, 2)));
    assert_refused(tensor_file_open(path, DTYPE_NONE, &file), ERR_CHECKPOINT, "first, second");
    assert_refused(tensor_file_open(in_folder("two.safetensors:third"), DTYPE_NONE, &file), ERR_CHECKPOINT, "no tensor third");
    assert_false(err_is(tensor_file_open(in_folder("two.safetensors:second"), DTYPE_NONE, &file)));
    tensor_file_close(&file);
    unlink(path);
}

static void words_are_relabelled_and_nothing_is_converted(void **state) {
    (void)state;
    const uint16_t bits[4] = {0x3f80, 0, 0, 0};
    struct tensor_view words = {.dtype = DTYPE_BF16, .rank = 2, .shape = {2, 2}, .data = bits, .bytes = sizeof bits};
    const char *path = in_folder("w.npy");
    struct tensor_file file;
    assert_false(err_is(tensor_file_save(path, &words)));
    assert_refused(tensor_file_open(path, DTYPE_NONE, &file), ERR_CHECKPOINT, "--hidden-dtype bf16");
    assert_refused(tensor_file_open(path, DTYPE_F32, &file), ERR_CHECKPOINT, "converts nothing");
    assert_false(err_is(tensor_file_open(path, DTYPE_BF16, &file)));
    assert_int_equal(file.view.dtype, DTYPE_BF16);
    tensor_file_close(&file);
    assert_false(err_is(tensor_file_save(path, &F32_2X2)));
    assert_refused(tensor_file_open(path, DTYPE_BF16, &file), ERR_CHECKPOINT, "converts nothing");
    assert_false(err_is(tensor_file_open(path, DTYPE_F32, &file)));
    tensor_file_close(&file);
    unlink(path);
}

static void types_that_the_wire_lacks_are_refused_with_the_mend(void **state) {
    (void)state;
    const double zeros[2] = {0, 0};
    struct tensor_view doubles = {.dtype = DTYPE_F64, .rank = 1, .shape = {2}, .data = zeros, .bytes = sizeof zeros};
    const char *path = in_folder("d.npy");
    struct tensor_file file;
    assert_false(err_is(tensor_file_save(path, &doubles)));
    assert_refused(tensor_file_open(path, DTYPE_NONE, &file), ERR_CHECKPOINT, "astype(np.float32)");
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_split_at_the_files_ending),
        cmocka_unit_test(a_saved_tensor_opens_again),
        cmocka_unit_test(a_missing_tensor_is_answered_with_those_that_are_there),
        cmocka_unit_test(words_are_relabelled_and_nothing_is_converted),
        cmocka_unit_test(types_that_the_wire_lacks_are_refused_with_the_mend),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
