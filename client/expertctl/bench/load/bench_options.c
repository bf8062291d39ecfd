#include "client/expertctl/bench/load/bench_options.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "client/c/calls.h"
#include "client/expertctl/print/bench_values.h"

enum { DEFAULT_DURATION_S = 10, DEFAULT_WARMUP_S = 1, DEFAULT_STEP_S = 3, DEFAULT_INFLIGHT = 4096, DEFAULT_POOL = 256 };
static const double DEFAULT_LAG_SHARE = 0.1, DEFAULT_TOLERANCE = 0.05, DEFAULT_START_RATE = 100;

static FALLIBLE read_integer(const char *value, uint64_t least, uint64_t most, uint64_t *out) {
    char *end = NULL;
    unsigned long long number = value[0] >= '0' && value[0] <= '9' ? strtoull(value, &end, 10) : 0;
    if (!end || *end || number < least || number > most) {
        FAIL(EXPERTD_ERR_USAGE, "%s: an integer from %llu to %llu is expected", value, (unsigned long long)least,
             (unsigned long long)most);
    }
    *out = number;
    return OK;
}

static FALLIBLE read_count(const char *value, uint32_t most, uint32_t *out) {
    uint64_t number = 0;
    TRY(read_integer(value, 1, most, &number));
    *out = (uint32_t)number;
    return OK;
}

static FALLIBLE set_rate(struct bench_options *o, const char *value) {
    return value_rate(value, &o->rate);
}
static FALLIBLE set_concurrency(struct bench_options *o, const char *value) {
    return read_count(value, CALLS_SLOTS_MAX, &o->concurrency);
}
static FALLIBLE set_trace(struct bench_options *o, const char *value) {
    o->trace = value;
    return OK;
}
static FALLIBLE set_arrivals(struct bench_options *o, const char *value) {
    o->arrivals = strcmp(value, "constant") == 0 ? ARRIVALS_CONSTANT : ARRIVALS_POISSON;
    if (o->arrivals == ARRIVALS_POISSON && strcmp(value, "poisson") != 0) {
        FAIL(EXPERTD_ERR_USAGE, "%s: it is poisson or constant", value);
    }
    return OK;
}
static FALLIBLE set_processes(struct bench_options *o, const char *value) {
    return read_count(value, BENCH_PROCESSES_MAX, &o->processes);
}
static FALLIBLE set_connections(struct bench_options *o, const char *value) {
    return read_count(value, CALLS_CONNECTIONS_MAX, &o->connections);
}
static FALLIBLE set_max_inflight(struct bench_options *o, const char *value) {
    return read_count(value, CALLS_SLOTS_MAX, &o->max_inflight);
}
static FALLIBLE set_stream(struct bench_options *o, const char *value) {
    (void)value;
    o->stream = true;
    return OK;
}
static FALLIBLE set_duration(struct bench_options *o, const char *value) {
    return value_duration_ns(value, &o->duration_ns);
}
static FALLIBLE set_warmup(struct bench_options *o, const char *value) {
    return value_pause_ns(value, &o->warmup_ns);
}
static FALLIBLE set_seed(struct bench_options *o, const char *value) {
    return read_integer(value, 0, INT64_MAX, &o->seed);
}
static FALLIBLE set_tokens(struct bench_options *o, const char *value) {
    o->tokens_text = value;
    return tokens_parse(value, &o->tokens);
}
static FALLIBLE set_routing(struct bench_options *o, const char *value) {
    o->routing_text = value;
    return routing_parse(value, &o->routing);
}
static FALLIBLE set_layers(struct bench_options *o, const char *value) {
    o->layers = value; // parsed once the daemon's layers are known
    return OK;
}
static FALLIBLE set_pool(struct bench_options *o, const char *value) {
    return read_count(value, BENCH_POOL_MAX, &o->pool_rows);
}
static FALLIBLE set_check(struct bench_options *o, const char *value) {
    if (strncmp(value, "sample=", 7) == 0) {
        return read_count(value + 7, UINT32_MAX, &o->check_every);
    }
    if (strcmp(value, "all") != 0 && strcmp(value, "off") != 0) {
        FAIL(EXPERTD_ERR_USAGE, "%s: it is all, sample=N (every Nth answer) or off", value);
    }
    o->check_every = value[0] == 'a';
    return OK;
}
static FALLIBLE set_lag_limit(struct bench_options *o, const char *value) {
    return value_share(value, &o->lag_share);
}
static FALLIBLE set_find_max(struct bench_options *o, const char *value) {
    (void)value;
    o->find_max = true;
    return OK;
}
static FALLIBLE set_slo(struct bench_options *o, const char *value) {
    return slo_parse(value, &o->slo);
}
static FALLIBLE set_quiet(struct bench_options *o, const char *value) {
    (void)value;
    o->quiet = true;
    return OK;
}
static FALLIBLE set_csv(struct bench_options *o, const char *value) {
    o->csv = value;
    return OK;
}
static FALLIBLE set_save(struct bench_options *o, const char *value) {
    o->save = value;
    return OK;
}
static FALLIBLE set_compare(struct bench_options *o, const char *value) {
    o->compare[o->compare[0] ? 1 : 0] = value;
    return OK;
}
static FALLIBLE set_tolerance(struct bench_options *o, const char *value) {
    return value_share(value, &o->tolerance);
}
static FALLIBLE set_region(struct bench_options *o, const char *value) {
    (void)value;
    o->region = true;
    return OK;
}

static const struct flag {
    const char *name;
    const char *value; // name of its value, for the help; NULL: no value
    int values;
    err_t (*set)(struct bench_options *, const char *);
    const char *help;
} FLAGS[] = {
    {"--rate", "R", 1, set_rate, "open loop: R calls per second, however long answers take; with --find-max the first rate"},
    {"--concurrency", "N", 1, set_concurrency, "closed loop: N calls in flight; the next is sent when one is answered (1)"},
    {"--trace", "FILE", 1, set_trace, "open loop: FILE has a call per line, SECONDS LAYER TOKENS"},
    {"--arrivals", "poisson|constant", 1, set_arrivals, "spacing of the calls of an open loop (poisson)"},
    {"--duration", "D", 1, set_duration, "measured time (10s; each step of --find-max: 3s; a trace: its own length)"},
    {"--warmup", "D", 1, set_warmup, "load before the measured time (1s; a trace: 0)"},
    {"--tokens", "DISTRIBUTION", 1, set_tokens,
     "tokens per call: N, uniform:A-B, list:N@WEIGHT,…, lognormal:MEDIAN,SIGMA[,MAX] (1)"},
    {"--routing", "ROUTING", 1, set_routing,
     "own, uniform, zipf:S, hot:N[,PERIOD] (other experts each PERIOD), one[:EXPERT], none: ids -1 (own)"},
    {"--layers", "LIST", 1, set_layers, "such as 3,5-7, or all; each call takes one at random (the first ready layer)"},
    {"--stream", NULL, 0, set_stream, "send requests in one Stream per connection instead of unary calls"},
    {"--region", NULL, 0, set_region, "send tensors through shared memory, a region per process; needs the Unix socket"},
    {"--connections", "N", 1, set_connections, "connections in all (one per process)"},
    {"--processes", "N", 1, set_processes, "client processes that share the load (1)"},
    {"--max-inflight", "N", 1, set_max_inflight, "open loop: at most N calls in flight (4096)"},
    {"--seed", "N", 1, set_seed, "the same seed gives the same load (1)"},
    {"--check", "all|sample=N|off", 1, set_check, "compare answers with those of the same rows sent alone before the run (all)"},
    {"--pool", "N", 1, set_pool, "distinct rows from which requests are made (256)"},
    {"--lag-limit", "SHARE", 1, set_lag_limit, "INVALID if the lag's p99 exceeds this share of the response time's p99 (10%)"},
    {"--find-max", NULL, 0, set_find_max, "search for the highest rate that holds --slo"},
    {"--slo", "p99=20ms", 1, set_slo, "service level of --find-max; also p50=, p99.9=, max=, mean="},
    {"--quiet", NULL, 0, set_quiet, "no progress line per second on standard error"},
    {"--csv", "FILE", 1, set_csv, "write a line per run, or per step of --find-max"},
    {"--save", "FILE", 1, set_save, "write what --json prints, for --compare"},
    {"--compare", "A B", 2, set_compare, "say whether saved result B is worse than A; calls no daemon"},
    {"--tolerance", "SHARE", 1, set_tolerance, "how much worse B may be (5%)"},
};
enum { FLAG_COUNT = sizeof FLAGS / sizeof *FLAGS };
_Static_assert(FLAG_COUNT <= 32, "a bit per flag");

void bench_options_init(struct bench_options *out) {
    *out = (struct bench_options){
        .processes = 1,
        .max_inflight = DEFAULT_INFLIGHT,
        .duration_ns = -1,
        .warmup_ns = -1,
        .seed = 1,
        .tokens_text = "1",
        .tokens = {.kind = TOKENS_FIXED, .low = 1, .high = 1},
        .routing_text = "own",
        .pool_rows = DEFAULT_POOL,
        .check_every = 1,
        .lag_share = DEFAULT_LAG_SHARE,
        .tolerance = DEFAULT_TOLERANCE,
    };
}

const char *bench_options_name(size_t i) {
    return i < FLAG_COUNT ? FLAGS[i].name : NULL;
}

FALLIBLE bench_options_read(int argc, char *const *argv, int *at, struct bench_options *out, bool *known) {
    const char *word = argv[*at], *equals = strchr(word, '=');
    size_t length = equals ? (size_t)(equals - word) : strlen(word);
    const struct flag *flag = FLAGS;
    while (flag < FLAGS + FLAG_COUNT && (strlen(flag->name) != length || memcmp(flag->name, word, length) != 0)) {
        flag++;
    }
    *known = flag < FLAGS + FLAG_COUNT;
    if (!*known) {
        return OK;
    }
    out->given = out->given ? out->given : flag->name;
    if (out->seen >> (flag - FLAGS) & 1) {
        FAIL(EXPERTD_ERR_USAGE, "%s is given twice", flag->name);
    }
    out->seen |= UINT32_C(1) << (flag - FLAGS);
    if (equals && flag->values != 1) {
        FAIL(EXPERTD_ERR_USAGE, "%s takes %s", flag->name, flag->values ? "two words: --compare A.json B.json" : "no value");
    }
    if (!equals && *at + flag->values >= argc) {
        FAIL(EXPERTD_ERR_USAGE, "%s takes a value: %s %s", flag->name, flag->name, flag->value);
    }
    if (flag->values == 0) {
        return flag->set(out, NULL);
    }
    for (int i = 0; i < flag->values; i++) {
        const char *value = equals ? equals + 1 : argv[++*at];
        if (!*value) {
            FAIL(EXPERTD_ERR_USAGE, "%s is empty: %s %s", flag->name, flag->name, flag->value);
        }
        TRY_IN(flag->set(out, value), "%s", flag->name);
    }
    return OK;
}

static bool is_given(const struct bench_options *o, const char *name) {
    size_t i = 0;
    while (i < FLAG_COUNT && strcmp(FLAGS[i].name, name) != 0) {
        i++;
    }
    INVARIANT(i < FLAG_COUNT);
    return o->seen >> i & 1;
}

static FALLIBLE check_compare(const struct bench_options *o) {
    for (size_t i = 0; i < FLAG_COUNT; i++) {
        const char *name = FLAGS[i].name;
        if (o->seen >> i & 1 && strcmp(name, "--compare") != 0 && strcmp(name, "--tolerance") != 0) {
            FAIL(EXPERTD_ERR_USAGE, "--compare calls no daemon: leave %s out", name);
        }
    }
    return OK;
}

// Refuses flags that would have no effect.
static FALLIBLE check_unused(const struct bench_options *o) {
    static const char *const OPEN[] = {"--arrivals", "--max-inflight", "--lag-limit"};
    bool scheduled = o->rate > 0 || o->find_max;
    if (is_given(o, "--tolerance")) {
        FAIL(EXPERTD_ERR_USAGE, "--tolerance is only for --compare: give both, or leave it out");
    }
    if (o->trace && is_given(o, "--arrivals")) {
        FAIL(EXPERTD_ERR_USAGE, "--trace has its own send times: leave --arrivals out");
    }
    for (size_t i = 0; i < sizeof OPEN / sizeof *OPEN; i++) {
        if (!scheduled && !o->trace && is_given(o, OPEN[i])) {
            FAIL(EXPERTD_ERR_USAGE, "%s is only for an open loop: give --rate, --trace or --find-max with it", OPEN[i]);
        }
    }
    return OK;
}

static FALLIBLE check_load(const struct bench_options *o) {
    if ((o->rate > 0) + (o->concurrency > 0) + (o->trace != NULL) > 1) {
        FAIL(EXPERTD_ERR_USAGE, "--rate, --concurrency or --trace: a load is one of them, give only one");
    }
    if (o->find_max != (o->slo.text != NULL)) {
        FAIL(EXPERTD_ERR_USAGE, "--find-max and --slo go together; %s is missing", o->find_max ? "--slo p99=20ms" : "--find-max");
    }
    if (o->find_max && (o->concurrency || o->trace)) {
        FAIL(EXPERTD_ERR_USAGE, "--find-max searches a rate: leave out --concurrency and --trace");
    }
    if (o->trace && (o->layers || is_given(o, "--tokens"))) {
        FAIL(EXPERTD_ERR_USAGE, "--trace has its own layers and tokens: leave --layers and --tokens out");
    }
    if (o->csv && o->save && strcmp(o->csv, o->save) == 0) {
        FAIL(EXPERTD_ERR_USAGE, "--csv and --save both name %s, and one file would replace the other: give two different files",
             o->csv);
    }
    uint32_t rows_least = routing_phases(&o->routing);
    if (o->pool_rows < rows_least) {
        FAIL(EXPERTD_ERR_USAGE, "--pool %u: --routing hot needs at least %u rows", o->pool_rows, rows_least);
    }
    return OK;
}

FALLIBLE bench_options_finish(struct bench_options *o) {
    if (o->compare[0]) {
        return check_compare(o);
    }
    TRY(check_load(o));
    TRY(check_unused(o));
    if (o->find_max && o->rate == 0) {
        o->rate = DEFAULT_START_RATE;
    }
    if (o->rate == 0 && !o->trace && o->concurrency == 0) {
        o->concurrency = 1;
    }
    o->connections = o->connections ? o->connections : o->processes;
    uint32_t inflight = bench_open_loop(o) ? o->max_inflight : o->concurrency;
    if (o->connections < o->processes || inflight < o->processes) {
        FAIL(EXPERTD_ERR_USAGE, "%u processes share %u connections and %u calls in flight: each process needs at least one of both",
             o->processes, o->connections, inflight);
    }
    if (o->duration_ns < 0 && !o->trace) {
        o->duration_ns = (int64_t)(o->find_max ? DEFAULT_STEP_S : DEFAULT_DURATION_S) * NS_PER_S;
    }
    if (o->warmup_ns < 0) {
        o->warmup_ns = o->trace ? 0 : (int64_t)DEFAULT_WARMUP_S * NS_PER_S;
    }
    return OK;
}

void bench_options_help(FILE *out) {
    for (size_t i = 0; i < FLAG_COUNT; i++) {
        char left[48];
        snprintf(left, sizeof left, "%s %s", FLAGS[i].name, FLAGS[i].value ? FLAGS[i].value : "");
        fprintf(out, "  %-29s%s\n", left, FLAGS[i].help);
    }
}
