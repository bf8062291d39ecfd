// Tests the admin server with a gRPC client on a socket pair, and a mover that the test controls.
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <fcntl.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "daemon/admin/admin.h"
#include "proto/admin/admin.h"
#include "tests/unit/daemon/grpc/grpc_peer.h"

#define SHOW "expertd.admin.v1.Admin/ShowPlacement"
#define PLAN "expertd.admin.v1.Admin/PlanPlacement"
#define APPLY "expertd.admin.v1.Admin/ApplyPlacement"
#define DRAIN "expertd.admin.v1.Admin/Drain"
#define LOAD "expertd.admin.v1.Admin/GetLoad"

enum { EXPERTS = 4, RANKS = 2, LAYERS = 2, STEPS = 4, EXPERT_BYTES = 3 * 8 * 16 / 2 + 64 };

// ---- the test's mover

struct mover {
    atomic_int allowed;     // steps that apply is allowed to take
    atomic_int steps, ends; // steps taken and reported; applies that have ended
    atomic_int stopped;     // applies that were told to stop
    _Atomic uint64_t epoch;
};

// Expert e on rank e * R / E; `replicated` also puts expert 0 on rank 1.
static err_t fake_placement(struct mover *mover, uint32_t layer, bool replicated, struct mover_placement *out) {
    *out =
        (struct mover_placement){.layer = layer, .epoch = mover->epoch, .ranks = RANKS, .num_experts = EXPERTS, .imbalance = 1.5};
    out->first = calloc(EXPERTS + 1, sizeof *out->first);
    out->holders = calloc(EXPERTS + 1, sizeof *out->holders);
    out->rows = calloc(EXPERTS, sizeof *out->rows);
    uint32_t used = 0;
    for (uint32_t e = 0; e < EXPERTS; e++) {
        out->holders[used++] = e * RANKS / EXPERTS;
        if (replicated && e == 0) {
            out->holders[used++] = 1;
        }
        out->first[e + 1] = used;
        out->rows[e] = 100 * layer + e;
    }
    return OK;
}

static err_t fake_show(struct mover *mover, uint32_t layer, struct mover_placement *out) {
    return fake_placement(mover, layer, false, out);
}

static err_t fake_plan(struct mover *mover, const struct mover_plan_options *options, struct mover_placement *out) {
    if (options->replicas > RANKS) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "replicas", "replicas: %u are more than fit", options->replicas);
    }
    TRY(fake_placement(mover, options->layer, options->replicas > 0, out));
    for (size_t e = 0; options->rows && e < options->num_rows; e++) {
        out->rows[e] = options->rows[e];
    }
    return OK;
}

static void fake_deinit(struct mover_placement *placement) {
    free(placement->first);
    free(placement->holders);
    free(placement->rows);
    *placement = (struct mover_placement){0};
}

static void nap(void) {
    nanosleep(&(struct timespec){.tv_nsec = NS_PER_MS}, NULL);
}

static err_t run_steps(struct mover *mover, bool (*progress)(void *, const struct mover_progress *), void *context) {
    for (uint32_t step = 1; step <= STEPS; step++) {
        while (mover->allowed < (int)step) {
            nap();
        }
        struct mover_progress now = {.moved_bytes = step, .all_bytes = STEPS, .moved_experts = step, .all_experts = STEPS};
        if (!progress(context, &now)) {
            mover->stopped++;
            FAIL(EXPERTD_ERR_CANCELLED, "stopped after step %u", step);
        }
        mover->steps = (int)step; // reported, and progress returned true
    }
    return OK;
}

static err_t fake_apply(struct mover *mover, const struct mover_placement *placement,
                        bool (*progress)(void *, const struct mover_progress *), void *context, uint64_t *new_epoch) {
    if (placement->epoch != mover->epoch) {
        mover->ends++;
        FAIL(EXPERTD_ERR_UNAVAILABLE, "planned from epoch %u", (unsigned)placement->epoch);
    }
    err_t e = run_steps(mover, progress, context);
    if (!err_is(e)) {
        *new_epoch = ++mover->epoch;
    }
    mover->ends++;
    return e;
}

// ---- the fixture

struct fixture {
    struct admin *admin;
    struct mover mover;
    struct model model;
    struct model_layer layers[LAYERS];
    struct peer peer;
    atomic_int drains, down;
};

static uint64_t active_of(void *context) {
    (void)context;
    return 3;
}

static void on_drain(void *context) {
    ((struct fixture *)context)->drains++;
}

static void on_down(void *context) {
    ((struct fixture *)context)->down++;
}

static bool wait_for(atomic_int *value, int wanted) {
    for (int i = 0; i < 20000 && atomic_load(value) < wanted; i++) {
        nap();
    }
    return atomic_load(value) >= wanted;
}

static void connect_peer(struct fixture *f, struct peer *peer) {
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    assert_false(err_is(admin_adopt(f->admin, ends[0], "unix:test")));
    peer_open(peer, NULL, ends[1], GRPC_COMPRESS_NONE);
}

// Smaller than in the compute dtype, as for quantised experts.
static const struct expert_shape SHAPE = {.bytes = EXPERT_BYTES};
static const uint8_t SHAPE_OF_EXPERT[EXPERTS];

static void make_ready(struct fixture *f, bool with_mover) {
    for (uint32_t i = 0; i < LAYERS; i++) {
        f->layers[i].params =
            (struct layer_params){.layer = 3 + 2 * i, .num_experts = EXPERTS, .hidden_size = 8, .intermediate_size = 16};
        f->layers[i].shapes = (struct expert_shapes){.all = &SHAPE, .count = 1, .of_expert = SHAPE_OF_EXPERT};
    }
    f->model = (struct model){.layers = f->layers, .num_layers = LAYERS, .compute_dtype = EXPERTD_DTYPE_BF16};
    struct admin_backend backend = {.model = &f->model};
    if (with_mover) {
        backend.mover = (struct admin_mover){&f->mover, fake_show, fake_plan, fake_apply, fake_deinit};
    }
    admin_ready(f->admin, &backend);
}

static struct fixture *fixture_start(bool ready) {
    struct fixture *f = calloc(1, sizeof *f);
    f->mover.epoch = 7;
    f->mover.allowed = STEPS;
    struct admin_options options = {.active = active_of, .drain = on_drain, .context = f};
    assert_false(err_is(admin_create(&options, &f->admin)));
    if (ready) {
        make_ready(f, true);
    }
    connect_peer(f, &f->peer);
    return f;
}

static void fixture_stop(struct fixture *f) {
    peer_close(&f->peer);
    if (!f->down) {
        admin_shutdown(f->admin, on_down, f);
        assert_true(wait_for(&f->down, 1));
    }
    admin_destroy(f->admin);
    free(f);
}

static struct peer_end ask(struct fixture *f, const char *method, const struct proto_bytes *request) {
    return peer_unary(&f->peer, method, request->data, request->length);
}

static struct proto_bytes apply_bytes(uint64_t epoch) {
    struct mover mover = {.epoch = epoch};
    struct mover_placement p;
    assert_false(err_is(fake_placement(&mover, 3, true, &p)));
    struct proto_placement placement = {
        .layer = p.layer, .epoch = p.epoch, .ranks = p.ranks, .num_experts = p.num_experts, .first = p.first, .holders = p.holders};
    struct proto_bytes bytes;
    assert_false(err_is(proto_encode_apply_request(&placement, &bytes)));
    fake_deinit(&p);
    return bytes;
}

static void start_apply(struct fixture *f, struct peer *peer, struct peer_call *call, uint64_t epoch) {
    (void)f;
    struct proto_bytes bytes = apply_bytes(epoch);
    peer_start(call, peer, APPLY, PEER_NO_DEADLINE);
    peer_send(call, bytes.data, bytes.length);
    peer_half_close(call);
    free(bytes.data);
}

// The next message. False: the stream has ended.
static bool next_progress(struct peer_call *call, struct proto_progress *out) {
    size_t length;
    uint8_t *bytes = peer_receive(call, &length);
    if (!bytes) {
        return false;
    }
    assert_false(err_is(proto_decode_progress(bytes, length, out)));
    free(bytes);
    return true;
}

// ---- tests

static void methods_that_need_the_model_are_loading_until_it_is_loaded(void **state) {
    (void)state;
    struct fixture *f = fixture_start(false);
    const char *const methods[] = {SHOW, PLAN, LOAD};
    for (size_t i = 0; i < 3; i++) {
        struct peer_end end = peer_unary(&f->peer, methods[i], "", 0);
        assert_int_equal(end.status, 14);
        assert_true(end.details_length > 0 && end.pushback[0]);
        assert_non_null(strstr(end.message, "loaded"));
    }
    make_ready(f, false);
    struct peer_end end = peer_unary(&f->peer, SHOW, "", 0);
    assert_int_equal(end.status, 12);
    struct proto_bytes bytes = apply_bytes(7);
    end = ask(f, APPLY, &bytes);
    assert_int_equal(end.status, 12);
    free(bytes.data);
    fixture_stop(f);
}

static void every_layer_is_shown_if_none_is_named(void **state) {
    (void)state;
    struct fixture *f = fixture_start(true);
    struct peer_end end = peer_unary(&f->peer, SHOW, "", 0);
    assert_int_equal(end.status, 0);
    struct proto_placements shown;
    assert_false(err_is(proto_decode_show_response(end.reply, end.reply_length, &shown)));
    assert_int_equal(shown.count, LAYERS);
    assert_int_equal(shown.items[1].layer, 5);
    assert_int_equal(shown.items[1].epoch, 7);
    assert_int_equal(shown.items[1].holders[3], 1);
    assert_int_equal(shown.items[1].rows[2], 502);
    proto_placements_deinit(&shown);
    free(end.reply);
    end = peer_unary(&f->peer, LOAD, "\x08\x05", 2); // layers: 5
    assert_int_equal(end.status, 0);
    assert_false(err_is(proto_decode_load_response(end.reply, end.reply_length, &shown)));
    assert_int_equal(shown.count, 1);
    assert_int_equal(shown.items[0].rows[3], 503);
    proto_placements_deinit(&shown);
    free(end.reply);
    fixture_stop(f);
}

static void an_invalid_request_is_refused_with_its_reason(void **state) {
    (void)state;
    struct fixture *f = fixture_start(true);
    static const struct {
        const char *method, *bytes;
        size_t length;
        int status;
        const char *text;
    } ROWS[] = {
        {SHOW, "\x08\x04", 2, 5, "layers: 4 is not served"},
        {SHOW, "\x08\x03\x08\x03\x08\x03", 6, 3, "3 are named, and 2 are served"},
        {SHOW, "\x10\x01", 2, 3, "no field 2"},
        {SHOW, "\x08", 1, 3, ""},
        {PLAN, "\x10\x01\x18\x01", 4, 3, "only a balanced placement"},
        {PLAN, "\x18\x09", 2, 3, "more than fit"},
        {PLAN, "\x22\x04\x08\x03\x10\x01", 6, 3, "1 for layer 3, which has 4"},
        {PLAN, "\x22\x02\x08\x04", 4, 5, "layer 4 is not served"},
        {PLAN, "\x22\x02\x08\x03\x22\x02\x08\x03", 8, 3, "given twice"},
        {APPLY, "", 0, 3, "missing"},
        {DRAIN, "\x0a\x01\xff", 3, 3, "UTF-8"},
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof ROWS[0]; i++) {
        struct peer_end end = peer_unary(&f->peer, ROWS[i].method, ROWS[i].bytes, ROWS[i].length);
        assert_int_equal(end.status, ROWS[i].status);
        assert_non_null(strstr(end.message, ROWS[i].text));
        assert_true(end.details_length > 0);
        assert_null(end.reply);
    }
    assert_int_equal(f->drains, 0);
    assert_int_equal(f->mover.steps, 0);
    fixture_stop(f);
}

static void a_plan_reports_the_copies_it_needs(void **state) {
    (void)state;
    struct fixture *f = fixture_start(true);
    uint64_t rows[EXPERTS] = {9, 8, 7, 6};
    struct proto_counts counts = {.layer = 5, .rows = rows, .num_rows = EXPERTS};
    struct proto_plan_request request = {.replicas = 1, .counts = &counts, .num_counts = 1};
    struct proto_bytes bytes;
    assert_false(err_is(proto_encode_plan_request(&request, &bytes)));
    struct peer_end end = ask(f, PLAN, &bytes);
    free(bytes.data);
    assert_int_equal(end.status, 0);
    struct proto_plans plans;
    assert_false(err_is(proto_decode_plan_response(end.reply, end.reply_length, &plans)));
    assert_int_equal(plans.count, LAYERS);
    assert_int_equal(plans.items[0].copies, 1);
    assert_int_equal(plans.items[0].copy_bytes, EXPERT_BYTES);
    assert_int_equal(plans.items[0].planned.rows[0], 300);
    assert_int_equal(plans.items[1].planned.rows[0], 9);
    assert_int_equal(plans.items[1].now.rows[0], 500);
    proto_plans_deinit(&plans);
    free(end.reply);
    fixture_stop(f);
}

static void a_move_reports_its_progress_and_its_epoch(void **state) {
    (void)state;
    struct fixture *f = fixture_start(true);
    f->mover.allowed = 1;
    struct peer_call call;
    start_apply(f, &f->peer, &call, 7);
    struct proto_progress progress = {0};
    assert_true(next_progress(&call, &progress));
    assert_int_equal(progress.moved_experts, 1);
    assert_false(progress.done);
    f->mover.allowed = STEPS;
    while (!progress.done) {
        assert_true(next_progress(&call, &progress));
    }
    assert_int_equal(progress.moved_bytes, STEPS);
    assert_int_equal(progress.epoch, 8);
    assert_false(next_progress(&call, &progress));
    assert_int_equal(peer_finish(&call).status, 0);

    start_apply(f, &f->peer, &call, 7); // planned before that move
    assert_false(next_progress(&call, &progress));
    struct peer_end end = peer_finish(&call);
    assert_int_equal(end.status, 14);
    assert_non_null(strstr(end.message, "planned from epoch 7"));
    fixture_stop(f);
}

static void a_second_move_is_refused_at_once(void **state) {
    (void)state;
    struct fixture *f = fixture_start(true);
    f->mover.allowed = 0;
    struct peer_call first;
    start_apply(f, &f->peer, &first, 7);
    struct proto_bytes bytes = apply_bytes(7);
    struct peer_end end = ask(f, APPLY, &bytes);
    free(bytes.data);
    assert_int_equal(end.status, 14);
    assert_non_null(strstr(end.message, "of layer 3: one at a time"));
    f->mover.allowed = STEPS;
    struct proto_progress progress = {0};
    while (next_progress(&first, &progress)) {
    }
    assert_true(progress.done);
    assert_int_equal(peer_finish(&first).status, 0);
    fixture_stop(f);
}

static void a_closed_call_stops_its_move_and_the_next_may_begin(void **state) {
    (void)state;
    struct fixture *f = fixture_start(true);
    f->mover.allowed = 1;
    struct peer other;
    connect_peer(f, &other);
    struct peer_call call;
    start_apply(f, &other, &call, 7);
    assert_true(wait_for(&f->mover.steps, 1));
    peer_cancel(&call);
    assert_int_equal(peer_finish(&call).status, 1);
    peer_close(&other);
    for (int i = 2; i <= STEPS && !f->mover.stopped; i++) { // the stop may take effect one step later
        nanosleep(&(struct timespec){.tv_nsec = 50 * NS_PER_MS}, NULL);
        f->mover.allowed = i;
    }
    assert_true(wait_for(&f->mover.ends, 1));
    assert_int_equal(f->mover.stopped, 1);
    assert_int_equal(f->mover.epoch, 7);
    f->mover.allowed = STEPS;
    struct proto_progress progress = {0};
    for (int i = 0; i < 200 && !progress.done; i++) { // until the server has noticed the end of the thread
        start_apply(f, &f->peer, &call, 7);
        while (next_progress(&call, &progress)) {
        }
        peer_finish(&call);
        nap();
    }
    assert_true(progress.done);
    fixture_stop(f);
}

static void a_drain_starts_after_its_answer(void **state) {
    (void)state;
    struct fixture *f = fixture_start(false); // also while the model is loaded
    struct proto_bytes bytes;
    assert_false(err_is(proto_encode_drain_request("a new version", &bytes)));
    struct peer_end end = ask(f, DRAIN, &bytes);
    free(bytes.data);
    assert_int_equal(end.status, 0);
    uint64_t active;
    assert_false(err_is(proto_decode_drain_response(end.reply, end.reply_length, &active)));
    assert_int_equal(active, 3);
    free(end.reply);
    assert_true(wait_for(&f->drains, 1));
    fixture_stop(f);
}

static void the_shutdown_ends_idle_calls_and_a_move_after_its_step(void **state) {
    (void)state;
    struct fixture *f = fixture_start(true);
    f->mover.allowed = 1;
    struct peer_call silent, moving;
    peer_start(&silent, &f->peer, SHOW, PEER_NO_DEADLINE);
    start_apply(f, &f->peer, &moving, 7);
    assert_true(wait_for(&f->mover.steps, 1));
    admin_shutdown(f->admin, on_down, f);
    struct peer_end end = peer_finish(&silent);
    assert_int_equal(end.status, 14);
    assert_int_equal(f->down, 0);
    f->mover.allowed = 2;
    struct proto_progress progress;
    while (next_progress(&moving, &progress)) {
    }
    end = peer_finish(&moving);
    assert_int_equal(end.status, 1);
    assert_non_null(strstr(end.message, "stopped after step 2"));
    assert_true(wait_for(&f->down, 1));
    fixture_stop(f);
}

static void cancelling_does_not_wait_for_the_step_but_destroying_does(void **state) {
    (void)state;
    struct fixture *f = fixture_start(true);
    f->mover.allowed = 1;
    struct peer_call moving;
    start_apply(f, &f->peer, &moving, 7);
    assert_true(wait_for(&f->mover.steps, 1));
    admin_shutdown(f->admin, on_down, f);
    admin_cancel(f->admin);
    assert_true(wait_for(&f->down, 1));
    assert_int_equal(f->mover.ends, 0);
    f->mover.allowed = 2;
    struct proto_progress progress;
    while (next_progress(&moving, &progress)) {
    }
    peer_finish(&moving);
    fixture_stop(f);
}

static void the_public_methods_are_unimplemented(void **state) {
    (void)state;
    struct fixture *f = fixture_start(true);
    const char *const methods[] = {"expertd.v1.Experts/Forward", "expertd.v1.Experts/Describe", "grpc.health.v1.Health/Check"};
    for (size_t i = 0; i < 3; i++) {
        struct peer_end end = peer_unary(&f->peer, methods[i], "", 0);
        assert_int_equal(end.status, 12);
        assert_non_null(strstr(end.message, "admin socket"));
    }
    fixture_stop(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(methods_that_need_the_model_are_loading_until_it_is_loaded),
        cmocka_unit_test(every_layer_is_shown_if_none_is_named),
        cmocka_unit_test(an_invalid_request_is_refused_with_its_reason),
        cmocka_unit_test(a_plan_reports_the_copies_it_needs),
        cmocka_unit_test(a_move_reports_its_progress_and_its_epoch),
        cmocka_unit_test(a_second_move_is_refused_at_once),
        cmocka_unit_test(a_closed_call_stops_its_move_and_the_next_may_begin),
        cmocka_unit_test(a_drain_starts_after_its_answer),
        cmocka_unit_test(the_shutdown_ends_idle_calls_and_a_move_after_its_step),
        cmocka_unit_test(cancelling_does_not_wait_for_the_step_but_destroying_does),
        cmocka_unit_test(the_public_methods_are_unimplemented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
