// The move's thread writes its latest progress into a mailbox of one entry and wakes the server's thread, which sends it.
#include "daemon/admin/admin_move.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory_cause.h"
#include "daemon/admin/admin_status.h"
#include "daemon/log/log.h"
#include "proto/admin/admin.h"

struct move {
    struct admin *admin;
    struct proto_placement placement; // owned; the mover reads its arrays
    pthread_t thread;
    atomic_bool stop;
    // guarded by admin->mutex while the thread runs
    struct proto_progress latest;
    bool has_progress, ended;
    struct err_copy error; // EXPERTD_ERR_OK: the placement is in force
    // server's thread only
    struct admin_call *call; // NULL: the call is closed
    bool running;            // the thread is not joined yet
};

static void move_free(struct move *move) {
    proto_placement_deinit(&move->placement);
    free(move);
}

// ---- on the move's thread

static bool on_progress(void *context, const struct mover_progress *progress) {
    struct move *move = context;
    struct admin *admin = move->admin;
    pthread_mutex_lock(&admin->mutex);
    move->latest = (struct proto_progress){.moved_bytes = progress->moved_bytes,
                                           .all_bytes = progress->all_bytes,
                                           .moved_experts = progress->moved_experts,
                                           .all_experts = progress->all_experts};
    move->has_progress = true;
    rpc_wake(admin->server, 0);
    pthread_mutex_unlock(&admin->mutex);
    return !atomic_load(&move->stop);
}

static void log_end(const struct move *move, const struct err_copy *error, uint64_t epoch) {
    char quoted[2 * EXPERTD_ERR_MESSAGE_MAX];
    if (error->code == EXPERTD_ERR_OK) {
        log_line(LOG_LEVEL_INFO, "placement_applied", "layer=%" PRIu32 " epoch=%" PRIu64, move->placement.layer, epoch);
    } else {
        log_line(LOG_LEVEL_WARNING, "placement_failed", "layer=%" PRIu32 " reason=%s message=%s", move->placement.layer,
                 expertd_err_name(error->code), log_quote(error->message, quoted, sizeof quoted));
    }
}

static void *move_main(void *context) {
    struct move *move = context;
    struct admin *admin = move->admin;
    const struct admin_mover *mover = &admin->backend.mover;
    const struct proto_placement *p = &move->placement;
    struct mover_placement placement = {.layer = p->layer,
                                        .epoch = p->epoch,
                                        .ranks = p->ranks,
                                        .num_experts = p->num_experts,
                                        .first = p->first,
                                        .holders = p->holders,
                                        .rows = p->rows,
                                        .imbalance = p->imbalance};
    struct err_copy error;
    uint64_t epoch = 0;
    err_save(mover->apply(mover->mover, &placement, on_progress, move, &epoch), &error);
    log_end(move, &error, epoch);
    pthread_mutex_lock(&admin->mutex);
    move->error = error;
    move->latest.done = error.code == EXPERTD_ERR_OK;
    move->latest.epoch = epoch;
    move->ended = true;
    rpc_wake(admin->server, 0);
    admin->moving = false; // this thread does not use the server after this
    pthread_cond_signal(&admin->idle);
    pthread_mutex_unlock(&admin->mutex);
    return NULL;
}

// ---- on the server's thread

static FALLIBLE start_thread(struct move *move) {
    struct admin *admin = move->admin;
    pthread_mutex_lock(&admin->mutex);
    int failed = pthread_create(&move->thread, NULL, move_main, move);
    admin->moving = failed == 0;
    pthread_mutex_unlock(&admin->mutex);
    if (failed) {
        char cause[MEMORY_CAUSE_MAX];
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot start the thread that moves experts: %s", memory_cause_of_thread(failed, cause));
    }
    pthread_setname_np(move->thread, "admin-move");
    move->running = true;
    return OK;
}

FALLIBLE admin_move_start(struct admin_call *call, const struct rpc_buffer *message) {
    struct admin *admin = call->admin;
    TRY(admin_check_mover(admin));
    if (atomic_load(&admin->ending)) {
        FAIL(EXPERTD_ERR_DRAINING, "the service is shutting down");
    }
    if (admin->move) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "another move is under way, of layer %" PRIu32 ": one at a time",
             admin->move->placement.layer);
    }
    struct move *move = calloc(1, sizeof *move);
    if (!move) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a move");
    }
    move->admin = admin;
    err_t e = proto_decode_apply_request(message->data, message->length, &move->placement);
    if (!err_is(e)) {
        e = start_thread(move);
    }
    if (err_is(e)) {
        move_free(move);
        return e;
    }
    move->call = call;
    call->move = move;
    admin->move = move;
    return OK;
}

static void send_progress(struct admin_call *call, const struct proto_progress *progress) {
    struct proto_bytes bytes;
    err_t e = proto_encode_progress(progress, &bytes);
    if (err_is(e)) {
        admin_fail(call, e);
        return;
    }
    call->writing = true;
    rpc_write(call->rpc, bytes.data, bytes.length, NULL, 0);
    free(bytes.data);
}

static void send_end(struct admin_call *call) {
    struct move *move = call->move;
    if (move->error.code != EXPERTD_ERR_OK) {
        admin_fail(call, err_restore(&move->error));
        return;
    }
    send_progress(call, &move->latest);
    rpc_finish(call->rpc, &(struct rpc_status){.message = "", .retry_after_ms = -1}); // sent after the write
}

static bool take_progress(struct move *move, struct proto_progress *out) {
    pthread_mutex_lock(&move->admin->mutex);
    bool is_new = move->has_progress && !move->ended; // the message at the end carries the last progress
    move->has_progress = false;
    *out = move->latest;
    pthread_mutex_unlock(&move->admin->mutex);
    return is_new;
}

void admin_move_send(struct admin_call *call) {
    struct proto_progress progress;
    if (!call->move || call->writing || !rpc_call_open(call->rpc)) {
        return;
    }
    if (!call->move->running) {
        send_end(call);
    } else if (take_progress(call->move, &progress)) {
        send_progress(call, &progress);
    }
}

static bool has_ended(struct move *move) {
    pthread_mutex_lock(&move->admin->mutex);
    bool ended = move->ended;
    pthread_mutex_unlock(&move->admin->mutex);
    return ended;
}

void admin_move_collect(struct admin *admin) {
    struct move *move = admin->move;
    if (!move) {
        return;
    }
    struct admin_call *call = move->call;
    if (has_ended(move)) {
        pthread_join(move->thread, NULL); // it is about to return
        move->running = false;
        admin->move = NULL;
        if (!call) {
            move_free(move);
        }
    }
    if (call) {
        admin_move_send(call);
    }
}

void admin_move_abandon(struct admin_call *call) {
    struct move *move = call->move;
    if (!move) {
        return;
    }
    call->move = NULL;
    move->call = NULL;
    if (move->running) {
        atomic_store(&move->stop, true);
    } else {
        move_free(move);
    }
}

void admin_move_stop(struct admin *admin) {
    if (admin->move) {
        atomic_store(&admin->move->stop, true);
    }
}

// The server is destroyed only when the move's thread no longer uses it. Then no tick can join the thread any more, so it is joined
// here.
void admin_move_join(struct admin *admin) {
    atomic_store(&admin->ending, true);
    if (admin->server) {
        rpc_wake(admin->server, 0); // its tick tells the move to stop
    }
    pthread_mutex_lock(&admin->mutex);
    while (admin->moving) {
        pthread_cond_wait(&admin->idle, &admin->mutex);
    }
    pthread_mutex_unlock(&admin->mutex);
    rpc_destroy(admin->server);
    admin->server = NULL;
    if (admin->move) {
        pthread_join(admin->move->thread, NULL);
        move_free(admin->move);
        admin->move = NULL;
    }
}
