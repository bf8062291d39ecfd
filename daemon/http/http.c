#include "daemon/http/http.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/http/http_request.h"
#include "daemon/listen/tcp_sockets.h"

enum {
    BACKLOG = 64,
    HANDLES = 2,      // libuv handles of a connection
    IDLE_MS = 1000,   // a connection idle for so long may be replaced by a new one
    LINGER_MS = 1000, // time for a client to read its last answer and close
    ANSWER_HEAD_MAX = 512,
    STATUS_NOT_ALLOWED = 405,
    STATUS_UNAVAILABLE = 503,
};

enum connection_state {
    CONNECTION_READING,
    CONNECTION_WRITING,
    CONNECTION_LINGERING, // the last answer is sent; further input is discarded, because closing with unread input sends a reset
};

struct connection {
    uv_tcp_t tcp;
    uv_timer_t timer;
    uv_write_t write;
    uv_shutdown_t shutdown;
    unsigned closing; // handles not closed yet
    struct http_server *server;
    struct connection *previous, *next; // in the list of open connections; in the free list `next` alone
    enum connection_state state;
    uint64_t idle_since_ms; // loop time at which it began to wait for a request, or for the client to read the answer
    bool keep_alive;
    struct http_request *request;
    char in[HTTP_HEAD_MAX]; // [0, in_length): read from the socket and not yet consumed by the parser
    size_t in_length;
    char head[ANSWER_HEAD_MAX];
    char *body; // owned until written
    size_t body_length;
};

struct http_server {
    uv_loop_t *loop;
    uv_tcp_t listeners[TCP_SOCKETS_MAX]; // one for each address
    size_t num_listeners, open_listeners;
    bool stopping;
    http_page page;
    void *context;
    unsigned max_connections, timeout_ms;
    unsigned open;                    // connections in use, including closing ones
    struct connection *first;         // list of those that are not closing
    struct connection *pool, *unused; // [pool_size] allocated at start; free list
    unsigned pool_size;
    bool peer_waits[TCP_SOCKETS_MAX]; // libuv holds an accepted socket until the pool has a free connection
};

static void free_when_done(struct http_server *server) {
    if (server->open_listeners > 0 || server->open > 0) {
        return;
    }
    for (unsigned i = 0; i < server->pool_size; i++) {
        http_request_destroy(server->pool[i].request);
    }
    free(server->pool);
    free(server);
}

// ---- a connection's end

static void on_connection(uv_stream_t *listener, int status);

static void on_handle_closed(uv_handle_t *handle) {
    struct connection *connection = handle->data;
    if (--connection->closing > 0) {
        return;
    }
    struct http_server *server = connection->server;
    free(connection->body);
    connection->body = NULL;
    connection->next = server->unused;
    server->unused = connection;
    server->open--;
    for (size_t i = 0; i < server->num_listeners && !server->stopping; i++) {
        if (server->peer_waits[i] && server->unused) {
            server->peer_waits[i] = false;
            on_connection((uv_stream_t *)&server->listeners[i], 0);
        }
    }
    free_when_done(server);
}

static void close_connection(struct connection *connection) {
    if (connection->closing) {
        return;
    }
    struct http_server *server = connection->server;
    if (connection->previous) {
        connection->previous->next = connection->next;
    } else {
        server->first = connection->next;
    }
    if (connection->next) {
        connection->next->previous = connection->previous;
    }
    connection->closing = HANDLES;
    uv_close((uv_handle_t *)&connection->tcp, on_handle_closed);
    uv_close((uv_handle_t *)&connection->timer, on_handle_closed);
}

static void on_timeout(uv_timer_t *timer) {
    close_connection(timer->data);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *out) {
    struct connection *connection = handle->data;
    (void)suggested;
    *out = uv_buf_init(connection->in + connection->in_length, (unsigned)(sizeof connection->in - connection->in_length));
}

static void on_read(uv_stream_t *stream, ssize_t length, const uv_buf_t *buffer);

static void on_shutdown(uv_shutdown_t *request, int status) {
    struct connection *connection = request->data;
    if (status != 0) {
        close_connection(connection);
    }
}

static void linger(struct connection *connection) {
    connection->state = CONNECTION_LINGERING;
    connection->in_length = 0;
    connection->shutdown.data = connection;
    uv_timer_start(&connection->timer, on_timeout, LINGER_MS, 0);
    if (uv_shutdown(&connection->shutdown, (uv_stream_t *)&connection->tcp, on_shutdown) != 0 ||
        uv_read_start((uv_stream_t *)&connection->tcp, on_alloc, on_read) != 0) {
        close_connection(connection);
    }
}

// ---- answering

static void next_request(struct connection *connection);

static void on_written(uv_write_t *write, int status) {
    struct connection *connection = write->data;
    free(connection->body);
    connection->body = NULL;
    if (connection->closing) {
        return;
    }
    if (status != 0) {
        close_connection(connection);
    } else if (connection->keep_alive) {
        next_request(connection);
    } else {
        linger(connection);
    }
}

static const char *extra_header(int status) {
    switch (status) {
    case STATUS_NOT_ALLOWED:
        return "Allow: GET, HEAD\r\n";
    case STATUS_UNAVAILABLE:
        return "Retry-After: 1\r\n";
    default:
        return "";
    }
}

static size_t put_head(struct connection *connection, const struct http_answer *answer) {
    char date[64];
    time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &utc);
    int used = snprintf(connection->head, sizeof connection->head,
                        "HTTP/1.1 %d %s\r\nDate: %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: %s\r\n"
                        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n%s\r\n",
                        answer->status, http_status_text(answer->status), date, answer->content_type, connection->body_length,
                        connection->keep_alive ? "keep-alive" : "close", extra_header(answer->status));
    INVARIANT(used > 0 && (size_t)used < sizeof connection->head);
    return (size_t)used;
}

// Sends head and body. The timer now limits the time in which the client reads them.
static void send_answer(struct connection *connection, const struct http_answer *answer, bool head_only) {
    uv_stream_t *stream = (uv_stream_t *)&connection->tcp;
    uv_buf_t parts[] = {uv_buf_init(connection->head, (unsigned)put_head(connection, answer)),
                        uv_buf_init(connection->body, (unsigned)connection->body_length)};
    connection->state = CONNECTION_WRITING;
    connection->idle_since_ms = uv_now(connection->server->loop);
    uv_read_stop(stream);
    uv_timer_start(&connection->timer, on_timeout, connection->server->timeout_ms, 0);
    connection->write.data = connection;
    unsigned count = head_only || !connection->body_length ? 1 : 2;
    if (uv_write(&connection->write, stream, parts, count, on_written) != 0) {
        close_connection(connection);
    }
}

static struct http_answer put_status(int status, FILE *body) {
    fprintf(body, "%d %s\n", status, http_status_text(status));
    return (struct http_answer){status, "text/plain; charset=utf-8"};
}

static void answer_request(struct connection *connection, const struct http_request_state *state) {
    struct http_server *server = connection->server;
    connection->keep_alive = state->keep_alive && !server->stopping;
    FILE *body = open_memstream(&connection->body, &connection->body_length);
    if (!body) {
        close_connection(connection);
        return;
    }
    struct http_answer answer =
        state->refused ? put_status(state->refused, body) : server->page(server->context, state->path, body);
    bool complete = !ferror(body);
    if (fclose(body) != 0 || !complete || !connection->body) {
        close_connection(connection);
        return;
    }
    send_answer(connection, &answer, state->head);
}

// ---- reading

static void start_reading(struct connection *connection) {
    connection->state = CONNECTION_READING;
    connection->idle_since_ms = uv_now(connection->server->loop);
    uv_timer_start(&connection->timer, on_timeout, connection->server->timeout_ms, 0);
    if (uv_read_start((uv_stream_t *)&connection->tcp, on_alloc, on_read) != 0) {
        close_connection(connection);
    }
}

// Parses the buffered bytes. True: they completed a request, and its answer is being sent.
static bool feed(struct connection *connection) {
    size_t taken = http_request_feed(connection->request, connection->in, connection->in_length);
    memmove(connection->in, connection->in + taken, connection->in_length - taken);
    connection->in_length -= taken;
    struct http_request_state state = http_request_state(connection->request);
    if (state.done) {
        answer_request(connection, &state);
    }
    return state.done;
}

// Starts the next request of a connection. It may already be in the buffer, behind the last one.
static void next_request(struct connection *connection) {
    http_request_reset(connection->request);
    if (!feed(connection)) {
        start_reading(connection);
    }
}

static void on_read(uv_stream_t *stream, ssize_t length, const uv_buf_t *buffer) {
    struct connection *connection = stream->data;
    (void)buffer;
    if (length < 0) {
        close_connection(connection);
    } else if (connection->state == CONNECTION_READING) {
        // The timer is not restarted: it limits the complete request, so that a slow sender cannot hold the connection.
        connection->in_length += (size_t)length;
        feed(connection);
    }
}

// ---- accepting

static void link_connection(struct http_server *server, struct connection *connection) {
    server->unused = connection->next;
    connection->previous = NULL;
    connection->next = server->first;
    if (server->first) {
        server->first->previous = connection;
    }
    server->first = connection;
    server->open++;
    connection->state = CONNECTION_READING;
    connection->idle_since_ms = uv_now(server->loop);
    connection->in_length = 0;
    uv_tcp_init(server->loop, &connection->tcp);
    uv_timer_init(server->loop, &connection->timer);
    connection->tcp.data = connection->timer.data = connection;
}

// Closes the connection that has been idle longest, except the first of the list, which is the new one. False: none has been idle
// for IDLE_MS.
static bool close_idlest(struct http_server *server) {
    struct connection *oldest = NULL;
    for (struct connection *c = server->first->next; c; c = c->next) {
        if (!oldest || c->idle_since_ms < oldest->idle_since_ms) {
            oldest = c;
        }
    }
    if (!oldest || uv_now(server->loop) - oldest->idle_since_ms < IDLE_MS) {
        return false;
    }
    close_connection(oldest);
    return true;
}

static void on_connection(uv_stream_t *listener, int status) {
    struct http_server *server = listener->data;
    struct connection *connection = server->unused;
    if (status != 0) {
        return; // for example no free descriptor; libuv keeps listening
    }
    if (!connection) {
        server->peer_waits[(uv_tcp_t *)listener - server->listeners] = true;
        return;
    }
    link_connection(server, connection);
    if (uv_accept(listener, (uv_stream_t *)&connection->tcp) != 0) {
        close_connection(connection);
    } else if (server->open > server->max_connections && !close_idlest(server)) {
        answer_request(connection, &(struct http_request_state){.done = true, .refused = STATUS_UNAVAILABLE});
    } else {
        next_request(connection);
    }
}

// ---- start and stop

static void on_listener_closed(uv_handle_t *handle) {
    struct http_server *server = handle->data;
    server->open_listeners--;
    free_when_done(server);
}

static void close_listeners(struct http_server *server) {
    for (size_t i = 0; i < server->num_listeners; i++) {
        uv_close((uv_handle_t *)&server->listeners[i], on_listener_closed);
    }
}

// Owns the descriptor, also on error.
static FALLIBLE listen_on(struct http_server *server, int fd) {
    uv_tcp_t *listener = &server->listeners[server->num_listeners];
    uv_tcp_init(server->loop, listener);
    listener->data = server;
    server->num_listeners++, server->open_listeners++;
    int result = uv_tcp_open(listener, fd);
    if (result != 0) {
        close(fd);
    } else {
        result = uv_listen((uv_stream_t *)listener, BACKLOG, on_connection);
    }
    if (result != 0) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot listen: %s", uv_strerror(result));
    }
    return OK;
}

static FALLIBLE listen_on_all(struct http_server *server, const char *address, unsigned *port) {
    int fds[TCP_SOCKETS_MAX];
    size_t count;
    TRY_IN(tcp_sockets_open(address, fds, &count, port), "HTTP (--http HOST:PORT, or --http off)");
    err_t e = OK;
    for (size_t i = 0; i < count; i++) {
        if (err_is(e)) {
            close(fds[i]);
        } else {
            e = listen_on(server, fds[i]);
        }
    }
    return err_context(e, "HTTP (--http %s)", address);
}

// Allocates max_connections connections, plus some on which to answer 503.
static FALLIBLE reserve(struct http_server *server) {
    unsigned size = server->max_connections + server->max_connections / 4 + 1;
    server->pool = calloc(size, sizeof *server->pool);
    if (!server->pool) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %u HTTP connections", size);
    }
    server->pool_size = size;
    for (unsigned i = 0; i < size; i++) {
        struct connection *connection = &server->pool[i];
        TRY(http_request_create(&connection->request));
        connection->server = server;
        connection->next = server->unused;
        server->unused = connection;
    }
    return OK;
}

FALLIBLE http_start(const struct http_options *options, struct http_server **out, unsigned *port) {
    *out = NULL;
    struct http_server *server = calloc(1, sizeof *server);
    if (!server) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the HTTP listener");
    }
    server->page = options->page;
    server->context = options->context;
    server->max_connections = options->max_connections;
    server->timeout_ms = options->timeout_ms;
    server->loop = options->loop;
    err_t e = reserve(server);
    if (!err_is(e)) {
        e = listen_on_all(server, options->address, port);
    }
    if (err_is(e)) {
        server->stopping = true;
        close_listeners(server);
        free_when_done(server);
        return e;
    }
    *out = server;
    return OK;
}

void http_stop(struct http_server *server) {
    if (!server || server->stopping) {
        return;
    }
    server->stopping = true;
    close_listeners(server);
    while (server->first) {
        close_connection(server->first);
    }
}
