#include "daemon/admin/admin.h"

#include <stdlib.h>

#include "base/clock.h"
#include "daemon/admin/admin_calls.h"
#include "daemon/admin/admin_move.h"
#include "daemon/admin/admin_status.h"
#include "proto/admin/admin.h"

enum { ADMIN_THREADS = 1, CALLS_MAX = 16 };

static FALLIBLE check_request(const struct rpc_buffer *message, err_t error) {
    TRY(error);
    if (!message) {
        FAIL(EXPERTD_ERR_MALFORMED, "the call ended without a message");
    }
    return OK;
}

static void answer_request(struct admin_call *call, const struct rpc_buffer *message, err_t error) {
    struct proto_bytes reply = {0};
    err_t e = check_request(message, error);
    if (!err_is(e) && call->method == RPC_ADMIN_APPLY_PLACEMENT) {
        e = admin_move_start(call, message);
    } else if (!err_is(e)) {
        e = admin_answer(call, message, &reply);
    }
    if (err_is(e)) {
        admin_fail(call, e);
    } else if (reply.data) {
        rpc_reply(call->rpc, reply.data, reply.length, NULL, 0);
    }
    free(reply.data);
}

// ---- the transport's callbacks

static void *on_opened(void *context, struct rpc_call *rpc, enum rpc_method method, unsigned thread, int64_t deadline_ns) {
    struct admin *admin = context;
    (void)thread;
    (void)deadline_ns; // gRPC closes a call whose deadline passes
    struct admin_call *call = calloc(1, sizeof *call);
    if (!call) {
        rpc_finish(rpc, &(struct rpc_status){
                            .code = proto_grpc_code(EXPERTD_ERR_NOMEM), .message = "no memory for a call", .retry_after_ms = -1});
        return NULL;
    }
    *call = (struct admin_call){.admin = admin, .rpc = rpc, .method = method};
    LIST_INSERT_HEAD(&admin->calls, call, open);
    rpc_read(rpc);
    return call;
}

static void on_message(void *context, struct rpc_call *rpc, struct rpc_buffer *message, err_t error) {
    struct admin *admin = context;
    struct admin_call *call = rpc_call_data(rpc);
    if (call && !call->has_request && rpc_call_open(rpc)) {
        call->has_request = true;
        answer_request(call, message, error);
    }
    if (message) {
        rpc_buffer_release(admin->server, message);
    }
}

static void on_written(void *context, struct rpc_call *rpc, bool ok) {
    struct admin_call *call = rpc_call_data(rpc);
    (void)context;
    if (call) {
        call->writing = false;
        if (ok) {
            admin_move_send(call);
        }
    }
}

static void on_closed(void *context, struct rpc_call *rpc, bool cancelled) {
    struct admin_call *call = rpc_call_data(rpc);
    (void)context;
    (void)cancelled;
    if (call) {
        admin_move_abandon(call);
    }
}

// The answer was sent, or the peer is gone: a requested drain starts here.
static void on_released(void *context, struct rpc_call *rpc) {
    struct admin *admin = context;
    struct admin_call *call = rpc_call_data(rpc);
    if (!call) {
        return;
    }
    bool drain = call->drain_after;
    LIST_REMOVE(call, open);
    free(call);
    if (drain) {
        admin->options.drain(admin->options.context);
    }
}

static int64_t on_tick(void *context, unsigned thread, int64_t now_ns) {
    struct admin *admin = context;
    struct admin_call *call;
    (void)thread;
    (void)now_ns;
    admin_move_collect(admin);
    if (atomic_load(&admin->ending)) {
        admin_move_stop(admin);
        LIST_FOREACH(call, &admin->calls, open) {
            if (!call->move && rpc_call_open(call->rpc)) { // a move's call ends with the move
                admin_fail(call, err_record(EXPERTD_ERR_DRAINING, NULL, "the service is shutting down"));
            }
        }
    }
    return CLOCK_NEVER;
}

// ---- create, shut down, destroy

FALLIBLE admin_create(const struct admin_options *options, struct admin **out) {
    *out = NULL;
    struct admin *admin = calloc(1, sizeof *admin);
    if (!admin) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the admin service");
    }
    admin->options = *options;
    LIST_INIT(&admin->calls);
    pthread_mutex_init(&admin->mutex, NULL);
    pthread_cond_init(&admin->idle, NULL);
    admin->handler = (struct rpc_handler){.context = admin,
                                          .opened = on_opened,
                                          .message = on_message,
                                          .written = on_written,
                                          .closed = on_closed,
                                          .released = on_released,
                                          .tick = on_tick};
    struct rpc_options rpc = {.plane = RPC_PLANE_ADMIN,
                              .threads = ADMIN_THREADS,
                              .max_message_bytes = PROTO_ADMIN_MESSAGE_MAX,
                              .max_calls = CALLS_MAX,
                              .handler = &admin->handler,
                              .watcher = options->watcher,
                              .tls = options->tls};
    err_t e = rpc_create(&rpc, &admin->server);
    if (!err_is(e)) {
        e = rpc_start(admin->server);
    }
    if (err_is(e)) {
        admin_destroy(admin);
        return e;
    }
    *out = admin;
    return OK;
}

FALLIBLE admin_adopt(struct admin *admin, int fd, const char *peer) {
    return rpc_adopt(admin->server, fd, peer);
}

FALLIBLE admin_adopt_tls(struct admin *admin, int fd, const char *peer) {
    return rpc_adopt_tls(admin->server, fd, peer);
}

bool admin_has_called(struct admin *admin, int fd) {
    return rpc_has_called(admin->server, fd);
}

void admin_ready(struct admin *admin, const struct admin_backend *backend) {
    admin->backend = *backend;
    atomic_store(&admin->ready, true);
}

void admin_shutdown(struct admin *admin, void (*done)(void *context), void *context) {
    atomic_store(&admin->ending, true);
    rpc_shutdown(admin->server, done, context);
    rpc_wake(admin->server, 0);
}

void admin_cancel(struct admin *admin) {
    rpc_cancel_all(admin->server);
}

void admin_destroy(struct admin *admin) {
    if (!admin) {
        return;
    }
    admin_move_join(admin);
    pthread_cond_destroy(&admin->idle);
    pthread_mutex_destroy(&admin->mutex);
    free(admin);
}
