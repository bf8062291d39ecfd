// Explores a small system exhaustively: 2 fronts, 3 shards, every order of messages, breaks, repeated messages, restarts, silence,
// loads and batches, to a stated number of steps. An exploration follows a change (a drain, a death, a return) along one fair
// schedule, and from each state on this way goes every other way. In every state the invariants of small_world_checks.c hold, and
// from a sample of the states the system comes to rest.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/shard/membership/small_world.h"
#include "tests/unit/share.h"

enum { DEPTH_MAX = 40, SEEN_BITS = 22 };

struct exploration {
    const char *name;
    struct world_options options;
    uint32_t steps_before; // of the fair schedule; 0: it starts with everything empty and unconnected
    struct {
        uint32_t at; // number of steps of the fair schedule
        struct world_step step;
    } events[4]; // what happens on the fair schedule
    uint32_t event_count;
    bool holds; // the fair schedule keeps back what front 1 sends to this shard
    uint32_t held_shard;
    uint32_t steps;        // of the fair schedule, from which the other ways branch off
    bool front_1_lags;     // on the fair schedule it receives a message only when nothing else is possible
    struct budget budget;  // of the other ways
    uint32_t depth;        // their steps
    uint32_t rest_one_in;  // states from which the system is brought to rest
    uint32_t rest_actions; // at most so many actions bring it to rest
};

// The states that were met, by hash, with the number of steps that were left then.
struct seen {
    uint64_t hash;
    uint8_t left;
};

static struct {
    const struct exploration *e;
    struct seen *seen;
    char *snapshots; // [DEPTH_MAX + 2]
    size_t bytes;
    uint64_t states, steps, rests, most_rest_actions;
    bool on_the_way;       // of the change that is explored
    size_t walk;           // number of the random walk
    uint32_t roots, depth; // states of the fair schedule; steps of the current path
    struct world_step path[DEPTH_MAX];
} X;

static const char *const STEP_NAMES[STEP_KINDS] = {"deliver to shard",
                                                   "deliver to front",
                                                   "repeat to shard",
                                                   "repeat to front",
                                                   "break",
                                                   "front notices",
                                                   "shard notices",
                                                   "reconnect",
                                                   "load",
                                                   "load fails",
                                                   "restart shard",
                                                   "restart heard",
                                                   "stop shard",
                                                   "restart front",
                                                   "time",
                                                   "silence",
                                                   "take up table",
                                                   "batch begins",
                                                   "batch ends",
                                                   "drain",
                                                   "cancel drain",
                                                   "unlist",
                                                   "list"};

// After a failure: the steps that led to it.
static int print_path(void **state) {
    (void)state;
    if (X.walk > 0) {
        fprintf(stderr, "in the random walk %zu\n", X.walk - 1);
    }
    if (X.depth > 0) {
        fprintf(stderr, "%s, after %u steps of the fair schedule:\n", X.e->name, X.roots);
    }
    for (uint32_t i = 0; i < X.depth; i++) {
        fprintf(stderr, "  %u: %s, front %u, shard %u\n", i, STEP_NAMES[X.path[i].kind], X.path[i].front, X.path[i].shard);
    }
    return 0;
}

// True: the state has not been met with as many steps left.
static bool is_new(uint64_t hash, uint32_t left) {
    size_t mask = ((size_t)1 << SEEN_BITS) - 1;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
        struct seen *seen = &X.seen[i];
        if (seen->hash == 0) {
            X.states++;
            assert_true(X.states < mask / 4 * 3);
            *seen = (struct seen){hash, (uint8_t)(left + 1)};
            return true;
        }
        if (seen->hash == hash) {
            bool more = left + 1 > seen->left;
            seen->left = more ? (uint8_t)(left + 1) : seen->left;
            return more;
        }
    }
}

static bool needs_front(enum step_kind kind) {
    return kind != STEP_LOAD && kind != STEP_LOAD_FAILS && kind != STEP_RESTART_SHARD && kind != STEP_RESTART_HEARD &&
           kind != STEP_STOP_SHARD && kind != STEP_TIME;
}

static bool needs_shard(enum step_kind kind) {
    return kind != STEP_RESTART_FRONT && kind != STEP_TIME && kind != STEP_TAKE_UP && kind != STEP_BATCH_BEGINS &&
           kind != STEP_BATCH_ENDS;
}

static void explore(uint32_t depth);

static void try_step(uint32_t depth, struct world_step step) {
    X.path[depth] = step;
    X.depth = depth + 1;
    if (!world_step(&step)) {
        return;
    }
    X.steps++;
    world_check();
    uint64_t hash = world_hash() | 1;
    if (is_new(hash, X.e->depth - depth - 1)) {
        world_save(X.snapshots + (depth + 1) * X.bytes);
        if (X.states % X.e->rest_one_in == 0) {
            uint64_t before = world_current()->actions;
            world_come_to_rest(X.e->rest_actions);
            uint64_t actions = world_current()->actions - before;
            X.most_rest_actions = actions > X.most_rest_actions ? actions : X.most_rest_actions;
            X.rests++;
        }
        explore(depth + 1);
    }
    world_restore(X.snapshots + depth * X.bytes);
}

static void explore(uint32_t depth) {
    if (depth == X.e->depth) {
        return;
    }
    world_restore(X.snapshots + depth * X.bytes);
    for (int kind = 0; kind < STEP_KINDS; kind++) {
        for (uint32_t f = 0; f < (needs_front((enum step_kind)kind) ? FRONTS : 1); f++) {
            for (uint32_t s = 0; s < (needs_shard((enum step_kind)kind) ? SHARDS : 1); s++) {
                try_step(depth, (struct world_step){(enum step_kind)kind, f, s});
            }
        }
    }
}

static void explore_from_here(void) {
    struct world *world = world_current();
    struct budget budget = world->budget;
    char *here = X.snapshots + (DEPTH_MAX + 1) * X.bytes;
    world_save(here);
    world->budget = X.e->budget;
    world_save(X.snapshots);
    explore(0);
    world_restore(here);
    world->budget = budget;
    X.roots++;
    X.depth = 0;
}

// One step of the fair schedule: the first that is possible, and time passes only if none is.
static bool is_held(enum step_kind kind, uint32_t front, uint32_t shard) {
    return X.e->holds && X.on_the_way && kind == STEP_DELIVER_TO_SHARD && front == 1 && shard == X.e->held_shard;
}

static bool fair_step(void) {
    static const enum step_kind KINDS[] = {STEP_BATCH_ENDS,    STEP_DELIVER_TO_SHARD, STEP_DELIVER_TO_FRONT,
                                           STEP_FRONT_NOTICES, STEP_SHARD_NOTICES,    STEP_LOAD,
                                           STEP_TAKE_UP};
    for (uint32_t f = 0; f < FRONTS; f++) {
        uint32_t front = X.e->front_1_lags ? f : FRONTS - 1 - f;
        for (uint32_t k = 0; k < sizeof KINDS / sizeof KINDS[0]; k++) {
            for (uint32_t s = 0; s < SHARDS; s++) {
                if (!is_held(KINDS[k], front, s) && world_step(&(struct world_step){KINDS[k], front, s})) {
                    return true;
                }
            }
        }
    }
    return false;
}

static void follow_fair_schedule(uint32_t steps, bool explores) {
    struct world *world = world_current();
    for (uint32_t i = 0, quiet = 0; i < steps && quiet < 6; i++) {
        uint64_t before = world->actions;
        for (uint32_t k = 0; explores && k < X.e->event_count; k++) {
            if (X.e->events[k].at == i) {
                memset(&world->budget, UINT8_MAX, sizeof world->budget);
                assert_true(world_step(&X.e->events[k].step));
                memset(&world->budget, 0, sizeof world->budget);
            }
        }
        if (explores && takes_case()) {
            explore_from_here();
        }
        if (!fair_step()) {
            world->budget.times++;
            world_step(&(struct world_step){STEP_TIME, 0, 0});
            quiet = world->actions == before ? quiet + 1 : 0;
        }
        world_check();
    }
}

static void run(const struct exploration *e) {
    memset(&X, 0, sizeof X);
    X.e = e;
    struct world *world = world_create(&e->options);
    follow_fair_schedule(e->steps_before, false);
    world->actions = 0;
    X.bytes = world_bytes();
    X.seen = calloc((size_t)1 << SEEN_BITS, sizeof *X.seen);
    X.snapshots = malloc((DEPTH_MAX + 2) * X.bytes);
    X.on_the_way = true;
    follow_fair_schedule(e->steps, true);
    printf("%s: %llu states, %llu steps, %u deep from each of %u; %llu brought to rest, by at most %llu actions\n", e->name,
           (unsigned long long)X.states, (unsigned long long)X.steps, e->depth, X.roots, (unsigned long long)X.rests,
           (unsigned long long)X.most_rest_actions);
    free(X.snapshots);
    free(X.seen);
    world_destroy();
}

#define EVENT(after, ...)                                                                                                          \
    {                                                                                                                              \
        after, {                                                                                                                   \
            __VA_ARGS__                                                                                                            \
        }                                                                                                                          \
    }

static void a_system_that_starts_empty_serves(void **state) {
    (void)state;
    run(&(struct exploration){.name = "start",
                              .options = {.copies = 2, .shard_memory = 2, .absences_max = 9, .first_shards = 3},
                              .steps = 60,
                              .budget = {.breaks = 1, .reconnects = 1, .times = 1, .batches = 1},
                              .depth = 3,
                              .rest_one_in = 20,
                              .rest_actions = 100});
}

// Shard 0 is drained, at the front that does not place experts. Each expert has one copy.
static void drained(const char *name, bool front_1_lags, struct budget budget) {
    run(&(struct exploration){.name = name,
                              .options = {.copies = 1, .shard_memory = 2, .absences_max = 9, .first_shards = 3},
                              .steps_before = 200,
                              .events = {EVENT(0, STEP_DRAIN, 1, 0)},
                              .event_count = 1,
                              .steps = 60,
                              .front_1_lags = front_1_lags,
                              .budget = budget,
                              .depth = 4,
                              .rest_one_in = 100,
                              .rest_actions = 100});
}

static void a_drained_shard_gives_up_its_copies_in_any_order_of_events(void **state) {
    (void)state;
    drained("drain", false, (struct budget){.breaks = 1, .reconnects = 1, .batches = 1});
    drained("drain, front 1 lags", true, (struct budget){.breaks = 1, .reconnects = 1, .batches = 1});
}

static void a_drain_survives_restarts_and_repeated_messages(void **state) {
    (void)state;
    drained("drain and restarts", true, (struct budget){.shard_restarts = 1, .front_restarts = 1, .repeats = 1, .batches = 1});
}

// One shard has both experts; a second starts and takes one of them.
static struct exploration join(const char *name, struct budget budget) {
    return (struct exploration){.name = name,
                                .options = {.copies = 1, .shard_memory = 2, .absences_max = 9, .first_shards = 1},
                                .steps_before = 200,
                                .events = {EVENT(0, STEP_RESTART_SHARD, 0, 1)},
                                .event_count = 1,
                                .steps = 60,
                                .budget = budget,
                                .depth = 4,
                                .rest_one_in = 100,
                                .rest_actions = 100};
}

static void a_joining_shard_takes_its_share_in_any_order_of_events(void **state) {
    (void)state;
    struct exploration e = join("join", (struct budget){.shard_restarts = 1, .reconnects = 1, .batches = 1});
    e.front_1_lags = true;
    run(&e);
}

// The joined shard restarts when the copy that it replaces is retiring: that copy is wanted again, and retired again later.
static void a_copy_that_is_wanted_again_is_not_freed_by_an_earlier_release(void **state) {
    (void)state;
    struct exploration e = join("wanted again", (struct budget){.reconnects = 1, .batches = 1});
    e.events[e.event_count++].at = 27; // front 1 has released it
    e.events[1].step = (struct world_step){STEP_RESTART_HEARD, 0, 1};
    run(&e);
    e.name = "wanted again, release late";
    e.events[1].at = 26; // front 1 is about to
    e.holds = true;
    run(&e);
}

// Each expert has two copies. Shard 0 restarts and comes back empty.
static void a_death_and_a_return_go_well_in_any_order_of_events(void **state) {
    (void)state;
    run(&(struct exploration){.name = "death",
                              .options = {.copies = 2, .shard_memory = 2, .absences_max = 9, .first_shards = 3},
                              .steps_before = 200,
                              .events = {EVENT(0, STEP_RESTART_SHARD, 0, 0)},
                              .event_count = 1,
                              .steps = 60,
                              .budget = {.breaks = 1, .reconnects = 1, .batches = 1},
                              .depth = 4,
                              .rest_one_in = 100,
                              .rest_actions = 100});
}

// Partitions and stopped processes: no echo for one step of time or several, with pauses after the second absence.
static void silence_ends_in_use_or_in_a_pause(void **state) {
    (void)state;
    run(&(struct exploration){.name = "silence",
                              .options = {.copies = 2, .shard_memory = 2, .absences_max = 1, .first_shards = 3},
                              .steps_before = 200,
                              .steps = 1,
                              .budget = {.silences = 5, .times = 1, .batches = 1},
                              .depth = 6,
                              .rest_one_in = 100,
                              .rest_actions = 100});
}

// Both fronts ask for the lease; each shard gives it to the same one.
static void two_fronts_that_place_experts_do_not_work_against_each_other(void **state) {
    (void)state;
    run(&(struct exploration){.name = "two owners",
                              .options = {.copies = 1, .both_own = true, .shard_memory = 2, .absences_max = 9, .first_shards = 3},
                              .steps_before = 200,
                              .events = {EVENT(0, STEP_DRAIN, 0, 0), EVENT(8, STEP_RESTART_FRONT, 1, 0)},
                              .event_count = 2,
                              .steps = 60,
                              .budget = {.reconnects = 1, .front_restarts = 1, .batches = 1},
                              .depth = 4,
                              .rest_one_in = 100,
                              .rest_actions = 100});
}

// Memory for one expert on each shard, and loads that fail.
static void failed_loads_are_made_good(void **state) {
    (void)state;
    run(&(struct exploration){.name = "failed loads",
                              .options = {.copies = 1, .shard_memory = 1, .absences_max = 9, .first_shards = 3},
                              .steps_before = 200,
                              .events = {EVENT(0, STEP_RESTART_SHARD, 0, 0)},
                              .event_count = 1,
                              .steps = 60,
                              .budget = {.failures = 2, .shard_restarts = 1, .times = 1, .batches = 1},
                              .depth = 4,
                              .rest_one_in = 100,
                              .rest_actions = 100});
}

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

// Long ways, not every one: any step at any time, then rest.
static void random_walks_of_every_kind_of_event_come_to_rest(void **state) {
    (void)state;
    size_t first = share_first(12000), walks = share_of(12000);
    for (size_t walk = first; walk < first + walks; walk++) {
        uint64_t random = 0x9e3779b97f4a7c15u * (walk + 1);
        X.walk = walk + 1;
        bool is_tight = walk % 7 == 0; // memory for one expert on each shard, and no drains: they would need more
        struct world_options options = {
            .copies = is_tight ? 1 : 1 + walk % 2, .shard_memory = is_tight ? 1 : 2, .first_shards = SHARDS};
        options.absences_max = walk % 3 ? 9 : 1;
        options.both_own = walk % 5 == 0;
        struct world *world = world_create(&options);
        for (uint32_t steps = 20 + (uint32_t)(next_random(&random) % 150); steps > 0; steps--) {
            memset(&world->budget, 1, sizeof world->budget);
            world->budget.drains = !is_tight;
            uint64_t choice = next_random(&random);
            // Half of the steps deliver messages, or the faults would leave little to break.
            enum step_kind kind = choice % 2 ? (enum step_kind)(choice / 2 % 2) : (enum step_kind)(choice / 2 % STEP_KINDS);
            world_step(&(struct world_step){kind, (uint32_t)(choice / 64 % FRONTS), (uint32_t)(choice / 256 % SHARDS)});
            world_check();
        }
        world_come_to_rest(200);
        world_destroy();
    }
    X.walk = 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_system_that_starts_empty_serves, print_path),
        cmocka_unit_test_teardown(a_drained_shard_gives_up_its_copies_in_any_order_of_events, print_path),
        cmocka_unit_test_teardown(a_drain_survives_restarts_and_repeated_messages, print_path),
        cmocka_unit_test_teardown(a_joining_shard_takes_its_share_in_any_order_of_events, print_path),
        cmocka_unit_test_teardown(a_copy_that_is_wanted_again_is_not_freed_by_an_earlier_release, print_path),
        cmocka_unit_test_teardown(a_death_and_a_return_go_well_in_any_order_of_events, print_path),
        cmocka_unit_test_teardown(silence_ends_in_use_or_in_a_pause, print_path),
        cmocka_unit_test_teardown(two_fronts_that_place_experts_do_not_work_against_each_other, print_path),
        cmocka_unit_test_teardown(failed_loads_are_made_good, print_path),
        cmocka_unit_test_teardown(random_walks_of_every_kind_of_event_come_to_rest, print_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
