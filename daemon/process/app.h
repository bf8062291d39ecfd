// The running daemon. main.c creates its parts in order of dependency and destroys them in reverse order; app.c handles the events
// in between: load, drain, shutdown. Loop thread only, except `loaded` and `load_error`, which belong to the loader thread while it
// runs.
#ifndef EXPERTD_DAEMON_PROCESS_APP_H
#define EXPERTD_DAEMON_PROCESS_APP_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/admin/admin.h"
#include "daemon/config/options.h"
#include "daemon/grpc/rpc.h"
#include "daemon/http/http.h"
#include "daemon/listen/tcp_listener.h"
#include "daemon/listen/unix_listener.h"
#include "daemon/process/event_loop.h"
#include "daemon/process/loading.h"
#include "daemon/regions/region_socket.h"
#include "daemon/serve/health.h"
#include "daemon/serve/service.h"
#include "daemon/shard/shard.h"
#include "daemon/shard_view/shard_view.h"
#include "daemon/status/status.h"
#include "daemon/tls/tls_watch.h"

enum app_phase {
    APP_LOADING,
    APP_LOAD_FAILED,
    APP_SERVING,
    APP_DRAINING,      // new requests are refused; running ones finish
    APP_DISCONNECTING, // streams and watches end, then connections are shut down
    APP_CLOSING,       // the transport shuts down
    APP_CLOSED,
};

struct app {
    struct options options;
    enum app_phase phase;
    int exit_code;
    struct event_loop *loop;
    int64_t notice_until_ns;                 // APP_DRAINING lasts at least until then, so that new calls are refused with DRAINING
    int64_t drain_deadline_ns;               // running requests are cancelled
    int64_t hang_up_ns, disconnect_until_ns; // of APP_DISCONNECTING: earliest time to shut connections down; latest end
    int64_t goaway_deadline_ns;              // of APP_CLOSING: remaining connections are closed
    bool hung_up, cancelled, rpc_is_down, admin_is_down;
    struct serve *serve;
    struct shard_service *shard; // of --role shard; NULL: a front
    struct tls_store *tls;       // NULL: no TLS files
    struct tls_watch *tls_watch;
    struct rpc_server *rpc;
    struct health *health;
    struct http_server *http;
    struct listeners listeners;
    uint64_t unix_peers;             // connections accepted so far on Unix sockets
    struct region_registry *regions; // NULL: shared memory is off
    struct region_socket *region_socket;
    char region_path[REGION_SOCKET_PATH_MAX];
    char admin_address[5 + UNIX_PATH_BYTES_MAX]; // "unix:PATH" with an absolute path
    struct admin *admin;                         // NULL: --admin off
    struct unix_listener *admin_listener;
    struct tcp_listener *admin_tcp_listener;
    struct shard_view shard_view; // with --shard-hosts
    struct status status;
    // owned by the loader thread until it has ended
    pthread_t loader;
    struct loaded loaded;
    struct err_copy load_error; // EXPERTD_ERR_OK: loaded
};

// The callbacks for event_loop_create.
struct event_loop_handler app_handler(struct app *app);

// Starts the loader thread, which posts EVENT_LOOP_LOADED when it ends.
FALLIBLE app_start_loading(struct app *app);

// Begins the orderly shutdown with this exit code: health becomes NOT_SERVING, new requests are refused, running ones finish,
// streams and watches end, the transport shuts down. A second call cancels the running requests.
void app_begin_drain(struct app *app, int exit_code);

#endif
