// A thread team: runs one function over a range of tasks on all its threads, the caller's among them.
//
// One owner thread calls team_run; it is not re-entrant. Workers spin for spin_us after a run, then sleep on a futex, so an idle
// team costs no CPU. Each worker sets its own MXCSR (round to nearest, no flush): numerics never depend on who created it.
#ifndef EXPERTD_KERNELS_TEAM_H
#define EXPERTD_KERNELS_TEAM_H

#include <stddef.h>

#include "base/err.h"

struct team;

struct team_options {
    unsigned threads; // in all, the calling thread counted: at least 1
    unsigned spin_us; // 50 by default
};

FALLIBLE team_create(const struct team_options *options, struct team **out);
void team_destroy(struct team *team);           // joins its threads; NULL is legal
unsigned team_threads(const struct team *team); // 1 where team is NULL

// Memory of one of the team's threads, for what runs on it: TEAM_SCRATCH_BYTES, 64-byte aligned, in huge pages where they are to be
// had. Its contents last as long as one call of `body`.
enum { TEAM_SCRATCH_BYTES = 1 << 20 };
void *team_scratch(struct team *team, unsigned thread);

// body(context, task, thread) for every task in [0, tasks), each once, claimed in ascending order; thread is in [0, team_threads).
// Returns when all are done. `team` NULL: all tasks run on the caller as thread 0.
void team_run(struct team *team, size_t tasks, void (*body)(void *context, size_t task, unsigned thread), void *context);

#endif
