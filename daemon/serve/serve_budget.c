#include "daemon/serve/serve_budget.h"

#include "base/clock.h"

// Health checks do not count as calls, so that a full server still answers probes.
static FALLIBLE count_call(struct admission *admission, struct admission_share *share, enum rpc_method method) {
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

static void uncount_call(struct admission *admission, struct admission_share *share, enum rpc_method method) {
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
        e = err_record(EXPERTD_ERR_QUEUE_FULL, NULL,
                       "more connections have open calls than this server has records for: try again later");
    } else {
        e = count_call(&serve->admission, &call->connection->share, call->method);
        call->is_counted = !err_is(e);
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
    if (call->is_counted) {
        uncount_call(&serve->admission, &call->connection->share, call->method);
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
    struct admission_demand demand = {.deadline_ns = r->deadline_ns,
                                      .wait_ns = backlog_wait_ns(&serve->backlog, 0, r->deadline_ns - now_ns)};
    err_t e = admission_open(&serve->admission, &r->connection->share, &demand, now_ns);
    pthread_mutex_unlock(&serve->mutex);
    return e;
}

// The caller holds the mutex.
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

// A free slot goes to the connection that holds the fewest. Among equals, it goes to the one that has waited longest since it last
// took a slot, or since its request arrived. In order of arrival alone, a few connections with many slow messages would keep all
// others waiting.
static bool goes_before(const struct serve_request *r, const struct serve_request *other) {
    const struct admission_share *a = &r->connection->share, *b = &other->connection->share;
    if (a->slots != b->slots) {
        return a->slots < b->slots;
    }
    int64_t since_ns = r->opened_ns > a->slot_taken_ns ? r->opened_ns : a->slot_taken_ns;
    return since_ns < (other->opened_ns > b->slot_taken_ns ? other->opened_ns : b->slot_taken_ns);
}

// If the first connection in that order already has its share of slots, so have all others: one attempt is enough. The list is
// bounded by max_calls.
struct serve_request *serve_grant_slot(struct serve *serve, unsigned thread) {
    struct serve_request *r, *next = NULL;
    pthread_mutex_lock(&serve->mutex);
    if (admission_slot_free(&serve->admission)) {
        STAILQ_FOREACH(r, &serve->threads[thread].slot_queue, slot) {
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
        rpc_wake(serve->server, t); // a waiting request takes the slot in its thread's tick
    }
}

void serve_await_slot(struct serve_request *r) {
    r->waits_for_slot = true;
    atomic_fetch_add(&r->serve->slot_waiters, 1);
    STAILQ_INSERT_TAIL(&r->serve->threads[r->thread].slot_queue, r, slot);
}

void serve_leave_waiters(struct serve_request *r) {
    if (!r->waits_for_slot) {
        return;
    }
    r->waits_for_slot = false;
    STAILQ_REMOVE(&r->serve->threads[r->thread].slot_queue, r, serve_request, slot);
    atomic_fetch_sub(&r->serve->slot_waiters, 1);
}

FALLIBLE serve_admit(struct serve_request *r) {
    struct serve *serve = r->serve;
    uint32_t tokens = r->item.entry.tokens;
    struct admission_demand demand = {.bytes = r->message->capacity + (r->is_empty ? 0 : r->output_bytes) + r->regions.copied_bytes,
                                      .deadline_ns = r->deadline_ns};
    pthread_mutex_lock(&serve->mutex);
    int64_t now_ns = clock_now_ns();
    demand.wait_ns = r->is_empty ? 0 : backlog_wait_ns(&serve->backlog, tokens, r->deadline_ns - now_ns);
    err_t e = admission_admit(&serve->admission, &r->connection->share, &demand, now_ns);
    if (!err_is(e)) {
        r->admitted = true;
        r->admitted_bytes = demand.bytes;
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
    backlog_observe(&r->serve->backlog, r->item.entry.tokens, clock_now_ns() - r->admitted_ns, r->deadline_ns - r->admitted_ns);
    pthread_mutex_unlock(&r->serve->mutex);
}

int64_t serve_retry_after_ms(struct serve *serve, enum expertd_err_code code) {
    const struct serve_backend *backend = &serve->backend;
    if (code == EXPERTD_ERR_SHARD_LOST && backend->mends && !backend->mends(backend->mends_context)) {
        return -1;
    }
    if (code != EXPERTD_ERR_QUEUE_FULL) {
        return proto_retry_after_ms(code);
    }
    pthread_mutex_lock(&serve->mutex);
    int64_t ms = backlog_pushback_ms(&serve->backlog);
    pthread_mutex_unlock(&serve->mutex);
    return ms;
}
