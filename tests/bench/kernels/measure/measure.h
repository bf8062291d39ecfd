// Measures repetitions of some work, each together with a peak loop and plain reads of its weights.
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
    double seconds;                                     // per repetition, median
    double flops;                                       // per repetition; a multiplication with an addition counts two
    double bytes;                                       // of weights read per repetition, mean
    double gflops, gbytes_per_s;                        // medians
    double peak_gflops, read_gbytes_per_s;              // medians
    double ratio_to_peak, ratio_to_read, ratio_to_roof; // medians over the pairs; the roof is the lower of both limits
    double ratio_to_roof_best;
    double ratio_beside_neighbour; // speed beside a busy neighbour over speed without one, median; 0: not measured
};

// The work to measure. Repetitions may differ. Neither run_ns nor read_ns may find the weights in a cache.
struct measured {
    void *context;
    err_t (*run_ns)(void *context, int64_t *span_ns);
    int64_t (*read_ns)(void *context, enum plain_read_way way); // reads as many weights as the last run_ns
    double flops;                                               // per repetition
    double (*bytes)(void *context);                             // of weights read by the last repetition
    enum peak_kind peak;
    double (*peak_rate)(void *peak_context,
                        int64_t span_ns); // a device's rate in operations per second, instead of `peak`; or NULL
    void *peak_context;
    const char *peak_name;       // for peak_rate
    struct neighbour *neighbour; // borrowed: each repetition is repeated beside it; NULL: none
};

// The fastest instruction with the arithmetic that the contract requires of sums in `dtype`: FMA for f32; VDPBF16PS or FMA for
// bf16, whichever is measured faster. For I8 the instruction of the selected kernels: TDPBSSD, VPDPBUSD or VPMADDWD.
enum peak_kind measure_peak_of(enum expertd_dtype dtype, struct expertd_team *team);

// Repeats for `seconds`, at least MEASURE_PAIRS_MIN times, after one repetition that does not count.
FALLIBLE measure(const struct measured *work, struct expertd_team *team, double seconds, struct measurement *out);

#endif
