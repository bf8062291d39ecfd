// The server's life: created, bound, started, shut down, destroyed.
#include <errno.h>
#include <grpc/grpc_posix.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/grpc/core.h"
#include "daemon/grpc/tuning.h"

// Of gRPC's resource quota: below this its connections and their metadata alone would press on it.
enum { MESSAGES_IN_TRANSPORT = 16, TRANSPORT_BYTES_MIN = 64 << 20 };

// gRPC's tag alone would be early: a body that comes back after its call is let go has its `released` still to come.
void server_let_go(struct rpc_server *server) {
    if (atomic_fetch_sub(&server->alive, 1) != 1) {
        return;
    }
    if (server->done) {
        server->done(server->done_context);
    }
    sem_post(&server->shut_down); // after `done`, which rpc_destroy must not overtake
}

static void on_shutdown(struct tag *tag, bool ok) {
    (void)ok;
    server_let_go(TAG_OWNER(tag, struct rpc_server, shutdown_tag));
}

uint64_t rpc_transport_bytes(const struct rpc_options *options) {
    uint64_t bytes = options->max_transport_bytes;
    if (!bytes && __builtin_mul_overflow(options->max_message_bytes, MESSAGES_IN_TRANSPORT, &bytes)) {
        bytes = SIZE_MAX;
    }
    return bytes < TRANSPORT_BYTES_MIN ? TRANSPORT_BYTES_MIN : bytes;
}

static void create_server(struct rpc_server *server, const struct rpc_options *options) {
    grpc_resource_quota *quota = grpc_resource_quota_create("expertd");
    grpc_resource_quota_resize(quota, rpc_transport_bytes(options));
    struct tuning tuning;
    grpc_channel_args args = tuning_server_args(&tuning, server->max_calls, quota);
    server->server = grpc_server_create(&args, NULL);
    grpc_resource_quota_unref(quota); // the server holds it
}

static err_t create_parts(struct rpc_server *server, const struct rpc_options *options) {
    TRY(pool_init(&server->pool, 4 * server->max_message_bytes));
    if (sem_init(&server->shut_down, 0, 0)) {
        FAIL(EXPERTD_ERR_INTERNAL, "the shutdown semaphore: %s", strerror(errno));
    }
    create_server(server, options);
    server->credentials = grpc_insecure_server_credentials_create();
    server->nowhere = grpc_lame_client_channel_create("nowhere", GRPC_STATUS_UNAVAILABLE, "only for waking a queue");
    for (unsigned i = 0; i < server->thread_count; i++) {
        TRY(thread_init(&server->threads[i], server, i));
        grpc_server_register_completion_queue(server->server, server->threads[i].queue, NULL);
    }
    return OK;
}

err_t rpc_create(const struct rpc_options *options, struct rpc_server **out) {
    *out = NULL;
    if (options->threads < 1 || options->threads > THREADS_MAX) {
        FAIL(EXPERTD_ERR_CONFIG, "rpc_threads is %u: it must be 1 to %d", options->threads, THREADS_MAX);
    }
    struct rpc_server *server = calloc(1, sizeof *server);
    if (!server) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the gRPC server");
    }
    server->handler = *options->handler;
    server->plane = options->plane;
    server->is_watched = options->watcher != NULL;
    peers_init(&server->peers);
    server->max_message_bytes = options->max_message_bytes;
    server->max_calls = options->max_calls;
    server->thread_count = options->threads;
    server->shutdown_tag.done = on_shutdown;
    atomic_store(&server->alive, 1);
    tuning_process();
    grpc_init();
    err_t e = create_parts(server, options);
    if (err_is(e)) {
        rpc_destroy(server);
        return e;
    }
    *out = server;
    return OK;
}

err_t rpc_start(struct rpc_server *server) {
    grpc_server_start(server->server);
    for (unsigned i = 0; i < server->thread_count; i++) {
        accept_start(&server->threads[i]);
    }
    for (unsigned i = 0; i < server->thread_count; i++) {
        TRY(thread_start(&server->threads[i]));
    }
    return OK;
}

err_t rpc_adopt(struct rpc_server *server, int fd, const char *peer) {
    if (atomic_load(&server->stopping)) {
        close(fd);
        FAIL(EXPERTD_ERR_DRAINING, "the server is shutting down");
    }
    err_t e = peers_set(&server->peers, fd, peer);
    if (err_is(e)) {
        close(fd);
        return e;
    }
    grpc_server_add_channel_from_fd(server->server, fd, server->credentials);
    return OK;
}

uint64_t rpc_calls_refused(struct rpc_server *server) {
    return atomic_load(&server->refused_calls);
}

void rpc_wake(struct rpc_server *server, unsigned thread) {
    INVARIANT(thread < server->thread_count);
    thread_wake(&server->threads[thread]);
}

void rpc_shutdown(struct rpc_server *server, void (*done)(void *context), void *context) {
    INVARIANT(!atomic_exchange(&server->stopping, true));
    server->done = done;
    server->done_context = context;
    TAG_HAND_OVER(&server->shutdown_tag);
    grpc_server_shutdown_and_notify(server->server, server->threads[0].queue, &server->shutdown_tag);
}

void rpc_cancel_all(struct rpc_server *server) {
    grpc_server_cancel_all_calls(server->server);
}

static bool is_running(const struct rpc_server *server) {
    bool running = true;
    for (unsigned i = 0; i < server->thread_count; i++) {
        running = running && server->threads[i].running;
    }
    return running;
}

// Also for a server whose creation or start failed half way: then the queues are emptied here.
static void stop_server(struct rpc_server *server) {
    if (!server->server || !server->threads[0].queue) {
        return;
    }
    if (!atomic_load(&server->stopping)) {
        rpc_shutdown(server, NULL, NULL);
        rpc_cancel_all(server);
    }
    while (is_running(server) && sem_wait(&server->shut_down) && errno == EINTR) {
    }
}

void rpc_destroy(struct rpc_server *server) {
    if (!server) {
        return;
    }
    stop_server(server);
    for (unsigned i = 0; i < server->thread_count; i++) {
        thread_stop(&server->threads[i]);
    }
    if (server->server) {
        grpc_server_destroy(server->server);
    }
    for (unsigned i = 0; i < server->thread_count; i++) {
        thread_deinit(&server->threads[i]);
    }
    if (server->nowhere) {
        grpc_channel_destroy(server->nowhere);
    }
    if (server->credentials) {
        grpc_server_credentials_release(server->credentials);
    }
    pool_deinit(&server->pool);
    peers_deinit(&server->peers);
    sem_destroy(&server->shut_down);
    backup_poll_end();
    grpc_shutdown();
    free(server);
}
