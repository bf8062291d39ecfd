// Runs a load in forked processes: starts them at the same time, prints progress, merges their results. The calling process never
// uses gRPC, which does not survive a fork, so it can run one load after another.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_RUN_BENCH_RUN_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_RUN_BENCH_RUN_H

#include "client/expertctl/bench/run/bench_worker.h"

// Between these two calls SIGINT, SIGTERM, SIGHUP and SIGQUIT, unless they are ignored, do not end this process: they make the
// functions below return. bench_unblock_signals discards signals that came after the last of those calls.
void bench_block_signals(void);
void bench_unblock_signals(void);

// *interrupted: one of the signals came, and the result covers the time until then. EXPERTD_ERR_CANCELLED: a signal came twice, or
// before the load began. Otherwise the error of a process, usually EXPERTD_ERR_UNAVAILABLE; *refusal as below. On an error *out is
// unchanged.
FALLIBLE bench_run(const struct bench_plan *plan, struct bench_result *out, bool *interrupted, struct proto_error_text *refusal);

// Runs `work`, which uses gRPC, in a forked process and returns its error. It leaves its results in shared memory.
// EXPERTD_ERR_CANCELLED: one of the signals came meanwhile. *refusal gets the daemon's refusal if that is the error (otherwise its
// reason is "").
FALLIBLE bench_fork(err_t (*work)(void *argument, struct proto_error_text *refusal), void *argument,
                    struct proto_error_text *refusal);

// Zeroed memory shared with processes that are forked later. EXPERTD_ERR_NOMEM. bench_unshare accepts NULL.
FALLIBLE bench_share(size_t bytes, void **out);
void bench_unshare(void *memory, size_t bytes);

#endif
