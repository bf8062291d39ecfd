#include "client/expertctl/bench/load/bench_tokens.h"

#include <math.h>
#include <string.h>

#include "client/expertctl/print/bench_values.h"

static const double TOKENS_MAX = 1 << 30, SIGMA_MAX = 5;

// Reads an integer at *text and moves *text behind it.
static bool take_count(const char **text, uint32_t *out) {
    double number;
    if (!value_take_number(text, &number) || number > TOKENS_MAX || number != floor(number)) {
        return false;
    }
    *out = (uint32_t)number;
    return true;
}

static bool parse_uniform(const char *text, struct bench_tokens *out) {
    return take_count(&text, &out->low) && *text++ == '-' && take_count(&text, &out->high) && !*text && out->low <= out->high;
}

static bool parse_list(const char *text, struct bench_tokens *out) {
    double sum = 0;
    out->low = UINT32_MAX;
    do {
        uint32_t value;
        double weight = 1;
        if (out->count == TOKENS_LIST_MAX || !take_count(&text, &value)) {
            return false;
        }
        if (*text == '@' && (text++, !value_take_number(&text, &weight))) {
            return false;
        }
        sum += weight;
        out->values[out->count] = value;
        out->cumulated[out->count++] = sum;
        out->low = value < out->low ? value : out->low;
        out->high = value > out->high ? value : out->high;
    } while (*text == ',' && text++);
    for (uint32_t i = 0; i < out->count; i++) {
        out->cumulated[i] /= sum;
    }
    return !*text && sum > 0 && isfinite(sum);
}

static bool parse_lognormal(const char *text, struct bench_tokens *out) {
    out->low = 1;
    if (!value_take_number(&text, &out->median) || out->median < 1 || out->median > TOKENS_MAX || *text++ != ',' ||
        !value_take_number(&text, &out->sigma) || out->sigma > SIGMA_MAX) {
        return false;
    }
    return !*text || (*text++ == ',' && take_count(&text, &out->high) && !*text && out->high >= 1);
}

FALLIBLE tokens_parse(const char *text, struct bench_tokens *out) {
    static const struct {
        const char *prefix;
        enum tokens_kind kind;
        bool (*parse)(const char *, struct bench_tokens *);
    } FORMS[] = {{"uniform:", TOKENS_UNIFORM, parse_uniform},
                 {"list:", TOKENS_LIST, parse_list},
                 {"lognormal:", TOKENS_LOGNORMAL, parse_lognormal}};
    *out = (struct bench_tokens){0};
    for (size_t i = 0; i < sizeof FORMS / sizeof *FORMS; i++) {
        if (strncmp(text, FORMS[i].prefix, strlen(FORMS[i].prefix)) == 0) {
            out->kind = FORMS[i].kind;
            if (FORMS[i].parse(text + strlen(FORMS[i].prefix), out)) {
                return OK;
            }
        }
    }
    const char *at = text;
    if (take_count(&at, &out->low) && !*at) {
        out->high = out->low;
        return OK;
    }
    FAIL(EXPERTD_ERR_USAGE, "%s: tokens are N, uniform:A-B, list:N@WEIGHT,N@WEIGHT (at most %d) or lognormal:MEDIAN,SIGMA[,MAX]",
         text, TOKENS_LIST_MAX);
}

FALLIBLE tokens_limit(struct bench_tokens *tokens, uint32_t max_tokens, uint32_t cut) {
    if (tokens->kind == TOKENS_LOGNORMAL && tokens->high == 0) {
        tokens->high = cut ? cut : 1;
        tokens->cut = true;
    }
    if (tokens->high > max_tokens) {
        FAIL(EXPERTD_ERR_USAGE, "%u tokens in a call: the daemon takes at most %u", tokens->high, max_tokens);
    }
    return OK;
}

static uint32_t draw_lognormal(const struct bench_tokens *tokens, struct bench_random *random) {
    double drawn = round(tokens->median * exp(tokens->sigma * bench_random_normal(random)));
    return drawn < tokens->low ? tokens->low : drawn > tokens->high ? tokens->high : (uint32_t)drawn;
}

uint32_t tokens_draw(const struct bench_tokens *tokens, struct bench_random *random) {
    if (tokens->kind == TOKENS_LOGNORMAL) {
        return draw_lognormal(tokens, random);
    }
    if (tokens->kind != TOKENS_LIST) {
        return tokens->low + (uint32_t)bench_random_below(random, (uint64_t)tokens->high - tokens->low + 1);
    }
    double drawn = bench_random_unit(random);
    uint32_t i = 0;
    while (i + 1 < tokens->count && drawn >= tokens->cumulated[i]) {
        i++;
    }
    return tokens->values[i];
}
