#include "client/expertctl/options_number.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

enum { TIMEOUT_MAX_S = 86400 };

FALLIBLE ctl_read_number(const char *flag, const char *value, uint64_t max, uint64_t *out) {
    char *end = NULL;
    errno = 0;
    unsigned long long number = isdigit((unsigned char)value[0]) ? strtoull(value, &end, 10) : 0;
    if (!end || *end || errno || number > max) {
        FAIL(EXPERTD_ERR_USAGE, "%s %s: an integer from 0 to %llu is expected", flag, value, (unsigned long long)max);
    }
    *out = number;
    return OK;
}

FALLIBLE ctl_read_seconds(const char *flag, const char *value, int64_t *out_us) {
    char *end = NULL;
    double seconds = strtod(value, &end);
    if (end == value || *end || !(seconds > 0) || seconds > TIMEOUT_MAX_S) {
        FAIL(EXPERTD_ERR_USAGE, "%s %s: seconds above 0 and up to %d are expected, such as 2.5", flag, value, TIMEOUT_MAX_S);
    }
    *out_us = (int64_t)ceil(seconds * 1e6);
    return OK;
}
