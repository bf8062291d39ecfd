// What a load was answered with: one process' account, or several merged. Plain data of a fixed size, so that it may lie in shared
// memory. Pure; one thread at a time.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_OUTCOME_BENCH_RESULT_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_OUTCOME_BENCH_RESULT_H

#include <stdbool.h>
#include <stdint.h>

#include "client/expertctl/bench/outcome/bench_histogram.h"

enum { RESULT_FAILURES_MAX = 32, RESULT_REASON_MAX = 64, RESULT_MESSAGE_MAX = 192 };

// Failed calls of one gRPC status and reason; the first one's message.
struct result_failure {
    int grpc_code;
    char reason[RESULT_REASON_MAX];
    char message[RESULT_MESSAGE_MAX];
    uint64_t count;
};

struct bench_result {
    // calls whose intended time lies in the measured span; each is answered or failed in the end
    uint64_t calls, answers, failed;
    uint64_t compared, wrong; // answers held against the same rows asked alone
    // answers that came within the measured span, whenever they were asked for: what the daemon held
    uint64_t span_answers, span_tokens;
    double span_s;                            // measured; merging keeps the longest
    struct bench_histogram response, service; // of answers, from the intended and from the real time of sending
    struct bench_histogram lag;               // of calls: real minus intended time of sending
    uint32_t num_failures;
    struct result_failure failures[RESULT_FAILURES_MAX]; // the last one collects what does not fit
    uint64_t slots_waited;                               // open loop: calls that waited for --max-inflight, in the warm-up too
    uint64_t unsent;     // open loop: calls that were due and never left (an estimate for Poisson arrivals)
    double cpus;         // used while it measured, by all processes
    double thread_share; // of one CPU: the busier of its two threads
};

void result_add_failure(struct bench_result *result, int grpc_code, const char *reason, const char *message, uint64_t count);
void result_merge(struct bench_result *into, const struct bench_result *from);

static inline double result_calls_per_s(const struct bench_result *result) {
    return result->span_s > 0 ? (double)result->span_answers / result->span_s : 0;
}
static inline double result_tokens_per_s(const struct bench_result *result) {
    return result->span_s > 0 ? (double)result->span_tokens / result->span_s : 0;
}
static inline double result_failed_share(const struct bench_result *result) {
    return result->calls ? (double)result->failed / (double)result->calls : 0;
}

#endif
