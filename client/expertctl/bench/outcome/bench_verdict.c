#include "client/expertctl/bench/outcome/bench_verdict.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "client/c/calls.h"

static const double P99 = 0.99;

static struct bench_verdict invalid(const char *format, ...) __attribute__((format(printf, 1, 2)));
static struct bench_verdict invalid(const char *format, ...) {
    struct bench_verdict verdict = {.kind = VERDICT_INVALID};
    va_list args;
    va_start(args, format);
    vsnprintf(verdict.why, sizeof verdict.why, format, args);
    va_end(args);
    return verdict;
}

const char *verdict_name(enum verdict_kind kind) {
    static const char *const NAMES[] = {"valid", "failed", "invalid"};
    return NAMES[kind];
}

// Failures with that status, of all reasons.
static uint64_t failures_of(const struct bench_result *result, int grpc_code) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < result->num_failures; i++) {
        sum += result->failures[i].grpc_code == grpc_code ? result->failures[i].count : 0;
    }
    return sum;
}

static struct bench_verdict failed(const struct bench_result *result) {
    struct bench_verdict verdict = {.kind = VERDICT_FAILED};
    int code = 0;
    uint64_t most = 0;
    for (uint32_t i = 0; i < result->num_failures; i++) {
        uint64_t count = failures_of(result, result->failures[i].grpc_code);
        if (count > most) {
            most = count;
            code = result->failures[i].grpc_code;
        }
    }
    snprintf(verdict.why, sizeof verdict.why,
             "%" PRIu64 " of %" PRIu64 " calls failed (%.2f %%), %" PRIu64 " with %s: the daemon does not hold this load",
             result->failed, result->calls, 100 * result_failed_share(result), most, calls_status_name(code));
    return verdict;
}

struct bench_verdict verdict_of(const struct bench_result *result, const struct verdict_limits *limits) {
    if (result_failed_share(result) >
        VERDICT_FAILED_SHARE_MAX) { // checked first: the lag limit is relative to the answered calls only
        return failed(result);
    }
    double lag_us = histogram_quantile(&result->lag, P99), response_us = histogram_quantile(&result->response, P99);
    bool behind = limits->open_loop && lag_us > limits->lag_share * response_us;
    if ((behind || result->unsent > 0) && result->slots_waited > 0) {
        return invalid("%" PRIu64 " calls were due while %u were in flight, and waited (lag p99 %.0f us): the daemon answers more "
                       "slowly than calls are due; give a lower --rate, or a higher --max-inflight",
                       result->slots_waited, limits->max_inflight, lag_us);
    }
    if (result->unsent > 0) {
        return invalid("%" PRIu64 " calls were due and not sent before the end: give more --processes, or a lower --rate",
                       result->unsent);
    }
    if (result->calls == 0) {
        return invalid("no call was due in the measured time: give a longer --duration or a higher --rate");
    }
    if (behind && result->answers > 0) {
        return invalid("calls were sent late: lag p99 %.0f us is more than %.0f %% of the response time's p99 %.0f us; give more "
                       "--processes or a lower --rate, or use another machine for the client",
                       lag_us, 100 * limits->lag_share, response_us);
    }
    if (result->thread_share > VERDICT_THREAD_SHARE_MAX) {
        return invalid("a thread of the client used %.0f %% of a CPU: give more --processes", 100 * result->thread_share);
    }
    return (struct bench_verdict){.kind = VERDICT_VALID};
}
