// The cases of gemm_corners.h in the scalar twin and on every backend. test_cuda_operations.c runs them on a device.
#include "gemm_corners.h"

static struct corner_run run;
static uint32_t out[CORNER_ROWS_MAX * CORNER_COLUMNS];

static void multiply(const struct gemm_corner *corner, const char *by, bool twin) {
    void *workspace = test_alloc(expertd_grouped_gemm_workspace_bytes(&run.args, NULL));
    memset(out, 0xff, sizeof out);
    err_t e = twin ? expertd_grouped_gemm_reference(&run.args) : expertd_grouped_gemm(&run.args, NULL, workspace);
    if (err_is(e)) {
        fail_msg("refused: %s", expertd_err_message());
    }
    corner_expect(corner, &run, out, by);
    free(workspace);
}

static void check_backend(const struct kernel_backend *backend) {
    static const size_t ROWS[] = {1, CORNER_ROWS_MAX}; // small and large m
    assert_false(err_is(expertd_kernel_select(backend->name)));
    for (size_t i = 0; i < COUNT_OF(CORNERS); i++) {
        for (size_t r = 0; r < COUNT_OF(ROWS); r++) {
            corner_fill(&CORNERS[i], ROWS[r], &run);
            run.args.out = out;
            if (ROWS[r] == 1) { // the twin computes element by element, so one row is enough
                multiply(&CORNERS[i], "the scalar twin", true);
            }
            multiply(&CORNERS[i], backend->name, false);
        }
    }
}

static void corners_have_their_answers_on_every_backend(void **state) {
    (void)state;
    for_each_backend(check_backend);
}

static void check_scaled(const struct kernel_backend *backend) {
    static const size_t ROWS[] = {1, CORNER_ROWS_MAX};
    assert_false(err_is(expertd_kernel_select(backend->name)));
    for (size_t i = 0; i < COUNT_OF(SCALED_CORNERS); i++) {
        for (size_t r = 0; r < COUNT_OF(ROWS); r++) {
            corner_fill_scaled(&SCALED_CORNERS[i], ROWS[r], &run);
            run.args.out = out;
            if (ROWS[r] == 1) {
                multiply(&SCALED_CORNERS[i].of, "the scalar twin", true);
            }
            multiply(&SCALED_CORNERS[i].of, backend->name, false);
        }
    }
}

static void scales_whose_product_is_out_of_range_are_applied_one_by_one(void **state) {
    (void)state;
    for_each_backend(check_scaled);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(corners_have_their_answers_on_every_backend),
        cmocka_unit_test(scales_whose_product_is_out_of_range_are_applied_one_by_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
