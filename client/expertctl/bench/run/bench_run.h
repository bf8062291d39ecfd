// Runs a load in processes of its own: forks, starts them at one time, shows how it goes, merges what they found. The calling
// process never touches gRPC (it does not survive a fork), so that it may run one load after another.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_RUN_BENCH_RUN_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_RUN_BENCH_RUN_H

#include "client/expertctl/bench/run/bench_worker.h"

// Until bench_release_signals SIGINT, SIGTERM, SIGHUP and SIGQUIT, as far as they are not ignored, end this process only where it
// waits in the functions below, which return; those that came after the last of these are dropped then.
void bench_hold_signals(void);
void bench_release_signals(void);

// *interrupted: one of those came; the result is of the time until then. EXPERTD_ERR_CANCELLED where it came twice, or before the
// load began. On an error *out is as it was. The processes' own errors, EXPERTD_ERR_UNAVAILABLE mostly; *refusal as below.
FALLIBLE bench_run(const struct bench_plan *plan, struct bench_result *out, bool *interrupted, struct proto_error_text *refusal);

// Runs `work` in a forked process to its end, for what needs gRPC. Its error comes back; what it finds lies in shared memory.
// EXPERTD_ERR_CANCELLED where one of those signals comes meanwhile. *refused gets the daemon's refusal, where that is the error
// (reason "" otherwise).
FALLIBLE bench_fork(err_t (*work)(void *argument, struct proto_error_text *refusal), void *argument,
                    struct proto_error_text *refusal);

// Zeroed memory that forked processes share. EXPERTD_ERR_NOMEM. NULL is legal to unshare.
FALLIBLE bench_share(size_t bytes, void **out);
void bench_unshare(void *memory, size_t bytes);

#endif
