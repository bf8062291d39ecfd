#include "daemon/examine/inspect.h"

#include <stdio.h>

#include "base/mapped.h"
#include "daemon/examine/inspect_print.h"
#include "daemon/log/log.h"
#include "daemon/process/loading.h"

// Scratch for a number of shards.
static uint64_t scratch_bytes(void *context, const struct model *model) {
    const struct loading_scratch *given = context;
    struct options options = *given->options;
    options.shards = model->ranks;
    struct loading_scratch scratch = {.options = &options, .loaded = given->loaded};
    return loading_scratch_bytes(&scratch, model);
}

static void inspect(const struct options *options, const struct loaded *loaded, struct inspection *out) {
    static const uint32_t USUAL[] = {1, 2, 4, 8};
    const bool given = options->shards != 1;
    struct loading_scratch scratch = {.options = options, .loaded = loaded};
    struct model_options model = loading_model_options(options, loaded);
    model.scratch_bytes = scratch_bytes;
    model.scratch_context = &scratch;
    model_inspect(&model, given ? &options->shards : USUAL, given ? 1 : sizeof USUAL / sizeof *USUAL, out);
}

// The exit code of a start depends on this. On devices the weights need no host memory.
static void refuse_too_large(const struct options *options, struct inspection *inspection) {
    if (inspection->refusal.code == EXPERTD_ERR_OK && inspection->too_large.code != EXPERTD_ERR_OK &&
        !loading_uses_devices(options)) {
        inspection->refusal = inspection->too_large;
    }
}

static FALLIBLE prepare(const struct options *options, struct loaded *loaded) {
    log_init(LOG_LEVEL_ERROR, options->journal); // standard output has everything
    TRY(mapped_install_handler());
    TRY(loading_select_kernels(options));
    return loading_start_teams(options, loaded);
}

int examine_inspect(const struct options *options) {
    struct loaded loaded = {0};
    struct inspection inspection = {0};
    err_t e = prepare(options, &loaded);
    const bool inspected = !err_is(e);
    if (inspected) {
        inspect(options, &loaded, &inspection);
        refuse_too_large(options, &inspection);
        e = options->json ? inspect_print_json(&inspection) : inspect_print_table(&inspection);
    }
    loading_unload(&loaded);
    const int code = err_exit_code(err_is(e) ? e.code : inspection.refusal.code);
    if (err_is(e)) {
        fprintf(stderr, "expertd: %s\n", expertd_err_message());
    }
    if (err_is(e) && options->json && !inspected) {
        inspect_print_error_json(e);
    }
    inspection_deinit(&inspection);
    return code;
}

void examine_inspect_error(err_t e) {
    inspect_print_error_json(e);
}
