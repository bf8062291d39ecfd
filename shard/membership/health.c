#include "shard/membership/health.h"

#include "base/clock.h"

void health_connected(struct health *health, int64_t now_ns) {
    health->heard_ns = now_ns;
    health->round_trip_ns = 0;
    health->suspect = false;
}

enum health_change health_check(struct health *health, const struct health_options *options, int64_t now_ns) {
    if (now_ns >= clock_add_ns(health->heard_ns, options->dead_after_ns)) {
        return HEALTH_DEAD;
    }
    if (!health->suspect && now_ns >= clock_add_ns(health->heard_ns, options->interval_ns * options->missed_max)) {
        health->suspect = true;
        return HEALTH_SUSPECT;
    }
    return HEALTH_SAME;
}

bool health_echo(struct health *health, int64_t round_trip_ns, int64_t now_ns) {
    bool was_suspect = health->suspect;
    health->heard_ns = now_ns;
    health->round_trip_ns = round_trip_ns;
    health->suspect = false;
    health->false_alarms += was_suspect;
    return was_suspect;
}

void health_absent(struct health *health, const struct health_options *options, int64_t now_ns) {
    // A pause is not calm: the time out of use does not count.
    int64_t calm_since = health->usable_ns > health->absent_ns ? health->usable_ns : health->absent_ns;
    if (health->absences > 0 && now_ns >= clock_add_ns(calm_since, options->window_ns)) {
        health->absences = 0;
        health->pause = (struct growing_pause){0};
    }
    health->absences++;
    health->absent_ns = now_ns;
}

void health_returned(struct health *health, const struct health_options *options, int64_t now_ns) {
    bool too_often = health->absences > options->absences_max;
    health->usable_ns = too_often ? clock_add_ns(now_ns, growing_pause_take(&health->pause, options->flap)) : now_ns;
}

void health_excuse(struct health *health, int64_t ns, int64_t now_ns) {
    int64_t heard_ns = clock_add_ns(health->heard_ns, ns);
    health->heard_ns = heard_ns < now_ns ? heard_ns : now_ns;
}
