#include "client/expertctl/bench/outcome/bench_histogram.h"

#include <math.h>

enum { LINEAR = 1 << HISTOGRAM_LINEAR_BITS, HALF = LINEAR / 2 };

static uint32_t class_of(uint64_t us) {
    if (us < LINEAR) {
        return (uint32_t)us;
    }
    int shift = 63 - __builtin_clzll(us) - (HISTOGRAM_LINEAR_BITS - 1); // us >> shift is in [HALF, LINEAR)
    return (uint32_t)(LINEAR + (shift - 1) * HALF + (int)(us >> shift) - HALF);
}

static double middle_of(uint32_t class) {
    if (class < LINEAR) {
        return (double)class;
    }
    uint32_t shift = (class - LINEAR) / HALF + 1, mantissa = (class - LINEAR) % HALF + HALF;
    return ldexp((double)mantissa + 0.5, (int)shift) - 0.5; // durations are integer microseconds
}

void histogram_add(struct bench_histogram *histogram, int64_t us) {
    us = us < 0 ? 0 : us;
    histogram->count++;
    histogram->sum_us += (double)us;
    histogram->max_us = us > histogram->max_us ? us : histogram->max_us;
    histogram->classes[class_of((uint64_t)(us < HISTOGRAM_VALUE_MAX_US ? us : HISTOGRAM_VALUE_MAX_US))]++;
}

void histogram_merge(struct bench_histogram *into, const struct bench_histogram *from) {
    into->count += from->count;
    into->sum_us += from->sum_us;
    into->max_us = from->max_us > into->max_us ? from->max_us : into->max_us;
    for (uint32_t i = 0; i < HISTOGRAM_CLASSES; i++) {
        into->classes[i] += from->classes[i];
    }
}

double histogram_quantile(const struct bench_histogram *histogram, double fraction) {
    if (histogram->count == 0) {
        return 0;
    }
    // 0.999 * 1000 is 999.0000000000001 in binary; the factor keeps ceil from returning one more.
    double wanted = ceil(fraction * (double)histogram->count * (1 - 1e-12));
    uint64_t rank = wanted < 1 ? 1 : (uint64_t)wanted, seen = 0;
    for (uint32_t i = 0; i < HISTOGRAM_CLASSES; i++) {
        seen += histogram->classes[i];
        if (seen >= rank) {
            double middle = middle_of(i);
            return rank >= histogram->count || middle > (double)histogram->max_us ? (double)histogram->max_us : middle;
        }
    }
    return (double)histogram->max_us;
}

double histogram_mean(const struct bench_histogram *histogram) {
    return histogram->count ? histogram->sum_us / (double)histogram->count : 0;
}
