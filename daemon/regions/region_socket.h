// Where callers fetch their regions: a Unix socket beside the main one. A client connects, sends a region's token (16 bytes,
// nothing else) and gets one byte with the region's descriptor. The connection stays open from then on as the owner's lease: when
// it ends, however it ends, the region is closed; when the region is closed, it ends. Whoever sends anything else, another token or
// nothing within REGION_SOCKET_WAIT_NS is cut off without a word. Loop thread only.
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
    const char *allow_uids;           // as unix_listener.h has it
    struct region_registry *registry; // borrowed until region_socket_stop; watched by the socket
    uint32_t max_regions;             // so many leases, and a few connections more that have yet to send their token
};

// "PATH.regions" for a main socket's path, made absolute for clients in other folders. False: too long for a socket.
bool region_socket_path(const char *main_path, char out[REGION_SOCKET_PATH_MAX]);

// Errors as unix_listener_start. Before other threads offer or close regions.
FALLIBLE region_socket_start(const struct region_socket_options *options, struct region_socket **out);
// Takes no more connections and removes its file; leases stay. NULL is legal.
void region_socket_refuse(struct region_socket *socket);
// Ends every lease; its memory goes on the loop afterwards. No other thread uses the registry any more. NULL is legal.
void region_socket_stop(struct region_socket *socket);

#endif
