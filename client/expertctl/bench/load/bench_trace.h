// A recorded load: one call per line, "SECONDS LAYER TOKENS" (white space or commas between, # begins a comment), seconds from the
// start and never going back. Pure but for trace_open, which reads a file.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_LOAD_BENCH_TRACE_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_LOAD_BENCH_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { TRACE_CALLS_MAX = 4 << 20 }; // 64 MiB of memory

struct trace_call {
    int64_t at_ns;
    uint32_t layer, tokens;
};

struct bench_trace {
    struct trace_call *calls; // owned
    size_t count;
};

// One line without its end. *there is false for an empty or comment line. EXPERTD_ERR_CHECKPOINT names what is wrong, not the
// line's number.
FALLIBLE trace_parse_line(const char *line, struct trace_call *out, bool *there);

// EXPERTD_ERR_CHECKPOINT names file and line; EXPERTD_ERR_NOMEM. `trace` is released with trace_deinit in any case.
FALLIBLE trace_open(const char *path, struct bench_trace *trace);
void trace_deinit(struct bench_trace *trace); // legal on a zeroed struct

#endif
