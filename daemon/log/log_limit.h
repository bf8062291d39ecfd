// Bounds the lines that one peer can cause: LOG_LIMIT_BURST at once, and then one per second. Not thread-safe: the caller's lock
// guards it.
#ifndef EXPERTD_DAEMON_LOG_LOG_LIMIT_H
#define EXPERTD_DAEMON_LOG_LOG_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

enum { LOG_LIMIT_BURST = 60 };

struct log_limit { // zeroed at first
    int64_t paid_until_ns;
    unsigned long left_out; // lines since the last one that was allowed
};

// May a line be logged now? True: *left_out is the number of lines before it that were not.
bool log_limit_take(struct log_limit *limit, int64_t now_ns, unsigned long *left_out);
// The same; lines that were left out are reported by a line of their own ("log_lines_left_out"). peer: quoted here.
bool log_limit_allows(struct log_limit *limit, int64_t now_ns, const char *peer);

#endif
