// A closed-loop caller on gRPC's C core, the same code for the daemon and for the echo. One thread.
#ifndef EXPERTD_TESTS_BENCH_SERVICE_COST_CALLER_H
#define EXPERTD_TESTS_BENCH_SERVICE_COST_CALLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct caller;

struct caller_options {
    const char *address; // "unix:PATH" or "HOST:PORT"
    const char *method;  // a path: "/expertd.v1.Experts/Forward"
    bool streamed;       // one stream with one message in flight; otherwise one unary call per message
    const uint8_t *request;
    size_t request_bytes; // of `request`, which is borrowed until the caller is destroyed
    size_t answer_bytes;  // the required length of every answer; any other ends the program with a message
};

void caller_process(void); // process-wide setup; call it before the first caller_create
struct caller *caller_create(const struct caller_options *options);
void caller_destroy(struct caller *caller);
// Sends a request and waits for its answer. Returns the time in nanoseconds.
int64_t caller_call(struct caller *caller);

#endif
