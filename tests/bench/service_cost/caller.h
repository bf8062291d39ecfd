// One closed-loop caller on gRPC's C core, the same code against the daemon and against the echo. One thread.
#ifndef EXPERTD_TESTS_BENCH_SERVICE_COST_CALLER_H
#define EXPERTD_TESTS_BENCH_SERVICE_COST_CALLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct caller;

struct caller_options {
    const char *address; // "unix:PATH" or "HOST:PORT"
    const char *method;  // a path: "/expertd.v1.Experts/Forward"
    bool streamed;       // one call for all messages, a message in flight at a time; else a call for each
    const uint8_t *request;
    size_t request_bytes; // borrowed while the caller lives
    size_t answer_bytes;  // what every answer must have; an other one ends the program with a message
};

void caller_process(void); // before the first create
struct caller *caller_create(const struct caller_options *options);
void caller_destroy(struct caller *caller);
// One request, one answer. Returns the nanoseconds between.
int64_t caller_call(struct caller *caller);

#endif
