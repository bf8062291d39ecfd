// expertd-bench: measures products and layers against the limits of the machine, in this process.
#include <stdio.h>

#include "base/process/standard_output.h"
#include "base/process/surroundings.h"
#include "expertd/kernels/kernel_select.h"
#include "tests/bench/kernels/bench_options.h"
#include "tests/bench/kernels/device/device_bench.h"
#include "tests/bench/kernels/kernels_bench.h"
#include "tests/bench/kernels/layer_bench.h"
#include "tests/bench/kernels/pack_bench.h"
#include "tests/bench/kernels/selection.h"
#include "tests/bench/kernels/tune_bench.h"

static void list(enum bench_command command) {
    if (command == BENCH_LAYER) {
        layer_bench_list(stdout);
    } else if (command == BENCH_PACK) {
        pack_bench_list(stdout);
    } else {
        selection_list(stdout);
        device_bench_list(stdout);
    }
}

static FALLIBLE device_kernels(const struct bench_options *options, const struct machine *machine, struct report *report) {
    (void)machine;
    return device_bench(options, report->rig, report);
}

static FALLIBLE measure_all(const struct bench_options *options, const struct machine *machine, struct report *report) {
    TRY((options->command == BENCH_LAYER  ? layer_bench
         : options->command == BENCH_PACK ? pack_bench
         : report->rig                    ? device_kernels
                                          : kernels_bench)(options, machine, report));
    return options->json ? report_print_json(report) : report_print_table(report);
}

static FALLIBLE bench(const struct bench_options *options) {
    TRY(expertd_kernel_select(options->kernels));
    const char *differing, *skipped = expertd_kernel_passed_over(&differing);
    if (skipped) {
        fprintf(stderr, "%s is not used: its %s differs from the scalar twin on this CPU\n", skipped, differing);
    }
    struct machine machine;
    machine_read(&machine);
    struct report report = {.machine = &machine, .backend = expertd_kernel_selected_name()};
    if (options->command == BENCH_TUNE) {
        return tune_bench(options, &machine);
    }
    struct device_rig rig = {0};
    if (options->device) {
        TRY(device_rig_open(options->device, &rig));
        report.rig = &rig;
        report.backend = rig.name;
    }
    err_t e = measure_all(options, &machine, &report);
    device_rig_close(&rig);
    report_deinit(&report);
    return e;
}

int main(int argc, char **argv) {
    struct bench_options options;
    err_t e = surroundings_prepare();
    e = err_is(e) ? e : bench_options_parse(argc, argv, &options);
    if (!err_is(e) && options.help) {
        bench_options_help(stdout);
    } else if (!err_is(e) && options.list) {
        list(options.command);
    } else if (!err_is(e)) {
        e = bench(&options);
    }
    e = err_is(e) ? e : standard_output_flush();
    if (err_is(e)) {
        fprintf(stderr, "expertd-bench: %s: %s\n", expertd_err_name(e.code), expertd_err_message());
        return err_exit_code(e.code);
    }
    return 0;
}
