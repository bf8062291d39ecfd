// The Unix socket, separate from the main one, on which clients fetch the descriptors of their regions. Protocol: a client
// connects, sends a region's token (16 bytes, nothing else) and receives one byte with the region's descriptor. The connection then
// stays open as the owner's lease: when it ends for any reason, the region is closed; when the region is closed, the connection
// ends. A client that sends anything else, a wrong token, or nothing within REGION_SOCKET_WAIT_NS is disconnected without an
// answer. Loop thread only.
#ifndef EXPERTD_DAEMON_REGIONS_REGION_SOCKET_H
#define EXPERTD_DAEMON_REGIONS_REGION_SOCKET_H

#include <stdbool.h>

#include "base/err.h"
#include "daemon/listen/unix_listener.h"
#include "daemon/regions/region.h"

enum { REGION_SOCKET_PATH_MAX = UNIX_PATH_BYTES_MAX };

#define REGION_SOCKET_WAIT_NS (INT64_C(5) * NS_PER_S)

struct region_socket;

struct region_socket_options {
    void *loop;                       // uv_loop_t *
    const char *path;                 // from region_socket_path
    const char *allow_uids;           // see unix_listener.h
    struct region_registry *registry; // borrowed until region_socket_stop; the socket sets its watch callback
    uint32_t max_regions;             // bound on leases; a few more connections may exist that have not sent their token yet
};

// "PATH.regions" for the main socket's PATH, as an absolute path. False: too long for a socket.
bool region_socket_path(const char *main_path, char out[REGION_SOCKET_PATH_MAX]);

// Errors of unix_listener_start. Before other threads offer or close regions.
FALLIBLE region_socket_start(const struct region_socket_options *options, struct region_socket **out);
// Closes the listening socket and removes its file; leases stay open. NULL is legal.
void region_socket_refuse(struct region_socket *socket);
// Ends every lease. The memory is freed later on the loop. No other thread may use the registry from here. NULL is legal.
void region_socket_stop(struct region_socket *socket);

#endif
