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

// Until when the page must be here.
struct patience {
    int64_t until_ns, timeout_us;
};

// Until the socket has what the next call wants. False, with errno: it never does.
static bool wait_for(int fd, short events, const struct patience *patience) {
    struct pollfd wanted = {.fd = fd, .events = events};
    int ready = -1;
    errno = EINTR;
    while (ready < 0 && errno == EINTR) { // by a signal, or where the process was stopped and goes on
        const int64_t left_ns = patience->until_ns - clock_now_ns();
        const struct timespec left = {left_ns / NS_PER_S, left_ns % NS_PER_S};
        ready = left_ns > 0 ? ppoll(&wanted, 1, &left, NULL) : 0; // what comes after it is late, also where it is there
    }
    if (ready == 0) {
        errno = ETIMEDOUT;
    }
    return ready > 0;
}

// The socket does not block. False, with errno: nobody is there.
static bool reach(int fd, const struct addrinfo *at, const struct patience *patience) {
    if (connect(fd, at->ai_addr, at->ai_addrlen) == 0) {
        return true;
    }
    int error = 0;
    socklen_t size = sizeof error;
    if (errno != EINPROGRESS || !wait_for(fd, POLLOUT, patience) || getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
        return false;
    }
    errno = error;
    return error == 0;
}

static FALLIBLE connect_to(const struct address *address, const struct patience *patience, int *out) {
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
        if (fd >= 0 && reach(fd, at, patience)) {
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
        FAIL(EXPERTD_ERR_UNAVAILABLE, "no daemon's HTTP answers at %s: %s (--http says where it is)", address->text, strerror(why));
    }
    return OK;
}

static FALLIBLE send_request(int fd, const struct address *address, const char *path, const struct patience *patience) {
    char request[REQUEST_MAX];
    int length = snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: expertd\r\nConnection: close\r\n\r\n", path);
    INVARIANT(length > 0 && length < REQUEST_MAX);
    if (!wait_for(fd, POLLOUT, patience) || send(fd, request, (size_t)length, MSG_NOSIGNAL) != length) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "%s takes no request: %s", address->text, strerror(errno));
    }
    return OK;
}

static ssize_t receive(int fd, char *to, size_t size, const struct patience *patience) {
    ssize_t got;
    do {
        got = wait_for(fd, POLLIN, patience) ? recv(fd, to, size, 0) : -1;
    } while (got < 0 && errno == EAGAIN);
    return got;
}

// All until the daemon hangs up, which it does after one answer.
static FALLIBLE read_all(int fd, const struct address *address, const struct patience *patience, char **out) {
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
        got = receive(fd, bytes + used, capacity - used, patience);
        used += got > 0 ? (size_t)got : 0;
    }
    if (!bytes || got != 0) {
        bool late = got < 0 && errno == ETIMEDOUT;
        free(bytes);
        if (late) {
            FAIL(EXPERTD_ERR_UNAVAILABLE, "%s: the page does not end within %g s", address->text,
                 (double)patience->timeout_us / MICROSECONDS);
        }
        FAIL(EXPERTD_ERR_UNAVAILABLE, "%s: the page does not end: %s", address->text,
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
    const struct patience patience = {clock_add_ns(clock_now_ns(), timeout_us * NS_PER_US), timeout_us};
    TRY(connect_to(address, &patience, &fd));
    err_t e = send_request(fd, address, path, &patience);
    e = err_is(e) ? e : read_all(fd, address, &patience, &answer);
    close(fd);
    if (err_is(e)) {
        return e;
    }
    int status = 0;
    char *start = strstr(answer, "\r\n\r\n");
    if (!start || sscanf(answer, "HTTP/1.1 %3d", &status) != 1 || status != 200) {
        free(answer);
        FAIL(EXPERTD_ERR_UNAVAILABLE, "%s answers %s with status %d: is it a daemon's HTTP address (--http)?", address->text, path,
             status);
    }
    memmove(answer, start + 4, strlen(start + 4) + 1);
    *body = answer;
    return OK;
}
