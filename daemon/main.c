// expertd: creates the daemon's parts in order of dependency, runs its event loop and destroys the parts in reverse order.
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mapped.h"
#include "base/process/standard_output.h"
#include "base/process/surroundings.h"
#include "daemon/config/options_address.h"
#include "daemon/config/options_conflict.h"
#include "daemon/config/options_transport.h"
#include "daemon/examine/inspect.h"
#include "daemon/examine/verify.h"
#include "daemon/log/log.h"
#include "daemon/process/app.h"
#include "daemon/status/own_process.h"
#include "expert/synthetic/synthetic.h"

enum {
    ADMIN_CONNECTIONS = 32,
    HTTP_CONNECTIONS = 64,
    RESERVED_DESCRIPTORS = 256, // for files, HTTP, the admin socket and gRPC itself
    // Below these the C++ runtime of gRPC may end the process: stacks and allocator arenas of its threads, before any model.
    ADDRESS_SPACE_MIN = 512 << 20,
    WRITABLE_MIN = 256 << 20,
};

static int report(err_t e) {
    fprintf(stderr, "expertd: %s\n", expertd_err_message());
    return err_exit_code(e.code);
}

// Only the loop thread receives signals: threads that are created while signals are blocked inherit the mask.
static void block_signals(int how) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGCHLD);
    pthread_sigmask(how, &set, NULL);
}

static void log_option(void *context, const char *key, const char *value, const char *origin) {
    (void)context;
    char quoted[512], from[512];
    log_line(LOG_LEVEL_INFO, "option", "key=%s value=%s origin=%s", key, log_quote(value, quoted, sizeof quoted),
             log_quote(origin, from, sizeof from));
}

static void start_log(const struct options *options) {
    enum log_level level = LOG_LEVEL_INFO;
    (void)log_level_parse(options->log_level, &level); // options_parse has checked the text
    log_init(level, options->journal);
    log_line(LOG_LEVEL_INFO, "start", "version=%s pid=%d", EXPERTD_VERSION, (int)getpid());
    options_each(options, log_option, NULL);
}

// ---- listening

static void log_adopt_failed(const char *peer) {
    char quoted[2 * EXPERTD_ERR_MESSAGE_MAX];
    log_line(LOG_LEVEL_WARNING, "adopt_failed", "peer=%s message=%s", peer,
             log_quote(expertd_err_message(), quoted, sizeof quoted));
}

static void adopt(struct app *app, int fd, const char *peer) {
    err_t e = rpc_adopt(app->rpc, fd, peer);
    if (err_is(e)) {
        log_adopt_failed(peer);
    } else {
        log_line(LOG_LEVEL_DEBUG, "connected", "peer=%s", peer);
    }
}

// A peer of a Unix socket has no address. The number makes its name unique although descriptors are reused: regions may outlive
// their connection, and the next peer with the same descriptor must not be counted as their owner.
static void name_unix_peer(struct app *app, int fd, uid_t uid, char out[RPC_PEER_MAX]) {
    snprintf(out, RPC_PEER_MAX, "unix:uid=%u,fd=%d,number=%" PRIu64, (unsigned)uid, fd, ++app->unix_peers);
}

static void on_unix_peer(void *context, int fd, uid_t uid) {
    char peer[RPC_PEER_MAX];
    name_unix_peer(context, fd, uid, peer);
    adopt(context, fd, peer);
}

static void on_tcp_peer(void *context, int fd, const char *peer) {
    adopt(context, fd, peer);
}

static void on_tls_peer(void *context, int fd, const char *peer) {
    struct app *app = context;
    err_t e = rpc_adopt_tls(app->rpc, fd, peer);
    if (err_is(e)) {
        log_adopt_failed(peer);
    } else {
        log_line(LOG_LEVEL_DEBUG, "connected", "peer=%s tls=true", peer);
    }
}

static bool has_called(void *context, int fd) {
    struct app *app = context;
    return rpc_has_called(app->rpc, fd);
}

// The connection limit of each address: max_connections, or less if the descriptor limit does not leave enough.
static unsigned connections_per_address(const struct options *o) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        return o->max_connections;
    }
    rlim_t reserved = RESERVED_DESCRIPTORS + 2 * (rlim_t)o->max_regions;
    rlim_t left = limit.rlim_cur > 2 * reserved ? limit.rlim_cur - reserved : limit.rlim_cur / 2;
    rlim_t each = left / (o->listen_count ? o->listen_count : 1);
    each -= o->tls_cert ? each / 3 : 0; // for connections that are being closed: acceptor_closing_max
    if (each >= o->max_connections) {
        return o->max_connections;
    }
    unsigned bound = each > 0 ? (unsigned)each : 1;
    log_line(LOG_LEVEL_WARNING, "max_connections_lowered",
             "from=%u to=%u message=\"the process may open %llu files: raise its limit (LimitNOFILE, ulimit -n)\"",
             o->max_connections, bound, (unsigned long long)limit.rlim_cur);
    return bound;
}

static void log_address(const char *event, const char *address) {
    char quoted[512];
    log_line(LOG_LEVEL_INFO, event, "address=%s", log_quote(address, quoted, sizeof quoted));
}

static FALLIBLE listen_unix(struct app *app, const char *address, unsigned max_connections, struct unix_listener **out) {
    struct unix_listener_options options = {
        .loop = event_loop_uv(app->loop),
        .path = address + strlen("unix:"),
        .allow_uids = app->options.allow_uids,
        .max_connections = max_connections,
        .accepted = on_unix_peer,
        .context = app,
    };
    TRY(unix_listener_start(&options, out));
    log_address("listening", address);
    return OK;
}

static FALLIBLE listen_tcp(struct app *app, const char *address, unsigned max_connections, struct tcp_listener **out) {
    bool tls = app->options.tls_cert != NULL;
    struct tcp_listener_options options = {.loop = event_loop_uv(app->loop),
                                           .address = address,
                                           .max_connections = max_connections,
                                           .accepted = tls ? on_tls_peer : on_tcp_peer,
                                           .unproven_ns = tls ? RPC_HANDSHAKE_MS * (int64_t)NS_PER_MS : 0,
                                           .is_proven = tls ? has_called : NULL,
                                           .context = app};
    unsigned port;
    TRY(tcp_listener_start(&options, out, &port));
    log_line(LOG_LEVEL_INFO, "listening", "address=%.*s:%u tls=%s", (int)(strrchr(address, ':') - address), address, port,
             !tls                         ? "false"
             : app->options.tls_client_ca ? "mutual"
                                          : "true");
    return OK;
}

static FALLIBLE listen_for_callers(struct app *app) {
    unsigned max_connections = connections_per_address(&app->options);
    for (size_t i = 0; i < app->options.listen_count; i++) {
        const char *address = app->options.listen[i];
        TRY(strncmp(address, "unix:", strlen("unix:")) == 0 ? listen_unix(app, address, max_connections, &app->listeners.on_unix[i])
                                                            : listen_tcp(app, address, max_connections, &app->listeners.on_tcp[i]));
    }
    return OK;
}

// Shared memory is available to callers of a front on Unix sockets. The regions socket is created next to the first of them.
static FALLIBLE share_regions(struct app *app) {
    const struct options *o = &app->options;
    size_t first = 0;
    while (first < o->listen_count && strncmp(o->listen[first], "unix:", 5) != 0) {
        first++;
    }
    if (first == o->listen_count || o->max_region_bytes == 0 || app->shard) {
        return OK;
    }
    if (!region_socket_path(o->listen[first] + 5, app->region_path)) {
        char quoted[EXPERTD_ERR_MESSAGE_MAX];
        log_line(LOG_LEVEL_WARNING, "regions_off",
                 "socket=%s message=\"the path with .regions is too long for a socket: shared memory is off\"",
                 log_quote(o->listen[first] + 5, quoted, sizeof quoted));
        return OK;
    }
    uint32_t each = o->max_regions * o->max_connection_share / 100; // at most 4096 * 100
    struct region_limits limits = {
        .max_bytes = o->max_region_bytes, .max_regions = o->max_regions, .max_regions_each = each > 0 ? each : 1};
    TRY(region_registry_create(&limits, &app->regions));
    serve_share(app->serve, app->regions, app->region_path);
    return OK;
}

static FALLIBLE listen_regions(struct app *app) {
    if (!app->regions) {
        return OK;
    }
    struct region_socket_options options = {.loop = event_loop_uv(app->loop),
                                            .path = app->region_path,
                                            .allow_uids = app->options.allow_uids,
                                            .registry = app->regions,
                                            .max_regions = app->options.max_regions};
    return region_socket_start(&options, &app->region_socket);
}

// Unix sockets have no names in certificates: allow_uids applies to them.
static struct rpc_tls tls_of(const struct app *app) {
    const struct options *o = &app->options;
    return (struct rpc_tls){.store = o->tls_cert ? app->tls : NULL,
                            .allowed = {[RPC_ROLE_CALLER] = o->tls_allow_callers,
                                        [RPC_ROLE_FRONT] = o->tls_allow_fronts,
                                        [RPC_ROLE_ADMIN] = o->tls_allow_admins}};
}

static uint64_t active_requests(void *context) {
    struct app *app = context;
    return serve_active(app->serve);
}

static void on_drain_requested(void *context) {
    struct app *app = context;
    event_loop_post(app->loop, EVENT_LOOP_DRAIN);
}

static void on_admin_peer(void *context, int fd, uid_t uid) {
    struct app *app = context;
    char peer[RPC_PEER_MAX];
    name_unix_peer(app, fd, uid, peer);
    err_t e = admin_adopt(app->admin, fd, peer);
    if (err_is(e)) {
        log_adopt_failed(peer);
    }
}

static bool has_admin(const struct options *options) {
    return strcmp(options->admin, "off") != 0;
}

static void on_admin_tls_peer(void *context, int fd, const char *peer) {
    struct app *app = context;
    err_t e = admin_adopt_tls(app->admin, fd, peer);
    if (err_is(e)) {
        log_adopt_failed(peer);
    }
}

static bool admin_called(void *context, int fd) {
    struct app *app = context;
    return admin_has_called(app->admin, fd);
}

// Only this user and root may connect to the admin socket, regardless of --allow-uids.
static FALLIBLE listen_admin_unix(struct app *app) {
    struct unix_listener_options options = {
        .loop = event_loop_uv(app->loop),
        .path = app->options.admin + strlen("unix:"),
        .allow_uids = "self",
        .max_connections = ADMIN_CONNECTIONS,
        .mode = 0600,
        .accepted = on_admin_peer,
        .context = app,
    };
    TRY(unix_listener_start(&options, &app->admin_listener));
    log_address("admin", app->options.admin);
    return OK;
}

static FALLIBLE listen_admin_tcp(struct app *app) {
    const char *address = app->options.admin;
    struct tcp_listener_options options = {.loop = event_loop_uv(app->loop),
                                           .address = address,
                                           .max_connections = ADMIN_CONNECTIONS,
                                           .accepted = on_admin_tls_peer,
                                           .unproven_ns = RPC_HANDSHAKE_MS * (int64_t)NS_PER_MS,
                                           .is_proven = admin_called,
                                           .context = app};
    unsigned port;
    TRY(tcp_listener_start(&options, &app->admin_tcp_listener, &port));
    log_line(LOG_LEVEL_INFO, "admin", "address=%.*s:%u tls=mutual", (int)(strrchr(address, ':') - address), address, port);
    return OK;
}

static FALLIBLE listen_admin(struct app *app) {
    if (!has_admin(&app->options)) {
        return OK;
    }
    bool on_unix = options_unix_path(app->options.admin) != NULL;
    struct admin_options admin = {.active = active_requests, .drain = on_drain_requested, .context = app};
    if (app->options.shard_hosts) {
        admin.shards = (struct admin_shards){&app->shard_view, shard_view_list, shard_view_change};
    }
    if (on_unix) {
        admin.watcher = app->rpc;
    } else {
        admin.tls = tls_of(app);
    }
    TRY(admin_create(&admin, &app->admin));
    return on_unix ? listen_admin_unix(app) : listen_admin_tcp(app);
}

static FALLIBLE listen_http(struct app *app) {
    if (strcmp(app->options.http, "off") == 0) {
        return OK;
    }
    struct http_options options = {
        .loop = event_loop_uv(app->loop),
        .address = app->options.http,
        .page = status_page,
        .context = &app->status,
        .max_connections = HTTP_CONNECTIONS,
        .timeout_ms = 10000,
    };
    unsigned port;
    TRY(http_start(&options, &app->http, &port));
    const char *colon = strrchr(app->options.http, ':');
    log_line(LOG_LEVEL_INFO, "http", "address=%.*s:%u", (int)(colon - app->options.http), app->options.http, port);
    return OK;
}

// ---- start and end

// The admin address with an absolute path, because callers may be in another folder. NULL: there is no admin socket. If the
// absolute path is too long, the address is returned as it was given.
static const char *absolute_admin_address(struct app *app) {
    const char *given = app->options.admin;
    char path[UNIX_PATH_BYTES_MAX];
    if (!has_admin(&app->options)) {
        return NULL;
    }
    if (!options_unix_path(given) || !unix_path_absolute(options_unix_path(given), "", path)) {
        return given;
    }
    snprintf(app->admin_address, sizeof app->admin_address, "unix:%s", path);
    return app->admin_address;
}

static struct serve_options serve_options_of(struct app *app) {
    const struct options *o = &app->options;
    return (struct serve_options){
        .rpc_threads = o->rpc_threads,
        .max_message_bytes = o->max_message_bytes,
        .max_inflight = o->max_inflight,
        .admission = {.max_calls = o->max_calls,
                      .read_slots = o->read_slots,
                      .max_streams = o->max_streams,
                      .max_queue = o->max_queue,
                      .max_queue_bytes = o->max_queue_bytes,
                      .share_percent = o->max_connection_share},
        .backlog = {.batch_tokens = o->max_batch_tokens, .batch_requests = BATCH_REQUESTS_MAX, .piece_tokens = o->max_piece_tokens},
        .send_timeout_ns = (int64_t)o->send_timeout_ms * NS_PER_MS,
        .shard = app->shard,
        .admin = absolute_admin_address(app),
    };
}

_Static_assert((int)OPTIONS_RPC_THREADS_MAX == (int)RPC_THREADS_MAX, "the greatest --rpc-threads");

static FALLIBLE read_tls_files(const struct options *o, struct tls_store **out) {
    struct tls_paths paths = {.cert = o->tls_cert, .key = o->tls_key, .ca = o->tls_ca, .client_ca = o->tls_client_ca};
    *out = NULL;
    return paths.cert || paths.ca ? tls_store_create(&paths, out) : OK;
}

static FALLIBLE start_tls(struct app *app) {
    TRY(read_tls_files(&app->options, &app->tls));
    return app->tls ? tls_watch_start(event_loop_uv(app->loop), app->tls, &app->tls_watch) : OK;
}

static void log_exposed(const struct options *options) {
    enum options_key key;
    const char *address;
    for (size_t i = 0; (address = options_exposed(options, i, &key)); i++) {
        log_line(LOG_LEVEL_WARNING, "insecure",
                 "option=%s address=%s message=\"anyone who reaches this address can use it, and nothing on it is encrypted\"",
                 OPTIONS_ROWS[key].name, address);
    }
}

// The service of --role shard, whose two methods the server then has besides the others.
static FALLIBLE create_shard(struct app *app) {
    const struct options *o = &app->options;
    struct shard_options shard = {
        .rpc_threads = o->rpc_threads, .max_fronts = o->max_fronts, .send_timeout_ns = (int64_t)o->send_timeout_ms * NS_PER_MS};
    return options_is_shard(o) ? shard_create(&shard, &app->shard) : OK;
}

static FALLIBLE create_server(struct app *app) {
    const struct options *o = &app->options;
    struct rpc_options rpc = {.threads = o->rpc_threads,
                              .max_message_bytes = o->max_message_bytes,
                              .max_calls = o->max_calls,
                              .handler = serve_handler(app->serve),
                              .is_urgent = app->shard || o->shard_hosts, // any polling thread may receive a heartbeat
                              .tls = tls_of(app)};
    if (app->shard) {
        rpc.plane = RPC_PLANE_SHARD;
        rpc.max_transport_bytes = rpc_transport_bytes(&rpc); // for more fronts and streams than the smaller messages would allow
        rpc.max_message_bytes = o->max_message_bytes < SHARD_MESSAGE_MAX ? o->max_message_bytes : SHARD_MESSAGE_MAX;
        rpc.handler = shard_handler(app->shard, rpc.handler);
    }
    TRY(rpc_create(&rpc, &app->rpc));
    if (app->shard) {
        shard_attach(app->shard, app->rpc);
    }
    return OK;
}

static FALLIBLE build(struct app *app) {
    const struct options *o = &app->options;
    struct event_loop_handler events = app_handler(app);
    log_exposed(o);
    shard_view_init(&app->shard_view);
    TRY(loading_select_kernels(o));
    TRY(event_loop_create(&events, &app->loop));
    TRY(start_tls(app));
    TRY(create_shard(app));
    struct serve_options serve = serve_options_of(app);
    TRY(serve_create(&serve, &app->serve));
    TRY(create_server(app));
    TRY(health_create(app->rpc, o->rpc_threads, &app->health));
    serve_attach(app->serve, app->rpc, app->health);
    app->status = (struct status){.serve = app->serve,
                                  .shard = app->shard,
                                  .model_asked = o->model,
                                  .threads = o->threads,
                                  .started_ns = clock_now_ns(),
                                  .backend = "",
                                  .own_process = own_process_open(),
                                  .rpc = app->rpc,
                                  .listeners = &app->listeners,
                                  .shards = o->shard_hosts ? &app->shard_view : NULL,
                                  .tls = app->tls};
    TRY(share_regions(app));
    TRY(rpc_start(app->rpc));
    TRY(listen_for_callers(app));
    TRY(listen_regions(app)); // the registry is not in use before the model is loaded
    TRY(listen_admin(app));
    TRY(listen_http(app));
    return app_start_loading(app);
}

static void take_down(struct app *app) {
    admin_destroy(app->admin);
    rpc_return_memory(app->rpc);
    shard_stop(app->shard); // its threads use the transport's messages and what was loaded
    loading_unload(&app->loaded);
    shard_view_deinit(&app->shard_view);
    rpc_destroy(app->rpc);
    shard_destroy(app->shard);
    health_destroy(app->health);
    serve_destroy(app->serve);
    region_registry_destroy(app->regions);
    event_loop_destroy(app->loop);
    tls_store_destroy(app->tls);
    own_process_close(app->status.own_process);
}

static int serve_until_the_end(struct app *app) {
    block_signals(SIG_BLOCK);
    err_t e = surroundings_check_memory(ADDRESS_SPACE_MIN, WRITABLE_MIN);
    e = err_is(e) ? e : mapped_install_handler();
    if (!err_is(e)) {
        e = build(app);
    }
    if (err_is(e)) { // nothing has been served; the exit frees everything except socket files
        char quoted[2 * EXPERTD_ERR_MESSAGE_MAX];
        log_line(LOG_LEVEL_ERROR, "start_failed", "message=%s", log_quote(expertd_err_message(), quoted, sizeof quoted));
        for (size_t i = 0; i < OPTIONS_LISTEN_MAX; i++) {
            unix_listener_stop(app->listeners.on_unix[i]);
        }
        region_socket_refuse(app->region_socket);
        unix_listener_stop(app->admin_listener);
        _exit(err_exit_code(e.code));
    }
    block_signals(SIG_UNBLOCK);
    event_loop_run(app->loop);
    take_down(app);
    log_line(LOG_LEVEL_INFO, "stopped", "exit=%d", app->exit_code);
    return app->exit_code;
}

// The options are valid here. Checks the name of a synthetic model too; the files of a checkpoint are not opened.
static int check_config(const struct options *options) {
    if (options->model && synthetic_is(options->model)) {
        struct layer_tensors_options layers = {
            .have_layers = options->have_layers, .first_layer = options->first_layer, .last_layer = options->last_layer};
        struct supply supply;
        err_t e = synthetic_supply(options->model, &layers, &supply);
        if (err_is(e)) {
            return report(e);
        }
        supply_close(&supply);
    }
    struct tls_store *tls;
    err_t e = read_tls_files(options, &tls);
    if (err_is(e)) {
        return report(e);
    }
    tls_store_destroy(tls);
    printf("the configuration is valid%s\n",
           options->model ? "" : ", but has no model: set --model or EXPERTD_MODEL to start the daemon");
    return 0;
}

// Handles the switches that print or check something. Returns the exit code; -1: serve.
static int handle_switches(const struct options *options) {
    if (options->help) {
        options_print_help(stdout);
        return 0;
    }
    if (options->version) {
        printf("expertd %s\n", EXPERTD_VERSION);
        return 0;
    }
    if (options->print_config) {
        options_print(options, stdout);
        return 0;
    }
    if (options->inspect) {
        return examine_inspect(options);
    }
    if (options->verify) {
        return examine_verify(options);
    }
    return options->check_config ? check_config(options) : -1;
}

static bool has_word(int argc, char *const *argv, const char *word) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], word) == 0) {
            return true;
        }
    }
    return false;
}

// The options could not be read. --inspect --json prints one object in any case.
static int report_start(err_t e, int argc, char *const *argv) {
    if (has_word(argc, argv, "--inspect") && has_word(argc, argv, "--json")) {
        examine_inspect_error(e);
    }
    return report(e);
}

int main(int argc, char **argv) {
    static struct app app; // static, because handles of the loop live in it
    err_t e = surroundings_prepare();
    e = err_is(e) ? e : options_parse(argc, argv, environ, &app.options);
    int code = err_is(e) ? report_start(e, argc, argv) : handle_switches(&app.options);
    e = code == 0 ? standard_output_flush() : OK;
    code = err_is(e) ? report(e) : code;
    if (code < 0) {
        start_log(&app.options);
        code = serve_until_the_end(&app);
    }
    options_deinit(&app.options);
    return code;
}
