// A thread team: runs one function over a range of tasks on all its threads, the caller's among them.
//
// One owner thread calls team_run; it is not re-entrant. Workers spin for spin_us after a run, then sleep on a futex, so an idle
// team costs no CPU. Each worker sets its own MXCSR (round to nearest, no flush): numerics never depend on who created it.
#ifndef EXPERTD_KERNELS_TEAM_H
#define EXPERTD_KERNELS_TEAM_H

#include <stddef.h>

#include "base/err.h"

struct team;

enum { TEAM_THREADS_MAX = 1024 };

struct team_options {
    unsigned threads; // in all, the calling thread counted: 1 to TEAM_THREADS_MAX
    unsigned spin_us; // that a worker looks for the next run before it sleeps; expertd takes 50
};

// *out is the caller's, until team_destroy. ERR_CONFIG: so many threads cannot be asked for; ERR_NOMEM: no memory for them and
// their scratch; ERR_UNAVAILABLE: the system starts no more threads. *out is then NULL.
FALLIBLE team_create(const struct team_options *options, struct team **out);

// A caller's own thread pool, for a program that has one and wants no other threads. `run` calls task(work, index, thread) once for
// each index in [0, tasks) and returns when all have returned: in any order, on one thread or on many, the calling one among them
// or not. thread: 0 to threads - 1, and no two that run at once have the same. Each task sets the floating-point mode that it needs
// and restores the one it found.
struct team_pool {
    unsigned threads; // at most as many tasks run at once
    void (*run)(void *pool, size_t tasks, void (*task)(void *work, size_t index, unsigned thread), void *work);
    void *pool;
};

// A team that has no threads of its own: its runs go to the pool, which is borrowed until team_destroy. Reserves
// TEAM_SCRATCH_BYTES for each of the pool's threads. ERR_CONFIG and ERR_NOMEM as for team_create.
FALLIBLE team_create_on(const struct team_pool *pool, struct team **out);

// Joins its threads; NULL is legal. A child of fork() has none of them: there the memory of a team that was idle is freed.
void team_destroy(struct team *team);
unsigned team_threads(const struct team *team); // 1 where team is NULL

// Memory of one of the team's threads, for what runs on it: TEAM_SCRATCH_BYTES, 64-byte aligned, in huge pages where they are to be
// had. Its contents last as long as one call of `body`.
enum { TEAM_SCRATCH_BYTES = 2 << 20 };
void *team_scratch(struct team *team, unsigned thread);

// body(context, task, thread) for every task in [0, tasks), each once, claimed in ascending order (a caller's pool: as it likes);
// thread is in [0, team_threads). Returns when all are done. tasks: UINT32_MAX at most where the team has threads of its own, which
// is checked and ends the program. `team` NULL: all tasks run on the caller as thread 0, and so do those of a team with threads of
// its own in a child of fork().
void team_run(struct team *team, size_t tasks, void (*body)(void *context, size_t task, unsigned thread), void *context);

#endif
