// The service's books: admission, the backlog and the connections' shares, under one mutex that is held for a few additions.
#include "base/clock.h"
#include "daemon/serve/serve_internal.h"

// A full server still says how it is: checks count by themselves.
static FALLIBLE take_place(struct admission *admission, struct admission_share *share, enum rpc_method method) {
    if (method == RPC_HEALTH_CHECK) {
        return admission_take_check(admission, share);
    }
    TRY(admission_take_call(admission, share));
    err_t e = method == RPC_HEALTH_WATCH ? admission_take_watch(admission, share) : OK;
    if (err_is(e)) {
        admission_give_call(admission, share);
    }
    return e;
}

static void give_place(struct admission *admission, struct admission_share *share, enum rpc_method method) {
    if (method == RPC_HEALTH_CHECK) {
        admission_give_check(admission, share);
        return;
    }
    if (method == RPC_HEALTH_WATCH) {
        admission_give_watch(admission, share);
    }
    admission_give_call(admission, share);
}

FALLIBLE serve_enter_call(struct call *call) {
    struct serve *serve = call->serve;
    pthread_mutex_lock(&serve->mutex);
    err_t e = OK;
    call->connection = connections_open(&serve->connections, rpc_call_peer(call->rpc));
    if (!call->connection) {
        e = err_record(EXPERTD_ERR_QUEUE_FULL, NULL, "more connections have calls open than this server keeps account of");
    } else {
        e = take_place(&serve->admission, &call->connection->share, call->method);
        call->has_place = !err_is(e);
    }
    pthread_mutex_unlock(&serve->mutex);
    return e;
}

void serve_leave_call(struct call *call) {
    struct serve *serve = call->serve;
    if (!call->connection) {
        return;
    }
    pthread_mutex_lock(&serve->mutex);
    if (call->has_stream) {
        admission_give_stream(&serve->admission, &call->connection->share);
    }
    if (call->has_place) {
        give_place(&serve->admission, &call->connection->share, call->method);
    }
    connections_close(&serve->connections, call->connection);
    call->connection = NULL;
    pthread_mutex_unlock(&serve->mutex);
}

bool serve_checks_crowded(struct serve *serve) {
    pthread_mutex_lock(&serve->mutex);
    bool is_crowded = admission_checks_crowded(&serve->admission);
    pthread_mutex_unlock(&serve->mutex);
    return is_crowded;
}

void serve_enter_request(struct serve_request *r) {
    pthread_mutex_lock(&r->serve->mutex);
    r->connection = r->call->connection;
    r->connection->references++;
    pthread_mutex_unlock(&r->serve->mutex);
}

void serve_leave_request(struct serve_request *r) {
    struct serve *serve = r->serve;
    pthread_mutex_lock(&serve->mutex);
    if (r->in_backlog) {
        backlog_leave(&serve->backlog, r->item.entry.layer, r->item.entry.tokens);
    }
    if (r->admitted) {
        admission_release(&serve->admission, &r->connection->share, r->admitted_bytes);
    }
    connections_close(&serve->connections, r->connection);
    pthread_mutex_unlock(&serve->mutex);
}

FALLIBLE serve_take_stream(struct call *call) {
    struct serve *serve = call->serve;
    pthread_mutex_lock(&serve->mutex);
    err_t e = admission_take_stream(&serve->admission, &call->connection->share);
    pthread_mutex_unlock(&serve->mutex);
    call->has_stream = !err_is(e);
    return e;
}

FALLIBLE serve_may_open(struct serve_request *r) {
    struct serve *serve = r->serve;
    pthread_mutex_lock(&serve->mutex);
    int64_t now_ns = clock_now_ns();
    struct admission_ask ask = {.deadline_ns = r->deadline_ns,
                                .wait_ns = backlog_wait_ns(&serve->backlog, 0, r->deadline_ns - now_ns)};
    err_t e = admission_open(&serve->admission, &r->connection->share, &ask, now_ns);
    pthread_mutex_unlock(&serve->mutex);
    return e;
}

// Under the mutex.
static bool take_slot(struct serve_request *r) {
    r->has_slot = admission_take_slot(&r->serve->admission, &r->connection->share);
    if (r->has_slot) {
        r->connection->share.slot_taken_ns = clock_now_ns();
    }
    return r->has_slot;
}

bool serve_take_slot(struct serve_request *r) {
    pthread_mutex_lock(&r->serve->mutex);
    bool taken = take_slot(r);
    pthread_mutex_unlock(&r->serve->mutex);
    return taken;
}

// Whether r's turn is before other's: its connection holds fewer slots, or has waited longer since its last, or since r came.
static bool goes_before(const struct serve_request *r, const struct serve_request *other) {
    const struct admission_share *a = &r->connection->share, *b = &other->connection->share;
    if (a->slots != b->slots) {
        return a->slots < b->slots;
    }
    int64_t since_ns = r->opened_ns > a->slot_taken_ns ? r->opened_ns : a->slot_taken_ns;
    return since_ns < (other->opened_ns > b->slot_taken_ns ? other->opened_ns : b->slot_taken_ns);
}

// Where the connection whose turn it is has its share, all others have. The walk is bounded by max_calls.
struct serve_request *serve_grant_slot(struct serve *serve, unsigned thread) {
    struct serve_request *r, *next = NULL;
    pthread_mutex_lock(&serve->mutex);
    if (admission_slot_free(&serve->admission)) {
        STAILQ_FOREACH(r, &serve->threads[thread].slots, slot) {
            if (!next || goes_before(r, next)) {
                next = r;
            }
        }
    }
    bool taken = next && take_slot(next);
    pthread_mutex_unlock(&serve->mutex);
    return taken ? next : NULL;
}

void serve_give_slot(struct serve_request *r) {
    struct serve *serve = r->serve;
    if (!r->has_slot) {
        return;
    }
    r->has_slot = false;
    pthread_mutex_lock(&serve->mutex);
    admission_give_slot(&serve->admission, &r->connection->share);
    pthread_mutex_unlock(&serve->mutex);
    for (unsigned t = 0; atomic_load(&serve->slot_waiters) > 0 && t < serve->options.rpc_threads; t++) {
        rpc_wake(serve->server, t); // whoever waits for a slot takes it in its tick
    }
}

FALLIBLE serve_admit(struct serve_request *r) {
    struct serve *serve = r->serve;
    uint32_t tokens = r->item.entry.tokens;
    struct admission_ask ask = {.bytes = r->message->capacity + (r->is_empty ? 0 : r->output_bytes) + r->regions.copied_bytes,
                                .deadline_ns = r->deadline_ns};
    pthread_mutex_lock(&serve->mutex);
    int64_t now_ns = clock_now_ns();
    ask.wait_ns = r->is_empty ? 0 : backlog_wait_ns(&serve->backlog, tokens, r->deadline_ns - now_ns);
    err_t e = admission_admit(&serve->admission, &r->connection->share, &ask, now_ns);
    if (!err_is(e)) {
        r->admitted = true;
        r->admitted_bytes = ask.bytes;
        r->in_backlog = !r->is_empty;
        r->admitted_ns = now_ns;
    }
    if (r->in_backlog) {
        backlog_enter(&serve->backlog, r->item.entry.layer, tokens);
    }
    pthread_mutex_unlock(&serve->mutex);
    return e;
}

void serve_leave_backlog(struct serve_request *r) {
    if (!r->in_backlog) {
        return;
    }
    r->in_backlog = false;
    pthread_mutex_lock(&r->serve->mutex);
    backlog_leave(&r->serve->backlog, r->item.entry.layer, r->item.entry.tokens);
    backlog_came(&r->serve->backlog, r->item.entry.tokens, clock_now_ns() - r->admitted_ns, r->deadline_ns - r->admitted_ns);
    pthread_mutex_unlock(&r->serve->mutex);
}

void serve_batched(void *context, uint64_t tokens, int64_t spent_ns, bool idle) {
    struct serve *serve = context;
    pthread_mutex_lock(&serve->mutex);
    backlog_batch(&serve->backlog, tokens, spent_ns, idle);
    pthread_mutex_unlock(&serve->mutex);
}

int64_t serve_retry_after_ms(struct serve *serve, enum expertd_err_code code) {
    if (code != EXPERTD_ERR_QUEUE_FULL) {
        return proto_retry_after_ms(code);
    }
    pthread_mutex_lock(&serve->mutex);
    int64_t ms = backlog_pushback_ms(&serve->backlog);
    pthread_mutex_unlock(&serve->mutex);
    return ms;
}
