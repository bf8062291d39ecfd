#include "tests/unit/daemon/rows/rows_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "daemon/grpc/rpc.h"

enum { THREADS = 2, GROUPS_MAX = 1 << 14, ROWS_MAX = 1 << 16, GRPC_UNAVAILABLE = 14 };

struct reply {
    STAILQ_ENTRY(reply) next;
    size_t length;
    uint8_t bytes[];
};

struct rows_peer {
    struct rows_server *server;
    struct rpc_call *call;
    unsigned thread;
    uint32_t rank, connection;
    uint64_t number; // 0: its token has not arrived
    // Guarded by server->mutex.
    LIST_ENTRY(rows_peer) in_server;
    STAILQ_HEAD(, reply) replies; // the first is leaving if is_writing
    uint64_t sent, received;
    bool is_reading, is_writing, ends, is_finished, is_closed;
};

struct rows_server {
    struct rows_server_options options;
    struct rpc_server *rpc;
    char address[64];
    int listener;
    pthread_t acceptor;
    atomic_int down;
    atomic_bool reads_nothing;
    _Atomic uint64_t streams[ROWS_SERVER_RANKS];
    struct rows_memory memory[THREADS];
    pthread_mutex_t mutex;
    LIST_HEAD(, rows_peer) peers;
};

// ---- received messages

static struct wire_part whole(const void *context, size_t index) {
    const struct rpc_buffer *message = context;
    (void)index;
    return (struct wire_part){message->data, message->length};
}

static void take(struct rows_peer *peer, const struct rpc_buffer *message) {
    struct rows_server *server = peer->server;
    struct wire_parts parts = {.context = message, .count = 1, .part = whole};
    struct rows_request request;
    struct wire_range hidden;
    INVARIANT(!err_is(rows_decode_request(&parts, &server->memory[peer->thread], &request, &hidden)));
    INVARIANT(request.has_token == (peer->number == 0)); // in the first message, and in no other
    if (request.has_token) {
        INVARIANT(request.batch == 0 && request.token[0] < ROWS_SERVER_RANKS);
        peer->rank = request.token[0];
        peer->connection = request.token[1] + 256u * request.token[2];
        peer->number = atomic_fetch_add(&server->streams[peer->rank], 1) + 1;
        server->options.opened(server->options.context, peer);
    } else {
        server->options.piece(server->options.context, peer, &request, message->data + hidden.first);
        pthread_mutex_lock(&server->mutex);
        peer->received += message->length;
        pthread_mutex_unlock(&server->mutex);
    }
}

// The caller holds the mutex.
static void read_on(struct rows_peer *peer) {
    if (!peer->is_reading && !peer->is_closed && !atomic_load(&peer->server->reads_nothing)) {
        peer->is_reading = true;
        rpc_read(peer->call);
    }
}

static void on_message(void *context, struct rpc_call *call, struct rpc_buffer *message, err_t error) {
    struct rows_server *server = context;
    struct rows_peer *peer = rpc_call_data(call);
    INVARIANT(!err_is(error));
    if (!message) {
        pthread_mutex_lock(&server->mutex);
        peer->is_finished = true;
        pthread_mutex_unlock(&server->mutex);
        rpc_finish(call, &(struct rpc_status){.message = "", .retry_after_ms = -1});
        return;
    }
    take(peer, message);
    rpc_buffer_release(server->rpc, message);
    pthread_mutex_lock(&server->mutex);
    peer->is_reading = false;
    read_on(peer);
    pthread_mutex_unlock(&server->mutex);
}

static void *on_opened(void *context, struct rpc_call *call, enum rpc_method method, unsigned thread, int64_t deadline_ns) {
    struct rows_server *server = context;
    struct rows_peer *peer = calloc(1, sizeof *peer);
    (void)deadline_ns;
    INVARIANT(peer && method == RPC_STREAM);
    *peer = (struct rows_peer){.server = server, .call = call, .thread = thread, .is_reading = true};
    STAILQ_INIT(&peer->replies);
    pthread_mutex_lock(&server->mutex);
    LIST_INSERT_HEAD(&server->peers, peer, in_server);
    pthread_mutex_unlock(&server->mutex);
    rpc_read(call);
    return peer;
}

// ---- sent messages

// Writes the next message, or ends the stream. The caller holds the mutex.
static void go_on(struct rows_peer *peer) {
    struct reply *reply = STAILQ_FIRST(&peer->replies);
    if (peer->is_writing || peer->is_finished || peer->is_closed) {
        return;
    }
    if (reply) {
        peer->is_writing = true;
        rpc_write(peer->call, NULL, 0, reply->bytes, reply->length);
    } else if (peer->ends) {
        peer->is_finished = true;
        rpc_finish(peer->call,
                   &(struct rpc_status){.code = GRPC_UNAVAILABLE, .message = "the connection has ended", .retry_after_ms = -1});
    }
}

static void drop_first(struct rows_peer *peer) {
    struct reply *reply = STAILQ_FIRST(&peer->replies);
    STAILQ_REMOVE_HEAD(&peer->replies, next);
    free(reply);
}

static void on_written(void *context, struct rpc_call *call, bool ok) {
    struct rows_server *server = context;
    struct rows_peer *peer = rpc_call_data(call);
    (void)ok;
    pthread_mutex_lock(&server->mutex);
    peer->is_writing = false;
    drop_first(peer);
    go_on(peer);
    pthread_mutex_unlock(&server->mutex);
}

static int64_t on_tick(void *context, unsigned thread, int64_t now_ns) {
    struct rows_server *server = context;
    struct rows_peer *peer;
    (void)now_ns;
    pthread_mutex_lock(&server->mutex);
    LIST_FOREACH(peer, &server->peers, in_server) {
        if (peer->thread == thread) {
            read_on(peer);
            go_on(peer);
        }
    }
    pthread_mutex_unlock(&server->mutex);
    return CLOCK_NEVER;
}

static void on_closed(void *context, struct rpc_call *call, bool cancelled) {
    struct rows_server *server = context;
    struct rows_peer *peer = rpc_call_data(call);
    (void)cancelled;
    pthread_mutex_lock(&server->mutex);
    peer->is_closed = true;
    pthread_mutex_unlock(&server->mutex);
    if (peer->number > 0) {
        server->options.closed(server->options.context, peer);
    }
}

static void on_released(void *context, struct rpc_call *call) {
    struct rows_server *server = context;
    struct rows_peer *peer = rpc_call_data(call);
    pthread_mutex_lock(&server->mutex);
    LIST_REMOVE(peer, in_server);
    pthread_mutex_unlock(&server->mutex);
    while (!STAILQ_EMPTY(&peer->replies)) {
        drop_first(peer);
    }
    free(peer);
}

uint32_t rows_peer_rank(const struct rows_peer *peer) {
    return peer->rank;
}

uint32_t rows_peer_connection(const struct rows_peer *peer) {
    return peer->connection;
}

uint64_t rows_peer_number(const struct rows_peer *peer) {
    return peer->number;
}

void rows_peer_send(struct rows_peer *peer, const void *bytes, size_t length) {
    struct reply *reply = malloc(sizeof *reply + length);
    INVARIANT(reply);
    reply->length = length;
    memcpy(reply->bytes, bytes, length);
    pthread_mutex_lock(&peer->server->mutex);
    STAILQ_INSERT_TAIL(&peer->replies, reply, next);
    peer->sent++;
    pthread_mutex_unlock(&peer->server->mutex);
    rpc_wake(peer->server->rpc, peer->thread);
}

void rows_peer_end(struct rows_peer *peer) {
    pthread_mutex_lock(&peer->server->mutex);
    peer->ends = true;
    pthread_mutex_unlock(&peer->server->mutex);
    rpc_wake(peer->server->rpc, peer->thread);
}

uint64_t rows_peer_sent(struct rows_peer *peer) {
    pthread_mutex_lock(&peer->server->mutex);
    uint64_t sent = peer->sent;
    pthread_mutex_unlock(&peer->server->mutex);
    return sent;
}

uint64_t rows_peer_received(struct rows_peer *peer) {
    pthread_mutex_lock(&peer->server->mutex);
    uint64_t received = peer->received;
    pthread_mutex_unlock(&peer->server->mutex);
    return received;
}

bool rows_peer_is_busy(struct rows_peer *peer) {
    pthread_mutex_lock(&peer->server->mutex);
    bool busy = !STAILQ_EMPTY(&peer->replies) || peer->ends;
    pthread_mutex_unlock(&peer->server->mutex);
    return busy;
}

// gRPC owns the socket; it is found by the name of its peer.
void rows_peer_shut_down(struct rows_peer *peer) {
    for (int fd = 3; fd < 1024; fd++) {
        struct sockaddr_in at = {0};
        socklen_t length = sizeof at;
        char name[64];
        if (getpeername(fd, (struct sockaddr *)&at, &length) == 0) {
            snprintf(name, sizeof name, "ipv4:127.0.0.1:%u", ntohs(at.sin_port));
            if (strcmp(name, rpc_call_peer(peer->call)) == 0) {
                shutdown(fd, SHUT_RDWR);
            }
        }
    }
}

void rows_server_read_nothing(struct rows_server *server, bool nothing) {
    atomic_store(&server->reads_nothing, nothing);
    for (unsigned i = 0; i < THREADS; i++) {
        rpc_wake(server->rpc, i);
    }
}

// ---- the server

// Runs until the listener is shut down.
static void *accept_all(void *context) {
    struct rows_server *server = context;
    struct sockaddr_in peer;
    socklen_t length = sizeof peer;
    int fd;
    while ((fd = accept4(server->listener, (struct sockaddr *)&peer, &length, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        char name[64];
        int on = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); // as the daemon's listener does
        snprintf(name, sizeof name, "ipv4:127.0.0.1:%u", ntohs(peer.sin_port));
        err_t e = rpc_adopt(server->rpc, fd, name);
        (void)err_is(e); // refused during the shutdown
    }
    return NULL;
}

static void listen_on_any_port(struct rows_server *server) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    server->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    INVARIANT(bind(server->listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(server->listener, 64) == 0);
    INVARIANT(getsockname(server->listener, (struct sockaddr *)&at, &length) == 0);
    snprintf(server->address, sizeof server->address, "127.0.0.1:%u", ntohs(at.sin_port));
    INVARIANT(pthread_create(&server->acceptor, NULL, accept_all, server) == 0);
}

struct rows_server *rows_server_start(const struct rows_server_options *options) {
    struct rows_server *server = calloc(1, sizeof *server);
    INVARIANT(server);
    server->options = *options;
    pthread_mutex_init(&server->mutex, NULL);
    LIST_INIT(&server->peers);
    for (unsigned i = 0; i < THREADS; i++) {
        size_t head = rows_head_bytes(GROUPS_MAX, ROWS_MAX);
        server->memory[i] = (struct rows_memory){calloc(2 * GROUPS_MAX, sizeof(uint32_t)),
                                                 GROUPS_MAX,
                                                 calloc(ROWS_MAX, sizeof(uint32_t)),
                                                 ROWS_MAX,
                                                 calloc(head, 1),
                                                 head};
    }
    struct rpc_handler handler = {.context = server,
                                  .opened = on_opened,
                                  .message = on_message,
                                  .written = on_written,
                                  .closed = on_closed,
                                  .released = on_released,
                                  .tick = on_tick};
    struct rpc_options rpc = {.threads = THREADS, .max_message_bytes = 64 << 20, .max_calls = 256, .handler = &handler};
    INVARIANT(!err_is(rpc_create(&rpc, &server->rpc)) && !err_is(rpc_start(server->rpc)));
    listen_on_any_port(server);
    return server;
}

static void on_down(void *context) {
    struct rows_server *server = context;
    atomic_store(&server->down, 1);
}

void rows_server_stop(struct rows_server *server) {
    struct timespec pause = {.tv_nsec = 100 * NS_PER_US};
    shutdown(server->listener, SHUT_RDWR);
    pthread_join(server->acceptor, NULL);
    close(server->listener);
    rpc_shutdown(server->rpc, on_down, server);
    rpc_cancel_all(server->rpc);
    while (!atomic_load(&server->down)) {
        nanosleep(&pause, NULL);
    }
    rpc_destroy(server->rpc);
    INVARIANT(LIST_EMPTY(&server->peers));
    for (unsigned i = 0; i < THREADS; i++) {
        free(server->memory[i].groups);
        free(server->memory[i].hidden_rows);
        free(server->memory[i].head);
    }
    pthread_mutex_destroy(&server->mutex);
    free(server);
}

const char *rows_server_address(const struct rows_server *server) {
    return server->address;
}
