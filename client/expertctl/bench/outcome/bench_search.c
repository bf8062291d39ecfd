#include "client/expertctl/bench/outcome/bench_search.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "client/expertctl/print/bench_values.h"

static const double GOODPUT_SHARE = 0.95;
// The number of calls in a short step of a Poisson load varies; a shortfall of up to 3 standard deviations is not a failure.
static const double CHANCE_DEVIATIONS = 3;

struct bench_search search_start(double rate) {
    return (struct bench_search){.rate = rate};
}

static double next_rate(const struct bench_search *search) {
    if (search->failed == 0) {
        return 2 * search->held;
    }
    return search->held == 0 ? search->failed / 2 : sqrt(search->held * search->failed);
}

bool search_next(struct bench_search *search, enum search_step outcome) {
    search->steps++;
    bool again = outcome == SEARCH_CLIENT_FAILED && !search->again && search->steps < SEARCH_STEPS_MAX;
    search->again = again;
    if (again || outcome == SEARCH_NOTHING_DUE) {
        return again;
    }
    if (outcome == SEARCH_HELD) {
        search->held = search->rate;
    } else {
        search->failed = search->rate;
        search->client_ends = outcome == SEARCH_CLIENT_FAILED;
    }
    bool close = search->held > 0 && search->failed > 0 && search->failed <= search->held * SEARCH_PRECISION;
    search->rate = next_rate(search);
    bool too_high = search->failed == 0 && search->rate > SEARCH_RATE_MAX; // the first rate may be higher; the search then descends
    return !close && !too_high && search->steps < SEARCH_STEPS_MAX && search->rate >= SEARCH_RATE_MIN;
}

FALLIBLE slo_parse(const char *text, struct bench_slo *out) {
    const char *at = text, *equals = strchr(text, '=');
    double percent = -1;
    *out = (struct bench_slo){.text = text};
    if (strncmp(text, "mean=", 5) == 0) {
        percent = 0;
    } else if (strncmp(text, "max=", 4) == 0) {
        percent = 100;
    } else if (*at++ == 'p' && (!value_take_number(&at, &percent) || at != equals || percent <= 0 || percent > 100)) {
        percent = -1;
    }
    if (!equals || percent < 0) {
        FAIL(EXPERTD_ERR_USAGE, "%s: a service level is p50=, p99=, p99.9=, max= or mean= with a duration, such as p99=20ms", text);
    }
    int64_t limit_ns;
    TRY(value_duration_ns(equals + 1, &limit_ns));
    out->fraction = percent / 100;
    out->limit_us = limit_ns / NS_PER_US;
    return OK;
}

double slo_value_us(const struct bench_slo *slo, const struct bench_result *result) {
    return slo->fraction == 0 ? histogram_mean(&result->response) : histogram_quantile(&result->response, slo->fraction);
}

enum search_step search_judge(const struct bench_slo *slo, double rate, const struct bench_result *result,
                              const struct bench_verdict *verdict) {
    if (result->calls == 0 && result->unsent == 0 && result->wrong == 0) {
        return SEARCH_NOTHING_DUE;
    }
    double due = rate * result->span_s, least = GOODPUT_SHARE * due - CHANCE_DEVIATIONS * sqrt(due);
    bool held = result->answers > 0 && result->wrong == 0 && result_failed_share(result) <= VERDICT_FAILED_SHARE_MAX &&
                slo_value_us(slo, result) <= (double)slo->limit_us && (double)result->span_answers >= least;
    if (held) { // valid even if the client lagged: response times include the lag
        return SEARCH_HELD;
    }
    // Refused calls and wrong answers are the daemon's failure, even if the client lagged.
    bool own = result->wrong > 0 || result_failed_share(result) > VERDICT_FAILED_SHARE_MAX;
    return verdict->kind != VERDICT_INVALID || own ? SEARCH_FAILED : SEARCH_CLIENT_FAILED;
}
