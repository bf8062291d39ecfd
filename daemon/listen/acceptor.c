#include "daemon/listen/acceptor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/log/log.h"

enum {
    ACCEPTS_PER_EVENT = 64, // then other handles of the loop have their turn
    SCAN_MS = 20,           // least time between two scans for closed connections
    PAUSE_MS = 100,         // after an error that accepting again at once would repeat
    HANDLES = 3,            // of the acceptor itself
    SOURCES = 64,           // classes of hosts, for choosing an unproven connection
    LOG_TEXT_MAX = 256
};

// Logs a repeated event at most once a second, with the number of suppressed lines.
struct log_throttle {
    int64_t next_ns;
    unsigned long suppressed;
};

// A connection that was handed over. Its owner closes it without notice; then the descriptor number is free or belongs to another
// file. The inode tells the difference.
struct active_connection {
    int fd;
    dev_t device;
    ino_t inode;
    unsigned source;
    bool is_proven;
    int64_t unproven_until_ns;
};

// A connection whose peer has not sent data.
struct silent_connection {
    struct acceptor *acceptor;
    uv_poll_t poll;
    int fd;
    int64_t deadline_ns;
    TAILQ_ENTRY(silent_connection) entry;
};

struct acceptor {
    struct acceptor_options options;
    char *name;
    uv_loop_t *loop;
    uv_poll_t poll;
    uv_timer_t pause_timer, silence_timer;
    unsigned handles; // libuv handles not closed yet, of silent connections too; plus one until acceptor_stop
    bool refusing, stopping;
    int fd, spare; // spare: reserved descriptor, closed to accept and close a connection when no other is free
    struct log_throttle failure_log, full_log;
    TAILQ_HEAD(, silent_connection) silent; // the oldest first
    unsigned silent_count;
    struct active_connection *connections; // [max_connections], those found open by the last scan; the oldest first
    unsigned connection_count;
    struct active_connection *closing; // [closing_max], unproven ones that were shut down and that their owner has not closed yet
    unsigned closing_count, closing_max;
    int64_t next_scan_ns;
    unsigned long turned_away;
};

// True: log a line now. *suppressed: the number of lines suppressed since the last one.
static bool is_due(struct log_throttle *throttle, unsigned long *suppressed) {
    int64_t now_ns = clock_now_ns();
    if (now_ns < throttle->next_ns) {
        throttle->suppressed++;
        return false;
    }
    *suppressed = throttle->suppressed;
    *throttle = (struct log_throttle){.next_ns = now_ns + NS_PER_S};
    return true;
}

static void warn_full(struct acceptor *acceptor) {
    unsigned long suppressed;
    char name[LOG_TEXT_MAX];
    if (is_due(&acceptor->full_log, &suppressed)) {
        log_line(LOG_LEVEL_WARNING, "connections_full", "socket=%s max_connections=%u silent=%u since_last=%lu",
                 log_quote(acceptor->name, name, sizeof name), acceptor->options.max_connections, acceptor->silent_count,
                 suppressed);
    }
}

static void log_accept_failed(struct acceptor *acceptor, int cause) {
    unsigned long suppressed;
    char name[LOG_TEXT_MAX], text[LOG_TEXT_MAX];
    if (is_due(&acceptor->failure_log, &suppressed)) {
        log_line(LOG_LEVEL_ERROR, "accept_failed", "socket=%s cause=%s since_last=%lu",
                 log_quote(acceptor->name, name, sizeof name), log_quote(strerror(cause), text, sizeof text), suppressed);
    }
}

// ---- memory

static void free_acceptor(struct acceptor *acceptor) {
    free(acceptor->connections);
    free(acceptor->closing);
    free(acceptor->name);
    free(acceptor);
}

static void handle_closed(struct acceptor *acceptor) {
    if (--acceptor->handles == 0) {
        free_acceptor(acceptor);
    }
}

static void on_handle_closed(uv_handle_t *handle) {
    handle_closed(handle->data);
}

static void on_silent_closed(uv_handle_t *handle) {
    struct silent_connection *connection = handle->data;
    struct acceptor *acceptor = connection->acceptor;
    free(connection);
    handle_closed(acceptor);
}

// ---- silent connections

// Returns the descriptor, which the caller then owns. The loop frees the connection.
static int release_silent(struct silent_connection *connection) {
    struct acceptor *acceptor = connection->acceptor;
    TAILQ_REMOVE(&acceptor->silent, connection, entry);
    acceptor->silent_count--;
    uv_close((uv_handle_t *)&connection->poll, on_silent_closed); // before the descriptor gets another owner
    return connection->fd;
}

static void on_silence_timeout(uv_timer_t *timer);

static void arm_silence_timer(struct acceptor *acceptor) {
    const struct silent_connection *oldest = TAILQ_FIRST(&acceptor->silent);
    if (!oldest) {
        uv_timer_stop(&acceptor->silence_timer);
        return;
    }
    int64_t left_ns = oldest->deadline_ns - clock_now_ns();
    uv_update_time(acceptor->loop); // a timer starts at the loop's cached time
    uv_timer_start(&acceptor->silence_timer, on_silence_timeout, left_ns > 0 ? (uint64_t)(left_ns / NS_PER_MS) + 1 : 1, 0);
}

static void on_silence_timeout(uv_timer_t *timer) {
    struct acceptor *acceptor = timer->data;
    struct silent_connection *oldest;
    int64_t now_ns = clock_now_ns();
    unsigned closed = 0;
    for (; (oldest = TAILQ_FIRST(&acceptor->silent)) && oldest->deadline_ns <= now_ns; closed++) {
        close(release_silent(oldest));
    }
    char name[LOG_TEXT_MAX];
    log_line(LOG_LEVEL_DEBUG, "silent_closed", "socket=%s connections=%u", log_quote(acceptor->name, name, sizeof name), closed);
    arm_silence_timer(acceptor);
}

// ---- capacity

static bool is_open(const struct active_connection *connection) {
    struct stat st;
    return fstat(connection->fd, &st) == 0 && st.st_dev == connection->device && st.st_ino == connection->inode;
}

// An owner may close its connection between is_open and shutdown. The descriptor number is then free: no new connection can reuse
// it, because accepting has ended.
void acceptor_hang_up(struct acceptor *acceptor) {
    for (unsigned i = 0; acceptor && i < acceptor->connection_count; i++) {
        if (is_open(&acceptor->connections[i])) {
            shutdown(acceptor->connections[i].fd, SHUT_WR);
        }
    }
}

// Removes those that their owner has closed. Returns the number of the others.
static unsigned scan(struct active_connection *connections, unsigned count) {
    unsigned open = 0;
    for (unsigned i = 0; i < count; i++) {
        if (is_open(&connections[i])) {
            connections[open++] = connections[i];
        }
    }
    return open;
}

static void scan_connections(struct acceptor *acceptor) {
    acceptor->connection_count = scan(acceptor->connections, acceptor->connection_count);
    acceptor->closing_count = scan(acceptor->closing, acceptor->closing_count);
}

static bool is_full(const struct acceptor *acceptor) {
    unsigned max = acceptor->options.max_connections, max_silent = acceptor->options.max_silent;
    return (max > 0 && acceptor->connection_count + acceptor->silent_count >= max) ||
           (max_silent > 0 && acceptor->silent_count >= max_silent);
}

// False: there is no silent connection.
static bool close_oldest_silent(struct acceptor *acceptor) {
    struct silent_connection *oldest = TAILQ_FIRST(&acceptor->silent);
    if (!oldest) {
        return false;
    }
    close(release_silent(oldest));
    acceptor->turned_away++;
    return true;
}

static bool is_unproven(const struct acceptor *acceptor, struct active_connection *connection, int64_t now_ns) {
    if (connection->is_proven || now_ns >= connection->unproven_until_ns) {
        return false;
    }
    connection->is_proven = acceptor->options.is_proven(acceptor->options.context, connection->fd);
    return !connection->is_proven;
}

// The oldest unproven connection of the source with the most; connection_count: there is none.
static unsigned find_unproven(struct acceptor *acceptor) {
    unsigned counts[SOURCES] = {0}, most = 0, found = acceptor->connection_count;
    int64_t now_ns = clock_now_ns();
    for (unsigned i = 0; i < acceptor->connection_count; i++) {
        if (is_unproven(acceptor, &acceptor->connections[i], now_ns)) {
            unsigned count = ++counts[acceptor->connections[i].source % SOURCES];
            most = count > most ? count : most;
        }
    }
    for (unsigned i = 0; most > 0 && i < acceptor->connection_count && found == acceptor->connection_count; i++) {
        struct active_connection *connection = &acceptor->connections[i];
        found = counts[connection->source % SOURCES] == most && is_unproven(acceptor, connection, now_ns) ? i : found;
    }
    return found;
}

unsigned acceptor_closing_max(unsigned max_connections) {
    return max_connections / 2 + 1;
}

// Shuts an unproven connection down; its owner closes it. Connections in that state are bounded too, since they have descriptors.
// The owner may close the connection between is_open and shutdown, and the number may then be that of a socket which another thread
// opened in between: such a connection fails, and is made anew like any that failed. False: there is none.
static bool close_unproven(struct acceptor *acceptor) {
    if (acceptor->options.unproven_ns == 0 || acceptor->closing_count == acceptor->closing_max) {
        return false;
    }
    unsigned found = find_unproven(acceptor);
    if (found == acceptor->connection_count) {
        return false;
    }
    struct active_connection *connection = &acceptor->connections[found];
    if (is_open(connection)) {
        shutdown(connection->fd, SHUT_RDWR);
        acceptor->turned_away++;
        acceptor->closing[acceptor->closing_count++] = *connection;
    }
    acceptor->connection_count--;
    memmove(connection, connection + 1, (acceptor->connection_count - found) * sizeof *connection);
    return true;
}

// False: no connection can be added. Scans at most once in SCAN_MS, so a flood of connections does not scan for each one.
static bool ensure_capacity(struct acceptor *acceptor) {
    int64_t now_ns = clock_now_ns();
    if (is_full(acceptor) && now_ns >= acceptor->next_scan_ns) {
        acceptor->next_scan_ns = now_ns + SCAN_MS * (int64_t)NS_PER_MS;
        scan_connections(acceptor);
    }
    if (!is_full(acceptor)) {
        return true;
    }
    warn_full(acceptor);
    return close_oldest_silent(acceptor) || close_unproven(acceptor);
}

// ---- accepting

static void hand_over(struct acceptor *acceptor, int fd) {
    const struct acceptor_options *options = &acceptor->options;
    struct stat st;
    if (fstat(fd, &st) != 0) {
        close(fd);
        return;
    }
    if (options->max_connections > 0) {
        INVARIANT(acceptor->connection_count < options->max_connections);
        acceptor->connections[acceptor->connection_count++] = (struct active_connection){
            .fd = fd,
            .device = st.st_dev,
            .inode = st.st_ino,
            .source = options->source ? options->source(options->context, fd) : 0,
            .unproven_until_ns = options->unproven_ns ? clock_add_ns(clock_now_ns(), options->unproven_ns) : 0,
        };
    }
    options->accepted(options->context, fd);
}

static void on_first_bytes(uv_poll_t *poll, int status, int events) {
    struct silent_connection *connection = poll->data;
    struct acceptor *acceptor = connection->acceptor;
    (void)events;
    char byte;
    ssize_t got = status < 0 ? 0 : recv(connection->fd, &byte, 1, MSG_PEEK);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        return;
    }
    int fd = release_silent(connection);
    if (got > 0) {
        hand_over(acceptor, fd);
    } else {
        close(fd);
    }
}

static void await_first_bytes(struct acceptor *acceptor, int fd) {
    struct silent_connection *connection = calloc(1, sizeof *connection);
    if (!connection || uv_poll_init(acceptor->loop, &connection->poll, fd) != 0) {
        free(connection);
        close(fd);
        acceptor->turned_away++;
        return;
    }
    connection->acceptor = acceptor;
    connection->poll.data = connection;
    connection->fd = fd;
    connection->deadline_ns = clock_add_ns(clock_now_ns(), acceptor->options.silent_ns);
    TAILQ_INSERT_TAIL(&acceptor->silent, connection, entry);
    acceptor->silent_count++;
    acceptor->handles++;
    uv_poll_start(&connection->poll, UV_READABLE, on_first_bytes);
    if (TAILQ_FIRST(&acceptor->silent) == connection) {
        arm_silence_timer(acceptor);
    }
}

static void admit(struct acceptor *acceptor, int fd) {
    const struct acceptor_options *options = &acceptor->options;
    if (options->admits && !options->admits(options->context, fd)) {
        close(fd);
    } else if (!ensure_capacity(acceptor)) {
        acceptor->turned_away++;
        close(fd);
    } else {
        await_first_bytes(acceptor, fd);
    }
}

static void on_readable(uv_poll_t *poll, int status, int events);

static void on_pause_timeout(uv_timer_t *timer) {
    struct acceptor *acceptor = timer->data;
    uv_poll_start(&acceptor->poll, UV_READABLE, on_readable);
}

// The connection stays in the backlog and keeps the socket readable, so polling stops for a while.
static void pause_accepting(struct acceptor *acceptor) {
    uv_poll_stop(&acceptor->poll);
    uv_timer_start(&acceptor->pause_timer, on_pause_timeout, PAUSE_MS, 0);
}

static int accept_one(const struct acceptor *acceptor) {
    return accept4(acceptor->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
}

static int open_spare(void) {
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

// Accepts a connection with the spare descriptor and closes it. Fails if another thread takes the free descriptor first.
static bool drop_one_connection(struct acceptor *acceptor) {
    if (acceptor->spare < 0) {
        acceptor->spare = open_spare();
        return false;
    }
    close(acceptor->spare);
    int fd = accept_one(acceptor);
    if (fd >= 0) {
        close(fd);
        acceptor->turned_away++;
    }
    acceptor->spare = open_spare();
    return fd >= 0;
}

// True: accepting may continue at once.
static bool handle_accept_error(struct acceptor *acceptor, int cause) {
    if (cause == EINTR || cause == ECONNABORTED || cause == EPROTO) { // not a shortage of this process
        return true;
    }
    log_accept_failed(acceptor, cause);
    if (cause == EMFILE || cause == ENFILE) {
        return close_oldest_silent(acceptor) || drop_one_connection(acceptor);
    }
    return false;
}

static void on_readable(uv_poll_t *poll, int status, int events) {
    struct acceptor *acceptor = poll->data;
    (void)events;
    // `accepted` may stop the acceptor, which sets fd to -1.
    for (int i = 0; i < ACCEPTS_PER_EVENT && acceptor->fd >= 0; i++) {
        int fd = status < 0 ? -1 : accept_one(acceptor);
        int cause = status < 0 ? -status : errno;
        if (fd >= 0) {
            admit(acceptor, fd);
        } else if (cause == EAGAIN || cause == EWOULDBLOCK) {
            return;
        } else if (!handle_accept_error(acceptor, cause)) {
            pause_accepting(acceptor);
            return;
        }
    }
}

// ---- start and stop

static FALLIBLE reserve(struct acceptor *acceptor, const struct acceptor_options *options) {
    acceptor->name = strdup(options->name);
    acceptor->connections = calloc((size_t)options->max_connections + 1, sizeof *acceptor->connections);
    acceptor->closing_max = acceptor_closing_max(options->max_connections);
    acceptor->closing = calloc(acceptor->closing_max, sizeof *acceptor->closing);
    if (!acceptor->name || !acceptor->connections || !acceptor->closing) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a listener of %u connections", options->max_connections);
    }
    int result = uv_poll_init(acceptor->loop, &acceptor->poll, acceptor->fd);
    if (result != 0) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot watch %s: %s", options->name, uv_strerror(result));
    }
    return OK;
}

FALLIBLE acceptor_start(const struct acceptor_options *options, int fd, struct acceptor **out) {
    *out = NULL;
    struct acceptor *acceptor = calloc(1, sizeof *acceptor);
    if (!acceptor) {
        close(fd);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a listener");
    }
    acceptor->options = *options;
    acceptor->options.silent_ns = options->silent_ns ? options->silent_ns : ACCEPTOR_SILENT_NS;
    acceptor->loop = options->loop;
    acceptor->fd = fd;
    TAILQ_INIT(&acceptor->silent);
    err_t e = reserve(acceptor, options);
    if (err_is(e)) {
        close(fd);
        free_acceptor(acceptor);
        return e;
    }
    acceptor->spare = open_spare(); // -1: drop_one_connection tries again
    acceptor->handles = HANDLES + 1;
    uv_timer_init(acceptor->loop, &acceptor->pause_timer);
    uv_timer_init(acceptor->loop, &acceptor->silence_timer);
    acceptor->poll.data = acceptor->pause_timer.data = acceptor->silence_timer.data = acceptor;
    uv_poll_start(&acceptor->poll, UV_READABLE, on_readable);
    *out = acceptor;
    return OK;
}

void acceptor_refuse(struct acceptor *acceptor) {
    if (!acceptor || acceptor->refusing) {
        return;
    }
    acceptor->refusing = true;
    struct silent_connection *connection;
    while ((connection = TAILQ_FIRST(&acceptor->silent))) {
        close(release_silent(connection));
    }
    uv_close((uv_handle_t *)&acceptor->poll, on_handle_closed); // before the descriptor is closed
    uv_close((uv_handle_t *)&acceptor->pause_timer, on_handle_closed);
    uv_close((uv_handle_t *)&acceptor->silence_timer, on_handle_closed);
    close(acceptor->fd);
    acceptor->fd = -1;
    if (acceptor->spare >= 0) {
        close(acceptor->spare);
    }
}

void acceptor_stop(struct acceptor *acceptor) {
    if (!acceptor || acceptor->stopping) {
        return;
    }
    acceptor->stopping = true;
    acceptor_refuse(acceptor);
    handle_closed(acceptor);
}

struct acceptor_counts acceptor_counts(struct acceptor *acceptor) {
    if (!acceptor) {
        return (struct acceptor_counts){0};
    }
    scan_connections(acceptor);
    unsigned open = acceptor->connection_count + acceptor->closing_count + acceptor->silent_count;
    return (struct acceptor_counts){open, acceptor->turned_away};
}
