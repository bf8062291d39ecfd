// Judges one connected member by its heartbeats, and how long a member that was often absent stays out of use. Pure: the caller
// sends the heartbeats and passes the time.
//
//   alive --(missed_max heartbeats without an echo)--> suspect --(an echo)--> alive: a false alarm
//                                                         `--(dead_after_ns without an echo)--> dead
//
// A suspect member goes out of use, at once if others have all of its experts: nothing is lost then if it was a false alarm. With
// the only live copy of an expert it stays in use until sole_after_ns, since without it calls fail for certain.
//
// An absence is a suspicion or a lost connection. A member with more than absences_max absences, each within window_ns of the one
// before, stays out of use for a pause after its return. The pause doubles with each further absence up to a limit, so a member
// that flaps changes the live mask at most twice in a pause.
#ifndef EXPERTD_SHARD_MEMBERSHIP_HEALTH_H
#define EXPERTD_SHARD_MEMBERSHIP_HEALTH_H

#include <stdbool.h>
#include <stdint.h>

#include "shard/membership/growing_pause.h"

struct health_options {
    int64_t interval_ns;     // between heartbeats
    uint32_t missed_max;     // intervals of silence that make a member suspect
    int64_t sole_after_ns;   // silence after which it goes out of use even if it has the only live copy of an expert
    int64_t dead_after_ns;   // silence that ends the connection; longer than missed_max intervals
    uint32_t absences_max;   // without a pause
    int64_t window_ns;       // an absence this long after the previous one starts the count anew
    struct pause_range flap; // pauses of a member that is absent too often
};

struct health {
    int64_t heard_ns;      // time of the last echo, or of the hello
    int64_t round_trip_ns; // of the last echo; 0: none yet
    bool suspect;
    uint32_t absences;     // each within window_ns of the one before
    int64_t absent_ns;     // time of the last absence
    int64_t usable_ns;     // out of use until then
    uint64_t false_alarms; // suspicions that an echo ended
    struct growing_pause pause;
};

enum health_change { HEALTH_SAME, HEALTH_SUSPECT, HEALTH_DEAD };

void health_connected(struct health *health, int64_t now_ns);
enum health_change health_check(struct health *health, const struct health_options *options, int64_t now_ns);
// True: the echo ended a suspicion. The caller then calls health_returned.
bool health_echo(struct health *health, int64_t round_trip_ns, int64_t now_ns);
// The member went out of use by silence or by a lost connection, which counts as one absence; and came back.
void health_absent(struct health *health, const struct health_options *options, int64_t now_ns);
void health_returned(struct health *health, const struct health_options *options, int64_t now_ns);
// Ignores ns of silence: this process did not run in that time, so it could not hear an echo.
void health_excuse(struct health *health, int64_t ns, int64_t now_ns);

#endif
