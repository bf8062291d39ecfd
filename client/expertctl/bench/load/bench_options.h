// The flags of expertctl bench. Pure; strings are borrowed from argv.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_LOAD_BENCH_OPTIONS_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_LOAD_BENCH_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "client/expertctl/bench/load/bench_routing.h"
#include "client/expertctl/bench/load/bench_schedule.h"
#include "client/expertctl/bench/load/bench_tokens.h"
#include "client/expertctl/bench/outcome/bench_search.h"

enum { BENCH_PROCESSES_MAX = 64, BENCH_POOL_MAX = 65536 };

struct bench_options {
    const char *given;    // the first flag of bench on the line; NULL: none
    uint32_t seen;        // a bit per flag, in the order of the help
    double rate;          // open loop, calls per second in all; 0: not given
    uint32_t concurrency; // closed loop, calls in flight in all; 0: not given
    const char *trace;    // FILE, or NULL
    enum arrivals arrivals;
    uint32_t processes, connections; // connections: in all; 0: one per process
    uint32_t max_inflight;           // open loop, in all
    bool stream, region;
    int64_t duration_ns, warmup_ns; // -1: not given
    uint64_t seed;
    const char *tokens_text, *routing_text, *layers; // layers NULL: the first that is ready
    struct bench_tokens tokens;
    struct bench_routing routing;
    uint32_t pool_rows;
    uint32_t check_every; // every check_every-th answer is compared; 0: none
    double lag_share;
    bool find_max;
    struct bench_slo slo; // text NULL: not given
    bool quiet;
    const char *csv, *save; // FILE, or NULL
    const char *compare[2]; // FILE; both or none
    double tolerance;
};

void bench_options_init(struct bench_options *out);

// Reads one flag at argv[*at] with its values. *known false: it is not a flag of bench. EXPERTD_ERR_USAGE.
FALLIBLE bench_options_read(int argc, char *const *argv, int *at, struct bench_options *out, bool *known);
// After all flags: checks that they fit together and sets defaults. EXPERTD_ERR_USAGE.
FALLIBLE bench_options_finish(struct bench_options *options);

// True if the load follows a schedule: a rate or a trace.
static inline bool bench_open_loop(const struct bench_options *options) {
    return options->concurrency == 0;
}

// The i-th flag's name, for "did you mean"; NULL after the last.
const char *bench_options_name(size_t i);
void bench_options_help(FILE *out);

#endif
