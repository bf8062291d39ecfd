// Repetitions of something, each between a peak loop and plain reads of its weights, and what their times say.
#ifndef EXPERTD_TESTS_BENCH_KERNELS_MEASURE_MEASURE_H
#define EXPERTD_TESTS_BENCH_KERNELS_MEASURE_MEASURE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expertd/base/dtype.h"
#include "expertd/kernels/team.h"
#include "tests/bench/kernels/measure/neighbour.h"
#include "tests/bench/kernels/measure/peak.h"
#include "tests/bench/kernels/measure/plain_read.h"

enum { MEASURE_PAIRS_MIN = 5, MEASURE_PAIRS_MAX = 2000 };

struct measurement {
    const char *peak; // the instruction whose rate is the peak
    size_t pairs;
    double seconds;                                     // of one repetition, median
    double flops;                                       // of one repetition: a multiply and an add are two
    double bytes;                                       // of weights that one repetition reads, mean
    double gflops, gbytes_per_s;                        // medians
    double peak_gflops, read_gbytes_per_s;              // medians
    double ratio_to_peak, ratio_to_read, ratio_to_roof; // medians over the pairs; the roof is the lower of the two limits
    double ratio_to_roof_best;
    double ratio_beside_neighbour; // its speed beside a busy neighbour, over that without one: median; 0: none was asked for
};

// What is measured. A repetition may be different work from the last one; neither run_ns nor read_ns finds its weights in a cache.
struct measured {
    void *context;
    err_t (*run_ns)(void *context, int64_t *span_ns);
    int64_t (*read_ns)(void *context, enum plain_read_way way); // reads as many weights as run_ns did last
    double flops;                                               // of a repetition
    double (*bytes)(void *context);                             // of weights, of the last repetition
    enum peak_kind peak;
    double (*peak_rate)(void *peak_context, int64_t span_ns); // multiplications per second of a device, in peak's place; or NULL
    void *peak_context;
    const char *peak_name;       // likewise
    struct neighbour *neighbour; // borrowed: each repetition is done again beside it; NULL: none
};

// The fastest loop whose arithmetic gives what sums in `dtype` are promised to be: FMA for f32; for bf16 VDPBF16PS or FMA, by
// trial. For I8 the instruction of the selected kernels: TDPBSSD, VPDPBUSD or VPMADDWD.
enum peak_kind measure_peak_of(enum expertd_dtype dtype, struct expertd_team *team);

// Repeats for `seconds`, at least MEASURE_PAIRS_MIN times, after one repetition that is not counted.
FALLIBLE measure(const struct measured *what, struct expertd_team *team, double seconds, struct measurement *out);

#endif
