#include "daemon/regions/region_socket.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/log/log.h"

enum {
    TOKENLESS_MAX = 16, // connections that have not sent their token
    HANDLES = 2,        // of struct region_socket: changed, due
};

// One client: it sends its token, and then holds a lease.
struct lease {
    struct region_socket *owner;
    uv_poll_t poll;
    int fd;
    uint8_t token[REGION_TOKEN_BYTES];
    size_t got;
    int64_t deadline_ns; // for the token
    uint64_t region;     // 0: not redeemed
    TAILQ_ENTRY(lease) entry;
};

struct region_socket {
    uv_loop_t *loop;
    struct region_registry *registry;
    struct unix_listener *listener;
    uv_async_t changed; // sent by the registry's callback, from any thread
    uv_timer_t due;
    TAILQ_HEAD(, lease) leases;
    uint32_t num_leases, leases_max;
    unsigned handles; // libuv handles of the socket and its leases that are not closed yet
    bool stopping;
};

bool region_socket_path(const char *main_path, char out[REGION_SOCKET_PATH_MAX]) {
    return unix_path_absolute(main_path, ".regions", out);
}

// ---- the end of one connection

static void handle_closed(struct region_socket *socket) {
    if (--socket->handles == 0) {
        free(socket);
    }
}

static void on_lease_closed(uv_handle_t *handle) {
    struct lease *lease = handle->data;
    struct region_socket *socket = lease->owner;
    free(lease);
    handle_closed(socket);
}

// Also closes the lease's region, if it has one.
static void end_lease(struct lease *lease, const char *cause) {
    struct region_socket *socket = lease->owner;
    log_line(LOG_LEVEL_DEBUG, "region_lease_ended", "region=%" PRIu64 " cause=%s", lease->region, cause);
    TAILQ_REMOVE(&socket->leases, lease, entry);
    socket->num_leases--;
    uv_close((uv_handle_t *)&lease->poll, on_lease_closed); // before close: another thread may reuse the descriptor number at once
    close(lease->fd);
    if (lease->region != 0) { // fails if the region was already closed by its id
        (void)err_is(region_close(socket->registry, lease->region));
    }
}

// ---- tokens for descriptors

static bool send_descriptor(int socket, int fd) {
    char byte = 0;
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    union {
        char bytes[CMSG_SPACE(sizeof fd)];
        struct cmsghdr align;
    } control = {0};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) ==
           1; // the first byte on this connection: the socket buffer has space
}

static void redeem(struct lease *lease) {
    int fd;
    if (err_is(region_redeem(lease->owner->registry, lease->token, clock_now_ns(), &lease->region, &fd))) {
        end_lease(lease, "token");
        return;
    }
    bool sent = send_descriptor(lease->fd, fd);
    close(fd);
    if (!sent) {
        end_lease(lease, "send");
    }
}

static bool is_no_data(ssize_t got) {
    return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

// The kernel drops descriptors that a client sends: recv has no control buffer.
static void read_token(struct lease *lease) {
    ssize_t got = recv(lease->fd, lease->token + lease->got, sizeof lease->token - lease->got, 0);
    if (is_no_data(got)) {
        return;
    }
    if (got <= 0) {
        end_lease(lease, "closed");
        return;
    }
    lease->got += (size_t)got;
    if (lease->got == sizeof lease->token) {
        redeem(lease);
    }
}

static void watch_owner(struct lease *lease) {
    char byte;
    ssize_t got = recv(lease->fd, &byte, 1, 0);
    if (!is_no_data(got)) {
        end_lease(lease, got > 0 ? "garbage" : "closed");
    }
}

static void on_readable(uv_poll_t *poll, int status, int events) {
    struct lease *lease = poll->data;
    (void)events;
    if (status < 0) {
        end_lease(lease, "error");
    } else if (lease->region == 0) {
        read_token(lease);
    } else {
        watch_owner(lease);
    }
}

// ---- deadlines

static void on_due(uv_timer_t *timer);

static void wait_until(struct region_socket *socket, int64_t at_ns) {
    if (at_ns == CLOCK_NEVER) {
        uv_timer_stop(&socket->due);
        return;
    }
    int64_t left_ns = at_ns - clock_now_ns();
    uv_update_time(socket->loop); // a timer counts from the loop's cached time
    uv_timer_start(&socket->due, on_due, left_ns > 0 ? (uint64_t)(left_ns / NS_PER_MS) + 1 : 1, 0);
}

// Ends leases whose region was closed or whose token did not come in time, and expired offers.
static void expire_leases(struct region_socket *socket) {
    int64_t now_ns = clock_now_ns(), next_ns = region_expire(socket->registry, now_ns);
    struct lease *next;
    for (struct lease *lease = TAILQ_FIRST(&socket->leases); lease; lease = next) {
        next = TAILQ_NEXT(lease, entry);
        if (lease->region != 0) {
            if (!region_is_open(socket->registry, lease->region)) {
                end_lease(lease, "region_closed");
            }
        } else if (lease->deadline_ns <= now_ns) {
            end_lease(lease, "slow");
        } else if (lease->deadline_ns < next_ns) {
            next_ns = lease->deadline_ns;
        }
    }
    wait_until(socket, next_ns);
}

static void on_due(uv_timer_t *timer) {
    expire_leases(timer->data);
}

static void on_changed(uv_async_t *async) {
    struct region_socket *socket = async->data;
    if (!socket->stopping) {
        expire_leases(socket);
    }
}

static void registry_changed(void *context) {
    struct region_socket *socket = context;
    uv_async_send(&socket->changed);
}

// ---- connections

static void on_peer(void *context, int fd, uid_t uid) {
    struct region_socket *socket = context;
    struct lease *lease = socket->num_leases < socket->leases_max ? calloc(1, sizeof *lease) : NULL;
    if (!lease || uv_poll_init(socket->loop, &lease->poll, fd) != 0) {
        log_line(LOG_LEVEL_DEBUG, "region_peer_refused", "uid=%u leases=%u", (unsigned)uid, socket->num_leases);
        free(lease);
        close(fd);
        return;
    }
    lease->owner = socket;
    lease->poll.data = lease;
    lease->fd = fd;
    lease->deadline_ns = clock_add_ns(clock_now_ns(), REGION_SOCKET_WAIT_NS);
    TAILQ_INSERT_TAIL(&socket->leases, lease, entry);
    socket->num_leases++;
    socket->handles++;
    uv_poll_start(&lease->poll, UV_READABLE, on_readable);
    expire_leases(socket);
}

// ---- start and stop

FALLIBLE region_socket_start(const struct region_socket_options *options, struct region_socket **out) {
    *out = NULL;
    struct region_socket *socket = calloc(1, sizeof *socket);
    if (!socket) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the regions' socket");
    }
    socket->leases_max = options->max_regions + TOKENLESS_MAX;
    struct unix_listener_options listen = {.loop = options->loop,
                                           .path = options->path,
                                           .allow_uids = options->allow_uids,
                                           .max_silent = TOKENLESS_MAX, // on_peer bounds the leases
                                           .silent_ns = REGION_SOCKET_WAIT_NS,
                                           .accepted = on_peer,
                                           .context = socket};
    socket->loop = options->loop;
    socket->registry = options->registry;
    TAILQ_INIT(&socket->leases);
    err_t e = unix_listener_start(&listen, &socket->listener);
    if (err_is(e)) {
        free(socket);
        return e;
    }
    if (uv_async_init(socket->loop, &socket->changed, on_changed) != 0) {
        unix_listener_stop(socket->listener);
        free(socket);
        FAIL(EXPERTD_ERR_UNAVAILABLE, "no descriptor is left for the regions' socket");
    }
    uv_timer_init(socket->loop, &socket->due);
    socket->handles = HANDLES;
    socket->changed.data = socket->due.data = socket;
    region_registry_watch(options->registry, registry_changed, socket);
    *out = socket;
    return OK;
}

void region_socket_refuse(struct region_socket *socket) {
    if (socket) {
        unix_listener_stop(socket->listener);
        socket->listener = NULL;
    }
}

static void on_handle_closed(uv_handle_t *handle) {
    handle_closed(handle->data);
}

void region_socket_stop(struct region_socket *socket) {
    if (!socket || socket->stopping) {
        return;
    }
    socket->stopping = true;
    region_socket_refuse(socket);
    region_registry_watch(socket->registry, NULL, NULL);
    struct lease *lease;
    while ((lease = TAILQ_FIRST(&socket->leases))) {
        end_lease(lease, "end");
    }
    uv_close((uv_handle_t *)&socket->changed, on_handle_closed);
    uv_close((uv_handle_t *)&socket->due, on_handle_closed);
}
