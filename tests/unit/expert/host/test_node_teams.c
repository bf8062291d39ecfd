#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "expert/host/node_teams.h"
#include "tests/unit/expert/host/fake_nodes.h"

enum { NODES = 3 };
static struct topology topology;

struct seen {
    atomic_uint runs[NODES], wrong_cpu, tasks, inside, together;
    uint32_t fails; // bit n: node n fails
};

static void count_task(void *context, size_t task, unsigned thread) {
    (void)task, (void)thread;
    atomic_fetch_add(&((struct seen *)context)->tasks, 1);
}

static bool on_node(const struct topology_node *node) {
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &set) != (int)(node->cpus.bits[cpu / 64] >> cpu % 64 & 1)) {
            return false;
        }
    }
    return true;
}

static err_t body(void *context, uint32_t node, struct expertd_team *team) {
    struct seen *seen = context;
    atomic_fetch_add(&seen->runs[node], 1);
    atomic_fetch_add(&seen->wrong_cpu, !on_node(&topology.nodes[node]));
    expertd_team_run(team, 10, count_task, seen);
    if (seen->fails >> node & 1) {
        FAIL(EXPERTD_ERR_SHARD_LOST, "node %u fails", node);
    }
    return OK;
}

// Every node waits until all have entered, which happens only if they run at the same time.
static err_t meet(void *context, uint32_t node, struct expertd_team *team) {
    (void)node, (void)team;
    struct seen *seen = context;
    atomic_fetch_add(&seen->inside, 1);
    for (int i = 0; i < 5000 && atomic_load(&seen->inside) < NODES; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    atomic_fetch_add(&seen->together, atomic_load(&seen->inside) == NODES);
    return OK;
}

static struct node_teams *start(unsigned threads) {
    struct node_teams *teams;
    fake_nodes(NODES, &topology);
    struct node_teams_options options = {.topology = &topology, .threads = threads, .spin_us = 5};
    assert_false(err_is(node_teams_create(&options, &teams)));
    assert_int_equal(node_teams_count(teams), NODES);
    return teams;
}

static void every_node_runs_once_on_its_cpus(void **state) {
    (void)state;
    for (unsigned threads = 1; threads <= 6; threads++) {
        struct node_teams *teams = start(threads);
        static struct seen seen;
        memset(&seen, 0, sizeof seen);
        for (unsigned run = 1; run <= 20; run++) {
            assert_false(err_is(node_teams_run(teams, body, &seen)));
            for (uint32_t n = 0; n < NODES; n++) {
                assert_int_equal(atomic_load(&seen.runs[n]), run);
            }
            assert_int_equal(atomic_load(&seen.tasks), run * NODES * 10);
        }
        assert_int_equal(atomic_load(&seen.wrong_cpu), 0);
        node_teams_destroy(teams);
    }
}

static void nodes_run_at_the_same_time(void **state) {
    (void)state;
    struct node_teams *teams = start(NODES);
    static struct seen seen;
    assert_false(err_is(node_teams_run(teams, meet, &seen)));
    assert_int_equal(atomic_load(&seen.together), NODES);
    node_teams_destroy(teams);
}

static void the_lowest_nodes_error_is_reported_and_the_next_run_is_clean(void **state) {
    (void)state;
    struct node_teams *teams = start(NODES);
    static struct seen seen;
    seen.fails = 6;
    assert_int_equal(node_teams_run(teams, body, &seen).code, EXPERTD_ERR_SHARD_LOST);
    assert_string_equal(expertd_err_message(), "node 1 fails");
    seen.fails = 0;
    assert_false(err_is(node_teams_run(teams, body, &seen)));
    node_teams_destroy(teams);
}

static void a_node_with_missing_cpus_is_refused(void **state) {
    (void)state;
    struct node_teams *teams;
    fake_nodes(NODES, &topology);
    memset(&topology.nodes[1].cpus, 0, sizeof topology.nodes[1].cpus);
    struct node_teams_options options = {.topology = &topology, .threads = 3};
    assert_int_equal(node_teams_create(&options, &teams).code, EXPERTD_ERR_UNAVAILABLE);
    assert_null(teams);
    node_teams_destroy(NULL);
}

static err_t see_mask(void *context, uint32_t node, struct expertd_team *team) {
    (void)team;
    pthread_sigmask(SIG_SETMASK, NULL, &((sigset_t *)context)[node]);
    return OK;
}

// Leaders read mapped checkpoints, so they must receive SIGBUS: its handler names a file that shrinks.
static void leaders_receive_only_the_signals_of_their_own_faults(void **state) {
    (void)state;
    sigset_t masks[NODES];
    struct node_teams *teams = start(NODES);
    assert_false(err_is(node_teams_run(teams, see_mask, masks)));
    for (uint32_t n = 0; n < NODES; n++) {
        assert_false(sigismember(&masks[n], SIGBUS));
        assert_true(sigismember(&masks[n], SIGTERM));
    }
    node_teams_destroy(teams);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_node_runs_once_on_its_cpus),
        cmocka_unit_test(nodes_run_at_the_same_time),
        cmocka_unit_test(the_lowest_nodes_error_is_reported_and_the_next_run_is_clean),
        cmocka_unit_test(leaders_receive_only_the_signals_of_their_own_faults),
        cmocka_unit_test(a_node_with_missing_cpus_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
