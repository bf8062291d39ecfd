#include "client/expertctl/bench/load/bench_routing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "client/expertctl/print/bench_values.h"

enum { STREAM_OF_ROUTES = 2 << 20, DRAWS_MAX = 64 };
static const double EXPONENT_MAX = 10;

static bool take_expert(const char **text, uint32_t *out) {
    double number;
    if (!value_take_number(text, &number) || number >= BENCH_ROUTING_EXPERTS_MAX || number != floor(number)) {
        return false;
    }
    *out = (uint32_t)number;
    return true;
}

static bool parse_hot(const char *text, struct bench_routing *out) {
    out->period_ns = NS_PER_S;
    if (!take_expert(&text, &out->experts) || out->experts == 0) {
        return false;
    }
    return !*text || (*text == ',' && !err_is(value_duration_ns(text + 1, &out->period_ns)));
}

FALLIBLE routing_parse(const char *text, struct bench_routing *out) {
    static const struct {
        const char *name;
        enum routing_kind kind;
    } NAMES[] = {{"own", ROUTING_OWN}, {"uniform", ROUTING_UNIFORM}, {"one", ROUTING_ONE}, {"none", ROUTING_NONE}};
    *out = (struct bench_routing){0};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        if (strcmp(text, NAMES[i].name) == 0) {
            out->kind = NAMES[i].kind;
            return OK;
        }
    }
    const char *value = strchr(text, ':');
    value = value ? value + 1 : "";
    if (strncmp(text, "zipf:", 5) == 0) {
        out->kind = ROUTING_ZIPF;
        if (value_take_number(&value, &out->exponent) && !*value && out->exponent <= EXPONENT_MAX) {
            return OK;
        }
    } else if (strncmp(text, "hot:", 4) == 0) {
        out->kind = ROUTING_HOT;
        if (parse_hot(value, out)) {
            return OK;
        }
    } else if (strncmp(text, "one:", 4) == 0) {
        out->kind = ROUTING_ONE;
        if (take_expert(&value, &out->expert) && !*value) {
            return OK;
        }
    }
    FAIL(EXPERTD_ERR_USAGE, "%s: routing is own, uniform, zipf:S (S up to 10), hot:N[,PERIOD], one[:EXPERT] or none", text);
}

FALLIBLE bench_routing_check(const struct bench_routing *routing, uint32_t experts, uint32_t choices) {
    if (routing->kind == ROUTING_ONE && routing->expert >= experts) {
        FAIL(EXPERTD_ERR_USAGE, "expert %u: the layer has experts 0 to %u", routing->expert, experts - 1);
    }
    if (routing->kind == ROUTING_HOT && (routing->experts > experts || routing->experts < choices)) {
        FAIL(EXPERTD_ERR_USAGE, "%u hot experts: give from %u, the choices of a row, to %u, the experts of the layer",
             routing->experts, choices, experts);
    }
    if (experts > BENCH_ROUTING_EXPERTS_MAX || choices > experts) {
        FAIL(EXPERTD_ERR_USAGE, "routes for a layer with %u experts and %u choices per row cannot be generated: use --routing own",
             experts, choices);
    }
    return OK;
}

uint32_t routing_phases(const struct bench_routing *routing) {
    return routing->kind == ROUTING_HOT ? ROUTING_PHASES : 1;
}

uint32_t routing_phase_at(const struct bench_routing *routing, int64_t since_start_ns) {
    if (routing->kind != ROUTING_HOT || since_start_ns < 0) {
        return 0;
    }
    return (uint32_t)(since_start_ns / routing->period_ns % ROUTING_PHASES);
}

// The distribution that a row's experts are drawn from: `count` experts in `order`, with cumulative weights.
struct expert_distribution {
    const uint32_t *order;
    const double *cumulated;
    uint32_t count;
};

static uint32_t draw_index(const struct expert_distribution *from, struct bench_random *random) {
    double drawn = bench_random_unit(random) * from->cumulated[from->count - 1];
    uint32_t low = 0, high = from->count - 1;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (from->cumulated[middle] > drawn) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

static bool taken(const int32_t *ids, uint32_t count, uint32_t expert) {
    for (uint32_t i = 0; i < count; i++) {
        if (ids[i] == (int32_t)expert) {
            return true;
        }
    }
    return false;
}

// Draws without replacement: a repeated expert is drawn again, and after DRAWS_MAX draws the next free one in order is used.
static void choose_distinct(const struct expert_distribution *from, uint32_t choices, struct bench_random *random, int32_t *ids) {
    for (uint32_t k = 0; k < choices; k++) {
        uint32_t index = draw_index(from, random);
        for (int draws = 0; draws < DRAWS_MAX && taken(ids, k, from->order[index]); draws++) {
            index = draw_index(from, random);
        }
        while (taken(ids, k, from->order[index])) { // ends: choices <= count
            index = (index + 1) % from->count;
        }
        ids[k] = (int32_t)from->order[index];
    }
}

static void fill_weights(uint32_t choices, struct bench_random *random, float *weights) {
    double sum = 0;
    for (uint32_t k = 0; k < choices; k++) {
        weights[k] = (float)(1 - bench_random_unit(random));
        sum += (double)weights[k];
    }
    for (uint32_t k = 0; k < choices; k++) {
        weights[k] = (float)((double)weights[k] / sum);
    }
}

// A random order of the experts, so that popularity does not follow their numbers.
static void shuffle(uint32_t *order, uint32_t count, struct bench_random *random) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t j = (uint32_t)bench_random_below(random, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
}

static void fill_chosen(const struct bench_routing *routing, uint32_t rows, struct expert_distribution all, uint32_t choices,
                        struct bench_random *random, int32_t *ids) {
    uint32_t phases = routing_phases(routing);
    for (uint32_t row = 0; row < rows; row++) {
        struct expert_distribution from = all;
        if (routing->kind == ROUTING_HOT) { // `order` has all experts twice, so that a hot set may wrap around
            uint32_t phase = (uint32_t)(((uint64_t)row * phases + phases - 1) / rows);
            from.order += (uint64_t)(phase % phases) * routing->experts % all.count;
            from.count = routing->experts;
        }
        choose_distinct(&from, choices, random, ids + (size_t)row * choices);
    }
}

static void fill_fixed(const struct bench_routing *routing, uint32_t rows, uint32_t choices, int32_t *ids) {
    for (size_t i = 0; i < (size_t)rows * choices; i++) {
        ids[i] = routing->kind == ROUTING_ONE && i % choices == 0 ? (int32_t)routing->expert : -1;
    }
}

FALLIBLE routing_fill(const struct bench_routing *routing, uint32_t rows, uint32_t experts, uint32_t choices, uint64_t seed,
                      int32_t *ids, float *weights) {
    struct bench_random random = bench_random_seeded(seed, STREAM_OF_ROUTES);
    for (uint32_t row = 0; row < rows; row++) {
        fill_weights(choices, &random, weights + (size_t)row * choices);
    }
    if (routing->kind == ROUTING_ONE || routing->kind == ROUTING_NONE) {
        fill_fixed(routing, rows, choices, ids);
        return OK;
    }
    uint32_t *order = calloc(2 * (size_t)experts, sizeof *order);
    double *cumulated = calloc(experts, sizeof *cumulated);
    if (order && cumulated) {
        shuffle(order, experts, &random);
        memcpy(order + experts, order, experts * sizeof *order);
        double sum = 0;
        for (uint32_t i = 0; i < experts; i++) {
            cumulated[i] = sum += routing->kind == ROUTING_ZIPF ? pow(i + 1, -routing->exponent) : 1;
        }
        fill_chosen(routing, rows, (struct expert_distribution){order, cumulated, experts}, choices, &random, ids);
    }
    bool allocated = order && cumulated;
    free(order);
    free(cumulated);
    if (!allocated) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the routes of %u experts", experts);
    }
    return OK;
}
