// Tests ListShards and ChangeShard of the admin server with a gRPC client on a socket pair, and shards that the test makes up.
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "daemon/admin/admin.h"
#include "proto/admin/admin_shards.h"
#include "tests/unit/daemon/grpc/grpc_peer.h"

#define LIST "expertd.admin.v1.Admin/ListShards"
#define CHANGE "expertd.admin.v1.Admin/ChangeShard"

struct fixture {
    struct shard_view view; // first: the fakes receive its address
    struct admin *admin;
    struct peer peer;
    _Atomic int fails;        // of the fakes: an error code
    enum shard_change change; // the last one, and `changed`: with the view's mutex
    char changed[FRONT_ADDRESS_MAX];
    atomic_int down;
};

static err_t fake_list(struct shard_view *view, struct shard_listing *out) {
    struct fixture *f = (struct fixture *)view;
    *out = (struct shard_listing){0};
    if (f->fails) {
        return err_record((enum expertd_err_code)f->fails, NULL, "no front yet");
    }
    out->summary = (struct front_summary){.slots = 16, .shards = 2, .live = 1, .experts = 64, .uncovered = 3, .places = true};
    out->shards = calloc(2, sizeof *out->shards);
    out->count = 2;
    out->shards[0] = (struct front_shard){.address = "local:0", .state = "ready", .reason = "added", .is_local = true};
    out->shards[1] = (struct front_shard){.shard = 1,
                                          .address = "10.0.0.7:7421",
                                          .state = "dead",
                                          .reason = "disconnected",
                                          .message = "reset\xff by peer",
                                          .ready = 61,
                                          .bytes = 1 << 20,
                                          .heard_age_ns = -1,
                                          .rows = 100,
                                          .rows_per_second = 12.5};
    return OK;
}

static err_t fake_change(struct shard_view *view, const char *address, enum shard_change change) {
    struct fixture *f = (struct fixture *)view;
    if (f->fails) {
        return err_record((enum expertd_err_code)f->fails, "address", "no shard has the address %s", address);
    }
    pthread_mutex_lock(&view->mutex);
    f->change = change;
    snprintf(f->changed, sizeof f->changed, "%s", address);
    pthread_mutex_unlock(&view->mutex);
    return OK;
}

static void on_down(void *context) {
    ((struct fixture *)context)->down = 1;
}

// The model is never loaded: both methods answer before that.
static struct fixture *fixture_start(bool has_front) {
    struct fixture *f = calloc(1, sizeof *f);
    shard_view_init(&f->view);
    struct admin_options options = {.context = f};
    if (has_front) {
        options.shards = (struct admin_shards){&f->view, fake_list, fake_change};
    }
    assert_false(err_is(admin_create(&options, &f->admin)));
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    assert_false(err_is(admin_adopt(f->admin, ends[0], "unix:test")));
    peer_open(&f->peer, NULL, ends[1], GRPC_COMPRESS_NONE);
    return f;
}

static void fixture_stop(struct fixture *f) {
    peer_close(&f->peer);
    admin_shutdown(f->admin, on_down, f);
    while (!f->down) {
        nanosleep(&(struct timespec){.tv_nsec = NS_PER_MS}, NULL);
    }
    admin_destroy(f->admin);
    shard_view_deinit(&f->view);
    free(f);
}

static struct peer_end change(struct fixture *f, const char *address, enum proto_shard_change what) {
    struct proto_change_shard request = {.change = what};
    snprintf(request.address, sizeof request.address, "%s", address);
    struct proto_bytes bytes;
    assert_false(err_is(proto_encode_change_shard_request(&request, &bytes)));
    struct peer_end end = peer_unary(&f->peer, CHANGE, bytes.data, bytes.length);
    free(bytes.data);
    return end;
}

static void the_shards_are_listed_before_the_model_is_ready(void **state) {
    (void)state;
    struct fixture *f = fixture_start(true);
    struct peer_end end = peer_unary(&f->peer, LIST, "", 0);
    assert_int_equal(end.status, 0);
    struct proto_shards got;
    assert_false(err_is(proto_decode_list_shards_response(end.reply, end.reply_length, &got)));
    free(end.reply);
    assert_int_equal(got.count, 2);
    assert_true(got.items[0].local && strcmp(got.items[0].address, "local:0") == 0);
    const struct proto_shard *s = &got.items[1];
    assert_string_equal(s->address, "10.0.0.7:7421");
    assert_string_equal(s->state, "dead");
    assert_string_equal(s->reason, "disconnected");
    assert_string_equal(s->message, "reset? by peer");
    assert_true(s->shard == 1 && !s->local && !s->live && s->ready == 61 && s->bytes == 1 << 20);
    assert_true(s->heard_age_ns == -1 && s->rows == 100 && s->rows_per_second == 12.5);
    assert_true(got.summary.shards == 2 && got.summary.live == 1 && got.summary.experts == 64 && got.summary.uncovered == 3);
    assert_true(got.summary.places);
    proto_shards_deinit(&got);
    fixture_stop(f);
}

static void each_change_reaches_the_front(void **state) {
    (void)state;
    static const enum shard_change WANTED[PROTO_SHARD_CHANGES] = {[PROTO_SHARD_DRAIN] = SHARD_DRAIN,
                                                                  [PROTO_SHARD_KEEP] = SHARD_KEEP,
                                                                  [PROTO_SHARD_ADD] = SHARD_ADD,
                                                                  [PROTO_SHARD_REMOVE] = SHARD_REMOVE};
    struct fixture *f = fixture_start(true);
    for (enum proto_shard_change what = PROTO_SHARD_DRAIN; what < PROTO_SHARD_CHANGES; what++) {
        char address[32];
        snprintf(address, sizeof address, "host:%d", what);
        struct peer_end end = change(f, address, what);
        assert_int_equal(end.status, 0);
        free(end.reply);
        pthread_mutex_lock(&f->view.mutex);
        assert_int_equal(f->change, WANTED[what]);
        assert_string_equal(f->changed, address);
        pthread_mutex_unlock(&f->view.mutex);
    }
    fixture_stop(f);
}

static void errors_of_the_front_are_answered(void **state) {
    (void)state;
    struct fixture *f = fixture_start(true);
    f->fails = EXPERTD_ERR_LOADING;
    struct peer_end end = peer_unary(&f->peer, LIST, "", 0);
    assert_int_equal(end.status, 14);
    assert_true(end.pushback[0]);
    f->fails = EXPERTD_ERR_INVALID;
    end = change(f, "host:1", PROTO_SHARD_DRAIN);
    assert_int_equal(end.status, 3);
    assert_non_null(strstr(end.message, "no shard has the address host:1"));
    end = change(f, "", PROTO_SHARD_DRAIN);
    assert_int_equal(end.status, 3);
    assert_non_null(strstr(end.message, "address: missing"));
    fixture_stop(f);
}

static void without_shards_in_other_processes_both_are_unimplemented(void **state) {
    (void)state;
    struct fixture *f = fixture_start(false);
    struct peer_end end = peer_unary(&f->peer, LIST, "", 0);
    assert_int_equal(end.status, 12);
    assert_non_null(strstr(end.message, "--shard-hosts"));
    assert_int_equal(change(f, "host:1", PROTO_SHARD_DRAIN).status, 12);
    fixture_stop(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_shards_are_listed_before_the_model_is_ready),
        cmocka_unit_test(each_change_reaches_the_front),
        cmocka_unit_test(errors_of_the_front_are_answered),
        cmocka_unit_test(without_shards_in_other_processes_both_are_unimplemented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
