#include "client/expertctl/bench_verdict.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

static const double P99 = 0.99;

static struct bench_verdict invalid(const char *format, ...) __attribute__((format(printf, 1, 2)));
static struct bench_verdict invalid(const char *format, ...) {
    struct bench_verdict verdict = {.valid = false};
    va_list args;
    va_start(args, format);
    vsnprintf(verdict.why, sizeof verdict.why, format, args);
    va_end(args);
    return verdict;
}

struct bench_verdict verdict_of(const struct bench_result *result, const struct verdict_limits *limits) {
    double lag_us = histogram_quantile(&result->lag, P99), response_us = histogram_quantile(&result->response, P99);
    bool behind = limits->open_loop && lag_us > limits->lag_share * response_us;
    if ((behind || result->unsent > 0) && result->slots_waited > 0) {
        return invalid("%" PRIu64
                       " calls waited for one of the client's %u in flight (lag p99 %.0f us): the daemon does not answer "
                       "as fast as it is asked; a lower --rate, or a higher --max-inflight",
                       result->slots_waited, limits->max_inflight, lag_us);
    }
    if (result->unsent > 0) {
        return invalid("%" PRIu64 " calls were due and never left before the end: more --processes, or a lower --rate",
                       result->unsent);
    }
    if (result->calls == 0) {
        return invalid("no call was due in the measured time: give a longer --duration or a higher --rate");
    }
    if (behind && result->answers > 0) {
        return invalid(
            "calls left late: lag p99 %.0f us is more than %.0f %% of the response time's p99 %.0f us; more --processes, "
            "a lower --rate, or another machine for the client",
            lag_us, 100 * limits->lag_share, response_us);
    }
    if (result->thread_share > VERDICT_THREAD_SHARE_MAX) {
        return invalid("a thread of the client used %.0f %% of a CPU: more --processes", 100 * result->thread_share);
    }
    return (struct bench_verdict){.valid = true};
}
