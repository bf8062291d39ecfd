#include "client/expertctl/bench/outcome/bench_result.h"

#include <stdio.h>
#include <string.h>

void result_add_failure(struct bench_result *result, int grpc_code, const char *reason, const char *message, uint64_t count) {
    uint32_t i = 0;
    while (i < result->num_failures &&
           (result->failures[i].grpc_code != grpc_code || strcmp(result->failures[i].reason, reason) != 0)) {
        i++;
    }
    if (i >= RESULT_FAILURES_MAX) { // more kinds than a daemon has; they share the last entry
        i = RESULT_FAILURES_MAX - 1;
        snprintf(result->failures[i].reason, RESULT_REASON_MAX, "%s", "OTHERS");
    }
    struct result_failure *failure = &result->failures[i];
    if (i == result->num_failures) {
        result->num_failures++;
        failure->grpc_code = grpc_code;
        snprintf(failure->reason, sizeof failure->reason, "%s", reason);
        snprintf(failure->message, sizeof failure->message, "%s", message);
    }
    failure->count += count;
}

static double larger(double a, double b) {
    return a > b ? a : b;
}

void result_merge(struct bench_result *into, const struct bench_result *from) {
    into->calls += from->calls;
    into->answers += from->answers;
    into->failed += from->failed;
    into->compared += from->compared;
    into->wrong += from->wrong;
    into->span_answers += from->span_answers;
    into->span_tokens += from->span_tokens;
    into->span_s = larger(into->span_s, from->span_s);
    histogram_merge(&into->response, &from->response);
    histogram_merge(&into->service, &from->service);
    histogram_merge(&into->lag, &from->lag);
    for (uint32_t i = 0; i < from->num_failures; i++) {
        const struct result_failure *f = &from->failures[i];
        result_add_failure(into, f->grpc_code, f->reason, f->message, f->count);
    }
    into->slots_waited += from->slots_waited;
    into->unsent += from->unsent;
    into->cpus += from->cpus;
    into->thread_share = larger(into->thread_share, from->thread_share);
}
