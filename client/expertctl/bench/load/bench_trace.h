// A recorded load: one call per line, "SECONDS LAYER TOKENS", separated by white space or commas; # begins a comment. Seconds count
// from the start and must not decrease. Pure, except trace_open, which reads a file.
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

// Parses one line without its line end. *is_call is false for an empty or comment line. EXPERTD_ERR_CHECKPOINT names the mistake,
// not the line's number.
FALLIBLE trace_parse_line(const char *line, struct trace_call *out, bool *is_call);

// EXPERTD_ERR_CHECKPOINT names file and line; EXPERTD_ERR_NOMEM. Call trace_deinit also on error.
FALLIBLE trace_open(const char *path, struct bench_trace *trace);
void trace_deinit(struct bench_trace *trace); // legal on a zeroed struct

#endif
