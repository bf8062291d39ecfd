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

#include "daemon/process/log.h"

enum {
    ACCEPTS_A_TURN = 64, // then the loop's other handles get theirs
    LOOK_MS = 20,        // between two looks at who is still connected
    PAUSE_MS = 100,      // after running out of memory
    HANDLES = 3,         // and its owner
    LOG_TEXT_MAX = 256
};

// Says a repeated complaint once a second, with how many it stands for.
struct complaint {
    int64_t next_ns;
    unsigned long held_back;
};

// A connection that was handed on. Its new owner closes it without a word; then the number is free, or another file's.
struct handed_on {
    int fd;
    dev_t device;
    ino_t inode;
};

// A connection whose peer has not spoken.
struct newcomer {
    struct acceptor *acceptor;
    uv_poll_t poll;
    int fd;
    int64_t deadline_ns;
    TAILQ_ENTRY(newcomer) entry;
};

struct acceptor {
    struct acceptor_options options;
    char *name;
    uv_loop_t *loop;
    uv_poll_t poll;
    uv_timer_t pause, patience;
    unsigned handles; // not closed yet, newcomers' too; and one for the owner, until it stops the acceptor
    bool refusing, stopping;
    int fd, spare; // spare: what is closed to take a connection, and end it, when no other descriptor is left
    struct complaint shortages, crowds;
    TAILQ_HEAD(, newcomer) newcomers; // the oldest first
    unsigned newcomer_count;
    struct handed_on *connections; // [max_connections], those that were open when last looked at
    unsigned connection_count;
    int64_t look_again_ns;
    unsigned long turned_away;
};

// True where the complaint is due; *held_back are those since the last.
static bool is_due(struct complaint *complaint, unsigned long *held_back) {
    int64_t now_ns = clock_now_ns();
    if (now_ns < complaint->next_ns) {
        complaint->held_back++;
        return false;
    }
    *held_back = complaint->held_back;
    *complaint = (struct complaint){.next_ns = now_ns + NS_PER_S};
    return true;
}

static void complain_of_crowd(struct acceptor *acceptor) {
    unsigned long held_back;
    char name[LOG_TEXT_MAX];
    if (is_due(&acceptor->crowds, &held_back)) {
        log_line(LOG_LEVEL_WARNING, "connections_full", "socket=%s max_connections=%u silent=%u since_last=%lu",
                 log_quote(acceptor->name, name, sizeof name), acceptor->options.max_connections, acceptor->newcomer_count,
                 held_back);
    }
}

static void complain_of_shortage(struct acceptor *acceptor, int cause) {
    unsigned long held_back;
    char name[LOG_TEXT_MAX], text[LOG_TEXT_MAX];
    if (is_due(&acceptor->shortages, &held_back)) {
        log_line(LOG_LEVEL_ERROR, "accept_failed", "socket=%s cause=%s since_last=%lu",
                 log_quote(acceptor->name, name, sizeof name), log_quote(strerror(cause), text, sizeof text), held_back);
    }
}

// ---- memory

static void handle_closed(struct acceptor *acceptor) {
    if (--acceptor->handles == 0) {
        free(acceptor->connections);
        free(acceptor->name);
        free(acceptor);
    }
}

static void on_handle_closed(uv_handle_t *handle) {
    handle_closed(handle->data);
}

static void on_newcomer_closed(uv_handle_t *handle) {
    struct newcomer *newcomer = handle->data;
    struct acceptor *acceptor = newcomer->acceptor;
    free(newcomer);
    handle_closed(acceptor);
}

// ---- newcomers

// Its descriptor is the caller's now; its memory goes on the loop.
static int release_newcomer(struct newcomer *newcomer) {
    struct acceptor *acceptor = newcomer->acceptor;
    TAILQ_REMOVE(&acceptor->newcomers, newcomer, entry);
    acceptor->newcomer_count--;
    uv_close((uv_handle_t *)&newcomer->poll, on_newcomer_closed); // before its descriptor goes elsewhere
    return newcomer->fd;
}

static void on_impatient(uv_timer_t *timer);

static void await_the_oldest(struct acceptor *acceptor) {
    const struct newcomer *oldest = TAILQ_FIRST(&acceptor->newcomers);
    if (!oldest) {
        uv_timer_stop(&acceptor->patience);
        return;
    }
    int64_t left_ns = oldest->deadline_ns - clock_now_ns();
    uv_update_time(acceptor->loop); // a timer counts from the loop's own idea of now
    uv_timer_start(&acceptor->patience, on_impatient, left_ns > 0 ? (uint64_t)(left_ns / NS_PER_MS) + 1 : 1, 0);
}

static void on_impatient(uv_timer_t *timer) {
    struct acceptor *acceptor = timer->data;
    struct newcomer *oldest;
    int64_t now_ns = clock_now_ns();
    unsigned closed = 0;
    for (; (oldest = TAILQ_FIRST(&acceptor->newcomers)) && oldest->deadline_ns <= now_ns; closed++) {
        close(release_newcomer(oldest));
    }
    char name[LOG_TEXT_MAX];
    log_line(LOG_LEVEL_DEBUG, "silent_closed", "socket=%s connections=%u", log_quote(acceptor->name, name, sizeof name), closed);
    await_the_oldest(acceptor);
}

// ---- room

static bool is_open(const struct handed_on *connection) {
    struct stat there;
    return fstat(connection->fd, &there) == 0 && there.st_dev == connection->device && there.st_ino == connection->inode;
}

// Its owner may close one between the two calls: then the number is free, as nobody is accepted any more who could get it.
void acceptor_hang_up(struct acceptor *acceptor) {
    for (unsigned i = 0; acceptor && i < acceptor->connection_count; i++) {
        if (is_open(&acceptor->connections[i])) {
            shutdown(acceptor->connections[i].fd, SHUT_WR);
        }
    }
}

static void look_who_is_there(struct acceptor *acceptor) {
    unsigned open = 0;
    for (unsigned i = 0; i < acceptor->connection_count; i++) {
        if (is_open(&acceptor->connections[i])) {
            acceptor->connections[open++] = acceptor->connections[i];
        }
    }
    acceptor->connection_count = open;
}

static bool is_full(const struct acceptor *acceptor) {
    unsigned max = acceptor->options.max_connections, max_silent = acceptor->options.max_silent;
    return (max > 0 && acceptor->connection_count + acceptor->newcomer_count >= max) ||
           (max_silent > 0 && acceptor->newcomer_count >= max_silent);
}

// Ends the silence that lasts longest; false where nobody is silent.
static bool end_the_oldest(struct acceptor *acceptor) {
    struct newcomer *oldest = TAILQ_FIRST(&acceptor->newcomers);
    if (!oldest) {
        return false;
    }
    close(release_newcomer(oldest));
    acceptor->turned_away++;
    return true;
}

// A flood makes one look at all of them in LOOK_MS, no more.
static bool make_room(struct acceptor *acceptor) {
    int64_t now_ns = clock_now_ns();
    if (is_full(acceptor) && now_ns >= acceptor->look_again_ns) {
        acceptor->look_again_ns = now_ns + LOOK_MS * (int64_t)NS_PER_MS;
        look_who_is_there(acceptor);
    }
    if (!is_full(acceptor)) {
        return true;
    }
    complain_of_crowd(acceptor);
    return end_the_oldest(acceptor);
}

// ---- accepting

static void hand_on(struct acceptor *acceptor, int fd) {
    struct stat there;
    if (fstat(fd, &there) != 0) {
        close(fd);
        return;
    }
    if (acceptor->options.max_connections > 0) {
        INVARIANT(acceptor->connection_count < acceptor->options.max_connections);
        acceptor->connections[acceptor->connection_count++] = (struct handed_on){fd, there.st_dev, there.st_ino};
    }
    acceptor->options.accepted(acceptor->options.context, fd);
}

static void on_word(uv_poll_t *poll, int status, int events) {
    struct newcomer *newcomer = poll->data;
    struct acceptor *acceptor = newcomer->acceptor;
    (void)events;
    char byte;
    ssize_t got = status < 0 ? 0 : recv(newcomer->fd, &byte, 1, MSG_PEEK);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        return;
    }
    int fd = release_newcomer(newcomer);
    if (got > 0) {
        hand_on(acceptor, fd);
    } else {
        close(fd);
    }
}

static void await_word(struct acceptor *acceptor, int fd) {
    struct newcomer *newcomer = calloc(1, sizeof *newcomer);
    if (!newcomer || uv_poll_init(acceptor->loop, &newcomer->poll, fd) != 0) {
        free(newcomer);
        close(fd);
        acceptor->turned_away++;
        return;
    }
    newcomer->acceptor = acceptor;
    newcomer->poll.data = newcomer;
    newcomer->fd = fd;
    newcomer->deadline_ns = clock_add_ns(clock_now_ns(), acceptor->options.silent_ns);
    TAILQ_INSERT_TAIL(&acceptor->newcomers, newcomer, entry);
    acceptor->newcomer_count++;
    acceptor->handles++;
    uv_poll_start(&newcomer->poll, UV_READABLE, on_word);
    if (TAILQ_FIRST(&acceptor->newcomers) == newcomer) {
        await_the_oldest(acceptor);
    }
}

static void take(struct acceptor *acceptor, int fd) {
    const struct acceptor_options *options = &acceptor->options;
    if (options->admits && !options->admits(options->context, fd)) {
        close(fd);
    } else if (!make_room(acceptor)) {
        acceptor->turned_away++;
        close(fd);
    } else {
        await_word(acceptor, fd);
    }
}

static void on_readable(uv_poll_t *poll, int status, int events);

static void on_pause_over(uv_timer_t *timer) {
    struct acceptor *acceptor = timer->data;
    uv_poll_start(&acceptor->poll, UV_READABLE, on_readable);
}

// The connection stays in the backlog, and the poll would say so without end: look away for a while.
static void pause_accepting(struct acceptor *acceptor) {
    uv_poll_stop(&acceptor->poll);
    uv_timer_start(&acceptor->pause, on_pause_over, PAUSE_MS, 0);
}

static int accept_one(const struct acceptor *acceptor) {
    return accept4(acceptor->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
}

static int open_spare(void) {
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

// Takes a connection with the spare descriptor, and ends it. Another thread may be faster at the number that is free in between.
static bool turn_one_away(struct acceptor *acceptor) {
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

// True where accepting may go on at once.
static bool survive(struct acceptor *acceptor, int cause) {
    if (cause == EINTR || cause == ECONNABORTED || cause == EPROTO) { // the peer's own
        return true;
    }
    complain_of_shortage(acceptor, cause);
    if (cause == EMFILE || cause == ENFILE) {
        return end_the_oldest(acceptor) || turn_one_away(acceptor);
    }
    return false;
}

static void on_readable(uv_poll_t *poll, int status, int events) {
    struct acceptor *acceptor = poll->data;
    (void)events;
    // `accepted` may stop the acceptor: its descriptor is -1 then.
    for (int i = 0; i < ACCEPTS_A_TURN && acceptor->fd >= 0; i++) {
        int fd = status < 0 ? -1 : accept_one(acceptor);
        int cause = status < 0 ? -status : errno;
        if (fd >= 0) {
            take(acceptor, fd);
        } else if (cause == EAGAIN || cause == EWOULDBLOCK) {
            return;
        } else if (!survive(acceptor, cause)) {
            pause_accepting(acceptor);
            return;
        }
    }
}

// ---- start and stop

static FALLIBLE reserve(struct acceptor *acceptor, const struct acceptor_options *options) {
    acceptor->name = strdup(options->name);
    acceptor->connections = calloc((size_t)options->max_connections + 1, sizeof *acceptor->connections);
    if (!acceptor->name || !acceptor->connections) {
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
    TAILQ_INIT(&acceptor->newcomers);
    err_t e = reserve(acceptor, options);
    if (err_is(e)) {
        close(fd);
        free(acceptor->connections);
        free(acceptor->name);
        free(acceptor);
        return e;
    }
    acceptor->spare = open_spare(); // -1: tried again when it is needed
    acceptor->handles = HANDLES + 1;
    uv_timer_init(acceptor->loop, &acceptor->pause);
    uv_timer_init(acceptor->loop, &acceptor->patience);
    acceptor->poll.data = acceptor->pause.data = acceptor->patience.data = acceptor;
    uv_poll_start(&acceptor->poll, UV_READABLE, on_readable);
    *out = acceptor;
    return OK;
}

void acceptor_refuse(struct acceptor *acceptor) {
    if (!acceptor || acceptor->refusing) {
        return;
    }
    acceptor->refusing = true;
    struct newcomer *newcomer;
    while ((newcomer = TAILQ_FIRST(&acceptor->newcomers))) {
        close(release_newcomer(newcomer));
    }
    uv_close((uv_handle_t *)&acceptor->poll, on_handle_closed); // before its descriptor goes
    uv_close((uv_handle_t *)&acceptor->pause, on_handle_closed);
    uv_close((uv_handle_t *)&acceptor->patience, on_handle_closed);
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
    look_who_is_there(acceptor);
    return (struct acceptor_counts){acceptor->connection_count + acceptor->newcomer_count, acceptor->turned_away};
}
