// The result of a load: of one process, or merged over several. Plain data of a fixed size, so that it may lie in shared memory.
// Pure; one thread at a time.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_OUTCOME_BENCH_RESULT_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_OUTCOME_BENCH_RESULT_H

#include <stdbool.h>
#include <stdint.h>

#include "client/expertctl/bench/outcome/bench_histogram.h"

enum { RESULT_FAILURES_MAX = 32, RESULT_REASON_MAX = 64, RESULT_MESSAGE_MAX = 192 };

// The failed calls of one gRPC status and reason, with the message of the first one.
struct result_failure {
    int grpc_code;
    char reason[RESULT_REASON_MAX];
    char message[RESULT_MESSAGE_MAX];
    uint64_t count;
};

struct bench_result {
    // Calls whose intended time lies in the measured span. Each ends as answered or failed.
    uint64_t calls, answers, failed;
    uint64_t compared, wrong; // answers compared with those of the same rows sent alone; those that differ
    // Answers that arrived within the measured span, sent at any time: the daemon's throughput.
    uint64_t span_answers, span_tokens;
    double span_s;                            // length of the measured span; merging keeps the longest
    struct bench_histogram response, service; // of answers, from the intended and from the actual send time
    struct bench_histogram lag;               // of calls: actual minus intended send time
    uint32_t num_failures;
    struct result_failure failures[RESULT_FAILURES_MAX]; // the last one collects all further kinds
    uint64_t slots_waited; // open loop: calls that waited for a slot of --max-inflight, including the warm-up
    uint64_t unsent;       // open loop: calls that were due and not sent (an estimate for Poisson arrivals)
    double cpus;           // CPUs used during the measured span, by all processes
    double thread_share;   // share of a CPU that the busiest thread used
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
