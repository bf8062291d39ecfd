#include "daemon/process/app.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory_cause.h"
#include "daemon/front/front_status.h"
#include "daemon/log/log.h"
#include "daemon/process/loading_shard.h"
#include "daemon/process/notify.h"
#include "expert/engine/engine.h"
#include "expertd/kernels/kernel_select.h"

enum {
    DRAIN_STEP_MS = 10,
    NOTICE_MS = 200,     // least duration of a drain with connected clients; new calls fail with DRAINING meanwhile
    LAST_STATUS_MS = 20, // for the final statuses of watches to be sent
    DISCONNECT_MS = 500, // for streams to end, and again for clients to disconnect
    GOAWAY_MS = 1000,    // for a client to react to GOAWAY; gRPC itself waits 20 s
};

// ---- loading

// Runs on the compute thread.
static void device_lost(void *context) {
    struct app *app = context;
    event_loop_post(app->loop, EVENT_LOOP_LOST);
}

static void *loader_main(void *context) {
    struct app *app = context;
    struct loading_listener listener = {.lost = device_lost, .context = app, .tls = app->tls, .shard_view = &app->shard_view};
    err_t e = app->shard ? loading_load_shard(&app->options, app->shard, &app->loaded)
                         : loading_load(&app->options, app->serve, &listener, &app->loaded);
    err_save(e, &app->load_error);
    event_loop_post(app->loop, EVENT_LOOP_LOADED);
    return NULL;
}

FALLIBLE app_start_loading(struct app *app) {
    int error = pthread_create(&app->loader, NULL, loader_main, app);
    if (error) {
        char cause[MEMORY_CAUSE_MAX];
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot start the loader thread: %s", memory_cause_of_thread(error, cause));
    }
    return OK;
}

// Lets the transport receive messages in the pinned memory. If that fails, messages use ordinary memory and the engine copies rows.
static void share_request_memory(struct app *app) {
    const struct request_memory *memory = &app->loaded.request_memory;
    err_t e = memory->bytes > 0 ? rpc_borrow_memory(app->rpc, memory->memory, memory->bytes) : OK;
    if (err_is(e)) {
        char quoted[2 * EXPERTD_ERR_MESSAGE_MAX];
        log_line(LOG_LEVEL_WARNING, "request_memory_unused", "message=%s", log_quote(expertd_err_message(), quoted, sizeof quoted));
    }
}

static bool shards_mend(void *context) {
    return front_mends(context);
}

static void begin_serving(struct app *app) {
    const struct loaded *loaded = &app->loaded;
    app->phase = APP_SERVING;
    app->status.model = &loaded->model;
    app->status.metrics = loaded->metrics;
    app->status.engine = loaded->engine;
    app->status.devices = loaded->devices;
    app->status.scratch_bytes = loaded->engine ? engine_scratch_bytes(loaded->engine) : 0;
    app->status.backend = loaded->devices ? loaded->devices->table->kind : expertd_kernel_selected_name();
    struct serve_backend backend = {
        .model = &loaded->model,
        .limits = loaded->request_limits,
        .worker = loaded->worker,
        .metrics = loaded->metrics,
        .engine = loaded->engine,
        .devices = loaded->devices,
        .mends = loaded->front ? shards_mend : NULL,
        .mends_context = loaded->front,
    };
    share_request_memory(app);
    serve_ready(app->serve, &backend);
    if (app->admin) {
        struct admin_backend admin = {
            .model = &loaded->model,
            .mover = {loaded->mover, mover_show, mover_plan, mover_apply, mover_placement_deinit}, // NULL on a shard
        };
        admin_ready(app->admin, &admin);
    }
    health_set_model(app->health, loaded->model.name);
    if (app->shard) {
        health_set_model(app->health, "expertd.shard.v1.Shard");
    }
    health_set_serving(app->health, true);
    char quoted[2 * EXPERTD_ERR_MESSAGE_MAX];
    log_line(LOG_LEVEL_INFO, "ready", "model=%s layers=%zu", log_quote(loaded->model.name, quoted, sizeof quoted),
             loaded->model.num_layers);
    notify_ready("serving");
}

static void load_ended(struct app *app) {
    pthread_join(app->loader, NULL);
    if (app->load_error.code == EXPERTD_ERR_OK) {
        begin_serving(app);
        return;
    }
    char quoted[2 * EXPERTD_ERR_MESSAGE_MAX];
    log_line(LOG_LEVEL_ERROR, "load_failed", "reason=%s message=%s", expertd_err_name(app->load_error.code),
             log_quote(app->load_error.message, quoted, sizeof quoted));
    app->phase = APP_LOAD_FAILED;
    app_begin_drain(app, err_exit_code(app->load_error.code));
}

// Such a CUDA error lasts as long as the process. The daemon reports not ready and keeps running, so that load balancers use other
// daemons and an operator or supervisor can restart this one.
static void report_device_lost(struct app *app) {
    log_line(LOG_LEVEL_ERROR, "device_lost", "answers=none mend=\"restart the service\"");
    app->status.lost = true;
    health_set_serving(app->health, false);
    notify_status("a device is lost: restart the service");
}

// ---- shutdown

static void rpc_went_down(void *context) {
    struct app *app = context;
    event_loop_post(app->loop, EVENT_LOOP_RPC_DOWN);
}

static void admin_went_down(void *context) {
    struct app *app = context;
    event_loop_post(app->loop, EVENT_LOOP_ADMIN_DOWN);
}

static void cut_connections(struct app *app) {
    app->cancelled = true;
    rpc_cancel_all(app->rpc);
    if (app->admin) {
        admin_cancel(app->admin);
    }
}

// Requests in progress; or of a shard, experts that a front could still place elsewhere.
static bool is_busy(const struct app *app) {
    return serve_active(app->serve) > 0 || (app->shard && !shard_is_drained(app->shard));
}

static uint32_t open_streams(const struct app *app) {
    return serve_counts(app->serve).streams + (app->shard ? shard_streams(app->shard) : 0);
}

static void end_streams(struct app *app) {
    serve_end_streams(app->serve);
    if (app->shard) {
        shard_end_streams(app->shard);
    }
}

static void cancel_running(struct app *app) {
    if (!app->cancelled) {
        log_line(LOG_LEVEL_WARNING, "drain_cancelled", "active=%llu", (unsigned long long)serve_active(app->serve));
        cut_connections(app);
    }
}

// Clients that send nothing would delay the exit. No request of theirs is running.
static void cut_silent_connections(struct app *app) {
    if (!app->cancelled && serve_active(app->serve) == 0 && clock_now_ns() >= app->goaway_deadline_ns) {
        log_line(LOG_LEVEL_INFO, "silent_connections_cut", "after_ms=%d", GOAWAY_MS);
        cut_connections(app);
    }
}

static void begin_disconnecting(struct app *app) {
    const int64_t now_ns = clock_now_ns();
    app->phase = APP_DISCONNECTING;
    app->hang_up_ns = clock_add_ns(now_ns, (int64_t)LAST_STATUS_MS * NS_PER_MS);
    app->disconnect_until_ns = clock_add_ns(now_ns, (int64_t)DISCONNECT_MS * NS_PER_MS);
    end_streams(app);
}

// During its shutdown gRPC cancels new calls with a status that tells a caller to give up. A closed connection tells it to try
// another daemon, so connections are shut down first, once all requests and streams have ended. Shutting down earlier would cut off
// the final statuses of streams whose client reads slowly.
static void hang_up(struct app *app) {
    const int64_t now_ns = clock_now_ns();
    if (app->hung_up || now_ns < app->hang_up_ns || serve_active(app->serve) > 0 || open_streams(app) > 0) {
        return;
    }
    for (size_t i = 0; i < OPTIONS_LISTEN_MAX; i++) {
        unix_listener_hang_up(app->listeners.on_unix[i]);
        tcp_listener_hang_up(app->listeners.on_tcp[i]);
    }
    app->hung_up = true;
    app->disconnect_until_ns = clock_add_ns(now_ns, (int64_t)DISCONNECT_MS * NS_PER_MS);
}

static void close_transport(struct app *app) {
    app->phase = APP_CLOSING;
    app->goaway_deadline_ns = clock_add_ns(clock_now_ns(), (int64_t)GOAWAY_MS * NS_PER_MS);
    rpc_shutdown(app->rpc, rpc_went_down, app);
    if (app->admin) {
        admin_shutdown(app->admin, admin_went_down, app);
    } else {
        app->admin_is_down = true;
    }
}

static void close_loop(struct app *app) {
    app->phase = APP_CLOSED;
    http_stop(app->http);
    app->http = NULL;
    region_socket_stop(app->region_socket);
    app->region_socket = NULL;
    tls_watch_stop(app->tls_watch);
    app->tls_watch = NULL;
    for (size_t i = 0; i < OPTIONS_LISTEN_MAX; i++) {
        unix_listener_stop(app->listeners.on_unix[i]);
        tcp_listener_stop(app->listeners.on_tcp[i]);
    }
    app->listeners = (struct listeners){0};
    event_loop_close(app->loop);
}

static void drain_step(struct app *app) {
    int64_t now_ns = clock_now_ns();
    bool late = now_ns >= app->drain_deadline_ns, noticed = now_ns >= app->notice_until_ns;
    if (app->phase == APP_DRAINING && ((!is_busy(app) && noticed) || late)) {
        begin_disconnecting(app);
    }
    if (app->phase == APP_DISCONNECTING) {
        hang_up(app);
        if (late || now_ns >= app->disconnect_until_ns || status_open_connections(&app->status) == 0) {
            close_transport(app);
        }
    }
    if (app->phase == APP_CLOSING && late) {
        cancel_running(app);
    }
    if (app->phase == APP_CLOSING && !(app->rpc_is_down && app->admin_is_down)) {
        cut_silent_connections(app);
    }
    // A cancelled request stays in its batch until the batch ends; its memory is needed until then.
    if (app->phase == APP_CLOSING && app->rpc_is_down && app->admin_is_down && serve_active(app->serve) == 0) {
        close_loop(app);
    }
}

// Region leases stay, because running requests may use their memory. The listeners stay for their counters: HTTP is served until
// the end, and a counter must not decrease.
static void stop_listening(struct app *app) {
    region_socket_refuse(app->region_socket);
    for (size_t i = 0; i < OPTIONS_LISTEN_MAX; i++) {
        unix_listener_refuse(app->listeners.on_unix[i]);
        tcp_listener_refuse(app->listeners.on_tcp[i]);
    }
    unix_listener_stop(app->admin_listener);
    app->admin_listener = NULL;
    tcp_listener_stop(app->admin_tcp_listener);
    app->admin_tcp_listener = NULL;
}

void app_begin_drain(struct app *app, int exit_code) {
    if (app->phase >= APP_DRAINING) { // second request: cancel at once
        app->drain_deadline_ns = 0;
        return;
    }
    bool loading = app->phase == APP_LOADING;
    app->exit_code = exit_code;
    notify_stopping("draining");
    log_line(LOG_LEVEL_INFO, "draining", "active=%llu", (unsigned long long)serve_active(app->serve));
    stop_listening(app);
    bool connected = status_open_connections(&app->status) > 0;
    if (loading) { // nothing is being served, and loading cannot be interrupted
        log_line(LOG_LEVEL_INFO, "stopped", "while=loading");
        _exit(exit_code);
    }
    app->phase = APP_DRAINING;
    app->drain_deadline_ns = clock_add_ns(clock_now_ns(), (int64_t)app->options.drain_timeout_ms * NS_PER_MS);
    app->notice_until_ns = clock_add_ns(clock_now_ns(), connected ? (int64_t)NOTICE_MS * NS_PER_MS : 0);
    health_set_serving(app->health, false);
    serve_drain(app->serve);
    if (app->shard) {
        shard_drain(app->shard);
    }
    event_loop_start_timer(app->loop, DRAIN_STEP_MS);
}

// ---- events of the loop

static void on_signal(void *context, int number) {
    log_line(LOG_LEVEL_INFO, "signal", "name=%s", number == SIGTERM ? "SIGTERM" : number == SIGINT ? "SIGINT" : "SIGHUP");
    app_begin_drain(context, 0);
}

static void on_message(void *context, enum event_loop_message message) {
    struct app *app = context;
    switch (message) {
    case EVENT_LOOP_LOADED:
        load_ended(app);
        break;
    case EVENT_LOOP_DRAIN:
        if (app->phase < APP_DRAINING) { // a second expertctl drain does not cancel running requests
            app_begin_drain(app, 0);
        }
        break;
    case EVENT_LOOP_RPC_DOWN:
        app->rpc_is_down = true;
        drain_step(app);
        break;
    case EVENT_LOOP_ADMIN_DOWN:
        app->admin_is_down = true;
        drain_step(app);
        break;
    case EVENT_LOOP_LOST:
        report_device_lost(app);
        break;
    case EVENT_LOOP_MESSAGES:
        break;
    }
}

static void on_timer(void *context) {
    drain_step(context);
}

struct event_loop_handler app_handler(struct app *app) {
    return (struct event_loop_handler){.context = app, .signalled = on_signal, .message = on_message, .timer = on_timer};
}
