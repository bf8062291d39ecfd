#include "client/expertctl/bench/load/bench_trace.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "client/expertctl/print/bench_values.h"

enum { LINE_MAX_BYTES = 256, CALLS_FIRST = 1024, NUMBERS_OF_A_LINE = 3 };
static const double SECONDS_MAX = 86400;

static const char *skip_gap(const char *at) {
    return at + strspn(at, " \t\r,");
}

FALLIBLE trace_parse_line(const char *line, struct trace_call *out, bool *is_call) {
    const char *at = skip_gap(line);
    *is_call = *at && *at != '#';
    if (!*is_call) {
        return OK;
    }
    double numbers[NUMBERS_OF_A_LINE];
    for (size_t i = 0; i < NUMBERS_OF_A_LINE; i++) {
        const char *start = at;
        if (!value_take_number(&at, &numbers[i]) || (*at && *at != '#' && skip_gap(at) == at)) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "SECONDS LAYER TOKENS is expected, not '%.40s'", start);
        }
        at = skip_gap(at);
    }
    if (*at && *at != '#') {
        FAIL(EXPERTD_ERR_CHECKPOINT, "three numbers are expected (SECONDS LAYER TOKENS), and '%.40s' follows", at);
    }
    if (numbers[0] > SECONDS_MAX || numbers[1] > UINT32_MAX || numbers[2] > INT32_MAX || numbers[1] != floor(numbers[1]) ||
        numbers[2] != floor(numbers[2])) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "seconds up to 86400 and integers for layer and tokens are expected, not '%.40s'", line);
    }
    *out = (struct trace_call){llround(numbers[0] * NS_PER_S), (uint32_t)numbers[1], (uint32_t)numbers[2]};
    return OK;
}

static FALLIBLE append(struct bench_trace *trace, struct trace_call call) {
    if (trace->count > 0 && call.at_ns < trace->calls[trace->count - 1].at_ns) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "its time is before that of the call above; sort the calls by time");
    }
    if (trace->count == TRACE_CALLS_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "more than %d calls; split the trace", TRACE_CALLS_MAX);
    }
    if (trace->count == 0 || (trace->count >= CALLS_FIRST && (trace->count & (trace->count - 1)) == 0)) {
        size_t capacity = trace->count ? 2 * trace->count : CALLS_FIRST;
        struct trace_call *calls = reallocarray(trace->calls, capacity, sizeof *calls);
        if (!calls) {
            FAIL(EXPERTD_ERR_NOMEM, "no memory for a trace of %zu calls", capacity);
        }
        trace->calls = calls;
    }
    trace->calls[trace->count++] = call;
    return OK;
}

static FALLIBLE read_lines(FILE *file, const char *path, struct bench_trace *trace) {
    char line[LINE_MAX_BYTES];
    for (size_t number = 1; fgets(line, sizeof line, file); number++) {
        size_t length = strcspn(line, "\n");
        if (!line[length] && !feof(file)) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "--trace %s: line %zu is longer than %d bytes, or holds a zero byte", path, number,
                 LINE_MAX_BYTES - 2);
        }
        line[length] = '\0';
        struct trace_call call;
        bool is_call;
        TRY_IN(trace_parse_line(line, &call, &is_call), "--trace %s: line %zu", path, number);
        if (is_call) {
            TRY_IN(append(trace, call), "--trace %s: line %zu", path, number);
        }
    }
    if (ferror(file)) {
        FAIL(EXPERTD_ERR_IO, "--trace %s: %s", path, strerror(errno));
    }
    if (trace->count == 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "--trace %s: no call in it; a line is SECONDS LAYER TOKENS", path);
    }
    return OK;
}

FALLIBLE trace_open(const char *path, struct bench_trace *trace) {
    *trace = (struct bench_trace){0};
    FILE *file = fopen(path, "re");
    if (!file) {
        FAIL(EXPERTD_ERR_IO, "--trace %s: %s", path, strerror(errno));
    }
    err_t e = read_lines(file, path, trace);
    fclose(file);
    return e;
}

void trace_deinit(struct bench_trace *trace) {
    free(trace->calls);
    *trace = (struct bench_trace){0};
}
