// A histogram of durations with log-linear buckets, as in HdrHistogram: exact to 3 significant digits (half a bucket is below 0.05
// %) from 1 µs to 1 h, in a fixed amount of memory. Longer durations count as 1 h; max_us keeps their real value. Plain data: it
// may lie in shared memory and be copied. Pure; one thread at a time.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_OUTCOME_BENCH_HISTOGRAM_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_OUTCOME_BENCH_HISTOGRAM_H

#include <stdint.h>

enum {
    HISTOGRAM_LINEAR_BITS = 11, // below 2^11 a bucket is 1 µs wide; above, each power of two has 2^10 buckets
    HISTOGRAM_VALUE_BITS = 32,  // 2^32 µs are 71 minutes
    HISTOGRAM_CLASSES =
        (1 << HISTOGRAM_LINEAR_BITS) + ((HISTOGRAM_VALUE_BITS - HISTOGRAM_LINEAR_BITS) << (HISTOGRAM_LINEAR_BITS - 1)),
};
#define HISTOGRAM_VALUE_MAX_US INT64_C(3600000000)

struct bench_histogram {
    uint64_t count;
    int64_t max_us; // exact, not rounded to a bucket
    double sum_us;
    uint64_t classes[HISTOGRAM_CLASSES];
};

// A negative duration, from a clock's rounding, counts as 0. A zeroed histogram is empty.
void histogram_add(struct bench_histogram *histogram, int64_t us);
void histogram_merge(struct bench_histogram *into, const struct bench_histogram *from);

// The quantile (fraction 0 to 1): the middle of its bucket, at most max_us. 0 if the histogram is empty.
double histogram_quantile(const struct bench_histogram *histogram, double fraction);
double histogram_mean(const struct bench_histogram *histogram);

#endif
