#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "shard/membership/holder.h"

enum { EXPERTS = 6 };

struct bench {
    uint32_t layer_experts[1];
    uint64_t expert_bytes[1];
    struct holder_options options;
    struct holder h;
    void *memory;
    uint32_t number[16]; // of the last command of each session
    char text[4096];
};

static struct bench *bench_create(uint64_t bytes_max) {
    struct bench *b = calloc(1, sizeof *b);
    b->layer_experts[0] = EXPERTS;
    b->expert_bytes[0] = 10;
    b->options = (struct holder_options){.bytes_max = bytes_max, .fronts_max = 3, .front_after_ns = 1000};
    assert_false(err_is(catalogue_init(&b->options.catalogue, 1, b->layer_experts, b->expert_bytes)));
    b->memory = aligned_alloc(64, holder_bytes(&b->options));
    assert_false(err_is(holder_init(&b->h, &b->options, b->memory)));
    return b;
}

static void bench_destroy(struct bench *b) {
    free(b->memory);
    free(b);
}

static void connect_front(struct bench *b, uint32_t session, uint64_t front, bool asks_lease) {
    b->number[session] = 0;
    assert_false(err_is(holder_connect(&b->h, session, front, asks_lease, 0)));
}

static struct expert_id expert(uint16_t e) {
    return (struct expert_id){0, e};
}

static void assign(struct bench *b, uint32_t session, uint16_t e) {
    assert_false(err_is(holder_assign(&b->h, session, ++b->number[session], (struct expert_id[]){{0, e}}, 1)));
}

static void retire(struct bench *b, uint32_t session, uint16_t e) {
    assert_false(err_is(holder_retire(&b->h, session, ++b->number[session], (struct expert_id[]){{0, e}}, 1)));
}

static void release(struct bench *b, uint32_t session, uint16_t e, uint32_t sequence) {
    assert_false(err_is(holder_release(&b->h, session, sequence, (struct expert_id[]){{0, e}}, 1)));
}

static uint32_t load_all(struct bench *b) {
    struct expert_id id;
    uint32_t loads = 0;
    for (; holder_take_load(&b->h, &id); loads++) {
        holder_loaded(&b->h, id, 100 + id.expert);
    }
    return loads;
}

// The messages to a session and the actions, as text. Copies as expert and l r t f -.
static const char *talk(struct bench *b, uint32_t session) {
    struct holder_message message;
    struct holder_action action;
    b->text[0] = '\0';
    char *end = b->text;
    while (holder_next_message(&b->h, session, &message)) {
        if (message.kind == HOLDER_LEASE) {
            end += sprintf(end, "%s %llu; ", message.is_granted ? "granted" : "denied", (unsigned long long)message.owner);
        } else if (message.kind == HOLDER_DRAINS) {
            end += sprintf(end, message.drains ? "drains; " : "drains no more; ");
        } else {
            end += sprintf(end, "inventory%s seen %u:", message.is_complete ? "" : " (more)", message.commands_seen);
            for (size_t i = 0; i < message.count; i++) {
                end += sprintf(end, " %u%c", message.reports[i].id.expert, "-lrtf"[message.reports[i].state]);
            }
            end += sprintf(end, "; ");
        }
    }
    while (holder_next(&b->h, &action)) {
        if (action.kind == HOLDER_CLOSE) {
            end += sprintf(end, "close %u%s; ", action.session, action.is_silent ? " silent" : "");
        } else {
            end += sprintf(end, "free %u; ", action.expert.expert);
        }
    }
    return b->text;
}

static void a_front_is_told_the_lease_and_everything_and_then_the_changes(void **state) {
    (void)state;
    struct bench *b = bench_create(100);
    connect_front(b, 1, 70, true);
    assert_string_equal(talk(b, 1), "granted 70; inventory seen 0:; ");
    assign(b, 1, 0);
    assign(b, 1, 3);
    assert_string_equal(talk(b, 1), "inventory seen 2: 0l 3l; ");
    assert_int_equal(load_all(b), 2);
    assert_string_equal(talk(b, 1), "inventory seen 2: 0r 3r; ");
    assert_string_equal(talk(b, 1), "");
    connect_front(b, 2, 80, false);
    assert_string_equal(talk(b, 2), "inventory seen 0: 0r 3r; ");
    bench_destroy(b);
}

static void a_retired_copy_serves_until_every_front_has_released_it(void **state) {
    (void)state;
    struct bench *b = bench_create(100);
    connect_front(b, 1, 70, true);
    connect_front(b, 2, 80, false);
    assign(b, 1, 4);
    load_all(b);
    retire(b, 1, 4);
    assert_string_equal(talk(b, 1), "granted 70; inventory seen 2: 4t; ");
    assert_string_equal(talk(b, 2), "inventory seen 0: 4t; ");
    release(b, 1, 4, 2);
    assert_string_equal(talk(b, 1), "");
    assert_true(holder_serves(&b->h, 2, expert(4)));
    release(b, 2, 4, 1);
    assert_string_equal(talk(b, 2), "inventory seen 0: 4-; free 4; ");
    assert_false(holder_serves(&b->h, 2, expert(4)));
    assert_int_equal(b->h.bytes_used, 10);
    holder_freed(&b->h, expert(4));
    assert_int_equal(b->h.bytes_used, 0);
    bench_destroy(b);
}

static void a_front_that_goes_away_or_is_silent_holds_up_no_release(void **state) {
    (void)state;
    struct bench *b = bench_create(100);
    connect_front(b, 1, 70, true);
    connect_front(b, 2, 80, false);
    connect_front(b, 3, 90, false);
    assign(b, 1, 0);
    load_all(b);
    retire(b, 1, 0);
    talk(b, 1);
    release(b, 1, 0, 1);
    holder_disconnected(&b->h, 3);
    holder_heard(&b->h, 1, 999);
    holder_tick(&b->h, 999);
    holder_tick(&b->h, 1000);
    assert_string_equal(talk(b, 1), "inventory seen 2: 0-; close 2 silent; free 0; ");
    bench_destroy(b);
}

static void without_a_front_everything_stays(void **state) {
    (void)state;
    struct bench *b = bench_create(100);
    connect_front(b, 1, 70, true);
    assign(b, 1, 0);
    assign(b, 1, 1);
    load_all(b);
    retire(b, 1, 1);
    holder_disconnected(&b->h, 1);
    assert_string_equal(talk(b, 1), "");
    connect_front(b, 2, 71, true); // the front has restarted
    assert_string_equal(talk(b, 2), "granted 71; inventory seen 0: 0r 1t; ");
    assign(b, 2, 1); // and wants the copy after all
    assert_string_equal(talk(b, 2), "inventory seen 1: 1r; ");
    assert_int_equal(load_all(b), 0);
    bench_destroy(b);
}

static void a_release_that_does_not_know_the_last_word_about_a_copy_does_not_count(void **state) {
    (void)state;
    struct bench *b = bench_create(100);
    connect_front(b, 1, 70, true);
    assign(b, 1, 0);
    load_all(b);
    assert_string_equal(talk(b, 1), "granted 70; inventory seen 1: 0r; ");
    retire(b, 1, 0);
    release(b, 1, 0, 1); // it has not been told
    assert_string_equal(talk(b, 1), "inventory seen 2: 0t; ");
    assign(b, 1, 0); // in use again
    release(b, 1, 0, 2);
    assert_string_equal(talk(b, 1), "inventory seen 3: 0r; ");
    retire(b, 1, 0);
    assert_string_equal(talk(b, 1), "inventory seen 4: 0t; ");
    release(b, 1, 0, 2); // late
    release(b, 1, 0, 3);
    assert_int_equal(holder_state(&b->h, 0), COPY_RETIRING);
    retire(b, 1, 0); // changes nothing, but the answer tells the copy's state once more
    assert_string_equal(talk(b, 1), "inventory seen 5: 0t; ");
    release(b, 1, 0, 4);
    assert_int_equal(holder_state(&b->h, 0), COPY_RETIRING);
    release(b, 1, 0, 5);
    assert_int_equal(holder_state(&b->h, 0), COPY_NONE);
    bench_destroy(b);
}

static void commands_count_once_and_only_with_the_lease(void **state) {
    (void)state;
    struct bench *b = bench_create(100);
    connect_front(b, 1, 70, true);
    connect_front(b, 2, 60, true); // the lowest id
    assert_string_equal(talk(b, 1), "denied 60; inventory seen 0:; ");
    assert_string_equal(talk(b, 2), "granted 60; inventory seen 0:; ");
    assign(b, 1, 0);
    assert_string_equal(talk(b, 1), "inventory seen 1: 0-; ");
    assign(b, 2, 1);
    retire(b, 2, 1);
    assert_false(err_is(holder_assign(&b->h, 2, 1, (struct expert_id[]){{0, 1}}, 1))); // repeated
    assert_int_equal(holder_state(&b->h, 1), COPY_NONE);
    holder_disconnected(&b->h, 2);
    assert_string_equal(talk(b, 1), "granted 70; inventory seen 1: 1-; ");
    bench_destroy(b);
}

static void a_front_that_connects_again_replaces_its_session(void **state) {
    (void)state;
    struct bench *b = bench_create(100);
    connect_front(b, 1, 70, true);
    connect_front(b, 2, 70, true);
    assert_string_equal(talk(b, 2), "granted 70; inventory seen 0:; close 1; ");
    assert_string_equal(talk(b, 1), "");
    assign(b, 1, 0); // a message of the old session
    assert_int_equal(holder_state(&b->h, 0), COPY_NONE);
    assert_false(holder_serves(&b->h, 1, expert(0)));
    connect_front(b, 3, 71, false);
    connect_front(b, 4, 72, false);
    assert_int_equal(holder_connect(&b->h, 5, 73, false, 0).code, EXPERTD_ERR_UNAVAILABLE);
    bench_destroy(b);
}

static void loads_wait_for_memory_that_is_being_freed_and_fail_beyond_the_limit(void **state) {
    (void)state;
    struct bench *b = bench_create(20);
    connect_front(b, 1, 70, true);
    assign(b, 1, 0);
    assign(b, 1, 1);
    assert_int_equal(load_all(b), 2);
    assign(b, 1, 2);
    assert_int_equal(holder_state(&b->h, 2), COPY_FAILED);
    retire(b, 1, 0);
    assign(b, 1, 2);
    assert_int_equal(holder_state(&b->h, 2), COPY_LOADING);
    assert_int_equal(load_all(b), 0);
    talk(b, 1);
    release(b, 1, 0, 1);
    assert_int_equal(load_all(b), 0);
    holder_freed(&b->h, expert(0));
    assert_int_equal(load_all(b), 1);
    assert_true(b->h.bytes_used <= 20);
    bench_destroy(b);
}

static void a_load_that_is_given_up_frees_its_memory_when_it_ends(void **state) {
    (void)state;
    struct bench *b = bench_create(100);
    struct expert_id id;
    connect_front(b, 1, 70, true);
    assign(b, 1, 0);
    assert_true(holder_take_load(&b->h, &id));
    retire(b, 1, 0);
    talk(b, 1);
    holder_loaded(&b->h, id, 100);
    assert_string_equal(talk(b, 1), "free 0; ");
    assign(b, 1, 0); // before it is freed
    assert_int_equal(load_all(b), 0);
    holder_freed(&b->h, id);
    assert_true(holder_take_load(&b->h, &id));
    retire(b, 1, 0);
    assign(b, 1, 0); // given up and wanted again during the load
    holder_loaded(&b->h, id, 100);
    assert_int_equal(holder_state(&b->h, 0), COPY_READY);
    bench_destroy(b);
}

static void a_failed_load_is_reported_and_tried_again_on_demand(void **state) {
    (void)state;
    struct bench *b = bench_create(100);
    struct expert_id id;
    connect_front(b, 1, 70, true);
    assign(b, 1, 0);
    assert_true(holder_take_load(&b->h, &id));
    holder_load_failed(&b->h, id);
    assert_string_equal(talk(b, 1), "granted 70; inventory seen 1: 0f; ");
    assert_false(holder_take_load(&b->h, &id));
    assign(b, 1, 0);
    assert_int_equal(load_all(b), 1);
    bench_destroy(b);
}

static void a_draining_shard_says_so_to_every_front(void **state) {
    (void)state;
    struct bench *b = bench_create(100);
    connect_front(b, 1, 70, false);
    holder_drain(&b->h, true);
    assert_string_equal(talk(b, 1), "drains; inventory seen 0:; ");
    connect_front(b, 2, 80, false);
    assert_string_equal(talk(b, 2), "drains; inventory seen 0:; ");
    holder_drain(&b->h, false);
    assert_string_equal(talk(b, 1), "drains no more; ");
    bench_destroy(b);
}

static void experts_that_do_not_exist_are_refused(void **state) {
    (void)state;
    struct bench *b = bench_create(100);
    connect_front(b, 1, 70, true);
    struct expert_id bad[] = {{0, EXPERTS}, {1, 0}};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(holder_assign(&b->h, 1, 1, &bad[i], 1).code, EXPERTD_ERR_INVALID);
        assert_int_equal(holder_retire(&b->h, 1, 1, &bad[i], 1).code, EXPERTD_ERR_INVALID);
        assert_int_equal(holder_release(&b->h, 1, 1, &bad[i], 1).code, EXPERTD_ERR_INVALID);
        assert_false(holder_serves(&b->h, 1, bad[i]));
    }
    bench_destroy(b);
}

static void long_inventories_come_in_several_messages(void **state) {
    (void)state;
    uint32_t layer_experts[2] = {300, 300};
    uint64_t expert_bytes[2] = {1, 1};
    struct holder_options options = {.bytes_max = 600, .fronts_max = 1, .front_after_ns = 1};
    assert_false(err_is(catalogue_init(&options.catalogue, 2, layer_experts, expert_bytes)));
    void *memory = aligned_alloc(64, holder_bytes(&options));
    struct holder holder;
    assert_false(err_is(holder_init(&holder, &options, memory)));
    assert_false(err_is(holder_connect(&holder, 1, 70, true, 0)));
    struct expert_id ids[300];
    for (uint16_t layer = 0; layer < 2; layer++) {
        for (uint16_t e = 0; e < 300; e++) {
            ids[e] = (struct expert_id){layer, e};
        }
        assert_false(err_is(holder_assign(&holder, 1, layer + 1u, ids, 300)));
    }
    struct holder_message message;
    assert_true(holder_next_message(&holder, 1, &message));
    assert_int_equal(message.kind, HOLDER_LEASE);
    static const size_t COUNTS[] = {256, 256, 88};
    for (size_t i = 0; i < 3; i++) {
        assert_true(holder_next_message(&holder, 1, &message));
        assert_int_equal(message.count, COUNTS[i]);
        assert_int_equal(message.is_complete, i == 2);
        assert_int_equal(message.commands_seen, i == 2 ? 2 : 0); // when all that the commands changed was told
    }
    assert_false(holder_next_message(&holder, 1, &message));
    free(memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_front_is_told_the_lease_and_everything_and_then_the_changes),
        cmocka_unit_test(a_retired_copy_serves_until_every_front_has_released_it),
        cmocka_unit_test(a_front_that_goes_away_or_is_silent_holds_up_no_release),
        cmocka_unit_test(without_a_front_everything_stays),
        cmocka_unit_test(a_release_that_does_not_know_the_last_word_about_a_copy_does_not_count),
        cmocka_unit_test(commands_count_once_and_only_with_the_lease),
        cmocka_unit_test(a_front_that_connects_again_replaces_its_session),
        cmocka_unit_test(loads_wait_for_memory_that_is_being_freed_and_fail_beyond_the_limit),
        cmocka_unit_test(a_load_that_is_given_up_frees_its_memory_when_it_ends),
        cmocka_unit_test(a_failed_load_is_reported_and_tried_again_on_demand),
        cmocka_unit_test(a_draining_shard_says_so_to_every_front),
        cmocka_unit_test(experts_that_do_not_exist_are_refused),
        cmocka_unit_test(long_inventories_come_in_several_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
