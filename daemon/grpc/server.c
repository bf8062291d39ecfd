// The server's life: created, bound, started, shut down, destroyed.
#include <errno.h>
#include <grpc/grpc_posix.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
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

static void create_server(struct rpc_server *server, const struct rpc_options *options) {
    uint64_t bytes = options->max_transport_bytes;
    if (!bytes && __builtin_mul_overflow(options->max_message_bytes, MESSAGES_IN_TRANSPORT, &bytes)) {
        bytes = SIZE_MAX;
    }
    grpc_resource_quota *quota = grpc_resource_quota_create("expertd");
    grpc_resource_quota_resize(quota, bytes < TRANSPORT_BYTES_MIN ? TRANSPORT_BYTES_MIN : bytes);
    struct tuning tuning;
    grpc_channel_args args = tuning_server_args(&tuning, server->max_calls, quota);
    server->server = grpc_server_create(&args, NULL);
    grpc_resource_quota_unref(quota); // the server holds it
}

static err_t create_parts(struct rpc_server *server, const struct rpc_options *options) {
    TRY(pool_init(&server->pool, 4 * server->max_message_bytes));
    if (sem_init(&server->shut_down, 0, 0)) {
        FAIL(ERR_INTERNAL, "the shutdown semaphore: %s", strerror(errno));
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
        FAIL(ERR_CONFIG, "rpc_threads is %u: it must be 1 to %d", options->threads, THREADS_MAX);
    }
    struct rpc_server *server = calloc(1, sizeof *server);
    if (!server) {
        FAIL(ERR_NOMEM, "no memory for the gRPC server");
    }
    server->handler = *options->handler;
    server->plane = options->plane;
    server->is_watched = options->watcher != NULL;
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

// gRPC only logs why it could not bind: try it the plain way for the cause.
static const char *why_not_bound(const char *host, const char *port) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    int failed = getaddrinfo(host, port, &hints, &found);
    if (failed) {
        return gai_strerror(failed);
    }
    const char *why = "gRPC could not listen there";
    int fd = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, found->ai_protocol);
    int on = 1;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) || bind(fd, found->ai_addr, found->ai_addrlen) ||
        listen(fd, 1)) {
        why = errno == EADDRINUSE ? "another program listens there (is a daemon running already?): stop it or choose another port"
                                  : strerror(errno);
    }
    if (fd >= 0) {
        close(fd);
    }
    freeaddrinfo(found);
    return why;
}

// HOST:PORT or [HOST]:PORT into its parts; false where it is neither.
static bool split_address(const char *address, char host[NI_MAXHOST], const char **port) {
    const char *colon = strrchr(address, ':');
    if (!colon || colon == address || !colon[1] || strspn(colon + 1, "0123456789") != strlen(colon + 1) || strlen(colon + 1) > 5) {
        return false;
    }
    bool bracketed = address[0] == '[' && colon[-1] == ']';
    const char *begin = bracketed ? address + 1 : address;
    size_t length = (size_t)((bracketed ? colon - 1 : colon) - begin);
    if (length == 0 || length >= NI_MAXHOST || (!bracketed && memchr(begin, ':', length))) {
        return false;
    }
    memcpy(host, begin, length);
    host[length] = '\0';
    *port = colon + 1;
    return atoi(*port) <= 65535;
}

err_t rpc_listen_tcp(struct rpc_server *server, const char *address, int *bound_port) {
    char host[NI_MAXHOST];
    const char *port;
    INVARIANT(!server->is_watched); // gRPC spreads a port's connections over the queues that poll, and divides by their number
    if (!split_address(address, host, &port)) {
        FAIL(ERR_CONFIG, "listen address %s is not HOST:PORT (an IPv6 host in brackets)", address);
    }
    int bound = grpc_server_add_http2_port(server->server, address, server->credentials);
    if (!bound) {
        FAIL(ERR_UNAVAILABLE, "cannot listen on %s: %s", address, why_not_bound(host, port));
    }
    *bound_port = bound;
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

err_t rpc_adopt(struct rpc_server *server, int fd) {
    if (atomic_load(&server->stopping)) {
        close(fd);
        FAIL(ERR_DRAINING, "the server is shutting down");
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
    sem_destroy(&server->shut_down);
    backup_poll_end();
    grpc_shutdown();
    free(server);
}
