#include "daemon/examine/inspect.h"

#include <stdio.h>
#include <string.h>

#include "base/mapped.h"
#include "daemon/examine/inspect_devices.h"
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

// What a start would say of the way that it takes: on devices, on the CPU, or with auto first the one and then the other.
static void set_refusal(const struct options *options, struct inspected_devices *devices, struct inspection *inspection) {
    const bool serves_on_devices = devices->devices && devices->start.refusal.code == EXPERTD_ERR_OK;
    if (serves_on_devices || (devices->devices && strcmp(options->device, "auto") != 0)) {
        inspection->refusal = devices->start.refusal;
    } else if (inspection->refusal.code == EXPERTD_ERR_OK) {
        inspection->refusal = inspection->too_large; // code EXPERTD_ERR_OK: it fits
    }
}

// Without the devices that --device names a start fails, and only the host's part is described.
static void look_at_devices(const struct options *options, struct loaded *loaded, struct inspected_devices *devices,
                            struct inspection *inspection) {
    struct options with_devices = *options; // with a shard for each device
    struct loading_scratch scratch = {.options = &with_devices, .loaded = loaded};
    err_t e = loading_open_devices(&with_devices, loading_device(options), loaded);
    if (!err_is(e) && loaded->devices) {
        inspect_devices(&with_devices, loaded, scratch_bytes, &scratch, devices);
    }
    set_refusal(options, devices, inspection);
    if (err_is(e)) {
        err_save(e, &inspection->refusal);
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
    struct inspected_devices devices = {0};
    err_t e = prepare(options, &loaded);
    const bool inspected = !err_is(e);
    if (inspected) {
        inspect(options, &loaded, &inspection);
        look_at_devices(options, &loaded, &devices, &inspection);
        e = options->json ? inspect_print_json(&inspection, &devices) : inspect_print_table(&inspection, &devices);
    }
    inspected_devices_deinit(&devices);
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
