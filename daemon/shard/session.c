#include "daemon/shard/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "shard/catalogue/bits.h"

enum { SESSIONS_PER_FRONT = 2 }; // with the one before, whose streams are being closed

void session_wake_threads(struct shard_service *service) {
    for (unsigned t = 0; t < service->options.rpc_threads; t++) {
        rpc_wake(service->server, t);
    }
}

static FALLIBLE init(struct shard_session *session) {
    struct shard_service *service = session->service;
    if (getrandom(session->token, sizeof session->token, 0) != (ssize_t)sizeof session->token) { // never short for up to 256 bytes
        FAIL(EXPERTD_ERR_INTERNAL, "the system gives no random bytes for a token");
    }
    TRY(piece_queue_init(&session->pieces, rank_engine_max_groups(service->engine), rank_engine_max_rows(service->engine)));
    return rank_engine_create_batch(service->engine, &session->batch);
}

FALLIBLE session_create(struct shard_service *service, uint64_t front, const char *version, struct shard_session **out) {
    *out = NULL;
    // Ended sessions occupy memory until their streams are closed: a front that connects again and again must not use all of it.
    if (atomic_fetch_add(&service->sessions_alive, 1) >= SESSIONS_PER_FRONT * service->options.max_fronts) {
        atomic_fetch_sub(&service->sessions_alive, 1);
        FAIL(EXPERTD_ERR_UNAVAILABLE, "too many ended connections of fronts have not been closed yet: connect again shortly");
    }
    struct shard_session *session = calloc(1, sizeof *session);
    if (!session) {
        atomic_fetch_sub(&service->sessions_alive, 1);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a front");
    }
    session->service = service;
    session->front = front;
    session->references = 1;
    session->hello_due = true;
    snprintf(session->version, sizeof session->version, "%s", version);
    atomic_store(&session->heard_ns, clock_now_ns());
    err_t e = init(session);
    if (err_is(e)) {
        session_free(session);
        return e;
    }
    *out = session;
    return OK;
}

bool session_drop(struct shard_session *session) {
    return --session->references == 0;
}

static void release(void *context, struct rpc_buffer *buffer) {
    struct shard_service *service = context;
    rpc_buffer_release(service->server, buffer);
}

void session_free(struct shard_session *session) {
    piece_queue_deinit(&session->pieces, release, session->service);
    result_queue_deinit(&session->results, release, session->service);
    rank_batch_destroy(session->batch);
    atomic_fetch_sub(&session->service->sessions_alive, 1);
    free(session);
}

static void end(struct shard_session *session, err_t e) {
    struct shard_service *service = session->service;
    if (session->is_ended) {
        return;
    }
    session->is_ended = true;
    err_save(e, &session->why);
    if (session->is_listed) {
        session->is_listed = false;
        TAILQ_REMOVE(&service->sessions, session, link);
        service->num_sessions--;
    }
}

static struct shard_session *find_number(struct shard_service *service, uint32_t number) {
    struct shard_session *session;
    TAILQ_FOREACH(session, &service->sessions, link) {
        if (session->number == number) {
            return session;
        }
    }
    return NULL;
}

static void close_session(struct shard_service *service, const struct holder_action *action) {
    struct shard_session *session = find_number(service, action->session);
    if (!session) {
        return;
    }
    end(session,
        action->is_silent
            ? err_record(EXPERTD_ERR_DEADLINE, NULL, "no heartbeat of this front for %lld s: it counts as gone; connect again",
                         (long long)(service->holder.options.front_after_ns / NS_PER_S))
            : err_record(EXPERTD_ERR_CANCELLED, NULL, "this front has connected again: an older stream ends"));
}

void session_holder_changed(struct shard_service *service) {
    struct holder_action action;
    while (holder_next(&service->holder, &action)) {
        if (action.kind == HOLDER_CLOSE) {
            close_session(service, &action);
        } else {
            bits_set(service->freeing, catalogue_cell(&service->holder.options.catalogue, action.expert));
        }
    }
    atomic_fetch_add(&service->holder_version, 1);
    pthread_cond_broadcast(&service->load_wake);
    session_wake_threads(service);
}

void session_end(struct shard_session *session, err_t e) {
    struct shard_service *service = session->service;
    end(session, e);
    holder_disconnected(&service->holder, session->number);
    session_holder_changed(service);
}

struct shard_session *session_find(struct shard_service *service, const uint8_t token[SHARD_TOKEN_LENGTH]) {
    struct shard_session *session, *found = NULL;
    TAILQ_FOREACH(session, &service->sessions, link) {
        unsigned char differs = 0;
        for (size_t i = 0; i < SHARD_TOKEN_LENGTH; i++) {
            differs |= session->token[i] ^ token[i];
        }
        found = differs == 0 ? session : found;
    }
    return found;
}
