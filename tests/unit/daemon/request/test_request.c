#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/request/request.h"

static enum request_action step(struct request_core *core, enum request_event_kind kind, enum expertd_err_code error) {
    return request_step(core, &(struct request_event){.kind = kind, .error = error});
}

static void a_request_that_goes_well_is_read_admitted_answered_and_released(void **state) {
    (void)state;
    struct request_core core;
    request_core_init(&core);
    assert_int_equal(step(&core, REQUEST_SLOT_GRANTED, EXPERTD_ERR_OK), REQUEST_DO_READ);
    assert_int_equal(step(&core, REQUEST_MESSAGE, EXPERTD_ERR_OK), REQUEST_DO_ADMIT);
    assert_int_equal(step(&core, REQUEST_ADMITTED, EXPERTD_ERR_OK), REQUEST_DO_COMPUTE);
    assert_int_equal(step(&core, REQUEST_COMPUTED, EXPERTD_ERR_OK), REQUEST_DO_ANSWER);
    assert_int_equal(core.state, REQUEST_COMMITTING);
    assert_int_equal(step(&core, REQUEST_WRITTEN, EXPERTD_ERR_OK), REQUEST_DO_RELEASE);
    assert_int_equal(core.state, REQUEST_SENT);
}

static void an_expired_request_is_answered_at_once_and_released_after_its_batch(void **state) {
    (void)state;
    struct request_core core;
    request_core_init(&core);
    step(&core, REQUEST_SLOT_GRANTED, EXPERTD_ERR_OK);
    step(&core, REQUEST_MESSAGE, EXPERTD_ERR_OK);
    step(&core, REQUEST_ADMITTED, EXPERTD_ERR_OK);
    assert_int_equal(step(&core, REQUEST_EXPIRED, EXPERTD_ERR_OK), REQUEST_DO_WITHDRAW);
    assert_int_equal(step(&core, REQUEST_STARTED, EXPERTD_ERR_OK), REQUEST_DO_FAIL);
    assert_int_equal(core.error, EXPERTD_ERR_DEADLINE);
    assert_int_equal(step(&core, REQUEST_WRITTEN, EXPERTD_ERR_OK), REQUEST_DO_NOTHING); // the batch still holds its memory
    assert_int_equal(step(&core, REQUEST_COMPUTED, EXPERTD_ERR_OK), REQUEST_DO_RELEASE);
    assert_int_equal(core.state, REQUEST_FAILED);
}

static void a_withdrawn_request_is_answered_and_released_without_a_batch(void **state) {
    (void)state;
    struct request_core core;
    request_core_init(&core);
    step(&core, REQUEST_SLOT_GRANTED, EXPERTD_ERR_OK);
    step(&core, REQUEST_MESSAGE, EXPERTD_ERR_OK);
    step(&core, REQUEST_ADMITTED, EXPERTD_ERR_OK);
    assert_int_equal(step(&core, REQUEST_EXPIRED, EXPERTD_ERR_OK), REQUEST_DO_WITHDRAW);
    assert_int_equal(step(&core, REQUEST_WITHDRAWN, EXPERTD_ERR_OK), REQUEST_DO_FAIL);
    assert_int_equal(step(&core, REQUEST_WRITTEN, EXPERTD_ERR_OK), REQUEST_DO_RELEASE);
}

static void a_cancelled_request_is_released_without_an_answer(void **state) {
    (void)state;
    struct request_core core;
    request_core_init(&core);
    step(&core, REQUEST_SLOT_GRANTED, EXPERTD_ERR_OK);
    assert_int_equal(step(&core, REQUEST_CLOSED, EXPERTD_ERR_OK), REQUEST_DO_RELEASE);
    assert_int_equal(core.error, EXPERTD_ERR_CANCELLED);
}

// Simulates the batcher, the transport and the clock around one request: their pending events, delivered in random order.
struct surroundings {
    struct request_core core;
    bool queued, running, writing;
    int answers, releases, reads;
};

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void act(struct surroundings *w, enum request_action action, uint64_t *random);

static void feed(struct surroundings *w, enum request_event_kind kind, enum expertd_err_code error, uint64_t *random) {
    assert_int_equal(w->releases, 0); // no event follows the release
    act(w, step(&w->core, kind, error), random);
}

static void act(struct surroundings *w, enum request_action action, uint64_t *random) {
    switch (action) {
    case REQUEST_DO_NOTHING:
        break;
    case REQUEST_DO_READ:
        w->reads++;
        break;
    case REQUEST_DO_ADMIT:
        if (next_random(random) % 4 == 0) {
            feed(w, REQUEST_REFUSED, EXPERTD_ERR_QUEUE_FULL, random);
        } else {
            feed(w, REQUEST_ADMITTED, EXPERTD_ERR_OK, random);
        }
        break;
    case REQUEST_DO_COMPUTE:
        w->queued = true;
        break;
    case REQUEST_DO_WITHDRAW:
        if (w->queued) {
            w->queued = false;
            feed(w, REQUEST_WITHDRAWN, EXPERTD_ERR_OK, random);
        } else {
            feed(w, REQUEST_STARTED, EXPERTD_ERR_OK, random);
        }
        break;
    case REQUEST_DO_ANSWER:
    case REQUEST_DO_FAIL:
        w->answers++;
        w->writing = true;
        break;
    case REQUEST_DO_RELEASE:
        assert_false(w->queued || w->running || w->writing);
        w->releases++;
        break;
    }
}

static void one_random_event(struct surroundings *w, uint64_t *random) {
    switch (next_random(random) % 7) {
    case 0:
        feed(w, REQUEST_SLOT_GRANTED, EXPERTD_ERR_OK, random);
        break;
    case 1:
        if (w->core.state == REQUEST_READING) {
            feed(w, REQUEST_MESSAGE, EXPERTD_ERR_OK, random);
        }
        break;
    case 2:
        feed(w, REQUEST_EXPIRED, EXPERTD_ERR_OK, random);
        break;
    case 3:
        if (next_random(random) % 4 == 0) {
            feed(w, REQUEST_CLOSED, EXPERTD_ERR_OK, random);
        }
        break;
    case 4:
        if (w->queued) {
            w->queued = false;
            w->running = true;
        }
        break;
    case 5:
        if (w->running) {
            w->running = false;
            feed(w, REQUEST_COMPUTED, next_random(random) % 3 ? EXPERTD_ERR_OK : EXPERTD_ERR_INTERNAL, random);
        }
        break;
    default:
        if (w->writing) {
            w->writing = false;
            feed(w, REQUEST_WRITTEN, EXPERTD_ERR_OK, random);
        }
    }
}

static void any_order_of_events_answers_at_most_once_and_releases_once(void **state) {
    (void)state;
    uint64_t random = 11;
    for (int round = 0; round < 200000; round++) {
        struct surroundings w = {.answers = 0};
        request_core_init(&w.core);
        for (int i = 0; i < 200 && w.releases == 0; i++) {
            one_random_event(&w, &random);
        }
        if (w.releases == 0) { // deliver the pending events
            feed(&w, REQUEST_CLOSED, EXPERTD_ERR_OK, &random);
            w.queued = false;
            if (w.releases == 0 && w.running) {
                w.running = false;
                feed(&w, REQUEST_COMPUTED, EXPERTD_ERR_OK, &random);
            }
            if (w.releases == 0 && w.writing) {
                w.writing = false;
                feed(&w, REQUEST_WRITTEN, EXPERTD_ERR_OK, &random);
            }
        }
        assert_int_equal(w.releases, 1);
        assert_true(w.answers <= 1);
        assert_true(w.core.closed || w.answers == 1);
        assert_true(w.reads <= 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_that_goes_well_is_read_admitted_answered_and_released),
        cmocka_unit_test(an_expired_request_is_answered_at_once_and_released_after_its_batch),
        cmocka_unit_test(a_withdrawn_request_is_answered_and_released_without_a_batch),
        cmocka_unit_test(a_cancelled_request_is_released_without_an_answer),
        cmocka_unit_test(any_order_of_events_answers_at_most_once_and_releases_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
