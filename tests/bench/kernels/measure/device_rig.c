#include "tests/bench/kernels/measure/device_rig.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

// Several times the L2 cache of any GPU, and a size that a simulated GPU reads quickly.
static const size_t REGION_BYTES = 1u << 30, SIMULATED_REGION_BYTES = 1u << 16;
// Many more blocks than run at once, so that the tail has little weight, and enough rounds in each that its start
// has little weight.
enum { BLOCKS = 8448, READ_BLOCKS = 2112, ROUNDS = 32, REPEATS_MAX = 256 };

static FALLIBLE find_rates(struct device_rig *rig) {
    rig->rates = dlsym(rig->devices->library, DEVICE_RATES_SYMBOL);
    if (!rig->rates || rig->rates->version != DEVICE_RATES_VERSION) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "the module for %s devices cannot measure peak rates: install the module of this build",
             rig->devices->table->kind);
    }
    return OK;
}

static FALLIBLE open_rig(const char *text, struct device_rig *rig) {
    struct expertd_devices_request request;
    TRY(expertd_devices_parse(text, &request));
    if (request.count == 0) { // "cuda"
        request.count = 1;
    }
    if (request.count > 1) {
        FAIL(EXPERTD_ERR_USAGE, "--device %s: only one device can be measured at a time", text);
    }
    TRY(expertd_devices_open(&request, &rig->devices));
    TRY(find_rates(rig));
    const struct expertd_device_facts *facts = &rig->devices->facts;
    rig->simulated = strcmp(rig->devices->table->kind, "sim") == 0;
    snprintf(rig->name, sizeof rig->name, "%s, %s%s", rig->devices->table->kind, facts->name,
             rig->simulated ? " (simulated: the times are meaningless)" : "");
    rig->bf16 = facts->bf16.has >> EXPERTD_DEVICE_WGMMA_128 & 1 ? DEVICE_RATE_WGMMA : DEVICE_RATE_MMA;
    EXPERTD_DEVICES_CALL(rig->devices, 0, reserve, DEVICE_RATES_SINK_BYTES, &rig->sink);
    size_t bytes = rig->simulated ? SIMULATED_REGION_BYTES : REGION_BYTES;
    EXPERTD_DEVICES_CALL(rig->devices, 0, reserve, bytes, &rig->region);
    rig->region_bytes = bytes;
    return OK;
}

FALLIBLE device_rig_open(const char *text, struct device_rig *out) {
    *out = (struct device_rig){0};
    err_t e = open_rig(text, out);
    if (err_is(e)) {
        device_rig_close(out);
        return err_context(e, "device %s", text);
    }
    return OK;
}

void device_rig_close(struct device_rig *rig) {
    if (rig->devices) {
        rig->devices->table->release(rig->devices->all[0], rig->sink);
        rig->devices->table->release(rig->devices->all[0], rig->region);
    }
    expertd_devices_close(rig->devices);
    *rig = (struct device_rig){0};
}

FALLIBLE device_rig_wait(const struct device_rig *rig) {
    return expertd_devices_wait(rig->devices, 0);
}

static void must_succeed(err_t e) {
    if (err_is(e)) {
        fprintf(stderr, "expertd-bench: %s: %s\n", expertd_err_name(e.code), expertd_err_message());
        exit(err_exit_code(e.code));
    }
}

static FALLIBLE multiply(const struct device_rig *rig, enum device_rate kind, int repeats, int64_t *span_ns) {
    struct expertd_device_error error;
    uint32_t blocks = rig->simulated ? 1 : BLOCKS, rounds = rig->simulated ? 1 : ROUNDS;
    int64_t begin_ns = clock_now_ns();
    for (int i = 0; i < repeats; i++) {
        enum expertd_device_code code = rig->rates->multiply(rig->devices->all[0], kind, blocks, rounds, rig->sink, &error);
        TRY(expertd_devices_check(rig->devices, 0, code, &error));
    }
    TRY(device_rig_wait(rig));
    *span_ns = clock_now_ns() - begin_ns;
    return OK;
}

// Runs the loop once to estimate its duration, then often enough to fill the span.
static double peak(const struct device_rig *rig, enum device_rate kind, int64_t wanted_ns) {
    int64_t span_ns = 0;
    must_succeed(multiply(rig, kind, 1, &span_ns));
    int64_t repeats = span_ns > 0 ? wanted_ns / span_ns + 1 : 1;
    int count = rig->simulated ? 1 : repeats < REPEATS_MAX ? (int)repeats : REPEATS_MAX;
    must_succeed(multiply(rig, kind, count, &span_ns));
    uint64_t blocks = rig->simulated ? 1 : BLOCKS, rounds = rig->simulated ? 1 : ROUNDS;
    return (double)rig->rates->flops(kind) * (double)(blocks * rounds) * count / ((double)span_ns / NS_PER_S);
}

double device_rig_peak_bf16(void *rig, int64_t span_ns) {
    return peak(rig, ((const struct device_rig *)rig)->bf16, span_ns);
}

double device_rig_peak_fp8(void *rig, int64_t span_ns) {
    return peak(rig, DEVICE_RATE_WGMMA_FP8, span_ns);
}

double device_rig_peak_f32(void *rig, int64_t span_ns) {
    return peak(rig, DEVICE_RATE_FMA, span_ns);
}

const char *device_rig_peak_name(const struct device_rig *rig, enum expertd_dtype dtype) {
    return dtype == EXPERTD_DTYPE_F32 ? "FFMA" : rig->bf16 == DEVICE_RATE_WGMMA ? "WGMMA" : "MMA";
}

static FALLIBLE read_bytes(struct device_rig *rig, size_t bytes) {
    while (bytes > 0) {
        size_t left = rig->region_bytes - rig->read_at, part = bytes < left ? bytes : left;
        struct expertd_device_error error;
        enum expertd_device_code code =
            rig->rates->read(rig->devices->all[0], (const char *)rig->region + rig->read_at, part, READ_BLOCKS, rig->sink, &error);
        TRY(expertd_devices_check(rig->devices, 0, code, &error));
        rig->read_at = (rig->read_at + part) % rig->region_bytes;
        bytes -= part;
    }
    return device_rig_wait(rig);
}

int64_t device_rig_read_ns(struct device_rig *rig, double bytes) {
    size_t rounded = (size_t)bytes / 16 * 16;
    if (rig->simulated && rounded > rig->region_bytes) {
        rounded = rig->region_bytes;
    }
    int64_t begin_ns = clock_now_ns();
    must_succeed(read_bytes(rig, rounded));
    return clock_now_ns() - begin_ns;
}
