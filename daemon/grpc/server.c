// The rpc_* functions of a server: create, start, adopt a socket, shut down, destroy.
#include <errno.h>
#include <grpc/grpc_posix.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/grpc/accept.h"
#include "daemon/grpc/queue/backup_poll.h"
#include "daemon/grpc/queue/tuning.h"
#include "daemon/grpc/security/external_acceptor.h"
#include "daemon/grpc/server_ref.h"
#include "daemon/grpc/thread.h"

// The bounds of gRPC's resource quota: TRANSPORT_BYTES_MIN is space for connections and metadata without any message.
enum { MESSAGES_IN_TRANSPORT = 16, TRANSPORT_BYTES_MIN = 64 << 20 };

static void on_shutdown(struct tag *tag, bool ok) {
    (void)ok;
    server_unref(TAG_OWNER(tag, struct rpc_server, shutdown_tag));
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
    tuning.args[args.num_args++] = external_acceptor_arg(&server->external);
    server->server = grpc_server_create(&args, NULL);
    grpc_resource_quota_unref(quota); // the server holds it
}

static FALLIBLE listen_tls(struct rpc_server *server) {
    if (!server->tls.store) {
        return OK;
    }
    server->certificates = (struct server_certificates){.store = server->tls.store};
    grpc_server_credentials *credentials = credentials_of_server(&server->certificates);
    bool listens = external_acceptor_listen(server->server, credentials, &server->external);
    grpc_server_credentials_release(credentials);
    if (!listens) {
        FAIL(EXPERTD_ERR_CONFIG,
             "gRPC does not take the certificate, key or CA of the TLS files: --log-level debug shows its reason");
    }
    return OK;
}

static err_t create_parts(struct rpc_server *server, const struct rpc_options *options) {
    TRY(pool_init(&server->pool, 4 * server->max_message_bytes));
    if (sem_init(&server->shut_down, 0, 0)) {
        FAIL(EXPERTD_ERR_INTERNAL, "cannot create the shutdown semaphore: %s", strerror(errno));
    }
    create_server(server, options);
    server->credentials = grpc_insecure_server_credentials_create();
    for (unsigned i = 0; i < server->thread_count; i++) {
        TRY(thread_init(&server->threads[i], server, i));
        grpc_server_register_completion_queue(server->server, server->threads[i].queue.queue, NULL);
    }
    return listen_tls(server);
}

err_t rpc_create(const struct rpc_options *options, struct rpc_server **out) {
    *out = NULL;
    if (options->threads < 1 || options->threads > RPC_THREADS_MAX) {
        FAIL(EXPERTD_ERR_CONFIG, "rpc_threads is %u: it must be 1 to %d", options->threads, RPC_THREADS_MAX);
    }
    struct rpc_server *server = calloc(1, sizeof *server);
    if (!server) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the gRPC server");
    }
    server->handler = *options->handler;
    server->plane = options->plane;
    server->is_urgent = options->is_urgent;
    server->is_watched = options->watcher != NULL;
    INVARIANT(!options->watcher || !options->tls.store); // an external listener needs sockets that its own threads poll
    server->tls = options->tls;
    pthread_mutex_init(&server->tls_mutex, NULL);
    peers_init(&server->peers);
    server->max_message_bytes = options->max_message_bytes;
    server->max_calls = options->max_calls;
    server->thread_count = options->threads;
    server->shutdown_tag.done = on_shutdown;
    server_ref(server);
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
        TRY(queue_thread_start(&server->threads[i].queue));
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

FALLIBLE rpc_adopt_tls(struct rpc_server *server, int fd, const char *peer) {
    err_t e = peers_set(&server->peers, fd, peer);
    if (err_is(e)) {
        close(fd);
        return e;
    }
    pthread_mutex_lock(&server->tls_mutex);
    bool stopping = atomic_load(&server->stopping);
    if (!stopping) {
        external_acceptor_handle(server->external, fd);
    }
    pthread_mutex_unlock(&server->tls_mutex);
    if (stopping) {
        close(fd);
        FAIL(EXPERTD_ERR_DRAINING, "the server is shutting down");
    }
    return OK;
}

bool rpc_has_called(struct rpc_server *server, int fd) {
    return peers_has_called(&server->peers, fd);
}

FALLIBLE rpc_borrow_memory(struct rpc_server *server, void *memory, size_t bytes) {
    return pool_borrow_memory(&server->pool, memory, bytes);
}

void rpc_return_memory(struct rpc_server *server) {
    pool_return_memory(&server->pool);
}

struct rpc_buffer *rpc_buffer_take(struct rpc_server *server, size_t length) {
    return pool_take(&server->pool, length);
}

void rpc_buffer_release(struct rpc_server *server, struct rpc_buffer *buffer) {
    message_release(&server->pool, buffer);
}

uint64_t rpc_calls_refused(struct rpc_server *server) {
    return atomic_load(&server->refused_calls);
}

void rpc_wake(struct rpc_server *server, unsigned thread) {
    INVARIANT(thread < server->thread_count);
    queue_thread_wake(&server->threads[thread].queue);
}

void rpc_shutdown(struct rpc_server *server, void (*done)(void *context), void *context) {
    pthread_mutex_lock(&server->tls_mutex);
    INVARIANT(!atomic_exchange(&server->stopping, true));
    pthread_mutex_unlock(&server->tls_mutex);
    server->done = done;
    server->done_context = context;
    TAG_HAND_OVER(&server->shutdown_tag);
    grpc_server_shutdown_and_notify(server->server, server->threads[0].queue.queue, &server->shutdown_tag);
}

void rpc_cancel_all(struct rpc_server *server) {
    grpc_server_cancel_all_calls(server->server);
}

static bool is_running(const struct rpc_server *server) {
    bool running = true;
    for (unsigned i = 0; i < server->thread_count; i++) {
        running = running && server->threads[i].queue.running;
    }
    return running;
}

// Also for a server whose creation or start failed: its queues are emptied by thread_stop.
static void stop_server(struct rpc_server *server) {
    if (!server->server || !server->threads[0].queue.queue) {
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
        queue_thread_stop(&server->threads[i].queue);
    }
    if (server->server) {
        grpc_server_destroy(server->server);
    }
    for (unsigned i = 0; i < server->thread_count; i++) {
        thread_deinit(&server->threads[i]);
    }
    if (server->credentials) {
        grpc_server_credentials_release(server->credentials);
    }
    pool_deinit(&server->pool);
    peers_deinit(&server->peers);
    pthread_mutex_destroy(&server->tls_mutex);
    sem_destroy(&server->shut_down);
    backup_poll_end();
    grpc_shutdown();
    free(server);
}
