#include "client/c/region.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum { MICROSECONDS = 1000000 };

static FALLIBLE set_timeout(int socket, int64_t timeout_us) {
    struct timeval limit = {.tv_sec = timeout_us / MICROSECONDS, .tv_usec = timeout_us % MICROSECONDS};
    if (setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0 ||
        setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0) { // the latter also limits connect
        FAIL(EXPERTD_ERR_IO, "cannot set the timeout of a region's socket: %s", strerror(errno));
    }
    return OK;
}

// With a timeout set, system calls fail with EINTR after the process was stopped and continued, even without a signal handler. On a
// Unix socket connect can then be called again.
static FALLIBLE send_token(int lease, const struct open_region_response *offer) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    _Static_assert(sizeof address.sun_path == sizeof offer->socket, "a path fits");
    memcpy(address.sun_path, offer->socket, sizeof address.sun_path);
    if (TEMP_FAILURE_RETRY(connect(lease, (const struct sockaddr *)&address, sizeof address)) != 0) {
        FAIL(EXPERTD_ERR_IO, "cannot connect to the daemon's region socket %s: %s (is its folder mounted here?)", offer->socket,
             strerror(errno));
    }
    if (TEMP_FAILURE_RETRY(send(lease, offer->token, sizeof offer->token, MSG_NOSIGNAL)) != (ssize_t)sizeof offer->token) {
        FAIL(EXPERTD_ERR_IO, "cannot send the region's token to %s: %s", offer->socket, strerror(errno));
    }
    return OK;
}

static FALLIBLE receive_descriptor(int lease, const char *path, int *out) {
    char byte;
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    union {
        char bytes[CMSG_SPACE(sizeof *out)];
        struct cmsghdr align;
    } control = {0};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    *out = -1;
    ssize_t got = TEMP_FAILURE_RETRY(recvmsg(lease, &message, MSG_CMSG_CLOEXEC));
    struct cmsghdr *header = got == 1 ? CMSG_FIRSTHDR(&message) : NULL;
    if (!header || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS ||
        header->cmsg_len != CMSG_LEN(sizeof *out)) {
        FAIL(EXPERTD_ERR_IO, "no region descriptor came from %s: %s", path, got < 0 ? strerror(errno) : "the daemon hung up");
    }
    memcpy(out, CMSG_DATA(header), sizeof *out);
    return OK;
}

// Checks the size first: access beyond the end of a shorter file raises SIGBUS.
static FALLIBLE map_region(int fd, uint64_t bytes, uint8_t **out) {
    struct stat file;
    if (fstat(fd, &file) != 0 || file.st_size < 0 || (uint64_t)file.st_size != bytes) {
        FAIL(EXPERTD_ERR_IO, "the daemon's region does not have the %" PRIu64 " bytes that were requested", bytes);
    }
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
        FAIL(EXPERTD_ERR_NOMEM, "cannot map a region of %" PRIu64 " bytes: %s", bytes, strerror(errno));
    }
    *out = data;
    return OK;
}

FALLIBLE client_region_fetch(const struct open_region_response *offer, uint64_t bytes, int64_t timeout_us,
                             struct client_region *out) {
    *out = (struct client_region){0};
    int fd = -1, lease = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    err_t e;
    if (lease < 0) {
        FAIL(EXPERTD_ERR_IO, "cannot create a socket: %s", strerror(errno));
    }
    TRY_OUT(e, set_timeout(lease, timeout_us));
    TRY_OUT(e, send_token(lease, offer));
    TRY_OUT(e, receive_descriptor(lease, offer->socket, &fd));
    TRY_OUT(e, map_region(fd, bytes, &out->data));
    out->id = offer->region;
    out->bytes = bytes;
    out->lease = lease;
    lease = -1;
out:
    if (fd >= 0) {
        close(fd);
    }
    if (lease >= 0) {
        close(lease);
    }
    return e;
}

FALLIBLE client_region_open(struct client *client, uint64_t bytes, int64_t timeout_us, struct client_region *out) {
    struct open_region_response offer;
    *out = (struct client_region){0};
    TRY(client_offer_region(client, bytes, timeout_us, &offer));
    return client_region_fetch(&offer, bytes, timeout_us, out);
}

void client_region_close(struct client_region *region) {
    if (region->bytes > 0) {
        munmap(region->data, region->bytes);
        close(region->lease);
    }
    *region = (struct client_region){0};
}
