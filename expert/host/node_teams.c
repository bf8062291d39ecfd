#include "expert/host/node_teams.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory_cause.h"
#include "base/threads/thread_signals.h"

struct leader {
    struct node_teams *teams;
    uint32_t node;
    pthread_t thread;
    struct err_copy error; // of its start, then of the latest run
};

struct node_teams {
    struct node_teams_options options;
    uint32_t count, started;
    struct leader *leaders;
    // Guards the fields below and the leaders' errors. Never held together with another mutex, nor while computing.
    pthread_mutex_t mutex;
    pthread_cond_t begun, ended;
    uint64_t run;      // number of the latest run; run 0 starts the teams
    uint32_t finished; // leaders that have finished the latest run
    bool stop;
    err_t (*body)(void *context, uint32_t node, struct expertd_team *team);
    void *context;
};

static unsigned threads_of(const struct node_teams *teams, const struct topology_node *node) {
    unsigned threads = (unsigned)((uint64_t)teams->options.threads * node->count / teams->options.topology->cpus);
    return threads ? threads : 1;
}

// Pins the leader first: the team's threads inherit its CPUs.
static FALLIBLE start_team(const struct leader *leader, struct expertd_team **team) {
    const struct topology_node *node = &leader->teams->options.topology->nodes[leader->node];
    TRY(topology_pin(node));
    struct expertd_team_options options = {.threads = threads_of(leader->teams, node), .spin_us = leader->teams->options.spin_us};
    return expertd_team_create(&options, team);
}

// Reports that this leader has finished run *run, then waits for the next run and sets *run to it. False: the leader must end.
static bool await_run(struct leader *leader, err_t e, uint64_t *run) {
    struct node_teams *teams = leader->teams;
    pthread_mutex_lock(&teams->mutex);
    err_save(e, &leader->error);
    if (++teams->finished == teams->count) {
        pthread_cond_signal(&teams->ended);
    }
    while (!teams->stop && teams->run == *run) {
        pthread_cond_wait(&teams->begun, &teams->mutex);
    }
    *run = teams->run;
    bool has_run = !teams->stop;
    pthread_mutex_unlock(&teams->mutex);
    return has_run;
}

static void *leader_main(void *argument) {
    struct leader *leader = argument;
    struct expertd_team *team = NULL;
    uint64_t run = 0;
    err_t e = start_team(leader, &team);
    while (await_run(leader, e, &run)) {
        e = leader->teams->body(leader->teams->context, leader->node, team);
    }
    expertd_team_destroy(team);
    return NULL;
}

// Waits until all leaders have finished the run. Returns the error of the lowest node that failed.
static FALLIBLE await_end(struct node_teams *teams) {
    pthread_mutex_lock(&teams->mutex);
    while (teams->finished < teams->count) {
        pthread_cond_wait(&teams->ended, &teams->mutex);
    }
    pthread_mutex_unlock(&teams->mutex);
    for (uint32_t n = 0; n < teams->count; n++) {
        if (teams->leaders[n].error.code != EXPERTD_ERR_OK) {
            return err_restore(&teams->leaders[n].error);
        }
    }
    return OK;
}

// The loop thread handles the process's signals, so they are blocked in the leaders, except the signals of faults (SIGBUS).
static FALLIBLE start_leaders(struct node_teams *teams) {
    sigset_t before;
    thread_signals_block(&before);
    int failure = 0;
    for (uint32_t n = 0; n < teams->count && !failure; n++) {
        teams->leaders[n] = (struct leader){.teams = teams, .node = n};
        failure = pthread_create(&teams->leaders[n].thread, NULL, leader_main, &teams->leaders[n]);
        if (!failure) {
            pthread_setname_np(teams->leaders[n].thread, "expertd-node");
            teams->started++;
        }
    }
    thread_signals_restore(&before);
    if (failure) {
        char cause[MEMORY_CAUSE_MAX];
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot start the thread of memory node %u: %s", teams->started,
             memory_cause_of_thread(failure, cause));
    }
    return await_end(teams);
}

FALLIBLE node_teams_create(const struct node_teams_options *options, struct node_teams **out) {
    *out = NULL;
    struct node_teams *teams = calloc(1, sizeof *teams);
    struct leader *leaders = calloc(options->topology->count, sizeof *leaders);
    if (!teams || !leaders) {
        free(teams);
        free(leaders);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the thread teams of %u memory nodes", options->topology->count);
    }
    teams->options = *options;
    teams->count = options->topology->count;
    teams->leaders = leaders;
    pthread_mutex_init(&teams->mutex, NULL);
    pthread_cond_init(&teams->begun, NULL);
    pthread_cond_init(&teams->ended, NULL);
    err_t e = start_leaders(teams);
    if (err_is(e)) {
        node_teams_destroy(teams);
        return e;
    }
    *out = teams;
    return OK;
}

void node_teams_destroy(struct node_teams *teams) {
    if (!teams) {
        return;
    }
    pthread_mutex_lock(&teams->mutex);
    teams->stop = true;
    pthread_cond_broadcast(&teams->begun);
    pthread_mutex_unlock(&teams->mutex);
    for (uint32_t n = 0; n < teams->started; n++) {
        pthread_join(teams->leaders[n].thread, NULL);
    }
    pthread_cond_destroy(&teams->begun);
    pthread_cond_destroy(&teams->ended);
    pthread_mutex_destroy(&teams->mutex);
    free(teams->leaders);
    free(teams);
}

uint32_t node_teams_count(const struct node_teams *teams) {
    return teams->count;
}

const struct topology_node *node_teams_node(const struct node_teams *teams, uint32_t node) {
    INVARIANT(node < teams->count);
    return &teams->options.topology->nodes[node];
}

FALLIBLE node_teams_run(struct node_teams *teams, err_t (*body)(void *context, uint32_t node, struct expertd_team *team),
                        void *context) {
    pthread_mutex_lock(&teams->mutex);
    teams->body = body;
    teams->context = context;
    teams->finished = 0;
    teams->run++;
    pthread_cond_broadcast(&teams->begun);
    pthread_mutex_unlock(&teams->mutex);
    return await_end(teams);
}
