#include "daemon/log/log_limit.h"

#include "base/clock.h"
#include "daemon/log/log.h"

bool log_limit_take(struct log_limit *limit, int64_t now_ns, unsigned long *left_out) {
    int64_t from_ns = limit->paid_until_ns > now_ns ? limit->paid_until_ns : now_ns;
    *left_out = limit->left_out;
    if (from_ns - now_ns > (LOG_LIMIT_BURST - 1) * (int64_t)NS_PER_S) {
        limit->left_out++;
        return false;
    }
    limit->paid_until_ns = clock_add_ns(from_ns, NS_PER_S);
    limit->left_out = 0;
    return true;
}

bool log_limit_allows(struct log_limit *limit, int64_t now_ns, const char *peer) {
    unsigned long left_out;
    char quoted[1024];
    bool allowed = log_limit_take(limit, now_ns, &left_out);
    if (allowed && left_out > 0) {
        log_line(LOG_LEVEL_WARNING, "log_lines_left_out", "peer=%s lines=%lu", log_quote(peer, quoted, sizeof quoted), left_out);
    }
    return allowed;
}
