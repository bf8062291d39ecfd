// expertctl drain.
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/c/address.h"
#include "client/c/admin.h"
#include "client/expertctl/commands.h"
#include "client/expertctl/print/json_out.h"

// The process that listens on a Unix socket; 0 if it is in another PID namespace.
static FALLIBLE listener_of(const struct address *address, pid_t *out) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    memcpy(name.sun_path, address->path, strlen(address->path)); // sun_path is zeroed, and the path leaves space for the terminator
    struct ucred peer = {0};
    socklen_t length = sizeof peer;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool failed =
        fd < 0 || connect(fd, (struct sockaddr *)&name, sizeof name) || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length);
    int why = errno;
    if (fd >= 0) {
        close(fd);
    }
    if (failed) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "no daemon answers at %s: %s", address->text, strerror(why));
    }
    *out = peer.pid;
    return OK;
}

// A pidfd of the daemon's process: it reports the process's end even if the pid is reused.
static FALLIBLE open_process(const char *text, int *out) {
    struct address address;
    TRY(address_parse(text, &address));
    if (!address.is_unix) {
        FAIL(EXPERTD_ERR_USAGE, "--wait needs the daemon's Unix socket, and %s is not one: give --admin unix:PATH", text);
    }
    pid_t pid = 0;
    TRY(listener_of(&address, &pid));
    *out = pid ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
    if (*out < 0) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "--wait: the daemon's process cannot be watched from here (%s): leave --wait out",
             pid ? strerror(errno) : "it is in another namespace");
    }
    return OK;
}

static FALLIBLE await_end(int process) {
    struct pollfd event = {.fd = process, .events = POLLIN};
    int ready;
    while ((ready = poll(&event, 1, -1)) < 0 && errno == EINTR) {
    }
    if (ready < 0) {
        FAIL(EXPERTD_ERR_IO, "--wait: %s", strerror(errno));
    }
    return OK;
}

static FALLIBLE print(const struct ctl_options *options, const char *address, uint64_t active) {
    if (options->json) {
        return json_print_take(
            json_pack("{s:o, s:I, s:b}", "address", json_text(address), "active", (json_int_t)active, "ended", options->wait));
    }
    if (options->wait) {
        printf("drained: the daemon has ended\n");
    } else {
        printf("draining: %" PRIu64 " requests under way\n", active);
    }
    return OK;
}

FALLIBLE command_drain(struct client *client, const struct ctl_options *options) {
    int process = -1;
    uint64_t active;
    if (options->wait) {
        TRY(open_process(client_address(client), &process)); // before the daemon can exit
    }
    err_t e = client_drain(client, options->reason ? options->reason : "", options->timeout_us, &active);
    if (!err_is(e) && options->wait) {
        e = await_end(process);
    }
    if (process >= 0) {
        close(process);
    }
    return err_is(e) ? e : print(options, client_address(client), active);
}
