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

#include "client/expertctl/files/tensor_file.h"

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

static void assert_refused(err_t e, enum expertd_err_code code, const char *cause) {
    assert_int_equal(e.code, code);
    if (!strstr(expertd_err_message(), cause)) {
        fail_msg("'%s' does not mention '%s'", expertd_err_message(), cause);
    }
}

static const float VALUES[4] = {1, 2, 3, 4};
static const struct expertd_tensor_view F32_2X2 = {
    .dtype = EXPERTD_DTYPE_F32, .rank = 2, .shape = {2, 2}, .data = VALUES, .bytes = sizeof VALUES};

static void names_are_split_after_the_extension(void **state) {
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
    assert_refused(tensor_file_split("x.npy:y", &path, &tensor), EXPERTD_ERR_USAGE, "one tensor");
    assert_refused(tensor_file_split("x.bin", &path, &tensor), EXPERTD_ERR_USAGE, "*.npy or *.safetensors");
    assert_refused(tensor_file_split("x.safetensors:", &path, &tensor), EXPERTD_ERR_USAGE, "name is missing");
    assert_refused(tensor_file_split(".npy", &path, &tensor), EXPERTD_ERR_USAGE, "*.npy or *.safetensors");
}

static void a_saved_tensor_opens_again(void **state) {
    (void)state;
    static const char *const SPECS[] = {"a.npy", "a.safetensors", "a.safetensors:x"};
    for (size_t i = 0; i < 3; i++) {
        struct tensor_file file;
        const char *spec = in_folder(SPECS[i]);
        assert_false(err_is(tensor_file_save(spec, &F32_2X2)));
        assert_false(err_is(tensor_file_open(spec, EXPERTD_DTYPE_NONE, &file)));
        assert_int_equal(file.view.dtype, EXPERTD_DTYPE_F32);
        assert_memory_equal(file.view.data, VALUES, sizeof VALUES);
        unlink(file.path);
        tensor_file_close(&file);
    }
}

static void a_missing_tensor_lists_the_existing_ones(void **state) {
    (void)state;
    const char *path = in_folder("two.safetensors");
    struct safetensors_entry entries[] = {{.name = "first", .view = F32_2X2}, {.name = "second", .view = F32_2X2}};
    struct tensor_file file;
    assert_false(err_is(safetensors_write(path, entries, 2)));
    assert_refused(tensor_file_open(path, EXPERTD_DTYPE_NONE, &file), EXPERTD_ERR_CHECKPOINT, "first, second");
    assert_refused(tensor_file_open(in_folder("two.safetensors:third"), EXPERTD_DTYPE_NONE, &file), EXPERTD_ERR_CHECKPOINT,
                   "no tensor third");
    assert_false(err_is(tensor_file_open(in_folder("two.safetensors:second"), EXPERTD_DTYPE_NONE, &file)));
    tensor_file_close(&file);
    unlink(path);
}

static void bits_get_the_named_dtype_and_are_not_converted(void **state) {
    (void)state;
    const uint16_t bits[4] = {0x3f80, 0, 0, 0};
    struct expertd_tensor_view words = {
        .dtype = EXPERTD_DTYPE_BF16, .rank = 2, .shape = {2, 2}, .data = bits, .bytes = sizeof bits};
    const char *path = in_folder("w.npy");
    struct tensor_file file;
    assert_false(err_is(tensor_file_save(path, &words)));
    assert_refused(tensor_file_open(path, EXPERTD_DTYPE_NONE, &file), EXPERTD_ERR_CHECKPOINT, "--hidden-dtype bf16");
    assert_refused(tensor_file_open(path, EXPERTD_DTYPE_F32, &file), EXPERTD_ERR_CHECKPOINT, "converts nothing");
    assert_false(err_is(tensor_file_open(path, EXPERTD_DTYPE_BF16, &file)));
    assert_int_equal(file.view.dtype, EXPERTD_DTYPE_BF16);
    tensor_file_close(&file);
    assert_false(err_is(tensor_file_save(path, &F32_2X2)));
    assert_refused(tensor_file_open(path, EXPERTD_DTYPE_BF16, &file), EXPERTD_ERR_CHECKPOINT, "converts nothing");
    assert_false(err_is(tensor_file_open(path, EXPERTD_DTYPE_F32, &file)));
    tensor_file_close(&file);
    unlink(path);
}

static void unsupported_dtypes_are_refused_with_the_remedy(void **state) {
    (void)state;
    const double zeros[2] = {0, 0};
    struct expertd_tensor_view doubles = {
        .dtype = EXPERTD_DTYPE_F64, .rank = 1, .shape = {2}, .data = zeros, .bytes = sizeof zeros};
    const char *path = in_folder("d.npy");
    struct tensor_file file;
    assert_false(err_is(tensor_file_save(path, &doubles)));
    assert_refused(tensor_file_open(path, EXPERTD_DTYPE_NONE, &file), EXPERTD_ERR_CHECKPOINT, "astype(np.float32)");
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_split_after_the_extension),
        cmocka_unit_test(a_saved_tensor_opens_again),
        cmocka_unit_test(a_missing_tensor_lists_the_existing_ones),
        cmocka_unit_test(bits_get_the_named_dtype_and_are_not_converted),
        cmocka_unit_test(unsupported_dtypes_are_refused_with_the_remedy),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
