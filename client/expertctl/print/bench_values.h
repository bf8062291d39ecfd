// Parses the numbers in expertctl bench's flags and traces: durations, shares, rates. Pure. Errors are EXPERTD_ERR_USAGE and name
// the text and the expected form; the caller adds the flag.
#ifndef EXPERTD_CLIENT_EXPERTCTL_PRINT_BENCH_VALUES_H
#define EXPERTD_CLIENT_EXPERTCTL_PRINT_BENCH_VALUES_H

#include <stdint.h>

#include "base/err.h"

// Reads one number at *text and moves *text behind it. False if there is none, or it is not finite.
bool value_take_number(const char **text, double *out);

// "20ms", "1.5s", "300us", "2m", "1h"; a bare number is in seconds. From 1us to 24h.
FALLIBLE value_duration_ns(const char *text, int64_t *out);
// The same, or zero: "0", "0ms".
FALLIBLE value_pause_ns(const char *text, int64_t *out);

// "5%" or "0.05": in [0, 1].
FALLIBLE value_share(const char *text, double *out);

// "0.5", "200", "1.5k": above 0, up to 1e9.
FALLIBLE value_rate(const char *text, double *out);

#endif
