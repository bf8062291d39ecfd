// A thread team: runs one function over a range of tasks on all its threads, the caller's among them.
//
// One owner thread calls expertd_team_run; it is not re-entrant. Workers spin for spin_us after a run, then sleep on a futex, so an
// idle team costs no CPU. Each worker sets its own MXCSR (round to nearest, no flush): numerics never depend on who created it.
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
    unsigned threads; // in all, the calling thread counted: 1 to EXPERTD_TEAM_THREADS_MAX
    unsigned spin_us; // that a worker looks for the next run before it sleeps; expertd takes 50
};

// *out is the caller's, until expertd_team_destroy. EXPERTD_ERR_CONFIG: so many threads cannot be asked for; EXPERTD_ERR_NOMEM: no
// memory for them and their scratch; EXPERTD_ERR_UNAVAILABLE: the system starts no more threads. *out is then NULL.
EXPERTD_FALLIBLE expertd_team_create(const struct expertd_team_options *options, struct expertd_team **out);

// A caller's own thread pool, for a program that has one and wants no other threads. `run` calls task(work, index, thread) once for
// each index in [0, tasks) and returns when all have returned: in any order, on one thread or on many, the calling one among them
// or not. thread: 0 to threads - 1, and no two that run at once have the same. Each task sets the floating-point mode that it needs
// and restores the one it found.
struct expertd_team_pool {
    unsigned threads; // at most as many tasks run at once
    void (*run)(void *pool, size_t tasks, void (*task)(void *work, size_t index, unsigned thread), void *work);
    void *pool;
};

// A team that has no threads of its own: its runs go to the pool, which is borrowed until expertd_team_destroy. Reserves
// EXPERTD_TEAM_SCRATCH_BYTES for each of the pool's threads. EXPERTD_ERR_CONFIG and EXPERTD_ERR_NOMEM as for expertd_team_create.
EXPERTD_FALLIBLE expertd_team_create_on(const struct expertd_team_pool *pool, struct expertd_team **out);

// Joins its threads; NULL is legal. A child of fork() has none of them: there the memory of a team that was idle is freed.
void expertd_team_destroy(struct expertd_team *team);
unsigned expertd_team_threads(const struct expertd_team *team); // 1 where team is NULL

// Memory of one of the team's threads, for what runs on it: EXPERTD_TEAM_SCRATCH_BYTES, 64-byte aligned, in huge pages where they
// are to be had. Its contents last as long as one call of `body`.
enum { EXPERTD_TEAM_SCRATCH_BYTES = 2 << 20 };
void *expertd_team_scratch(struct expertd_team *team, unsigned thread);

// body(context, task, thread) for every task in [0, tasks), each once, claimed in ascending order (a caller's pool: as it likes);
// thread is in [0, expertd_team_threads). Returns when all are done. tasks: UINT32_MAX at most where the team has threads of its
// own, which is checked and ends the program. `team` NULL: all tasks run on the caller as thread 0, and so do those of a team with
// threads of its own in a child of fork().
void expertd_team_run(struct expertd_team *team, size_t tasks, void (*body)(void *context, size_t task, unsigned thread),
                      void *context);

#ifdef __cplusplus
}
#endif

#endif
