#include "tests/unit/shard/membership/front_bench.h"

static const int64_t MS = NS_PER_MS;

static void a_listed_shard_is_dialled_and_used_as_soon_as_it_says_what_it_holds(void **state) {
    (void)state;
    struct front_bench *b = bench_create(2, 3);
    bench_start(b);
    uint32_t member = bench_add(b, "a:1");
    bench_expect(b, "log 0 free>joining added; dial 0#1; ");
    bench_say_hello(b, member, bench_hello(b, 77));
    bench_expect(b, "");
    assert_int_equal(membership_uncovered_total(&b->m), 6);
    bench_inventory(b, member, "rr lr");
    bench_expect(b, "live 0; log 0 joining>loading connected; use 0@1; use 1@1; ");
    assert_int_equal(bench_holders(b, 0, 0), 1);
    assert_int_equal(bench_holders(b, 0, 2), 0);
    assert_int_equal(membership_uncovered(&b->m, 0), 1);
    assert_int_equal(membership_uncovered(&b->m, 1), 2);
    assert_int_equal(membership_below_copies(&b->m), 3);
    assert_true(membership_is_mending(&b->m, (struct expert_id){1, 0}));
    assert_false(membership_is_mending(&b->m, (struct expert_id){0, 2}));
    assert_false(membership_all_mend(&b->m));
    bench_inventory(b, member, "  rrrr");
    bench_expect(b, "log 0 loading>ready copies_changed; use 0@2; use 1@2; ");
    assert_int_equal(membership_uncovered_total(&b->m), 0);
    assert_int_equal(membership_below_copies(&b->m), 0);
    b->m.options.copies = 2;
    assert_int_equal(membership_below_copies(&b->m), 6);
    assert_true(membership_all_mend(&b->m)); // there is nothing to mend
    bench_destroy(b);
}

static void the_next_table_of_a_layer_waits_until_the_last_one_is_in_force(void **state) {
    (void)state;
    struct front_bench *b = bench_create(1, 3);
    bench_start(b);
    b->keeps_tables = true;
    bench_join(b, "a:1", 5, "r--");
    bench_forget(b);
    bench_inventory(b, 0, " r ");
    bench_expect(b, "");
    bench_step(b, (struct membership_event){.kind = MEMBERSHIP_IN_FORCE, .in_force = {0, 7}}); // no such epoch
    bench_expect(b, "");
    bench_step(b, (struct membership_event){.kind = MEMBERSHIP_IN_FORCE, .in_force = {0, 1}});
    bench_expect(b, "use 0@2; ");
    bench_destroy(b);
}

static void events_of_an_earlier_connection_change_nothing(void **state) {
    (void)state;
    struct front_bench *b = bench_create(1, 2);
    bench_start(b);
    bench_join(b, "a:1", 5, "rr");
    bench_event(b, 0, MEMBERSHIP_DISCONNECTED);
    bench_return(b, 0, 5, "rr");
    bench_forget(b);
    struct copy_report none = {{0, 0}, COPY_NONE, 0};
    bench_step(b, (struct membership_event){.kind = MEMBERSHIP_DISCONNECTED, .member = 0, .connection = 1});
    bench_step(b, (struct membership_event){.kind = MEMBERSHIP_INVENTORY,
                                            .member = 0,
                                            .connection = 1,
                                            .inventory = {.sequence = 2, .reports = &none, .count = 1}});
    bench_expect(b, "");
    assert_int_equal(bench_holders(b, 0, 0), 1);
    bench_destroy(b);
}

static void an_inventory_message_that_is_repeated_changes_nothing_and_a_lost_one_breaks_the_connection(void **state) {
    (void)state;
    struct front_bench *b = bench_create(1, 2);
    bench_start(b);
    bench_join(b, "a:1", 5, "rr");
    bench_join(b, "b:1", 6, "rr");
    bench_inventory(b, 0, "t ");
    assert_int_equal(bench_holders(b, 0, 0), 2);
    bench_forget(b);
    struct copy_report ready = {{0, 0}, COPY_READY, 100};
    bench_step(b, (struct membership_event){.kind = MEMBERSHIP_INVENTORY,
                                            .member = 0,
                                            .connection = 1,
                                            .inventory = {.sequence = 1, .reports = &ready, .count = 1}});
    bench_expect(b, "");
    assert_int_equal(bench_holders(b, 0, 0), 2);
    bench_step(b, (struct membership_event){// one was lost
                                            .kind = MEMBERSHIP_INVENTORY,
                                            .member = 0,
                                            .connection = 1,
                                            .inventory = {.sequence = 4}});
    assert_int_equal(bench_state(b, 0), MEMBER_REFUSED);
    bench_destroy(b);
}

static void a_silent_member_is_out_of_use_at_once_and_closed_later(void **state) {
    (void)state;
    struct front_bench *b = bench_create(1, 2);
    bench_start(b);
    bench_join(b, "a:1", 5, "rr");
    bench_join(b, "b:1", 6, "rr");
    bench_forget(b);
    bench_pass(b, 75 * MS, 2);
    bench_expect(b, "");
    bench_pass(b, 25 * MS, 2);
    bench_expect(b, "live 1; log 0 ready>suspect silent; ");
    bench_pass(b, 1900 * MS, 2);
    bench_expect(b, "log 0 suspect>dead silent_too_long; close 0#1; ");
    bench_pass(b, 25 * MS, 2);
    bench_expect(b, "dial 0#2; ");
    assert_int_equal(b->m.members[0].health.false_alarms, 0);
    bench_destroy(b);
}

static void a_silent_member_with_the_only_live_copy_stays_in_use_for_a_while(void **state) {
    (void)state;
    struct front_bench *b = bench_create(1, 2);
    bench_start(b);
    bench_join(b, "a:1", 5, "rr");
    bench_join(b, "b:1", 6, "r-");
    bench_forget(b);
    bench_pass(b, 475 * MS, 2);
    bench_expect(b, "log 0 ready>suspect silent; "); // only a:1 has the second expert
    bench_pass(b, 25 * MS, 2);
    bench_expect(b, "live 1; ");
    bench_destroy(b);
    b = bench_create(1, 2);
    bench_start(b);
    bench_join(b, "a:1", 5, "rr");
    bench_join(b, "b:1", 6, "rr");
    bench_forget(b);
    bench_pass(b, 100 * MS, 0); // both are silent: one stays
    bench_expect(b, "live 1; log 0 ready>suspect silent; log 1 ready>suspect silent; ");
    bench_event(b, 0, MEMBERSHIP_ECHO); // and is out of use when the other one is back
    bench_pass(b, 25 * MS, 1);
    bench_expect(b, "live 0 1; log 0 suspect>ready heard_again; live 0; ");
    bench_destroy(b);
}

static void a_false_alarm_is_counted_and_changes_no_table(void **state) {
    (void)state;
    struct front_bench *b = bench_create(1, 2);
    bench_start(b);
    bench_join(b, "a:1", 5, "rr");
    bench_pass(b, 100 * MS, 0);
    bench_forget(b);
    bench_event(b, 0, MEMBERSHIP_ECHO);
    bench_expect(b, "log 0 suspect>ready heard_again; ");
    assert_int_equal(b->m.members[0].health.false_alarms, 1);
    bench_destroy(b);
}

static void silence_while_this_process_did_not_run_is_no_suspicion(void **state) {
    (void)state;
    struct front_bench *b = bench_create(1, 2);
    bench_start(b);
    bench_join(b, "a:1", 5, "rr");
    bench_forget(b);
    b->now_ns += 5000 * MS; // stopped, and the tick comes before the echoes that wait
    bench_step(b, (struct membership_event){.kind = MEMBERSHIP_TICK});
    bench_expect(b, "");
    assert_int_equal(b->m.stalls, 1);
    bench_pass(b, 100 * MS, 0);
    assert_int_equal(bench_state(b, 0), MEMBER_SUSPECT);
    bench_destroy(b);
}

static void a_lost_connection_takes_the_member_out_of_use_and_it_is_dialled_with_growing_pauses(void **state) {
    (void)state;
    struct front_bench *b = bench_create(1, 2);
    bench_start(b);
    bench_join(b, "a:1", 5, "rr");
    bench_forget(b);
    bench_event(b, 0, MEMBERSHIP_DISCONNECTED);
    bench_expect(b, "live; log 0 ready>dead disconnected; ");
    int64_t last = b->now_ns;
    static const int64_t PAUSES[] = {0, 50, 100, 200, 400, 800, 1000, 1000};
    for (size_t i = 0; i < sizeof PAUSES / sizeof PAUSES[0]; i++) {
        bench_dial(b, 0);
        assert_int_equal((b->now_ns - last) / MS, PAUSES[i]);
        last = b->now_ns;
        bench_event(b, 0, MEMBERSHIP_CONNECT_FAILED);
    }
    bench_destroy(b);
}

static void a_member_that_returns_with_its_weights_is_ready_without_a_new_table(void **state) {
    (void)state;
    struct front_bench *b = bench_create(1, 2);
    bench_start(b);
    bench_join(b, "a:1", 5, "rr");
    bench_event(b, 0, MEMBERSHIP_DISCONNECTED);
    bench_dial(b, 0);
    bench_forget(b);
    bench_say_hello(b, 0, bench_hello(b, 5));
    bench_inventory(b, 0, "rr");
    bench_expect(b, "live 0; log 0 dead>ready returned; ");
    bench_destroy(b);
}

static void a_member_that_returns_without_a_copy_is_used_only_after_the_tables_changed(void **state) {
    (void)state;
    struct front_bench *b = bench_create(2, 2);
    bench_start(b);
    bench_join(b, "a:1", 5, "rrrr");
    bench_event(b, 0, MEMBERSHIP_DISCONNECTED);
    bench_dial(b, 0);
    bench_forget(b);
    b->keeps_tables = true;
    bench_say_hello(b, 0, bench_hello(b, 6)); // restarted
    bench_inventory(b, 0, "r-rr");
    bench_expect(b, "log 0 dead>back connected; use 0@2; ");
    assert_int_equal(bench_holders(b, 1, 0), 0);
    bench_step(b, (struct membership_event){.kind = MEMBERSHIP_IN_FORCE, .in_force = {0, 2}});
    bench_expect(b, "live 0; log 0 back>ready connected; ");
    assert_int_equal(bench_holders(b, 0, 0), 1);
    assert_int_equal(bench_holders(b, 0, 1), 0);
    bench_destroy(b);
}

static void a_copy_that_vanishes_takes_its_member_out_of_use_until_the_table_changed(void **state) {
    (void)state;
    struct front_bench *b = bench_create(1, 2);
    bench_start(b);
    bench_join(b, "a:1", 5, "rr");
    bench_join(b, "b:1", 6, "rr");
    bench_forget(b);
    bench_inventory(b, 0, "f ");
    bench_expect(b, "live 1; log 0 ready>back copies_changed; use 0@3; live 0 1; log 0 back>ready copies_changed; ");
    assert_int_equal(bench_holders(b, 0, 0), 2);
    bench_destroy(b);
}

static void a_member_that_is_absent_often_stays_out_for_growing_pauses(void **state) {
    (void)state;
    struct front_bench *b = bench_create(1, 2);
    bench_start(b);
    bench_join(b, "a:1", 5, "rr");
    bench_join(b, "b:1", 6, "rr");
    for (int i = 0; i < 3; i++) {
        bench_pass(b, 100 * MS, 2);
        bench_pass(b, 100 * MS, 3);
        assert_int_equal(bench_state(b, 0), MEMBER_READY);
    }
    bench_pass(b, 100 * MS, 2);
    bench_forget(b);
    bench_pass(b, 975 * MS, 3);
    bench_expect(b, "log 0 suspect>back heard_again; ");
    bench_pass(b, 50 * MS, 3);
    bench_expect(b, "live 0 1; log 0 back>ready pause_ended; ");
    bench_pass(b, 100 * MS, 2);
    bench_pass(b, 1975 * MS, 3);
    assert_int_equal(bench_state(b, 0), MEMBER_BACK);
    struct member_status status;
    assert_true(membership_member(&b->m, 0, b->now_ns, &status));
    assert_int_equal(status.pause_ns, 50 * MS);
    bench_pass(b, 50 * MS, 3);
    assert_int_equal(bench_state(b, 0), MEMBER_READY);
    bench_destroy(b);
}

static void a_member_in_a_pause_is_used_when_it_has_the_only_live_copy(void **state) {
    (void)state;
    struct front_bench *b = bench_create(1, 2);
    bench_start(b);
    bench_join(b, "a:1", 5, "rr");
    bench_join(b, "b:1", 6, "r-");
    for (int i = 0; i < 6; i++) { // only member 0 has expert 1: never a pause
        bench_pass(b, 100 * MS, 2);
        bench_pass(b, 25 * MS, 3);
        assert_int_equal(bench_state(b, 0), MEMBER_READY);
    }
    bench_inventory(b, 1, " r");
    bench_pass(b, 100 * MS, 2);
    bench_pass(b, 25 * MS, 3);
    assert_int_equal(bench_state(b, 0), MEMBER_BACK);
    bench_forget(b);
    bench_event(b, 1, MEMBERSHIP_DISCONNECTED); // the other one dies
    bench_expect(b, "live 0; log 0 back>ready needed; log 1 ready>dead disconnected; ");
    bench_destroy(b);
}

static void a_member_that_differs_is_refused_by_name_and_asked_again(void **state) {
    (void)state;
    const struct {
        enum member_reason reason;
        const char *theirs, *ours, *name;
    } cases[] = {
        {MEMBER_OTHER_PROTOCOL, "2", "1", "other_protocol"},
        {MEMBER_OTHER_NUMERICS, "1/bf16/cpu_amx", "1/bf16/cpu", "other_numerics"},
        {MEMBER_OTHER_DTYPE, "f32", "bf16", "other_dtype"},
        {MEMBER_OTHER_MODEL, "08000000000000000000000000000000", "07000000000000000000000000000000", "other_model"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct front_bench *b = bench_create(1, 2);
        bench_start(b);
        bench_add(b, "a:1");
        bench_forget(b);
        struct member_hello hello = bench_hello(b, 5);
        hello.identity.protocol += cases[i].reason == MEMBER_OTHER_PROTOCOL;
        hello.identity.model_digest[0] += cases[i].reason == MEMBER_OTHER_MODEL;
        hello.identity.numerics_id = cases[i].reason == MEMBER_OTHER_NUMERICS ? cases[i].theirs : hello.identity.numerics_id;
        hello.identity.compute_dtype = cases[i].reason == MEMBER_OTHER_DTYPE ? cases[i].theirs : hello.identity.compute_dtype;
        bench_say_hello(b, 0, hello);
        char expected[128];
        snprintf(expected, sizeof expected, "log 0 joining>refused %s; close 0#1; ", cases[i].name);
        bench_expect(b, expected);
        struct member_status status;
        membership_member(&b->m, 0, b->now_ns, &status);
        assert_string_equal(status.refusal->theirs, cases[i].theirs);
        assert_string_equal(status.refusal->ours, cases[i].ours);
        assert_true(strlen(member_reason_mend(cases[i].reason)) > 20);
        int64_t first = b->now_ns;
        bench_dial(b, 0);
        assert_int_equal((b->now_ns - first) / MS, 1000);
        bench_say_hello(b, 0, hello);
        int64_t second = b->now_ns;
        bench_dial(b, 0);
        assert_int_equal((b->now_ns - second) / MS, 2000);
        bench_say_hello(b, 0, bench_hello(b, 6)); // mended
        bench_inventory(b, 0, "rr");
        assert_int_equal(bench_state(b, 0), MEMBER_READY);
        bench_destroy(b);
    }
}

static void an_expert_with_another_digest_refuses_its_member_and_the_others_serve_on(void **state) {
    (void)state;
    struct front_bench *b = bench_create(1, 2);
    bench_start(b);
    bench_join(b, "a:1", 5, "rr");
    bench_add(b, "b:1");
    bench_say_hello(b, 1, bench_hello(b, 6));
    bench_forget(b);
    struct copy_report other = {{0, 1}, COPY_READY, 999};
    bench_step(b, (struct membership_event){.kind = MEMBERSHIP_INVENTORY,
                                            .member = 1,
                                            .connection = 1,
                                            .inventory = {.sequence = 1, .is_complete = true, .reports = &other, .count = 1}});
    bench_expect(b, "log 1 joining>refused other_expert; close 1#1; ");
    struct member_status status;
    membership_member(&b->m, 1, b->now_ns, &status);
    assert_string_equal(status.refusal->theirs, "00000000000003e7");
    assert_string_equal(status.refusal->ours, "0000000000000065");
    assert_int_equal(status.refusal->expert.expert, 1);
    assert_int_equal(status.refusal->other, 0);
    assert_int_equal(bench_holders(b, 0, 1), 1);
    bench_destroy(b);
}

static void a_digest_of_this_process_wins_over_one_stated_before(void **state) {
    (void)state;
    struct front_bench *b = bench_create(1, 2);
    b->options.local_members = 1;
    b->local_bytes[0] = 100;
    bench_start(b);
    uint32_t member = bench_join(b, "a:1", 5, "rr");
    bench_forget(b);
    struct copy_report local = {{0, 1}, COPY_READY, 999};
    bench_step(b, (struct membership_event){
                      .kind = MEMBERSHIP_INVENTORY, .member = 0, .inventory = {.sequence = 1, .reports = &local, .count = 1}});
    bench_expect(b, "live 0; log 1 ready>refused other_expert; close 1#1; use 0@2; ");
    assert_int_equal(bench_holders(b, 0, 1), 1 << 0);
    assert_int_equal(bench_state(b, member), MEMBER_REFUSED);
    bench_destroy(b);
}

static void two_addresses_of_one_process_count_once(void **state) {
    (void)state;
    struct front_bench *b = bench_create(1, 2);
    bench_start(b);
    bench_join(b, "a:1", 5, "rr");
    bench_add(b, "127.0.0.1:1");
    bench_say_hello(b, 1, bench_hello(b, 5));
    assert_int_equal(bench_state(b, 1), MEMBER_REFUSED);
    assert_int_equal(b->m.members[1].refusal.other, 0);
    bench_event(b, 0, MEMBERSHIP_DISCONNECTED); // the first address does not work any more: the second takes over
    bench_dial(b, 1);
    bench_say_hello(b, 1, bench_hello(b, 5));
    bench_inventory(b, 1, "rr");
    assert_int_equal(bench_state(b, 1), MEMBER_READY);
    bench_destroy(b);
}

static void a_message_about_an_unknown_expert_ends_the_connection(void **state) {
    (void)state;
    struct front_bench *b = bench_create(1, 2);
    bench_start(b);
    bench_join(b, "a:1", 5, "rr");
    struct copy_report bad[] = {{{0, 2}, COPY_READY, 1}, {{1, 0}, COPY_READY, 1}, {{0, 0}, COPY_RELEASED, 1}};
    for (size_t i = 0; i < 3; i++) {
        bench_step(b, (struct membership_event){.kind = MEMBERSHIP_INVENTORY,
                                                .member = 0,
                                                .connection = b->m.members[0].connection,
                                                .inventory = {.sequence = 2, .reports = &bad[i], .count = 1}});
        assert_int_equal(bench_state(b, 0), MEMBER_REFUSED);
        assert_int_equal(b->m.members[0].reason, MEMBER_BROKEN_MESSAGE);
        bench_return(b, 0, 5, "rr");
    }
    bench_destroy(b);
}

static void a_member_that_never_says_hello_or_all_it_holds_is_dialled_again(void **state) {
    (void)state;
    struct front_bench *b = bench_create(1, 2);
    bench_start(b);
    bench_add(b, "a:1");
    bench_forget(b);
    bench_pass(b, 5000 * MS, 1);
    bench_expect(b, "close 0#1; ");
    bench_pass(b, 50 * MS, 1);
    bench_expect(b, "dial 0#2; ");
    bench_say_hello(b, 0, bench_hello(b, 5));
    bench_pass(b, 5000 * MS, 1);
    bench_expect(b, "close 0#2; ");
    bench_destroy(b);
}

static void an_address_that_is_not_listed_serves_until_it_disconnects_and_frees_its_slot(void **state) {
    (void)state;
    struct front_bench *b = bench_create(1, 2);
    bench_start(b);
    bench_join(b, "a:1", 5, "rr");
    bench_join(b, "b:1", 6, "rr");
    bench_forget(b);
    bench_event(b, 0, MEMBERSHIP_UNLIST);
    bench_expect(b, "");
    assert_int_equal(bench_holders(b, 0, 0), 3);
    b->keeps_tables = true;
    bench_event(b, 0, MEMBERSHIP_DISCONNECTED);
    bench_expect(b, "live 1; log 0 ready>dead disconnected; use 0@3; ");
    assert_int_equal(bench_add(b, "c:1"), 2); // batches may still use the old table
    bench_forget(b);
    bench_step(b, (struct membership_event){.kind = MEMBERSHIP_IN_FORCE, .in_force = {0, 3}});
    bench_expect(b, "log 0 dead>free disconnected; ");
    assert_int_equal(bench_add(b, "d:1"), 0);
    bench_destroy(b);
}

static void an_address_listed_again_is_the_same_member(void **state) {
    (void)state;
    struct front_bench *b = bench_create(1, 2);
    bench_start(b);
    bench_join(b, "a:1", 5, "rr");
    bench_event(b, 0, MEMBERSHIP_UNLIST);
    assert_int_equal(bench_add(b, "a:1"), 0);
    bench_forget(b);
    bench_event(b, 0, MEMBERSHIP_DISCONNECTED);
    bench_dial(b, 0);
    bench_expect(b, "live; log 0 ready>dead disconnected; dial 0#2; ");
    bench_destroy(b);
}

static void an_operators_drain_is_told_to_the_shard_until_it_says_so_itself(void **state) {
    (void)state;
    struct front_bench *b = bench_create(1, 2);
    bench_start(b);
    bench_join(b, "a:1", 5, "rr");
    bench_forget(b);
    bench_drain_member(b, 0, MEMBERSHIP_ASK_DRAIN, true);
    bench_expect(b, "drain 0; ");
    bench_event(b, 0, MEMBERSHIP_DISCONNECTED); // the message may be lost
    bench_dial(b, 0);
    bench_forget(b);
    bench_say_hello(b, 0, bench_hello(b, 5));
    bench_inventory(b, 0, "rr");
    bench_expect(b, "live 0; log 0 dead>ready returned; drain 0; ");
    bench_drain_member(b, 0, MEMBERSHIP_SHARD_DRAINS, true);
    bench_expect(b, "log 0 ready>draining drain_requested; ");
    bench_drain_member(b, 0, MEMBERSHIP_ASK_DRAIN, true);
    bench_expect(b, "");
    bench_drain_member(b, 0, MEMBERSHIP_ASK_DRAIN, false);
    bench_expect(b, "drain not 0; ");
    bench_drain_member(b, 0, MEMBERSHIP_SHARD_DRAINS, false);
    bench_expect(b, "log 0 draining>ready drain_cancelled; ");
    bench_event(b, 0, MEMBERSHIP_DISCONNECTED);
    bench_drain_member(b, 0, MEMBERSHIP_ASK_DRAIN, true);
    bench_return(b, 0, 6, "rr"); // another instance: it joins
    assert_null(strstr(b->actions, "drain"));
    bench_destroy(b);
}

static void a_list_that_is_too_long_is_refused(void **state) {
    (void)state;
    struct front_bench *b = bench_create(1, 2);
    bench_start(b);
    uint32_t member;
    for (int i = 0; i < 4; i++) {
        char address[16];
        snprintf(address, sizeof address, "a:%d", i);
        bench_add(b, address);
    }
    assert_int_equal(membership_add(&b->m, "b:1", b->now_ns, &member).code, EXPERTD_ERR_CONFIG);
    assert_non_null(strstr(expertd_err_message(), "b:1"));
    char address[MEMBER_ADDRESS_MAX + 1];
    memset(address, 'x', sizeof address);
    address[MEMBER_ADDRESS_MAX] = '\0';
    assert_int_equal(membership_add(&b->m, address, b->now_ns, &member).code, EXPERTD_ERR_CONFIG);
    bench_destroy(b);
}

static void options_that_make_no_sense_are_refused_by_name(void **state) {
    (void)state;
    struct front_bench *b = bench_create(1, 2);
    struct membership_options wrong = b->options;
    wrong.members_max = MEMBERS_MAX + 1;
    assert_int_equal(membership_check(&wrong).code, EXPERTD_ERR_CONFIG);
    assert_string_equal(expertd_err_field(), "members_max");
    wrong = b->options;
    wrong.copies = 5;
    assert_int_equal(membership_check(&wrong).code, EXPERTD_ERR_CONFIG);
    assert_string_equal(expertd_err_field(), "copies");
    wrong = b->options;
    wrong.health.dead_after_ns = 100 * MS;
    assert_int_equal(membership_check(&wrong).code, EXPERTD_ERR_CONFIG);
    assert_string_equal(expertd_err_field(), "health.dead_after_ns");
    wrong = b->options;
    wrong.dial.min_ns = 0;
    assert_int_equal(membership_check(&wrong).code, EXPERTD_ERR_CONFIG);
    assert_string_equal(expertd_err_field(), "dial.min_ns");
    bench_destroy(b);
}

// The header states these sizes.
static void memory_is_bounded_by_the_limits(void **state) {
    (void)state;
    static uint32_t experts[CATALOGUE_LAYERS_MAX];
    static uint64_t bytes[CATALOGUE_LAYERS_MAX];
    for (int i = 0; i < CATALOGUE_LAYERS_MAX; i++) {
        experts[i] = CATALOGUE_EXPERTS_MAX;
        bytes[i] = 1;
    }
    struct membership_options options = membership_defaults();
    assert_false(err_is(catalogue_init(&options.catalogue, CATALOGUE_LAYERS_MAX, experts, bytes)));
    options.members_max = MEMBERS_MAX;
    assert_in_range(membership_bytes(&options), 121500000, 122500000);
    for (int i = 0; i < 60; i++) {
        experts[i] = 256;
    }
    assert_false(err_is(catalogue_init(&options.catalogue, 60, experts, bytes)));
    options.members_max = 64;
    assert_in_range(membership_bytes(&options), 1350000, 1365000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_listed_shard_is_dialled_and_used_as_soon_as_it_says_what_it_holds),
        cmocka_unit_test(the_next_table_of_a_layer_waits_until_the_last_one_is_in_force),
        cmocka_unit_test(events_of_an_earlier_connection_change_nothing),
        cmocka_unit_test(an_inventory_message_that_is_repeated_changes_nothing_and_a_lost_one_breaks_the_connection),
        cmocka_unit_test(a_silent_member_is_out_of_use_at_once_and_closed_later),
        cmocka_unit_test(a_silent_member_with_the_only_live_copy_stays_in_use_for_a_while),
        cmocka_unit_test(a_false_alarm_is_counted_and_changes_no_table),
        cmocka_unit_test(silence_while_this_process_did_not_run_is_no_suspicion),
        cmocka_unit_test(a_lost_connection_takes_the_member_out_of_use_and_it_is_dialled_with_growing_pauses),
        cmocka_unit_test(a_member_that_returns_with_its_weights_is_ready_without_a_new_table),
        cmocka_unit_test(a_member_that_returns_without_a_copy_is_used_only_after_the_tables_changed),
        cmocka_unit_test(a_copy_that_vanishes_takes_its_member_out_of_use_until_the_table_changed),
        cmocka_unit_test(a_member_that_is_absent_often_stays_out_for_growing_pauses),
        cmocka_unit_test(a_member_in_a_pause_is_used_when_it_has_the_only_live_copy),
        cmocka_unit_test(a_member_that_differs_is_refused_by_name_and_asked_again),
        cmocka_unit_test(an_expert_with_another_digest_refuses_its_member_and_the_others_serve_on),
        cmocka_unit_test(a_digest_of_this_process_wins_over_one_stated_before),
        cmocka_unit_test(two_addresses_of_one_process_count_once),
        cmocka_unit_test(a_message_about_an_unknown_expert_ends_the_connection),
        cmocka_unit_test(a_member_that_never_says_hello_or_all_it_holds_is_dialled_again),
        cmocka_unit_test(an_address_that_is_not_listed_serves_until_it_disconnects_and_frees_its_slot),
        cmocka_unit_test(an_address_listed_again_is_the_same_member),
        cmocka_unit_test(an_operators_drain_is_told_to_the_shard_until_it_says_so_itself),
        cmocka_unit_test(a_list_that_is_too_long_is_refused),
        cmocka_unit_test(options_that_make_no_sense_are_refused_by_name),
        cmocka_unit_test(memory_is_bounded_by_the_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
