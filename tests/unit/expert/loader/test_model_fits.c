// Memory limits of a load: a model that does not fit is refused before anything is allocated; the error names the layers that would
// fit.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "expert/loader/model_load.h"

static void load_tiny(struct model *out) {
    struct model_options options = {.model = "synthetic:tiny", .compute_dtype = EXPERTD_DTYPE_BF16, .ranks = 1};
    assert_false(err_is(model_load(&options, out)));
}

// The load must fail with that code, and its message contain both texts.
static void refuse(const struct model_options *options, enum expertd_err_code code, const char *text, const char *other) {
    struct model model;
    err_t e = model_load(options, &model);
    if (e.code != code || !strstr(expertd_err_message(), text) || !strstr(expertd_err_message(), other)) {
        fail_msg("expected %s with \"%s\" and \"%s\", got %s: %s", expertd_err_name(code), text, other, expertd_err_name(e.code),
                 err_is(e) ? expertd_err_message() : "-");
    }
    assert_null(model.layers);
}

static void a_model_that_does_not_fit_is_refused_with_the_layers_that_would(void **state) {
    (void)state;
    struct model model;
    load_tiny(&model);
    struct model_options options = {
        .model = "synthetic:tiny", .compute_dtype = EXPERTD_DTYPE_BF16, .ranks = 1, .memory_bytes_max = model.arena.bytes * 6 / 10};
    model_deinit(&model);
    refuse(&options, EXPERTD_ERR_NOMEM, "4 MoE layers", "2 layers would fit: --layers 0-1");
    options.have_layers = true;
    options.last_layer = 1; // as the message says
    assert_false(err_is(model_load(&options, &model)));
    assert_true(model.arena.bytes <= options.memory_bytes_max);
    model_deinit(&model);
    options.memory_bytes_max = 1000;
    refuse(&options, EXPERTD_ERR_NOMEM, "configured memory limit", "not one layer would fit");
    // Far more than any machine has: nothing may be allocated.
    options = (struct model_options){.model = "synthetic:kimi-k2", .compute_dtype = EXPERTD_DTYPE_F32, .ranks = 8};
    refuse(&options, EXPERTD_ERR_NOMEM, "60 MoE layers in F32 take 3.", "TiB");
}

struct scratch {
    size_t layers; // this many layers need `bytes` of scratch, fewer need none
    uint64_t bytes;
    unsigned asked;
};

static uint64_t scratch_of(void *context, const struct model *model) {
    struct scratch *scratch = context;
    scratch->asked++;
    assert_true(model->max_hidden_size > 0 && model->ranks == 1);
    return model->num_layers >= scratch->layers ? scratch->bytes : 0;
}

static void scratch_counts_against_the_machine_and_not_against_the_configured_limit(void **state) {
    (void)state;
    struct scratch scratch = {.layers = 3, .bytes = UINT64_MAX / 4};
    struct model_options options = {.model = "synthetic:tiny",
                                    .compute_dtype = EXPERTD_DTYPE_BF16,
                                    .ranks = 1,
                                    .scratch_bytes = scratch_of,
                                    .scratch_context = &scratch};
    refuse(&options, EXPERTD_ERR_NOMEM, "a batch's scratch 4.0 EiB more (lower max_batch_tokens)",
           "2 layers would fit: --layers 0-1");
    scratch.layers = 0;
    refuse(&options, EXPERTD_ERR_NOMEM, "max_batch_tokens", "not one layer would fit");
    scratch.bytes = 1 << 20;
    struct model model;
    load_tiny(&model);
    options.memory_bytes_max = model.arena.bytes + (64 << 10); // and the staging memory
    model_deinit(&model);
    scratch.asked = 0;
    assert_false(err_is(model_load(&options, &model)));
    assert_true(scratch.asked > 0);
    model_deinit(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_that_does_not_fit_is_refused_with_the_layers_that_would),
        cmocka_unit_test(scratch_counts_against_the_machine_and_not_against_the_configured_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
