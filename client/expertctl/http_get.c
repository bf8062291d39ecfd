#include "client/expertctl/http_get.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

enum { MICROSECONDS = 1000000, READ_BYTES = 1 << 16, REQUEST_MAX = 512 };

// The time by which the page must have arrived.
struct deadline {
    int64_t until_ns, timeout_us;
};

// Waits until the socket is ready for `events`. False, with errno: the deadline has passed, or poll failed.
static bool wait_for(int fd, short events, const struct deadline *deadline) {
    struct pollfd wanted = {.fd = fd, .events = events};
    int ready = -1;
    errno = EINTR;
    while (ready < 0 && errno == EINTR) { // after a signal, or after the process was stopped and continued
        const int64_t left_ns = deadline->until_ns - clock_now_ns();
        const struct timespec left = {left_ns / NS_PER_S, left_ns % NS_PER_S};
        ready = left_ns > 0 ? ppoll(&wanted, 1, &left, NULL) : 0; // after the deadline, data that has arrived does not count
    }
    if (ready == 0) {
        errno = ETIMEDOUT;
    }
    return ready > 0;
}

// Connects a non-blocking socket. False, with errno, if that fails.
static bool connect_socket(int fd, const struct addrinfo *at, const struct deadline *deadline) {
    if (connect(fd, at->ai_addr, at->ai_addrlen) == 0) {
        return true;
    }
    int error = 0;
    socklen_t size = sizeof error;
    if (errno != EINPROGRESS || !wait_for(fd, POLLOUT, deadline) || getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
        return false;
    }
    errno = error;
    return error == 0;
}

static FALLIBLE connect_to(const struct address *address, const struct deadline *deadline, int *out) {
    char port[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    snprintf(port, sizeof port, "%u", address->port);
    *out = -1;
    int error = getaddrinfo(address->host, port, &hints, &found);
    if (error) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "%s: %s", address->text, gai_strerror(error));
    }
    int why = 0;
    for (struct addrinfo *at = found; at && *out < 0; at = at->ai_next) {
        int fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol);
        if (fd >= 0 && connect_socket(fd, at, deadline)) {
            *out = fd;
            break;
        }
        why = errno;
        if (fd >= 0) {
            close(fd);
        }
    }
    freeaddrinfo(found);
    if (*out < 0) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "no daemon answers HTTP at %s: %s (give its HTTP address with --http)", address->text,
             strerror(why));
    }
    return OK;
}

static FALLIBLE send_request(int fd, const struct address *address, const char *path, const struct deadline *deadline) {
    char request[REQUEST_MAX];
    int length = snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: expertd\r\nConnection: close\r\n\r\n", path);
    INVARIANT(length > 0 && length < REQUEST_MAX);
    if (!wait_for(fd, POLLOUT, deadline) || send(fd, request, (size_t)length, MSG_NOSIGNAL) != length) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "%s: the request cannot be sent: %s", address->text, strerror(errno));
    }
    return OK;
}

static ssize_t receive(int fd, char *to, size_t size, const struct deadline *deadline) {
    ssize_t got;
    do {
        got = wait_for(fd, POLLIN, deadline) ? recv(fd, to, size, 0) : -1;
    } while (got < 0 && errno == EAGAIN);
    return got;
}

// Reads until the daemon closes the connection, which it does after one answer.
static FALLIBLE read_all(int fd, const struct address *address, const struct deadline *deadline, char **out) {
    size_t used = 0, capacity = READ_BYTES;
    char *bytes = malloc(capacity + 1);
    ssize_t got = 1;
    while (bytes && got > 0) {
        if (capacity - used < READ_BYTES / 2) {
            capacity *= 2;
            char *more = capacity <= HTTP_PAGE_MAX ? realloc(bytes, capacity + 1) : NULL;
            if (!more) {
                break;
            }
            bytes = more;
        }
        got = receive(fd, bytes + used, capacity - used, deadline);
        used += got > 0 ? (size_t)got : 0;
    }
    if (!bytes || got != 0) {
        bool late = got < 0 && errno == ETIMEDOUT;
        free(bytes);
        if (late) {
            FAIL(EXPERTD_ERR_UNAVAILABLE, "%s: the page was not complete within %g s", address->text,
                 (double)deadline->timeout_us / MICROSECONDS);
        }
        FAIL(EXPERTD_ERR_UNAVAILABLE, "%s: the page cannot be read: %s", address->text,
             got < 0 ? strerror(errno) : "it is too large");
    }
    bytes[used] = '\0';
    *out = bytes;
    return OK;
}

FALLIBLE http_get(const struct address *address, const char *path, int64_t timeout_us, char **body) {
    int fd;
    char *answer = NULL;
    *body = NULL;
    const struct deadline deadline = {clock_add_ns(clock_now_ns(), timeout_us * NS_PER_US), timeout_us};
    TRY(connect_to(address, &deadline, &fd));
    err_t e = send_request(fd, address, path, &deadline);
    e = err_is(e) ? e : read_all(fd, address, &deadline, &answer);
    close(fd);
    if (err_is(e)) {
        return e;
    }
    int status = 0;
    char *start = strstr(answer, "\r\n\r\n");
    if (!start || sscanf(answer, "HTTP/1.1 %3d", &status) != 1 || status != 200) {
        free(answer);
        FAIL(EXPERTD_ERR_UNAVAILABLE, "%s answers %s with status %d: give the HTTP address of a daemon with --http", address->text,
             path, status);
    }
    memmove(answer, start + 4, strlen(start + 4) + 1);
    *body = answer;
    return OK;
}
