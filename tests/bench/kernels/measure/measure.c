#include "tests/bench/kernels/measure/measure.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "expertd/kernels/kernel_select.h"

enum { PEAK_SPAN_MIN_NS = 2 * NS_PER_MS, PEAK_SPAN_MAX_NS = 40 * NS_PER_MS, PEAK_SHARE = 4 };

// Each series has one value per repetition.
enum series {
    SERIES_SECONDS,
    SERIES_GFLOPS,
    SERIES_GBYTES,
    SERIES_PEAK,
    SERIES_READ,
    SERIES_TO_PEAK,
    SERIES_TO_READ,
    SERIES_TO_ROOF,
    SERIES_BESIDE_NEIGHBOUR,
    SERIES_COUNT
};

struct samples {
    size_t count;
    double bytes; // of all repetitions
    double values[SERIES_COUNT][MEASURE_PAIRS_MAX];
};

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(struct samples *s, enum series series) {
    double *values = s->values[series];
    qsort(values, s->count, sizeof *values, ascending);
    return s->count % 2 ? values[s->count / 2] : (values[s->count / 2 - 1] + values[s->count / 2]) / 2;
}

static void add(struct samples *s, const struct measured *work, double seconds, double read_seconds, double peak_rate) {
    double bytes = work->bytes(work->context);
    double at_peak = work->flops / peak_rate;
    double roof = at_peak > read_seconds ? at_peak : read_seconds;
    size_t i = s->count++;
    s->bytes += bytes;
    s->values[SERIES_SECONDS][i] = seconds;
    s->values[SERIES_GFLOPS][i] = work->flops / seconds * 1e-9;
    s->values[SERIES_GBYTES][i] = bytes / seconds * 1e-9;
    s->values[SERIES_PEAK][i] = peak_rate * 1e-9;
    s->values[SERIES_READ][i] = bytes / read_seconds * 1e-9;
    s->values[SERIES_TO_PEAK][i] = at_peak / seconds;
    s->values[SERIES_TO_READ][i] = read_seconds / seconds;
    s->values[SERIES_TO_ROOF][i] = roof / seconds;
}

static void summarise(struct samples *s, const struct measured *work, struct measurement *out) {
    *out = (struct measurement){
        .peak = work->peak_name ? work->peak_name : peak_name(work->peak),
        .pairs = s->count,
        .seconds = median(s, SERIES_SECONDS),
        .flops = work->flops,
        .bytes = s->bytes / (double)s->count,
        .gflops = median(s, SERIES_GFLOPS),
        .gbytes_per_s = median(s, SERIES_GBYTES),
        .peak_gflops = median(s, SERIES_PEAK),
        .read_gbytes_per_s = median(s, SERIES_READ),
        .ratio_to_peak = median(s, SERIES_TO_PEAK),
        .ratio_to_read = median(s, SERIES_TO_READ),
        .ratio_to_roof = median(s, SERIES_TO_ROOF),
        .ratio_beside_neighbour = work->neighbour ? median(s, SERIES_BESIDE_NEIGHBOUR) : 0,
        .ratio_to_roof_best = s->values[SERIES_TO_ROOF][s->count - 1], // the series is sorted
    };
}

static int64_t peak_span(int64_t last_ns) {
    int64_t span_ns = last_ns / PEAK_SHARE;
    return span_ns < PEAK_SPAN_MIN_NS ? PEAK_SPAN_MIN_NS : span_ns > PEAK_SPAN_MAX_NS ? PEAK_SPAN_MAX_NS : span_ns;
}

// Repeats the last repetition beside a busy thread on one CPU.
static FALLIBLE repeat_beside_neighbour(const struct measured *work, int64_t alone_ns, struct samples *s) {
    int64_t beside_ns;
    neighbour_set_busy(work->neighbour, true);
    err_t e = work->run_ns(work->context, &beside_ns);
    neighbour_set_busy(work->neighbour, false);
    TRY(e);
    s->values[SERIES_BESIDE_NEIGHBOUR][s->count - 1] = (double)alone_ns / (double)beside_ns;
    return OK;
}

// The faster of all kinds of read, so that the roof is a limit of the machine and not of one loop.
static int64_t fastest_read(const struct measured *work) {
    int64_t straight_ns = work->read_ns(work->context, READ_STRAIGHT);
    int64_t streams_ns = work->read_ns(work->context, READ_STREAMS);
    return streams_ns < straight_ns ? streams_ns : straight_ns;
}

static FALLIBLE repeat(const struct measured *work, struct expertd_team *team, int64_t span_ns, struct samples *s) {
    int64_t last_ns;
    TRY(work->run_ns(work->context, &last_ns));
    int64_t end_ns = clock_now_ns() + span_ns;
    while (s->count < MEASURE_PAIRS_MAX && (s->count < MEASURE_PAIRS_MIN || clock_now_ns() < end_ns)) {
        int64_t peak_ns = peak_span(last_ns);
        double rate = work->peak_rate ? work->peak_rate(work->peak_context, peak_ns) : peak_rate(work->peak, team, peak_ns);
        TRY(work->run_ns(work->context, &last_ns));
        int64_t read_ns = fastest_read(work);
        add(s, work, (double)last_ns / NS_PER_S, (double)read_ns / NS_PER_S, rate);
        if (work->neighbour) {
            TRY(repeat_beside_neighbour(work, last_ns, s));
        }
    }
    return OK;
}

FALLIBLE measure(const struct measured *work, struct expertd_team *team, double seconds, struct measurement *out) {
    struct samples *samples = calloc(1, sizeof *samples);
    if (!samples) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the times of %d repetitions", MEASURE_PAIRS_MAX);
    }
    err_t e = repeat(work, team, (int64_t)(seconds * NS_PER_S), samples);
    if (!err_is(e)) {
        summarise(samples, work, out);
    }
    free(samples);
    return e;
}

// The rate of the selected kernels: those without VNNI cannot reach VNNI's rate.
static enum peak_kind peak_of_int8(const char *kernels) {
    bool words = strcmp(kernels, "avx2") == 0 || strcmp(kernels, "avx512") == 0;
    if (strstr(kernels, "amx") && peak_usable(PEAK_AMX_INT8)) {
        return PEAK_AMX_INT8;
    }
    if (!words && peak_usable(PEAK_VPDPBUSD)) {
        return PEAK_VPDPBUSD;
    }
    return peak_usable(PEAK_VPMADDWD) ? PEAK_VPMADDWD : PEAK_FMA_F32;
}

enum peak_kind measure_peak_of(enum expertd_dtype dtype, struct expertd_team *team) {
    if (dtype == EXPERTD_DTYPE_I8) {
        return peak_of_int8(expertd_kernel_selected_name());
    }
    if (dtype == EXPERTD_DTYPE_BF16 && strcmp(expertd_kernel_selected_name(), "amx") == 0 && peak_usable(PEAK_AMX_BF16)) {
        return PEAK_AMX_BF16;
    }
    if (dtype == EXPERTD_DTYPE_F32 || !peak_usable(PEAK_VDPBF16PS)) {
        return PEAK_FMA_F32;
    }
    double fma = 0, pairs = 0;
    for (int trial = 0; trial < 3; trial++) {
        double rate = peak_rate(PEAK_FMA_F32, team, PEAK_SPAN_MIN_NS);
        fma = rate > fma ? rate : fma;
        rate = peak_rate(PEAK_VDPBF16PS, team, PEAK_SPAN_MIN_NS);
        pairs = rate > pairs ? rate : pairs;
    }
    return fma > pairs ? PEAK_FMA_F32 : PEAK_VDPBF16PS;
}
