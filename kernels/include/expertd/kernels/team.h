// A thread team: runs a function over a range of tasks, on its worker threads and the calling thread.
//
// Use a team from one thread at a time; expertd_team_run is not re-entrant. After a run, workers spin for spin_us and then sleep on
// a futex, so an idle team uses no CPU. Tasks run in the default floating-point mode (round to nearest, no flush), also
// if the caller is in another mode.
#ifndef EXPERTD_KERNELS_TEAM_H
#define EXPERTD_KERNELS_TEAM_H

#include <stddef.h>

#include "expertd/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

struct expertd_team;

enum { EXPERTD_TEAM_THREADS_MAX = 1024 };

struct expertd_team_options {
    unsigned threads; // including the calling thread: 1 to EXPERTD_TEAM_THREADS_MAX
    unsigned spin_us; // microseconds that a worker waits actively for the next run before it sleeps; expertd uses 50
};

// The caller owns *out and ends it with expertd_team_destroy. EXPERTD_ERR_CONFIG: `threads` is out of range. EXPERTD_ERR_NOMEM: no
// memory for the threads' scratch. EXPERTD_ERR_UNAVAILABLE: the system cannot start so many threads. *out is NULL on errors.
EXPERTD_FALLIBLE expertd_team_create(const struct expertd_team_options *options, struct expertd_team **out);

// A caller's own thread pool, for programs that want no further threads. `run` calls task(work, index, thread) once for each index
// in [0, tasks), in any order and on any threads, and returns when all calls have returned. `thread` is a number in [0, threads);
// two calls that run at the same time must have different ones. A task sets the floating-point mode that it needs and restores it.
struct expertd_team_pool {
    unsigned threads; // tasks that run at the same time, at most
    void (*run)(void *pool, size_t tasks, void (*task)(void *work, size_t index, unsigned thread), void *work);
    void *pool;
};

// Creates a team that runs on the pool and has no threads of its own. *pool is copied; what its `pool` points to is borrowed until
// expertd_team_destroy. Reserves EXPERTD_TEAM_SCRATCH_BYTES for each of the pool's threads. EXPERTD_ERR_CONFIG and
// EXPERTD_ERR_NOMEM as for expertd_team_create.
EXPERTD_FALLIBLE expertd_team_create_on(const struct expertd_team_pool *pool, struct expertd_team **out);

// Joins the team's threads and frees it; NULL is legal. A child of fork() has no workers: there it only frees the memory of a team
// that was idle at the fork.
void expertd_team_destroy(struct expertd_team *team);
unsigned expertd_team_threads(const struct expertd_team *team); // 1 where team is NULL

// Scratch memory of one of the team's threads, for use by the task that runs on it: EXPERTD_TEAM_SCRATCH_BYTES, 64-byte aligned, in
// huge pages where available. Its contents are valid during one call of `body` only.
enum { EXPERTD_TEAM_SCRATCH_BYTES = 2 << 20 };
void *expertd_team_scratch(struct expertd_team *team, unsigned thread);

// Calls body(context, task, thread) once for every task in [0, tasks) and returns when all calls have returned. Tasks are claimed
// in ascending order (on a caller's pool: in any order). `thread` is in [0, expertd_team_threads). `team` NULL: all tasks run on
// the calling thread, as thread 0; so do those of a team with workers in a child of fork(). A second run at the same time, or more
// than UINT32_MAX tasks on a team with workers, aborts the program.
void expertd_team_run(struct expertd_team *team, size_t tasks, void (*body)(void *context, size_t task, unsigned thread),
                      void *context);

#ifdef __cplusplus
}
#endif

#endif
