#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "shard/catalogue/bits.h"
#include "shard/membership/placement_target.h"
#include "tests/unit/share.h"

enum { LAYERS_MAX = 4, EXPERTS_MAX = 130, MEMBERS = 24, CELLS_MAX = LAYERS_MAX * 192, WORDS_MAX = CELLS_MAX / 64 };

// Members with their copies, and one computation of the target.
struct cluster {
    uint32_t layer_experts[LAYERS_MAX];
    uint64_t expert_bytes[LAYERS_MAX];
    struct catalogue catalogue;
    uint16_t wanted[CELLS_MAX];
    uint32_t weights[CELLS_MAX];
    uint32_t members;
    struct target_member member[MEMBERS];
    uint64_t ready[MEMBERS][WORDS_MAX], loading[MEMBERS][WORDS_MAX], retiring[MEMBERS][WORDS_MAX], released[MEMBERS][WORDS_MAX];
    uint64_t failed[MEMBERS][WORDS_MAX], target[MEMBERS][WORDS_MAX];
    bool first_copies_alone;
    uint32_t slack_percent;
    struct target_outcome outcome;
    bool changed; // by the last apply
};

static struct cluster *cluster(uint32_t members, uint32_t layers, uint32_t experts, uint32_t copies) {
    struct cluster *c = calloc(1, sizeof *c);
    c->members = members;
    for (uint32_t l = 0; l < layers; l++) {
        c->layer_experts[l] = experts;
        c->expert_bytes[l] = 10;
    }
    assert_false(err_is(catalogue_init(&c->catalogue, layers, c->layer_experts, c->expert_bytes)));
    assert_true(c->catalogue.cells <= CELLS_MAX);
    for (uint32_t cell = 0; cell < c->catalogue.cells; cell++) {
        c->wanted[cell] = (uint16_t)copies;
        c->weights[cell] = 1;
    }
    for (uint32_t m = 0; m < MEMBERS; m++) {
        c->member[m] = (struct target_member){.role = TARGET_SETTLED,
                                              .bytes_max = UINT32_MAX,
                                              .ready = c->ready[m],
                                              .loading = c->loading[m],
                                              .retiring = c->retiring[m],
                                              .released = c->released[m],
                                              .failed = c->failed[m],
                                              .target = c->target[m]};
    }
    return c;
}

static uint32_t count(const struct cluster *c, const uint64_t *set) {
    uint32_t n = 0;
    BITS_FOR_EACH(cell, set, c->catalogue.cells) {
        n++;
    }
    return n;
}

static uint64_t bytes_of(const struct cluster *c, uint32_t m) {
    uint64_t bytes = 0;
    for (size_t w = 0; w < catalogue_words(&c->catalogue); w++) {
        uint64_t held = c->ready[m][w] | c->loading[m][w] | c->retiring[m][w] | c->released[m][w];
        BITS_FOR_EACH(bit, &held, 64) {
            bytes += catalogue_bytes(&c->catalogue, (uint32_t)w * 64 + bit);
        }
    }
    return bytes;
}

static void compute(struct cluster *c) {
    void *memory = aligned_alloc(64, target_scratch_bytes(&c->catalogue, c->members));
    struct target_scratch scratch;
    target_scratch_init(&scratch, memory, &c->catalogue, c->members);
    for (uint32_t m = 0; m < c->members; m++) {
        c->member[m].bytes_used = bytes_of(c, m);
    }
    struct target_options options = {&c->catalogue, c->wanted, c->weights, c->first_copies_alone, c->slack_percent};
    placement_target(&options, c->member, c->members, &scratch, &c->outcome);
    free(memory);
}

static uint32_t copies_of(const struct cluster *c, uint32_t cell) {
    uint32_t n = 0;
    for (uint32_t m = 0; m < c->members; m++) {
        n += bits_test(c->target[m], cell);
    }
    return n;
}

static bool exists(const struct cluster *c, uint32_t cell) {
    return catalogue_has(&c->catalogue, catalogue_id(&c->catalogue, cell));
}

static bool is_live_in_target(const struct cluster *c, uint32_t cell) {
    for (uint32_t m = 0; m < c->members; m++) {
        if (c->member[m].role >= TARGET_FIXED && bits_test(c->target[m], cell)) {
            return true;
        }
    }
    return false;
}

// All loads succeed, and what is not in the target is freed. Returns the number of loads.
static uint32_t apply(struct cluster *c) {
    uint32_t loads = 0;
    c->changed = false;
    for (uint32_t m = 0; m < c->members; m++) {
        for (size_t w = 0; w < WORDS_MAX; w++) {
            uint64_t before = c->ready[m][w];
            loads += (uint32_t)__builtin_popcountll(c->target[m][w] & ~before);
            uint64_t stays = 0; // on a draining member
            BITS_FOR_EACH(bit, &c->ready[m][w], 64) {
                bool elsewhere = is_live_in_target(c, (uint32_t)w * 64 + bit);
                bits_put(&stays, bit, c->member[m].role == TARGET_DRAINING && !elsewhere);
            }
            c->ready[m][w] = c->member[m].role == TARGET_GONE ? 0 : c->target[m][w] | stays;
            c->changed |= c->ready[m][w] != before;
            c->loading[m][w] = c->retiring[m][w] = c->released[m][w] = 0;
        }
    }
    return loads;
}

static uint32_t layer_count(const struct cluster *c, uint32_t m, uint32_t layer) {
    uint32_t n = 0;
    for (uint32_t e = 0; e < c->layer_experts[layer]; e++) {
        n += bits_test(c->target[m], layer * c->catalogue.stride + e);
    }
    return n;
}

static void assert_even(const struct cluster *c, uint32_t members) {
    uint32_t least_total = UINT32_MAX, most_total = 0;
    for (uint32_t layer = 0; layer < c->catalogue.layers; layer++) {
        uint32_t least = UINT32_MAX, most = 0;
        for (uint32_t m = 0; m < members; m++) {
            uint32_t n = layer_count(c, m, layer);
            least = n < least ? n : least;
            most = n > most ? n : most;
        }
        assert_true(most - least <= 1);
    }
    for (uint32_t m = 0; m < members; m++) {
        uint32_t n = count(c, c->target[m]);
        least_total = n < least_total ? n : least_total;
        most_total = n > most_total ? n : most_total;
    }
    assert_true(most_total - least_total <= 1);
}

static void every_layer_is_spread_evenly_with_the_copies_on_different_members(void **state) {
    (void)state;
    for (uint32_t members = 1; members <= MEMBERS; members++) {
        for (uint32_t copies = 1; copies <= 3; copies++) {
            struct cluster *c = cluster(members, 4, 7 * copies + members % 5, copies);
            compute(c);
            uint32_t wanted = copies < members ? copies : members;
            for (uint32_t cell = 0; cell < c->catalogue.cells; cell++) {
                assert_int_equal(copies_of(c, cell), exists(c, cell) ? wanted : 0);
            }
            assert_even(c, members);
            free(c);
        }
    }
}

static void a_placement_that_lies_well_does_not_change(void **state) {
    (void)state;
    struct cluster *c = cluster(7, 3, 40, 2);
    compute(c);
    assert_int_equal(apply(c), 3 * 40 * 2);
    compute(c);
    assert_int_equal(apply(c), 0);
    assert_int_equal(c->outcome.moves, 0);
    free(c);
}

static void a_new_member_takes_its_share_and_nothing_else_moves(void **state) {
    (void)state;
    struct cluster *c = cluster(8, 4, 64, 2);
    c->members = 7;
    compute(c);
    apply(c);
    c->members = 8;
    c->member[7].role = TARGET_NEW;
    compute(c);
    assert_int_equal(apply(c), 0); // not before it has been here for a while
    c->member[7].role = TARGET_SETTLED;
    compute(c);
    assert_even(c, 8);
    assert_int_equal(count(c, c->target[7]), 4 * 64 * 2 / 8);
    assert_int_equal(c->outcome.moves, 4 * 64 * 2 / 8);
    assert_int_equal(apply(c), c->outcome.moves);
    free(c);
}

static void copies_of_a_lost_member_are_made_elsewhere_only_when_it_is_gone(void **state) {
    (void)state;
    struct cluster *c = cluster(6, 3, 32, 2);
    c->slack_percent = 10;
    compute(c);
    apply(c);
    c->member[2].role = TARGET_ABSENT;
    compute(c);
    assert_int_equal(apply(c), 0);
    uint32_t lost = count(c, c->ready[2]);
    c->member[2].role = TARGET_GONE;
    compute(c);
    assert_int_equal(apply(c), lost);
    for (uint32_t cell = 0; cell < c->catalogue.cells; cell++) {
        assert_int_equal(copies_of(c, cell), exists(c, cell) ? 2 : 0);
    }
    free(c);
}

static void an_expert_without_a_live_copy_is_placed_while_its_member_is_only_absent(void **state) {
    (void)state;
    struct cluster *c = cluster(4, 2, 16, 1);
    compute(c);
    apply(c);
    uint32_t lost = count(c, c->ready[1]);
    c->member[1].role = TARGET_ABSENT;
    compute(c);
    for (uint32_t cell = 0; cell < c->catalogue.cells; cell++) {
        assert_int_equal(copies_of(c, cell), exists(c, cell) ? 1 + bits_test(c->ready[1], cell) : 0);
    }
    assert_int_equal(apply(c), lost);
    c->member[1].role = TARGET_NEW; // back, with two copies of what it has: nothing is dropped yet
    compute(c);
    assert_int_equal(count(c, c->target[1]), lost);
    c->member[1].role = TARGET_SETTLED;
    compute(c);
    for (uint32_t cell = 0; cell < c->catalogue.cells; cell++) {
        assert_int_equal(copies_of(c, cell), exists(c, cell));
    }
    assert_even(c, 4);
    assert_int_equal(apply(c), 0); // without a load
    free(c);
}

static void a_suspect_member_changes_nothing(void **state) {
    (void)state;
    struct cluster *c = cluster(3, 2, 16, 1);
    compute(c);
    apply(c);
    c->member[0].role = TARGET_FIXED;
    compute(c);
    assert_int_equal(apply(c), 0);
    free(c);
}

static void a_draining_member_keeps_nothing_in_its_target(void **state) {
    (void)state;
    struct cluster *c = cluster(5, 2, 20, 2);
    c->slack_percent = 10;
    compute(c);
    apply(c);
    uint32_t held = count(c, c->ready[3]);
    c->member[3].role = TARGET_DRAINING;
    compute(c);
    assert_int_equal(count(c, c->target[3]), 0);
    for (uint32_t cell = 0; cell < c->catalogue.cells; cell++) {
        assert_int_equal(copies_of(c, cell), exists(c, cell) ? 2 : 0);
    }
    assert_int_equal(apply(c), held);
    free(c);
}

static void a_retiring_copy_comes_back_before_another_is_loaded(void **state) {
    (void)state;
    struct cluster *c = cluster(3, 1, 4, 1);
    bits_set(c->retiring[2], 1);
    bits_set(c->released[1], 3);
    c->member[2].bytes_max = c->member[1].bytes_max = 10; // full: but these copies occupy their memory already
    compute(c);
    assert_true(bits_test(c->target[2], 1));
    assert_true(bits_test(c->target[1], 3));
    assert_int_equal(count(c, c->target[0]), 2);
    free(c);
}

static void first_copies_come_before_second_ones_when_memory_is_short(void **state) {
    (void)state;
    struct cluster *c = cluster(3, 2, 12, 2);
    for (uint32_t m = 0; m < 3; m++) {
        c->member[m].bytes_max = 100; // 30 copies of 48
    }
    compute(c);
    uint32_t total = 0;
    for (uint32_t cell = 0; cell < c->catalogue.cells; cell++) {
        assert_true(!exists(c, cell) || copies_of(c, cell) >= 1);
        total += copies_of(c, cell);
    }
    assert_int_equal(total, 30);
    assert_int_equal(c->outcome.without_copy, 0);
    assert_int_equal(c->outcome.short_of_copies, 18);
    free(c);
}

static void further_copies_can_be_put_off(void **state) {
    (void)state;
    struct cluster *c = cluster(3, 2, 12, 2);
    c->first_copies_alone = true;
    compute(c);
    assert_int_equal(apply(c), 24);
    compute(c);
    assert_int_equal(apply(c), 0);
    c->first_copies_alone = false;
    compute(c);
    assert_int_equal(apply(c), 24);
    free(c);
}

static void second_copies_make_room_for_experts_without_any(void **state) {
    (void)state;
    struct cluster *c = cluster(4, 1, 20, 2);
    for (uint32_t m = 0; m < 4; m++) {
        c->member[m].bytes_max = 100; // exactly two copies of each
    }
    compute(c);
    apply(c);
    c->member[0].role = c->member[1].role = TARGET_GONE;
    memset(c->ready[0], 0, sizeof c->ready[0]);
    memset(c->ready[1], 0, sizeof c->ready[1]);
    compute(c);
    uint32_t lost = c->outcome.without_copy;
    assert_true(lost > 0);
    uint32_t kept = count(c, c->target[2]) + count(c, c->target[3]);
    assert_int_equal(kept, 20 - lost); // exactly as much as is needed was given up
    apply(c);
    compute(c);
    assert_int_equal(c->outcome.without_copy, 0);
    for (uint32_t cell = 0; cell < 20; cell++) {
        assert_int_equal(copies_of(c, cell), 1);
    }
    apply(c);
    compute(c);
    assert_int_equal(apply(c), 0);
    free(c);
}

static void memory_that_is_being_freed_is_not_taken_twice(void **state) {
    (void)state;
    struct cluster *c = cluster(2, 1, 6, 2);
    for (uint32_t cell = 0; cell < 5; cell++) { // expert 5 has no copy, 4 is retiring on member 0
        bits_set(cell == 4 ? c->retiring[0] : c->ready[0], cell);
        bits_set(c->ready[1], cell);
    }
    c->member[0].bytes_max = c->member[1].bytes_max = 50;
    compute(c);
    assert_int_equal(c->outcome.without_copy, 1);
    assert_int_equal(count(c, c->target[0]), 4); // nothing more is given up, and expert 4 does not come back
    assert_int_equal(count(c, c->target[1]), 5);
    free(c);
}

static void an_expert_is_not_placed_where_its_load_failed(void **state) {
    (void)state;
    struct cluster *c = cluster(2, 1, 4, 1);
    bits_set(c->failed[0], 2);
    compute(c);
    assert_true(bits_test(c->target[1], 2));
    bits_set(c->failed[1], 2);
    compute(c);
    assert_int_equal(copies_of(c, 2), 0);
    assert_int_equal(c->outcome.without_copy, 1);
    free(c);
}

static void measured_load_is_balanced_and_small_differences_move_nothing(void **state) {
    (void)state;
    struct cluster *c = cluster(4, 1, 32, 1);
    c->slack_percent = 10;
    compute(c);
    apply(c);
    for (uint32_t e = 0; e < 32; e++) {
        c->weights[e] = bits_test(c->ready[0], e) ? 400 : 100; // the experts of member 0 are hot
    }
    compute(c);
    uint64_t most = 0, sum = 0;
    for (uint32_t m = 0; m < 4; m++) {
        uint64_t load = 0;
        BITS_FOR_EACH(e, c->target[m], 32) {
            load += c->weights[e];
        }
        most = load > most ? load : most;
        sum += load;
    }
    assert_true(most * 4 * 100 <= sum * 120);
    assert_true(c->outcome.moves > 0 && c->outcome.moves <= 8);
    apply(c);
    for (uint32_t e = 0; e < 32; e++) {
        c->weights[e] += e % 3;
    }
    compute(c);
    assert_true(apply(c) <= 1);
    free(c);
}

static void replicas_go_to_the_experts_with_the_most_load_per_copy(void **state) {
    (void)state;
    uint32_t weights[4] = {100, 10, 260, 30};
    uint16_t wanted[4];
    target_wanted(weights, 4, 1, 3, 3, wanted);
    assert_int_equal(wanted[0], 2); // 100, after 260 and 130
    assert_int_equal(wanted[1], 1);
    assert_int_equal(wanted[2], 3);
    assert_int_equal(wanted[3], 1);
    target_wanted(weights, 4, 2, 100, 3, wanted); // as many as there are members
    assert_int_equal(wanted[0] + wanted[1] + wanted[2] + wanted[3], 12);
}

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void check_target(const struct cluster *c) {
    for (uint32_t m = 0; m < c->members; m++) {
        uint64_t bytes = bytes_of(c, m);
        BITS_FOR_EACH(cell, c->target[m], c->catalogue.cells) {
            bool held = bits_test(c->ready[m], cell) || bits_test(c->loading[m], cell);
            bool reusable = bits_test(c->retiring[m], cell) || bits_test(c->released[m], cell);
            assert_true(exists(c, cell));
            assert_true(held || c->member[m].role >= TARGET_NEW);
            assert_true(held || !bits_test(c->failed[m], cell));
            bytes += held || reusable ? 0 : catalogue_bytes(&c->catalogue, cell);
        }
        assert_true(bytes <= c->member[m].bytes_max || c->member[m].role < TARGET_NEW);
    }
}

static void assert_covered(const struct cluster *c) {
    for (uint32_t cell = 0; cell < c->catalogue.cells; cell++) {
        bool live = is_live_in_target(c, cell);
        for (uint32_t m = 0; m < c->members; m++) {
            live |= c->member[m].role == TARGET_DRAINING && bits_test(c->ready[m], cell);
        }
        assert_true(live || !exists(c, cell));
    }
}

// Random roles, memory and loads: the target respects every limit, and repeated steps come to rest with every expert covered.
static void random_clusters_come_to_rest_covered_and_within_their_memory(void **state) {
    (void)state;
    uint64_t random = share_start(7);
    for (size_t round = 0; round < share_of(1500); round++) {
        uint32_t members = 2 + (uint32_t)(next_random(&random) % 10), experts = 1 + (uint32_t)(next_random(&random) % 130);
        uint32_t layers = 1 + (uint32_t)(next_random(&random) % LAYERS_MAX), copies = 1 + (uint32_t)(next_random(&random) % 3);
        struct cluster *c = cluster(members, layers, experts, copies);
        c->slack_percent = (uint32_t)(next_random(&random) % 20);
        uint64_t each = 10 * ((uint64_t)layers * experts * (1 + next_random(&random) % 3) / members + 2);
        for (uint32_t cell = 0; cell < c->catalogue.cells; cell++) {
            c->weights[cell] = round % 2 ? 1 : 1 + (uint32_t)(next_random(&random) % 1000);
        }
        for (uint32_t m = 0; m < members; m++) {
            c->member[m].bytes_max = each + next_random(&random) % (each + 1);
        }
        for (int fault = 0; fault < 4; fault++) {
            uint32_t settled = 0;
            for (uint32_t m = 0; m < members; m++) {
                enum target_role role = fault == 0 ? TARGET_SETTLED : (enum target_role)(next_random(&random) % 9);
                c->member[m].role = role > TARGET_SETTLED ? TARGET_SETTLED : role;
                settled += role >= TARGET_SETTLED;
            }
            c->changed = true;
            for (int step = 0; step < 60 && c->changed; step++) {
                compute(c);
                check_target(c);
                apply(c);
            }
            assert_false(c->changed);
            if (settled * each >= 10 * (uint64_t)layers * (experts + 1)) {
                assert_covered(c);
            }
        }
        free(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layer_is_spread_evenly_with_the_copies_on_different_members),
        cmocka_unit_test(a_placement_that_lies_well_does_not_change),
        cmocka_unit_test(a_new_member_takes_its_share_and_nothing_else_moves),
        cmocka_unit_test(copies_of_a_lost_member_are_made_elsewhere_only_when_it_is_gone),
        cmocka_unit_test(an_expert_without_a_live_copy_is_placed_while_its_member_is_only_absent),
        cmocka_unit_test(a_suspect_member_changes_nothing),
        cmocka_unit_test(a_draining_member_keeps_nothing_in_its_target),
        cmocka_unit_test(a_retiring_copy_comes_back_before_another_is_loaded),
        cmocka_unit_test(first_copies_come_before_second_ones_when_memory_is_short),
        cmocka_unit_test(further_copies_can_be_put_off),
        cmocka_unit_test(second_copies_make_room_for_experts_without_any),
        cmocka_unit_test(memory_that_is_being_freed_is_not_taken_twice),
        cmocka_unit_test(an_expert_is_not_placed_where_its_load_failed),
        cmocka_unit_test(measured_load_is_balanced_and_small_differences_move_nothing),
        cmocka_unit_test(replicas_go_to_the_experts_with_the_most_load_per_copy),
        cmocka_unit_test(random_clusters_come_to_rest_covered_and_within_their_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
