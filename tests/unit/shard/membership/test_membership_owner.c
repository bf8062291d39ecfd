// The front that places experts.
#include "tests/unit/shard/membership/front_bench.h"

static const int64_t MS = NS_PER_MS;

static struct front_bench *owner(uint32_t layers, uint32_t experts, uint32_t copies) {
    struct front_bench *b = bench_create(layers, experts);
    b->options.is_owner = true;
    b->options.copies = copies;
    b->options.gather_ns = 3000 * MS;
    return b;
}

// Members with these copies. The owner decides nothing before all are there.
static void join_all(struct front_bench *b, uint32_t count, const char *const *states) {
    char address[8];
    for (uint32_t i = 0; i < count; i++) {
        snprintf(address, sizeof address, "%c:1", 'a' + i);
        bench_add(b, address);
    }
    for (uint32_t i = 0; i < count; i++) {
        bench_say_hello(b, i, bench_hello(b, 5 + i));
        bench_lease(b, i, true);
        bench_inventory(b, i, states[i]);
    }
    bench_forget(b);
}

static void missing_experts_are_assigned_and_used_when_they_are_ready(void **state) {
    (void)state;
    struct front_bench *b = owner(1, 4, 1);
    bench_start(b);
    bench_join(b, "a:1", 5, "----");
    bench_expect(b, "log 0 free>joining added; dial 0#1; live 0; owner yes; log 0 joining>ready connected; "
                    "assign 0: 0.0 0.1 0.2 0.3; log 0 ready>loading copies_changed; ");
    bench_inventory(b, 0, "llll");
    bench_expect(b, "");
    bench_inventory(b, 0, "rr  ");
    bench_expect(b, "use 0@1; ");
    bench_inventory(b, 0, "  rr");
    bench_expect(b, "log 0 loading>ready copies_changed; use 0@2; ");
    assert_int_equal(membership_uncovered_total(&b->m), 0);
    bench_destroy(b);
}

static void the_first_assignment_waits_for_members_that_may_hold_the_experts(void **state) {
    (void)state;
    struct front_bench *b = owner(1, 2, 1);
    bench_start(b);
    bench_add(b, "a:1");
    bench_add(b, "b:1");
    bench_add(b, "c:1");
    for (uint32_t i = 0; i < 2; i++) {
        bench_say_hello(b, i, bench_hello(b, 5 + i));
        bench_lease(b, i, true);
    }
    bench_inventory(b, 0, "--");
    bench_forget(b);
    bench_event(b, 2, MEMBERSHIP_CONNECT_FAILED);
    bench_expect(b, "");
    bench_inventory(b, 1, "rr"); // had it been told first, member 0 would have loaded both
    bench_expect(b, "live 0 1; owner yes; log 1 joining>ready connected; use 0@1; ");
    bench_destroy(b);
}

static void a_member_that_is_slow_to_start_holds_up_the_first_assignment_for_a_time_only(void **state) {
    (void)state;
    struct front_bench *b = owner(1, 2, 1);
    bench_start(b);
    bench_add(b, "slow:1");
    bench_join(b, "a:1", 5, "--");
    bench_forget(b);
    bench_pass(b, 2975 * MS, 2);
    bench_expect(b, "");
    bench_pass(b, 25 * MS, 2);
    bench_expect(b, "owner yes; assign 1: 0.0 0.1; log 1 ready>loading copies_changed; ");
    bench_destroy(b);
}

static void second_copies_wait_for_members_that_may_hold_them(void **state) {
    (void)state;
    struct front_bench *b = owner(1, 2, 2);
    bench_start(b);
    bench_add(b, "down:1"); // its host is being started, as this front is
    bench_add(b, "a:1");
    bench_event(b, 0, MEMBERSHIP_CONNECT_FAILED);
    bench_say_hello(b, 1, bench_hello(b, 6));
    bench_lease(b, 1, true);
    bench_inventory(b, 1, "r-");
    bench_join(b, "b:1", 7, "--");
    assert_non_null(strstr(b->actions, "assign 1: 0.1;")); // the first copy does not wait
    assert_null(strstr(b->actions, "assign 2"));
    bench_inventory(b, 1, " r");
    bench_forget(b);
    bench_pass(b, 29975 * MS, 6);
    assert_null(strstr(b->actions, "assign"));
    bench_pass(b, 50 * MS, 6);
    assert_non_null(strstr(b->actions, "assign 2: 0.0 0.1;"));
    bench_destroy(b);
}

static void nothing_is_assigned_without_the_lease(void **state) {
    (void)state;
    struct front_bench *b = owner(1, 2, 1);
    bench_start(b);
    bench_add(b, "a:1");
    bench_say_hello(b, 0, bench_hello(b, 5));
    bench_inventory(b, 0, "--");
    bench_forget(b);
    bench_lease(b, 0, false); // another front has it
    bench_expect(b, "owner no; ");
    bench_join(b, "b:1", 6, "--"); // grants it, but the first member denies it
    bench_expect(b, "log 1 free>joining added; dial 1#1; live 0 1; log 1 joining>ready connected; ");
    bench_lease(b, 0, true);
    bench_expect(
        b, "owner yes; assign 0: 0.0; assign 1: 0.1; log 0 ready>loading copies_changed; log 1 ready>loading copies_changed; ");
    bench_destroy(b);
}

static void a_front_without_the_option_follows(void **state) {
    (void)state;
    struct front_bench *b = bench_create(1, 2);
    bench_start(b);
    bench_join(b, "a:1", 5, "r-");
    bench_expect(b, "log 0 free>joining added; dial 0#1; live 0; log 0 joining>ready connected; use 0@1; ");
    bench_inventory(b, 0, "t "); // retired by another front; used until there is another copy
    bench_expect(b, "");
    assert_int_equal(bench_holders(b, 0, 0), 1);
    bench_join(b, "b:1", 6, "r-");
    bench_expect(b, "log 1 free>joining added; dial 1#1; live 0 1; log 1 joining>ready connected; use 0@2; release 0: 0.0; ");
    assert_int_equal(bench_holders(b, 0, 0), 2);
    bench_destroy(b);
}

static void a_member_loads_a_limited_number_of_copies_at_a_time(void **state) {
    (void)state;
    struct front_bench *b = owner(1, 6, 1);
    b->options.loads_max = 2;
    bench_start(b);
    bench_join(b, "a:1", 5, "------");
    bench_forget(b);
    bench_inventory(b, 0, "ll    ");
    bench_expect(b, "");
    bench_inventory(b, 0, "r     ");
    bench_expect(b, "use 0@1; assign 0: 0.2; ");
    bench_join(b, "b:1", 6, "------"); // takes what was not yet assigned
    bench_forget(b);
    bench_inventory(b, 0, " rl   ");
    bench_inventory(b, 0, "  r   ");
    assert_null(strstr(b->actions, "assign 0"));
    assert_int_equal(b->m.members[0].copies.count[COPY_READY], 3);
    assert_int_equal(b->m.members[1].copies.count[COPY_LOADING], 2);
    bench_destroy(b);
}

static void a_new_command_waits_until_the_last_one_was_carried_out(void **state) {
    (void)state;
    struct front_bench *b = owner(1, 4, 1);
    b->options.loads_max = 1;
    bench_start(b);
    bench_join(b, "a:1", 5, "----");
    bench_forget(b);
    struct copy_report ready = {{0, 0}, COPY_READY, 100};
    bench_step(b, (struct membership_event){.kind = MEMBERSHIP_INVENTORY,
                                            .member = 0,
                                            .connection = 1,
                                            .inventory = {.sequence = 2, .reports = &ready, .count = 1}});
    bench_expect(b, "log 0 loading>ready copies_changed; use 0@1; ");
    b->sequence[0]++;
    bench_inventory(b, 0, "r   ");
    bench_expect(b, "assign 0: 0.1; log 0 ready>loading copies_changed; ");
    bench_destroy(b);
}

static void a_new_member_takes_its_share_and_copies_are_retired_when_the_new_ones_are_ready(void **state) {
    (void)state;
    struct front_bench *b = owner(1, 4, 1);
    bench_start(b);
    bench_join(b, "a:1", 5, "rrrr");
    bench_forget(b);
    bench_join(b, "b:1", 6, "----");
    bench_forget(b);
    bench_event(b, 0, MEMBERSHIP_TICK);
    bench_expect(b, "assign 1: 0.0 0.1; log 1 ready>loading copies_changed; ");
    bench_inventory(b, 1, "ll  ");
    bench_inventory(b, 1, "r   ");
    bench_expect(b, "use 0@2; retire 0: 0.0; ");
    assert_int_equal(bench_holders(b, 0, 0), 3); // two-phase: member 0 is used until it says that the copy retires
    b->keeps_tables = true;
    bench_inventory(b, 0, "t   ");
    bench_expect(b, "use 0@3; ");
    assert_int_equal(bench_holders(b, 0, 0), 2);
    bench_inventory(b, 1, " r  ");
    bench_expect(b, "log 1 loading>ready copies_changed; retire 0: 0.1; ");
    bench_step(b, (struct membership_event){.kind = MEMBERSHIP_IN_FORCE, .in_force = {0, 3}}); // no batch uses the old table
    bench_expect(b, "use 0@4; ");
    bench_step(b, (struct membership_event){.kind = MEMBERSHIP_IN_FORCE, .in_force = {0, 4}});
    bench_expect(b, "release 0: 0.0; ");
    bench_destroy(b);
}

static void lost_copies_are_made_elsewhere_only_after_a_time(void **state) {
    (void)state;
    struct front_bench *b = owner(1, 2, 2);
    b->options.members_max = 3;
    bench_start(b);
    join_all(b, 3, (const char *[]){"rr", "rr", "--"});
    bench_pass(b, 50 * MS, 7);
    bench_inventory(b, 2, "r-");
    bench_inventory(b, 0, "t ");
    bench_inventory(b, 0, "- ");
    bench_forget(b);
    bench_event(b, 0, MEMBERSHIP_DISCONNECTED);
    bench_expect(b, "live 1 2; log 0 ready>dead disconnected; ");
    bench_pass(b, 29975 * MS, 6);
    assert_null(strstr(b->actions, "assign"));
    bench_pass(b, 25 * MS, 6);
    assert_non_null(strstr(b->actions, "assign 2: 0.1;"));
    bench_destroy(b);
}

static void an_expert_without_a_live_copy_is_assigned_at_once(void **state) {
    (void)state;
    struct front_bench *b = owner(1, 2, 1);
    bench_start(b);
    join_all(b, 2, (const char *[]){"r-", "-r"});
    bench_pass(b, 100 * MS, 2);
    bench_expect(b, "log 0 ready>suspect silent; "); // a suspicion changes no placement
    bench_event(b, 0, MEMBERSHIP_DISCONNECTED);
    bench_expect(b, "live 1; log 0 suspect>dead disconnected; assign 1: 0.0; log 1 ready>loading copies_changed; ");
    assert_true(membership_is_mending(&b->m, (struct expert_id){0, 0}));
    assert_true(membership_all_mend(&b->m));
    bench_destroy(b);
}

static void a_member_that_returns_in_time_is_not_replaced(void **state) {
    (void)state;
    struct front_bench *b = owner(1, 2, 2);
    bench_start(b);
    join_all(b, 3, (const char *[]){"rr", "rr", "--"});
    bench_pass(b, 25 * MS, 7);
    bench_inventory(b, 2, "l ");
    bench_inventory(b, 2, "r ");
    bench_inventory(b, 0, "t ");
    bench_inventory(b, 0, "- ");
    bench_event(b, 0, MEMBERSHIP_DISCONNECTED);
    bench_pass(b, 20000 * MS, 6);
    bench_return(b, 0, 5, "-r");
    bench_pass(b, 60000 * MS, 7);
    assert_null(strstr(b->actions, "assign 0"));
    assert_null(strstr(b->actions, "assign 1"));
    bench_destroy(b);
}

static void surplus_copies_of_a_returned_member_are_retired_when_it_has_settled(void **state) {
    (void)state;
    struct front_bench *b = owner(1, 2, 1);
    b->options.settle_after_ns = 10000 * MS;
    bench_start(b);
    join_all(b, 2, (const char *[]){"r-", "-r"});
    bench_pass(b, 10000 * MS, 3);
    bench_event(b, 0, MEMBERSHIP_DISCONNECTED);
    bench_inventory(b, 1, "l ");
    bench_inventory(b, 1, "r ");
    bench_forget(b);
    bench_return(b, 0, 5, "r-");
    bench_expect(b, "dial 0#2; live 0 1; log 0 dead>ready returned; ");
    bench_pass(b, 9975 * MS, 3);
    bench_expect(b, "");
    bench_pass(b, 25 * MS, 3);
    bench_expect(b, "retire 1: 0.0; "); // member 1 has more load
    bench_destroy(b);
}

static void a_drained_member_gives_up_each_copy_when_another_is_ready(void **state) {
    (void)state;
    struct front_bench *b = owner(1, 2, 1);
    bench_start(b);
    bench_join(b, "a:1", 5, "rr");
    bench_drain_member(b, 0, MEMBERSHIP_SHARD_DRAINS, true);
    bench_forget(b);
    bench_join(b, "b:1", 6, "--");
    bench_expect(b, "log 1 free>joining added; dial 1#1; live 0 1; log 1 joining>ready connected; assign 1: 0.0 0.1; "
                    "log 1 ready>loading copies_changed; ");
    assert_int_equal(bench_state(b, 0), MEMBER_DRAINING);
    bench_inventory(b, 1, "ll");
    bench_inventory(b, 1, "r ");
    bench_expect(b, "use 0@2; retire 0: 0.0; ");
    bench_inventory(b, 0, "t ");
    bench_expect(b, "use 0@3; release 0: 0.0; ");
    bench_inventory(b, 0, "- ");
    bench_inventory(b, 1, " r");
    bench_inventory(b, 0, " t");
    bench_forget(b);
    bench_inventory(b, 0, " -");
    bench_expect(b, "drained 0; ");
    bench_event(b, 0, MEMBERSHIP_DISCONNECTED);
    bench_return(b, 0, 50, "--"); // started again: it joins
    bench_event(b, 0, MEMBERSHIP_TICK);
    assert_int_equal(bench_state(b, 0), MEMBER_LOADING);
    bench_destroy(b);
}

static void a_member_with_nothing_to_give_up_is_drained_at_once_and_its_slot_freed_if_it_is_removed(void **state) {
    (void)state;
    struct front_bench *b = owner(1, 1, 1);
    bench_start(b);
    join_all(b, 2, (const char *[]){"r", "-"});
    bench_drain_member(b, 1, MEMBERSHIP_SHARD_DRAINS, true);
    bench_expect(b, "log 1 ready>draining drain_requested; drained 1; ");
    bench_drain_member(b, 1, MEMBERSHIP_SHARD_DRAINS, false);
    bench_expect(b, "log 1 draining>ready drain_cancelled; ");
    bench_event(b, 1, MEMBERSHIP_UNLIST);
    bench_drain_member(b, 1, MEMBERSHIP_SHARD_DRAINS, true);
    bench_expect(b, "live 0; log 1 ready>free unlisted; close 1#1; drained 1; ");
    bench_destroy(b);
}

static void the_last_copy_is_never_retired(void **state) {
    (void)state;
    struct front_bench *b = owner(1, 2, 1);
    bench_start(b);
    bench_join(b, "a:1", 5, "rr");
    bench_forget(b);
    bench_drain_member(b, 0, MEMBERSHIP_SHARD_DRAINS, true); // nowhere to go
    bench_pass(b, 60000 * MS, 1);
    bench_expect(b, "log 0 ready>draining drain_requested; ");
    assert_int_equal(membership_uncovered_total(&b->m), 0);
    bench_destroy(b);
}

static void a_failed_load_goes_elsewhere_and_is_tried_again_after_growing_pauses(void **state) {
    (void)state;
    struct front_bench *b = owner(1, 1, 1);
    bench_start(b);
    bench_join(b, "a:1", 5, "-");
    bench_forget(b);
    int64_t last = b->now_ns;
    static const int64_t PAUSES[] = {1000, 2000, 4000};
    for (size_t i = 0; i < 3; i++) {
        bench_inventory(b, 0, "f");
        while (!strstr(b->actions, "assign 0: 0.0")) {
            bench_pass(b, 25 * MS, 1);
        }
        assert_int_equal((b->now_ns - last) / MS, PAUSES[i]);
        last = b->now_ns;
        bench_forget(b);
    }
    bench_join(b, "b:1", 6, "-");
    bench_forget(b);
    bench_inventory(b, 0, "f");
    bench_expect(b, "log 0 loading>ready copies_changed; assign 1: 0.0; log 1 ready>loading copies_changed; ");
    bench_destroy(b);
}

static void ranks_of_this_process_take_part_by_their_memory(void **state) {
    (void)state;
    struct front_bench *b = owner(1, 4, 1);
    b->options.local_members = 2;
    b->local_bytes[0] = 10; // one expert
    b->local_bytes[1] = 0;
    bench_start(b);
    assert_string_equal(b->m.members[0].address, "local:0");
    bench_forget(b);
    bench_add(b, "a:1");
    bench_say_hello(b, 2, bench_hello(b, 5));
    bench_lease(b, 2, true);
    bench_inventory(b, 2, "----");
    assert_non_null(strstr(b->actions, "assign 2: 0.1 0.2 0.3;"));
    assert_int_equal(copies_get(&b->m.members[0].copies, 0), COPY_LOADING);
    bench_inventory(b, 0, "r   ");
    bench_inventory(b, 2, " rrr");
    assert_int_equal(membership_uncovered_total(&b->m), 0);
    bench_pass(b, 5000 * MS, 4); // never suspect
    assert_int_equal(bench_holders(b, 0, 0), 1);
    bench_destroy(b);
}

static void measured_load_moves_experts_and_adds_replicas(void **state) {
    (void)state;
    struct front_bench *b = owner(1, 4, 1);
    b->options.replicas = 1;
    bench_start(b);
    join_all(b, 2, (const char *[]){"rr--", "--rr"});
    bench_pass(b, 25 * MS, 3);
    bench_forget(b);
    membership_set_load(&b->m, 0, (uint64_t[]){1000, 90, 100, 100}, b->now_ns);
    bench_drain(b);
    bench_expect(b, "assign 1: 0.0; log 1 ready>loading copies_changed; ");
    bench_destroy(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_experts_are_assigned_and_used_when_they_are_ready),
        cmocka_unit_test(the_first_assignment_waits_for_members_that_may_hold_the_experts),
        cmocka_unit_test(a_member_that_is_slow_to_start_holds_up_the_first_assignment_for_a_time_only),
        cmocka_unit_test(second_copies_wait_for_members_that_may_hold_them),
        cmocka_unit_test(nothing_is_assigned_without_the_lease),
        cmocka_unit_test(a_front_without_the_option_follows),
        cmocka_unit_test(a_member_loads_a_limited_number_of_copies_at_a_time),
        cmocka_unit_test(a_new_command_waits_until_the_last_one_was_carried_out),
        cmocka_unit_test(a_new_member_takes_its_share_and_copies_are_retired_when_the_new_ones_are_ready),
        cmocka_unit_test(lost_copies_are_made_elsewhere_only_after_a_time),
        cmocka_unit_test(an_expert_without_a_live_copy_is_assigned_at_once),
        cmocka_unit_test(a_member_that_returns_in_time_is_not_replaced),
        cmocka_unit_test(surplus_copies_of_a_returned_member_are_retired_when_it_has_settled),
        cmocka_unit_test(a_drained_member_gives_up_each_copy_when_another_is_ready),
        cmocka_unit_test(a_member_with_nothing_to_give_up_is_drained_at_once_and_its_slot_freed_if_it_is_removed),
        cmocka_unit_test(the_last_copy_is_never_retired),
        cmocka_unit_test(a_failed_load_goes_elsewhere_and_is_tried_again_after_growing_pauses),
        cmocka_unit_test(ranks_of_this_process_take_part_by_their_memory),
        cmocka_unit_test(measured_load_moves_experts_and_adds_replicas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
