// Tests which rows form a batch: by examples, then against a simple model with random arrivals.
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "daemon/request/batcher.h"

enum { LAYERS = 4 };

struct fixture {
    struct batcher batcher;
    struct batcher_layer layers[LAYERS];
    struct batcher_piece out[BATCH_REQUESTS_MAX];
    int64_t again_ns;
};

static struct fixture *make(size_t max_tokens, size_t max_choices, size_t piece, int64_t delay_ns) {
    static struct fixture f;
    struct batcher_limits limits = {
        .max_tokens = max_tokens, .max_choices = max_choices, .max_piece_tokens = piece, .max_delay_ns = delay_ns};
    batcher_init(&f.batcher, &limits, f.layers, LAYERS);
    return &f;
}

static size_t next(struct fixture *f, int64_t now_ns) {
    return batcher_next(&f->batcher, now_ns, f->out, &f->again_ns);
}

static void push_all(struct fixture *f, struct batcher_entry *entries, size_t count) {
    for (size_t i = 0; i < count; i++) {
        batcher_push(&f->batcher, &entries[i], 0);
    }
}

static struct batcher_entry entry(size_t layer, uint32_t tokens, int32_t priority, int64_t deadline_ns) {
    return (struct batcher_entry){.layer = layer, .tokens = tokens, .choices = 2, .priority = priority, .deadline_ns = deadline_ns};
}

// batcher_next_is_large does not change the order.
static void a_next_batch_is_large_from_a_piece_on(void **state) {
    (void)state;
    struct fixture *f = make(10, 20, 4, 0);
    struct batcher_entry e[] = {entry(1, 3, 0, 50), entry(2, 8, 0, 100), entry(1, 1, 0, 60)};
    assert_false(batcher_next_is_large(&f->batcher, 0));
    push_all(f, e, 2);
    assert_false(batcher_next_is_large(&f->batcher, 0)); // layer 1 is next, with 3
    batcher_push(&f->batcher, &e[2], 0);
    for (int i = 0; i < 5; i++) {
        assert_true(batcher_next_is_large(&f->batcher, 0));
    }
    assert_int_equal(next(f, 0), 2);
    assert_ptr_equal(f->out[0].entry, &e[0]);
    assert_true(batcher_next_is_large(&f->batcher, 0)); // 8 of layer 2
    assert_int_equal(next(f, 0), 1);
    assert_int_equal(f->out[0].tokens, 4);
    assert_int_equal(next(f, 0), 1);
    assert_false(batcher_next_is_large(&f->batcher, 0));
}

static void requests_of_one_layer_form_a_batch_and_the_others_stay(void **state) {
    (void)state;
    struct fixture *f = make(10, 20, 10, 0);
    struct batcher_entry e[] = {entry(1, 4, 0, 100), entry(2, 1, 0, 100), entry(1, 4, 0, 100), entry(1, 4, 0, 100),
                                entry(1, 2, 0, 100)};
    push_all(f, e, 5);
    assert_int_equal(next(f, 0), 3); // 4 + 4; the next 4 does not fit, the 2 does
    assert_ptr_equal(f->out[0].entry, &e[0]);
    assert_ptr_equal(f->out[1].entry, &e[2]);
    assert_ptr_equal(f->out[2].entry, &e[4]);
    assert_int_equal(next(f, 0), 1);
    assert_ptr_equal(f->out[0].entry, &e[1]);
    assert_int_equal(next(f, 0), 1);
    assert_ptr_equal(f->out[0].entry, &e[3]);
    assert_int_equal(next(f, 0), 0);
    assert_int_equal(f->again_ns, CLOCK_NEVER);
}

static void priority_goes_before_deadline_and_deadline_before_arrival(void **state) {
    (void)state;
    struct fixture *f = make(1, 2, 1, 0);
    struct batcher_entry e[] = {entry(0, 1, 0, 300), entry(0, 1, 0, 200), entry(0, 1, -1, 900), entry(0, 1, 0, 200)};
    push_all(f, e, 4);
    struct batcher_entry *want[] = {&e[2], &e[1], &e[3], &e[0]};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(next(f, 0), 1);
        assert_ptr_equal(f->out[0].entry, want[i]);
    }
}

static void waiting_requests_can_be_removed_and_batched_ones_cannot(void **state) {
    (void)state;
    struct fixture *f = make(8, 16, 8, 0);
    struct batcher_entry e[] = {entry(0, 1, 0, 1), entry(1, 1, 0, 2), entry(1, 1, 0, 3)};
    push_all(f, e, 3);
    assert_int_equal(next(f, 0), 1);
    assert_false(batcher_remove(&f->batcher, &e[0]));
    assert_true(batcher_remove(&f->batcher, &e[1]));
    assert_false(batcher_remove(&f->batcher, &e[1]));
    assert_int_equal(f->batcher.count, 1);
    assert_int_equal(next(f, 0), 1);
    assert_ptr_equal(f->out[0].entry, &e[2]);
}

static void choices_count_by_the_widest_request(void **state) {
    (void)state;
    struct fixture *f = make(100, 16, 100, 0);
    struct batcher_entry e[] = {entry(0, 4, 0, 1), entry(0, 2, 0, 2), entry(0, 2, 0, 3)};
    e[1].choices = 8; // 6 tokens × 8 choices exceed max_choices
    push_all(f, e, 3);
    assert_int_equal(next(f, 0), 2);
    assert_ptr_equal(f->out[1].entry, &e[2]);
}

static void a_request_with_too_many_choices_is_split_into_pieces_that_fit(void **state) {
    (void)state;
    struct fixture *f = make(100, 16, 100, 0);
    struct batcher_entry e = entry(0, 5, 0, 1);
    e.choices = 8;
    push_all(f, &e, 1);
    uint32_t wanted[] = {2, 2, 1};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(next(f, 0), 1);
        assert_int_equal(f->out[0].first, 2 * i);
        assert_int_equal(f->out[0].tokens, wanted[i]);
        assert_int_equal(e.queued, i < 2);
    }
}

static void a_small_request_joins_the_next_piece_of_a_large_one(void **state) {
    (void)state;
    struct fixture *f = make(100, 1000, 10, 0);
    struct batcher_entry large = entry(0, 95, 0, 50), small = entry(0, 3, 0, CLOCK_NEVER);
    push_all(f, &large, 1);
    assert_int_equal(next(f, 0), 1);
    assert_int_equal(f->out[0].tokens, 10);
    push_all(f, &small, 1);
    assert_int_equal(next(f, 0), 2); // although the large one is more urgent
    assert_ptr_equal(f->out[0].entry, &large);
    assert_int_equal(f->out[0].first, 10);
    assert_ptr_equal(f->out[1].entry, &small);
}

static void large_requests_together_give_one_piece_and_take_turns(void **state) {
    (void)state;
    struct fixture *f = make(100, 1000, 10, 0);
    struct batcher_entry e[] = {entry(0, 20, 0, 9), entry(0, 20, 0, 9), entry(0, 20, 0, 9)};
    push_all(f, e, 3);
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(next(f, 0), 1);
        assert_ptr_equal(f->out[0].entry, &e[i % 3]);
        assert_int_equal(f->out[0].first, i / 3 * 10);
    }
    assert_int_equal(f->batcher.count, 0);
}

static void a_small_call_of_another_layer_waits_for_two_pieces_at_most(void **state) {
    (void)state;
    struct fixture *f = make(100, 1000, 10, 0);
    struct batcher_entry large = entry(0, 1000, 0, 50), small = entry(1, 3, 0, CLOCK_NEVER);
    push_all(f, &large, 1);
    push_all(f, &small, 1);
    size_t before = 0;
    while (small.queued) {
        assert_int_equal(next(f, 0), 1);
        before += f->out[0].entry == &large;
    }
    assert_in_range(before, 0, 2);
}

static void a_lower_class_joins_completely_or_not_at_all(void **state) {
    (void)state;
    struct fixture *f = make(100, 1000, 10, 0);
    struct batcher_entry e[] = {entry(0, 1, -1, 9), entry(0, 50, 0, 1), entry(0, 2, 0, 9)};
    push_all(f, e, 3);
    assert_int_equal(next(f, 0), 2);
    assert_ptr_equal(f->out[0].entry, &e[0]);
    assert_ptr_equal(f->out[1].entry, &e[2]);
}

static void no_layer_starves_behind_urgent_ones(void **state) {
    (void)state;
    struct fixture *f = make(4, 100, 4, 0);
    struct batcher_entry urgent[200], patient = entry(2, 4, 0, CLOCK_NEVER);
    push_all(f, &patient, 1);
    size_t pushed = 0, passed = 0;
    while (patient.queued) {
        for (size_t layer = 0; layer < 2; layer++) {
            urgent[pushed] = entry(layer, 4, 0, (int64_t)pushed);
            push_all(f, &urgent[pushed++], 1);
        }
        assert_int_equal(next(f, 0), 1);
        passed++;
        assert_true(passed <= 6); // twice the number of waiting layers
    }
}

static void a_delay_waits_for_more_requests_until_full_or_due(void **state) {
    (void)state;
    struct fixture *f = make(10, 100, 10, 50);
    struct batcher_entry e[] = {entry(0, 4, 0, CLOCK_NEVER), entry(0, 4, 0, CLOCK_NEVER), entry(0, 4, 0, CLOCK_NEVER)};
    batcher_push(&f->batcher, &e[0], 100);
    assert_int_equal(next(f, 100), 0);
    assert_int_equal(f->again_ns, 150);
    batcher_push(&f->batcher, &e[1], 120);
    assert_int_equal(next(f, 149), 0);
    assert_int_equal(next(f, 150), 2);
    batcher_push(&f->batcher, &e[0], 200);
    batcher_push(&f->batcher, &e[1], 200);
    batcher_push(&f->batcher, &e[2], 200); // full
    assert_int_equal(next(f, 200), 2);
    assert_int_equal(next(f, 249), 0);
    assert_int_equal(next(f, 250), 1);
}

static void a_delay_applies_neither_to_urgent_nor_to_split_requests(void **state) {
    (void)state;
    struct fixture *f = make(10, 100, 5, 50);
    struct batcher_entry urgent = entry(0, 1, 0, 120), large = entry(1, 9, 0, CLOCK_NEVER), held = entry(2, 1, 0, CLOCK_NEVER);
    batcher_push(&f->batcher, &held, 100);
    batcher_push(&f->batcher, &urgent, 100);
    batcher_push(&f->batcher, &large, 100);
    assert_int_equal(next(f, 100), 1);
    assert_ptr_equal(f->out[0].entry, &urgent);
    assert_int_equal(next(f, 100), 1);
    assert_int_equal(next(f, 100), 1);
    assert_false(large.queued);
    assert_int_equal(next(f, 100), 0);
    assert_int_equal(f->again_ns, 150);
}

// ---- against a model

enum { ENTRIES = 48, STEPS = 20000 };

// The model: each entry with its rows that are not in a batch yet, and how long its layer has waited.
struct model {
    struct batcher_entry entries[ENTRIES];
    uint32_t left[ENTRIES];
    bool waits[ENTRIES];
    size_t passed[LAYERS];
};

static unsigned chance(unsigned bound) {
    return (unsigned)rand() % bound; // NOLINT: good enough for a test
}

static int32_t class_of(const struct model *m, size_t layer) {
    int32_t class = INT32_MAX;
    for (size_t i = 0; i < ENTRIES; i++) {
        if (m->waits[i] && m->entries[i].layer == layer && m->entries[i].priority < class) {
            class = m->entries[i].priority;
        }
    }
    return class;
}

static bool cut(const struct model *m, size_t i, const struct batcher_limits *limits) {
    return m->entries[i].tokens > limits->max_piece_tokens ||
           (size_t)m->entries[i].tokens * m->entries[i].choices > limits->max_choices;
}

static void check_batch(struct model *m, const struct batcher_limits *limits, const struct batcher_piece *pieces, size_t count) {
    size_t layer = pieces[0].entry->layer, tokens = 0, choices = 0, cut_tokens = 0;
    bool taken[ENTRIES] = {false};
    assert_in_range(count, 1, BATCH_REQUESTS_MAX);
    for (size_t p = 0; p < count; p++) {
        size_t i = (size_t)(pieces[p].entry - m->entries);
        assert_true(m->waits[i] && !taken[i]);                                // queued, and only once in the batch
        assert_int_equal(pieces[p].first, m->entries[i].tokens - m->left[i]); // the next rows
        assert_true(pieces[p].tokens <= m->left[i]);
        assert_true(cut(m, i, limits) || pieces[p].tokens == m->entries[i].tokens); // small requests are complete
        assert_int_equal(m->entries[i].layer, layer);
        taken[i] = true;
        tokens += pieces[p].tokens;
        cut_tokens += cut(m, i, limits) ? pieces[p].tokens : 0;
        choices = m->entries[i].choices > choices ? m->entries[i].choices : choices;
    }
    assert_true(tokens <= limits->max_tokens && tokens * choices <= limits->max_choices && cut_tokens <= limits->max_piece_tokens);
    int32_t class = pieces[0].entry->priority;
    for (size_t other = 0; other < LAYERS; other++) {
        assert_true(class_of(m, other) >= class); // no higher class waits
    }
    // No request of this layer and class that is more urgent than the first one was left out.
    for (size_t i = 0; i < ENTRIES; i++) {
        bool rival = m->waits[i] && !taken[i] && m->entries[i].layer == layer && m->entries[i].priority == class;
        assert_false(rival && m->entries[i].deadline_ns < pieces[0].entry->deadline_ns);
    }
    for (size_t other = 0; other < LAYERS; other++) {
        bool waited = other != layer && class_of(m, other) == class;
        m->passed[other] = waited ? m->passed[other] + 1 : other == layer || class_of(m, other) == INT32_MAX ? 0 : m->passed[other];
        assert_true(m->passed[other] <= 2 * LAYERS); // no starvation
    }
    for (size_t p = 0; p < count; p++) {
        size_t i = (size_t)(pieces[p].entry - m->entries);
        m->left[i] -= pieces[p].tokens;
        m->waits[i] = m->left[i] > 0;
    }
}

static void arrive(struct model *m, struct batcher *batcher, const struct batcher_limits *limits) {
    size_t i = chance(ENTRIES);
    if (m->waits[i]) {
        return;
    }
    m->entries[i] = entry(chance(LAYERS), chance(4) ? chance(8) : chance(200), (int32_t)chance(3) - 1,
                          chance(3) ? (int64_t)chance(50) : CLOCK_NEVER);
    m->entries[i].choices = chance(10);
    m->left[i] = m->entries[i].tokens;
    m->waits[i] = true;
    assert_true(m->entries[i].choices <= limits->max_choices);
    batcher_push(batcher, &m->entries[i], 0);
}

static void leave(struct model *m, struct batcher *batcher) {
    size_t i = chance(ENTRIES);
    assert_int_equal(batcher_remove(batcher, &m->entries[i]), m->waits[i]);
    m->waits[i] = false;
}

static size_t waiting(const struct model *m) {
    size_t count = 0;
    for (size_t i = 0; i < ENTRIES; i++) {
        count += m->waits[i];
    }
    return count;
}

static void follow_model(unsigned seed) {
    struct model m = {0};
    srand(seed);
    size_t max_tokens = 1 + chance(64);
    struct fixture *f = make(max_tokens, 10 + chance(300), 1 + chance((unsigned)max_tokens), 0);
    for (int step = 0; step < STEPS; step++) {
        unsigned what = chance(10);
        if (what < 5) {
            arrive(&m, &f->batcher, &f->batcher.limits);
        } else if (what < 6) {
            leave(&m, &f->batcher);
        } else {
            size_t count = next(f, step);
            assert_int_equal(count > 0, waiting(&m) > 0);
            if (count > 0) {
                check_batch(&m, &f->batcher.limits, f->out, count);
            }
        }
        assert_int_equal(f->batcher.count, waiting(&m));
    }
    for (size_t batches = 0; waiting(&m) > 0; batches++) { // the rest is batched, row by row at worst
        assert_true(batches < (size_t)ENTRIES * 200);
        size_t count = next(f, STEPS);
        assert_true(count > 0);
        check_batch(&m, &f->batcher.limits, f->out, count);
    }
    assert_int_equal(next(f, STEPS), 0);
}

static void random_arrivals_keep_every_row_and_every_bound(void **state) {
    (void)state;
    for (unsigned seed = 1; seed <= 20; seed++) {
        follow_model(seed);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_of_one_layer_form_a_batch_and_the_others_stay),
        cmocka_unit_test(priority_goes_before_deadline_and_deadline_before_arrival),
        cmocka_unit_test(waiting_requests_can_be_removed_and_batched_ones_cannot),
        cmocka_unit_test(choices_count_by_the_widest_request),
        cmocka_unit_test(a_request_with_too_many_choices_is_split_into_pieces_that_fit),
        cmocka_unit_test(a_small_request_joins_the_next_piece_of_a_large_one),
        cmocka_unit_test(large_requests_together_give_one_piece_and_take_turns),
        cmocka_unit_test(a_small_call_of_another_layer_waits_for_two_pieces_at_most),
        cmocka_unit_test(a_lower_class_joins_completely_or_not_at_all),
        cmocka_unit_test(no_layer_starves_behind_urgent_ones),
        cmocka_unit_test(a_delay_waits_for_more_requests_until_full_or_due),
        cmocka_unit_test(a_delay_applies_neither_to_urgent_nor_to_split_requests),
        cmocka_unit_test(a_next_batch_is_large_from_a_piece_on),
        cmocka_unit_test(random_arrivals_keep_every_row_and_every_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
