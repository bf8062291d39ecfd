#include "daemon/serve/health.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "proto/control/control.h"

// One call of either method; on its thread only.
struct watch {
    struct health *health;
    struct rpc_call *call;
    unsigned thread;
    bool is_watch;
    char *service; // NULL until the request was read
    int sent;      // enum proto_serving, -1 before the first
    bool writing;
    LIST_ENTRY(watch) link;
};

struct health_thread {
    LIST_HEAD(, watch) watches;
    unsigned seen; // the version that was sent to its watches
};

struct health {
    struct rpc_server *server;
    unsigned thread_count;
    struct health_thread *threads;
    atomic_bool serving, ending;
    atomic_uint version;   // incremented by every change
    pthread_mutex_t mutex; // guards models[] and model_count; no other lock is taken under it
    char *models[HEALTH_MODELS_MAX];
    size_t model_count;
};

err_t health_create(struct rpc_server *server, unsigned threads, struct health **out) {
    struct health *health = calloc(1, sizeof *health);
    *out = NULL;
    if (!health || !(health->threads = calloc(threads, sizeof *health->threads))) {
        free(health);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the health service");
    }
    health->server = server;
    health->thread_count = threads;
    pthread_mutex_init(&health->mutex, NULL);
    for (unsigned i = 0; i < threads; i++) {
        LIST_INIT(&health->threads[i].watches);
    }
    *out = health;
    return OK;
}

void health_destroy(struct health *health) {
    if (!health) {
        return;
    }
    for (size_t i = 0; i < health->model_count; i++) {
        free(health->models[i]);
    }
    pthread_mutex_destroy(&health->mutex);
    free(health->threads);
    free(health);
}

// ---- the state

static void notify_threads(struct health *health) {
    atomic_fetch_add(&health->version, 1);
    for (unsigned i = 0; i < health->thread_count; i++) {
        rpc_wake(health->server, i);
    }
}

static bool has_model(struct health *health, const char *name) {
    for (size_t i = 0; i < health->model_count; i++) {
        if (strcmp(health->models[i], name) == 0) {
            return true;
        }
    }
    return false;
}

void health_set_model(struct health *health, const char *name) {
    pthread_mutex_lock(&health->mutex);
    if (health->model_count < HEALTH_MODELS_MAX && !has_model(health, name)) {
        char *copy = strdup(name);
        if (copy) {
            health->models[health->model_count++] = copy;
        }
    }
    pthread_mutex_unlock(&health->mutex);
    notify_threads(health);
}

void health_set_serving(struct health *health, bool serving) {
    atomic_store(&health->serving, serving);
    notify_threads(health);
}

void health_end_watches(struct health *health) {
    atomic_store(&health->ending, true);
    notify_threads(health);
}

static enum proto_serving state_of(struct health *health, const char *service) {
    bool known = strcmp(service, "") == 0 || strcmp(service, "expertd.v1.Experts") == 0;
    if (!known) {
        pthread_mutex_lock(&health->mutex);
        known = has_model(health, service);
        pthread_mutex_unlock(&health->mutex);
    }
    if (!known) {
        return SERVICE_UNKNOWN;
    }
    return atomic_load(&health->serving) ? SERVING : NOT_SERVING;
}

// ---- the calls

static void fail(struct watch *watch, err_t e) {
    rpc_finish(watch->call,
               &(struct rpc_status){.code = proto_grpc_code(e.code), .message = expertd_err_message(), .retry_after_ms = -1});
}

static void end_watch(struct watch *watch) {
    fail(watch, err_record(EXPERTD_ERR_DRAINING, NULL, "the service is shutting down"));
}

static void answer_check(struct watch *watch) {
    enum proto_serving state = state_of(watch->health, watch->service);
    if (state == SERVICE_UNKNOWN) {
        rpc_finish(watch->call,
                   &(struct rpc_status){.code = proto_grpc_code(EXPERTD_ERR_MODEL_UNKNOWN),
                                        .message = "unknown service: \"\", \"expertd.v1.Experts\" and the names of the "
                                                   "models that Describe lists are known",
                                        .retry_after_ms = -1});
        return;
    }
    struct proto_bytes bytes;
    err_t e = proto_encode_health_response(state, &bytes);
    if (err_is(e)) {
        fail(watch, e);
        return;
    }
    rpc_reply(watch->call, bytes.data, bytes.length, NULL, 0);
    free(bytes.data);
}

// Sends the state if it changed, then ends the watch if the service is ending.
static void update_watch(struct watch *watch) {
    bool ending = atomic_load(&watch->health->ending);
    if (watch->writing || !rpc_call_open(watch->call)) {
        return;
    }
    enum proto_serving state = watch->service ? state_of(watch->health, watch->service) : SERVING_UNKNOWN;
    if (watch->service && (int)state != watch->sent) {
        struct proto_bytes bytes;
        err_t e = proto_encode_health_response(state, &bytes);
        if (err_is(e)) {
            fail(watch, e);
            return;
        }
        watch->sent = (int)state;
        watch->writing = true;
        rpc_write(watch->call, bytes.data, bytes.length, NULL, 0);
        free(bytes.data);
    }
    if (ending) {
        end_watch(watch); // after the pending write
    }
}

void *health_opened(struct health *health, struct rpc_call *call, enum rpc_method method, unsigned thread) {
    struct watch *watch = calloc(1, sizeof *watch);
    if (!watch) {
        rpc_finish(call, &(struct rpc_status){
                             .code = proto_grpc_code(EXPERTD_ERR_NOMEM), .message = "no memory for a call", .retry_after_ms = -1});
        return NULL;
    }
    *watch = (struct watch){.health = health, .call = call, .thread = thread, .is_watch = method == RPC_HEALTH_WATCH, .sent = -1};
    if (watch->is_watch) {
        LIST_INSERT_HEAD(&health->threads[thread].watches, watch, link);
    }
    rpc_read(call);
    return watch;
}

static FALLIBLE read_request(struct watch *watch, const struct rpc_buffer *message, err_t error) {
    TRY(error);
    if (!message) {
        FAIL(EXPERTD_ERR_MALFORMED, "the call carries no HealthCheckRequest");
    }
    return proto_decode_health_request(message->data, message->length, &watch->service);
}

void health_message(void *opened, const struct rpc_buffer *message, err_t error) {
    struct watch *watch = opened;
    if (!watch || !rpc_call_open(watch->call)) {
        return;
    }
    err_t e = read_request(watch, message, error);
    if (err_is(e)) {
        fail(watch, e);
    } else if (watch->is_watch) {
        update_watch(watch);
    } else {
        answer_check(watch);
    }
}

void health_written(void *opened, bool ok) {
    struct watch *watch = opened;
    if (watch && watch->is_watch) {
        watch->writing = false;
        if (ok) {
            update_watch(watch); // the state may have changed during the write
        }
    }
}

void health_closed(void *opened, bool cancelled) {
    (void)opened;
    (void)cancelled;
}

void health_released(void *opened) {
    struct watch *watch = opened;
    if (!watch) {
        return;
    }
    if (watch->is_watch) {
        LIST_REMOVE(watch, link);
    }
    free(watch->service);
    free(watch);
}

void health_tick(struct health *health, unsigned thread) {
    unsigned version = atomic_load(&health->version);
    struct health_thread *mine = &health->threads[thread];
    if (version == mine->seen) {
        return;
    }
    mine->seen = version;
    struct watch *watch;
    LIST_FOREACH(watch, &mine->watches, link) {
        update_watch(watch);
    }
}
