// Runs build/bin/kernel_cases on the golden files, on every backend of this machine and on the scalar twin; then on deliberately
// wrong copies, which it must report.
#include "golden_case.h"

#include <stdio.h>
#include <unistd.h>

enum { OUTPUT_MAX = 8192, COMMAND_MAX = 1024 };

struct outcome {
    int status;
    char output[OUTPUT_MAX]; // both streams
};

static struct outcome cases(const char *arguments) {
    struct outcome outcome = {0};
    char command[COMMAND_MAX];
    snprintf(command, sizeof command, "%s %s 2>&1", KERNEL_CASES, arguments);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t length = fread(outcome.output, 1, sizeof outcome.output - 1, pipe);
    outcome.output[length] = '\0';
    outcome.status = WEXITSTATUS(pclose(pipe));
    return outcome;
}

static void expect_all_passed(const char *options) {
    char arguments[COMMAND_MAX];
    unsigned passed = 0, failed = 0;
    snprintf(arguments, sizeof arguments, "%s '%s/kernels'", options, GOLDENS);
    struct outcome outcome = cases(arguments);
    const char *last = strstr(outcome.output, " passed, ");
    while (last && last > outcome.output && last[-1] != '\n') {
        last--;
    }
    if (!last || sscanf(last, "%u passed, %u failed", &passed, &failed) != 2 || passed < 90 || failed || outcome.status) {
        fail_msg("%s: exit status %d\n%s", arguments, outcome.status, outcome.output);
    }
}

static void check_backend(const struct kernel_backend *backend) {
    char options[64];
    snprintf(options, sizeof options, "--kernels %s", backend->name);
    expect_all_passed(options);
}

static void goldens_hold_on_every_backend(void **state) {
    (void)state;
    for_each_backend(check_backend);
}

static void goldens_hold_on_the_scalar_twin(void **state) {
    (void)state;
    expect_all_passed("--interpret");
}

// A copy of a golden file, changed by `alter`.
struct copy {
    char path[64];
    uint8_t *bytes;
    size_t length;
    struct safetensors file; // over `bytes`
};

static void copy_golden(const char *name, struct copy *copy) {
    char path[COMMAND_MAX];
    snprintf(path, sizeof path, "%s/kernels/%s.safetensors", GOLDENS, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    copy->bytes = test_alloc(1 << 20);
    copy->length = fread(copy->bytes, 1, 1 << 20, file);
    fclose(file);
    assert_in_range(copy->length, 9, (1 << 20) - 1);
    assert_false(err_is(safetensors_parse(path, copy->bytes, copy->length, &copy->file)));
}

static uint8_t *tensor_bytes_in(struct copy *copy, const char *name) {
    const struct expertd_tensor_view *view = golden_tensor(&copy->file, name);
    assert_non_null(view);
    return copy->bytes + ((const uint8_t *)view->data - copy->bytes);
}

static void replace_text(struct copy *copy, const char *from, const char *to) {
    size_t length = strlen(from);
    assert_int_equal(length, strlen(to));
    uint8_t *at = memmem(copy->bytes, copy->length, from, length);
    assert_non_null(at);
    memcpy(at, to, length);
}

// Writes the copy and runs kernel_cases on it.
static struct outcome run_copy(struct copy *copy) {
    snprintf(copy->path, sizeof copy->path, "kernel_case_%d.safetensors", getpid());
    FILE *file = fopen(copy->path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(copy->bytes, 1, copy->length, file), copy->length);
    assert_int_equal(fclose(file), 0);
    struct outcome outcome = cases(copy->path);
    unlink(copy->path);
    safetensors_close(&copy->file);
    free(copy->bytes);
    return outcome;
}

// Expects one failure, whose line contains `text`.
static void expect_failure(struct copy *copy, const char *text) {
    struct outcome outcome = run_copy(copy);
    if (outcome.status != 1 || !strstr(outcome.output, text) || !strstr(outcome.output, "0 passed, 1 failed\n")) {
        fail_msg("expected \"%s\", got exit status %d\n%s", text, outcome.status, outcome.output);
    }
}

static void an_unknown_attribute_is_reported(void **state) {
    (void)state;
    struct copy copy;
    copy_golden("gmm-f32", &copy);
    replace_text(&copy, "\"source\"", "\"sourec\"");
    struct outcome outcome = run_copy(&copy);
    assert_int_equal(outcome.status, 0);
    assert_non_null(strstr(outcome.output, "nothing reads its attribute sourec"));
    assert_non_null(strstr(outcome.output, "1 passed, 0 failed\n"));
    outcome = cases("'" GOLDENS "/kernels'");
    assert_null(strstr(outcome.output, "nothing reads"));
}

static void wrong_value_is_reported_at_its_index(void **state) {
    (void)state;
    struct copy copy;
    copy_golden("gmm-f32", &copy);
    float *out = (float *)(void *)tensor_bytes_in(&copy, "out"), value;
    memcpy(&value, out + 13, sizeof value);
    value += 0.001f;
    memcpy(out + 13, &value, sizeof value);
    expect_failure(&copy, "out[13] is ");
    copy_golden("gmm-i8", &copy);
    tensor_bytes_in(&copy, "out")[4] ^= 1;
    expect_failure(&copy, "out[1] is ");
    copy_golden("tgmm-bf16-v2", &copy);
    memcpy(tensor_bytes_in(&copy, "out"), &(uint16_t){0x7fc0}, 2);
    expect_failure(&copy, "not nan");
    copy_golden("gemm-mxfp4", &copy);
    tensor_bytes_in(&copy, "out")[3] ^= 0x80;
    expect_failure(&copy, "out[1] is "); // BF16: the high byte of the second element
    copy_golden("metadata-1", &copy);
    tensor_bytes_in(&copy, "num_tiles")[0] ^= 1;
    expect_failure(&copy, "num_tiles[0] is 4");
}

static void wrong_inputs_are_reported(void **state) {
    (void)state;
    struct copy copy;
    copy_golden("gmm-f32", &copy);
    tensor_bytes_in(&copy, "lhs")[3] ^= 0x80;
    expect_failure(&copy, "out[");
    copy_golden("gemm-fp8-tensor", &copy);
    memset(tensor_bytes_in(&copy, "a_scale"), 0, 4);
    expect_failure(&copy, "out[");
}

static void wrong_expected_error_is_reported(void **state) {
    (void)state;
    struct copy copy;
    copy_golden("error-gmm-k", &copy);
    replace_text(&copy, "INVALID_ARGUMENT:rhs", "INVALID_ARGUMENT:lhs");
    expect_failure(&copy, "refused with INVALID");
    copy_golden("error-gmm-k", &copy);
    replace_text(&copy, "INVALID_ARGUMENT:rhs", "internal______error:");
    expect_failure(&copy, "it is INVALID_ARGUMENT:NAME");
    copy_golden("error-gmm-sum-above-m", &copy);
    memset(tensor_bytes_in(&copy, "group_sizes"), 0, 12);
    expect_failure(&copy, "accepted, but group_sizes is at fault");
}

static void damaged_cases_say_what_is_wrong(void **state) {
    (void)state;
    struct copy copy;
    copy_golden("gmm-f32", &copy);
    copy.length /= 2;
    expect_failure(&copy, "kernel_case_");
    copy_golden("gmm-f32", &copy);
    replace_text(&copy, "\"out\":", "\"oux\":");
    expect_failure(&copy, "expected tensor out is missing");
    copy_golden("gmm-f32", &copy);
    replace_text(&copy, "\"lhs\":", "\"lhx\":");
    expect_failure(&copy, "lhs is missing");
    copy_golden("gmm-f32", &copy);
    replace_text(&copy, "grouped_matmul", "grouped_mutmal");
    expect_failure(&copy, "there is no such operation");
    copy_golden("gmm-f32", &copy);
    replace_text(&copy, "\"atol\":", "\"ayol\":");
    expect_failure(&copy, "atol is missing");
}

static void usage_and_missing_paths_fail(void **state) {
    (void)state;
    assert_int_equal(cases("").status, 64);
    assert_int_equal(cases("--kernels no-such-set x").status, 78);
    struct outcome outcome = cases("/nowhere/at-all.safetensors");
    assert_int_equal(outcome.status, 1);
    assert_non_null(strstr(outcome.output, "0 passed, 1 failed\n"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goldens_hold_on_every_backend),        cmocka_unit_test(goldens_hold_on_the_scalar_twin),
        cmocka_unit_test(wrong_value_is_reported_at_its_index), cmocka_unit_test(wrong_inputs_are_reported),
        cmocka_unit_test(wrong_expected_error_is_reported),     cmocka_unit_test(damaged_cases_say_what_is_wrong),
        cmocka_unit_test(usage_and_missing_paths_fail),         cmocka_unit_test(an_unknown_attribute_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
