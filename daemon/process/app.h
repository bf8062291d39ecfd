// The running daemon: what main.c builds bottom-up and takes down in reverse, and the loop thread's part in between. Loop thread
// only, but for the loader's own struct.
#ifndef EXPERTD_DAEMON_PROCESS_APP_H
#define EXPERTD_DAEMON_PROCESS_APP_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/admin/admin.h"
#include "daemon/config/options.h"
#include "daemon/grpc/rpc.h"
#include "daemon/http/http.h"
#include "daemon/http/status.h"
#include "daemon/listen/tcp_listener.h"
#include "daemon/listen/unix_listener.h"
#include "daemon/process/event_loop.h"
#include "daemon/process/loading.h"
#include "daemon/regions/region_socket.h"
#include "daemon/serve/health.h"
#include "daemon/serve/serve.h"

enum app_phase {
    APP_LOADING,
    APP_UNLOADED, // the load has failed: nothing was served
    APP_SERVING,
    APP_DRAINING, // no new requests; those under way finish
    APP_PARTING,  // streams and watches end, then connections
    APP_CLOSING,  // the transport shuts down
    APP_CLOSED,
};

struct app {
    struct options options;
    enum app_phase phase;
    int exit_code;
    struct event_loop *loop;
    int64_t notice_until_ns; // of a drain: callers who are connected are told until then
    int64_t drain_deadline_ns;
    int64_t hang_up_ns, parting_until_ns; // while APP_PARTING
    int64_t goodbye_deadline_ns;          // while APP_CLOSING
    bool hung_up, cancelled, rpc_is_down, admin_is_down;
    struct serve *serve;
    struct rpc_server *rpc;
    struct health *health;
    struct http_server *http;
    struct listeners listeners;
    uint64_t unix_peers;             // that have come so far
    struct region_registry *regions; // NULL: memory is not shared
    struct region_socket *region_socket;
    char region_path[REGION_SOCKET_PATH_MAX];
    char admin_address[5 + UNIX_PATH_BYTES_MAX]; // "unix:PATH" for callers in any folder
    struct admin *admin;                         // NULL: --admin off
    struct unix_listener *admin_listener;
    struct status status;
    // the loader's, until load_ended
    pthread_t loader;
    struct loaded loaded;
    struct err_copy load_error; // EXPERTD_ERR_OK: loaded
};

// What happens on the loop goes to app_*; for event_loop_create.
struct event_loop_handler app_handler(struct app *app);

// Starts the loader thread; EVENT_LOOP_LOADED follows on the loop.
FALLIBLE app_start_loading(struct app *app);

// Begins the orderly end with this exit code: NOT_SERVING, refuse new, finish running, end streams and watches, shut down. A second
// call gives the running requests up.
void app_begin_drain(struct app *app, int exit_code);

#endif
