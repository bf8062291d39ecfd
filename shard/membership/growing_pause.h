// A pause between attempts that doubles with each attempt, between two limits.
#ifndef EXPERTD_SHARD_MEMBERSHIP_GROWING_PAUSE_H
#define EXPERTD_SHARD_MEMBERSHIP_GROWING_PAUSE_H

#include <stdint.h>

struct pause_range {
    int64_t min_ns, max_ns;
};

struct growing_pause {
    int64_t next_ns; // 0: the range's minimum. Zeroing it starts anew
};

static inline int64_t growing_pause_take(struct growing_pause *pause, struct pause_range range) {
    int64_t taken = pause->next_ns > range.min_ns ? pause->next_ns : range.min_ns;
    pause->next_ns = taken < range.max_ns / 2 ? 2 * taken : range.max_ns;
    return taken;
}

#endif
