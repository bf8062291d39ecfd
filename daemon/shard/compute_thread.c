#include "daemon/shard/compute_thread.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"
#include "daemon/shard/session.h"

// A piece under way.
struct computation {
    struct shard_service *service;
    struct shard_session *session;
    struct piece *piece;
    size_t copied; // bytes of the hidden rows
};

// ---- choosing. The caller holds the mutex.

static bool is_due(const struct shard_session *session) {
    if (!piece_queue_is_due(&session->pieces)) {
        return false;
    }
    const struct rows_request *request = &session->pieces.slots[session->pieces.first].request;
    return result_queue_has_space(&session->results, (uint64_t)request->rows * request->row_bytes);
}

// Sessions take turns by piece: the one that is taken goes to the end of the list.
static struct shard_session *next_session(struct shard_service *service) {
    struct shard_session *session;
    TAILQ_FOREACH(session, &service->sessions, link) {
        if (is_due(session)) {
            TAILQ_REMOVE(&service->sessions, session, link);
            TAILQ_INSERT_TAIL(&service->sessions, session, link);
            return session;
        }
    }
    return NULL;
}

// ---- computing

static void copy_hidden(void *context, void *to, size_t bytes) {
    struct computation *c = context;
    rpc_buffer_copy(c->piece->message, c->piece->hidden_first + c->copied, bytes, to);
    c->copied += bytes;
}

_Static_assert(sizeof(struct remote_group) == 2 * sizeof(uint32_t), "groups are pairs of numbers in a message");

static struct rank_piece view_of(struct computation *c) {
    const struct rows_request *request = &c->piece->request;
    return (struct rank_piece){.batch = request->batch,
                               .epoch = request->epoch,
                               .layer = request->layer,
                               .row_bytes = request->row_bytes,
                               .groups = (const struct remote_group *)(const void *)request->groups,
                               .num_groups = request->num_groups,
                               .first_row = request->first_row,
                               .rows = request->rows,
                               .hidden_rows = request->hidden_rows,
                               .first_hidden = request->first_hidden,
                               .num_hidden = request->num_hidden,
                               .copy = copy_hidden,
                               .context = c};
}

// Are all experts served to this front? rank_engine_take has checked that they exist.
static FALLIBLE check_served(const struct computation *c, const struct rank_piece *piece) {
    struct shard_service *service = c->service;
    const struct model *model = service->backend.model;
    uint16_t layer = (uint16_t)(model_find_layer(model, piece->layer) - model->layers);
    size_t g = 0;
    pthread_mutex_lock(&service->mutex);
    while (g < piece->num_groups &&
           holder_serves(&service->holder, c->session->number, (struct expert_id){layer, (uint16_t)piece->groups[g].expert})) {
        g++;
    }
    pthread_mutex_unlock(&service->mutex);
    if (g < piece->num_groups) {
        FAIL(EXPERTD_ERR_SHARD_LOST, "expert %" PRIu32 " of layer %" PRIu32 " is not on this shard", piece->groups[g].expert,
             piece->layer);
    }
    return OK;
}

static FALLIBLE compute(struct computation *c, const struct rank_piece *piece, struct result *out) {
    struct shard_service *service = c->service;
    struct rank_batch *batch = c->session->batch;
    TRY(check_served(c, piece));
    if (piece->rows * piece->row_bytes > RESULT_BYTES_MAX) {
        FAIL(EXPERTD_ERR_TOO_LARGE, "a piece with %zu result rows of %zu bytes: at most %d bytes, divide it", piece->rows,
             piece->row_bytes, RESULT_BYTES_MAX);
    }
    struct rpc_buffer *rows = rpc_buffer_take(service->server, piece->rows * piece->row_bytes);
    if (!rows) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu result rows of %zu bytes", piece->rows, piece->row_bytes);
    }
    const int64_t start_ns = clock_now_ns();
    err_t e = rank_engine_compute(service->engine, batch, piece, rows->data, piece->row_bytes);
    if (err_is(e)) {
        rpc_buffer_release(service->server, rows);
        return e;
    }
    out->compute_ns = (uint64_t)(clock_now_ns() - start_ns);
    out->buffer = rows;
    return OK;
}

// False: the piece needs no answer.
static bool answer(struct computation *c, struct result *out) {
    struct rank_batch *batch = c->session->batch;
    const struct rank_piece piece = view_of(c);
    if (rank_batch_skips(batch, piece.batch)) {
        return false;
    }
    *out = (struct result){.batch = piece.batch,
                           .epoch = piece.epoch,
                           .first_row = (uint32_t)piece.first_row,
                           .rows = (uint32_t)piece.rows,
                           .row_bytes = (uint32_t)piece.row_bytes};
    err_t e = rank_engine_take(c->service->engine, batch, &piece);
    e = err_is(e) ? e : compute(c, &piece, out);
    if (err_is(e)) {
        rank_batch_fail(batch, piece.batch);
        out->rows = 0;
        snprintf(out->reason, sizeof out->reason, "%s", expertd_err_name(e.code));
        snprintf(out->message, sizeof out->message, "%.*s", (int)sizeof out->message - 1, expertd_err_message());
    }
    return true;
}

// ---- the thread

static void count(struct shard_service *service, const struct result *result) {
    service->count.errors += result->buffer == NULL;
    service->count.pieces += result->buffer != NULL;
    service->count.rows += result->rows;
    service->count.compute_ns += result->compute_ns;
}

// The caller holds the mutex. Queues the answer, unless nobody waits for it. Returns the buffer to release, or NULL.
static struct rpc_buffer *deliver(struct computation *c, const struct result *result) {
    struct shard_session *session = c->session;
    count(c->service, result);
    if (session->is_ended || result->batch < session->newest_batch) {
        return result->buffer;
    }
    result_queue_put(&session->results, result);
    return NULL;
}

// The caller holds the mutex, which is released meanwhile.
static void compute_next(struct shard_service *service, struct shard_session *session) {
    struct computation c = {.service = service, .session = session, .piece = piece_queue_begin(&session->pieces)};
    struct rpc_buffer *unused = NULL;
    struct result result;
    session->references++;
    pthread_mutex_unlock(&service->mutex);
    bool has_answer = answer(&c, &result);
    rpc_buffer_release(service->server, c.piece->message);
    c.piece->message = NULL;
    pthread_mutex_lock(&service->mutex);
    piece_queue_end(&session->pieces);
    if (has_answer) {
        unused = deliver(&c, &result);
    }
    if (session->rows) {
        rpc_wake(service->server, session->rows->thread);
    }
    bool last = session_drop(session);
    pthread_mutex_unlock(&service->mutex);
    if (unused) {
        rpc_buffer_release(service->server, unused);
    }
    if (last) {
        session_free(session);
    }
    pthread_mutex_lock(&service->mutex);
}

void *compute_thread_main(void *argument) {
    struct shard_service *service = argument;
    pthread_mutex_lock(&service->mutex);
    while (!service->stopping) {
        struct shard_session *session = next_session(service);
        if (session) {
            compute_next(service, session);
        } else {
            pthread_cond_wait(&service->compute_wake, &service->mutex);
        }
    }
    pthread_mutex_unlock(&service->mutex);
    return NULL;
}
