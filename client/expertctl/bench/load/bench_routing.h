// How the rows of a load are routed: by the model's router, or by generated routes. A row keeps its routes for the whole run, so
// that answers can be compared with the row's answer alone. A moving hot set is made of several groups of rows, used one after
// another. Pure.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_LOAD_BENCH_ROUTING_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_LOAD_BENCH_ROUTING_H

#include <stdint.h>

#include "base/err.h"
#include "client/expertctl/bench/load/bench_random.h"

enum routing_kind { ROUTING_OWN, ROUTING_UNIFORM, ROUTING_ZIPF, ROUTING_HOT, ROUTING_ONE, ROUTING_NONE };

enum { ROUTING_PHASES = 8, BENCH_ROUTING_EXPERTS_MAX = 65536 };

struct bench_routing {
    enum routing_kind kind;
    double exponent;   // zipf
    uint32_t experts;  // hot: size of the hot set
    int64_t period_ns; // hot: time until the next hot set
    uint32_t expert;   // one
};

// "own", "uniform", "zipf:S", "hot:N[,PERIOD]", "one[:EXPERT]", "none". EXPERTD_ERR_USAGE.
FALLIBLE routing_parse(const char *text, struct bench_routing *out);

// EXPERTD_ERR_USAGE if the layer does not have as many experts.
FALLIBLE bench_routing_check(const struct bench_routing *routing, uint32_t experts, uint32_t choices);

// Groups of rows: ROUTING_PHASES for a hot set, else 1. A pool of P rows gives group g the rows [g P / groups, (g + 1) P / groups).
uint32_t routing_phases(const struct bench_routing *routing);
uint32_t routing_phase_at(const struct bench_routing *routing, int64_t since_start_ns);

// Fills ids [rows, choices] and weights [rows, choices] of a pool. Weights are in (0, 1] and add up to 1 in each row. A row's
// experts are distinct; `one` and `none` leave slots empty (-1). EXPERTD_ERR_NOMEM.
FALLIBLE routing_fill(const struct bench_routing *routing, uint32_t rows, uint32_t experts, uint32_t choices, uint64_t seed,
                      int32_t *ids, float *weights);

#endif
