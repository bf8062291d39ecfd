#include "client/expertctl/print/bench_values.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

static const double LEAST_S = 1e-6, DAY_S = 86400, RATE_MAX = 1e9;

bool value_take_number(const char **text, double *out) {
    if (!isdigit((unsigned char)(*text)[0]) && (*text)[0] != '.') {
        return false; // strtod also accepts white space, signs, "nan" and "0x"
    }
    char *end = NULL;
    *out = strtod(*text, &end);
    if (end == *text || !isfinite(*out) || memchr(*text, 'x', (size_t)(end - *text)) || memchr(*text, 'X', (size_t)(end - *text))) {
        return false;
    }
    *text = end;
    return true;
}

// False if it is not a duration, or longer than a day.
static bool parse_seconds(const char *text, double *out) {
    static const struct {
        const char *name;
        double seconds;
    } UNITS[] = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"", 1}, {"m", 60}, {"h", 3600}};
    double number;
    if (!value_take_number(&text, &number)) {
        return false;
    }
    for (size_t i = 0; i < sizeof UNITS / sizeof *UNITS; i++) {
        if (strcmp(text, UNITS[i].name) == 0) {
            *out = number * UNITS[i].seconds;
            return *out <= DAY_S;
        }
    }
    return false;
}

FALLIBLE value_duration_ns(const char *text, int64_t *out) {
    double seconds;
    if (!parse_seconds(text, &seconds) || seconds < LEAST_S) {
        FAIL(EXPERTD_ERR_USAGE, "%s: a duration of 1us to 24h is expected, such as 20ms, 1.5s or 2m", text);
    }
    *out = (int64_t)llround(seconds * NS_PER_S);
    return OK;
}

FALLIBLE value_pause_ns(const char *text, int64_t *out) {
    double seconds;
    *out = 0;
    return parse_seconds(text, &seconds) && seconds == 0 ? OK : value_duration_ns(text, out);
}

FALLIBLE value_share(const char *text, double *out) {
    const char *at = text;
    double number;
    if (value_take_number(&at, &number)) {
        *out = *at == '%' ? number / 100 : number;
        if ((!*at || strcmp(at, "%") == 0) && *out <= 1) {
            return OK;
        }
    }
    FAIL(EXPERTD_ERR_USAGE, "%s: a share of 0%% to 100%% is expected, such as 5%% or 0.05", text);
}

FALLIBLE value_rate(const char *text, double *out) {
    const char *at = text;
    if (value_take_number(&at, out)) {
        *out *= *at == 'k' ? 1000 : 1;
        if ((!*at || strcmp(at, "k") == 0) && *out > 0 && *out <= RATE_MAX) {
            return OK;
        }
    }
    FAIL(EXPERTD_ERR_USAGE, "%s: calls per second are expected, such as 0.5, 200 or 1.5k", text);
}
