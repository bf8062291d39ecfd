// Numbers of flags. Private to expertctl's options.
#ifndef EXPERTD_CLIENT_EXPERTCTL_OPTIONS_NUMBER_H
#define EXPERTD_CLIENT_EXPERTCTL_OPTIONS_NUMBER_H

#include <stdint.h>

#include "base/err.h"

// flag: its name, for the message. EXPERTD_ERR_USAGE: `value` is no integer from 0 to max.
FALLIBLE ctl_read_number(const char *flag, const char *value, uint64_t max, uint64_t *out);

// Seconds, above 0 and up to a day, with decimals. Rounded up to microseconds.
FALLIBLE ctl_read_seconds(const char *flag, const char *value, int64_t *out_us);

#endif
