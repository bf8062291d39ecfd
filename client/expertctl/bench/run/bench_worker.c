#include "client/expertctl/bench/run/bench_worker.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

#include "base/clock.h"
#include "client/expertctl/bench/run/bench_region.h"

enum {
    STREAM_OF_CALLS = 4 << 20,
    POLL_NS = 20 * NS_PER_MS,  // a waiting thread notices after at most POLL_NS that it should stop
    GRACE_NS = NS_PER_S,       // wait for answers after the deadline of the last call
    LATE_NS = 100 * NS_PER_MS, // calls that are due before the span's end may be sent up to LATE_NS after it
    DEADLINE_EXCEEDED = 4,     // the number of the gRPC status
};

// A call in flight. The sending thread writes it before the call starts; the receiving thread reads it at the call's end.
struct pending_call {
    int64_t intended_ns, sent_ns;
    uint32_t layer_index;
    struct pool_window window;
    bool measured;  // intended within the measured span
    bool in_flight; // receiving thread; after its end the sending thread
};

struct worker {
    const struct bench_plan *plan;
    uint32_t process;
    struct bench_shared *shared;
    struct bench_account *account;
    struct calls *calls;
    uint32_t connections, slots;
    struct pending_call *pending_calls; // [slots], owned
    // A ring of free slots: the receiving thread adds slots, the sending thread removes them. ring_in publishes the ring's entries
    // and the pending_calls; the semaphore is only for waiting.
    uint32_t *ring; // [slots], owned
    _Atomic uint64_t ring_in;
    uint64_t ring_out; // sending thread
    sem_t free_slots;
    _Atomic uint64_t started; // calls
    _Atomic bool sent_all;
    int64_t span_start_ns;
    _Atomic int64_t span_end_ns; // end of the measured span; the sending thread sets it earlier if the run is interrupted
    // Sending thread:
    struct bench_schedule schedule;
    struct bench_random random;
    size_t trace_at;
    uint64_t turn; // counts calls: connections are used in turn
    int32_t *ids;  // [max tokens, choices], owned; NULL without routes
    float *weights;
    float *scales;              // [max tokens], owned
    struct calls_piece *pieces; // [CALLS_PIECES_MAX], owned
    struct bench_region region; // not open without --region
    // Receiving thread:
    pthread_t receiver;
    uint64_t ended, answers_seen;
    int64_t last_end_ns;
};

// The share of process number `process` in `total`.
static uint32_t share_of(uint32_t total, uint32_t process, uint32_t processes) {
    return total / processes + (process < total % processes);
}

static uint32_t slots_of(const struct bench_options *o, uint32_t process) {
    return share_of(bench_open_loop(o) ? o->max_inflight : o->concurrency, process, o->processes);
}

uint32_t bench_max_slots(const struct bench_options *options) {
    return slots_of(options, 0);
}

static FALLIBLE open_region(struct worker *w) {
    const struct bench_plan *plan = w->plan;
    err_t e = bench_region_open(plan->address, plan->pool, plan->options->tokens.high, w->slots, plan->timeout_us, &w->region);
    const struct proto_error_text *refusal = w->region.client ? client_refusal(w->region.client) : NULL;
    if (err_is(e) && refusal) {
        w->account->refusal = *refusal;
    } else if (e.code == EXPERTD_ERR_IO) { // an error of a socket, not of a file
        e = err_record(EXPERTD_ERR_UNAVAILABLE, NULL, "%s", expertd_err_message());
    }
    return e;
}

static FALLIBLE worker_init(struct worker *w) {
    const struct bench_options *o = w->plan->options;
    size_t routes_max = (size_t)o->tokens.high * w->plan->pool->choices;
    w->slots = slots_of(o, w->process);
    w->connections = share_of(o->connections, w->process, o->processes);
    w->pending_calls = calloc(w->slots, sizeof *w->pending_calls);
    w->ring = calloc(w->slots, sizeof *w->ring);
    w->pieces = calloc(CALLS_PIECES_MAX, sizeof *w->pieces);
    w->ids = calloc(routes_max ? routes_max : 1, sizeof *w->ids);
    w->weights = calloc(routes_max ? routes_max : 1, sizeof *w->weights);
    w->scales = calloc(o->tokens.high ? o->tokens.high : 1, sizeof *w->scales);
    if (!w->pending_calls || !w->ring || !w->pieces || !w->ids || !w->weights || !w->scales) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %u calls in flight", w->slots);
    }
    for (uint32_t i = 0; i < w->slots; i++) {
        w->ring[i] = i;
    }
    atomic_store(&w->ring_in, w->slots);
    INVARIANT(sem_init(&w->free_slots, 0, w->slots) == 0);
    w->random = bench_random_seeded(o->seed, STREAM_OF_CALLS + w->process);
    if (w->plan->rate > 0) {
        schedule_init(&w->schedule, o->arrivals, w->plan->rate, w->process, o->processes, o->seed);
    }
    w->trace_at = w->process;
    struct calls_options calls = {
        .address = w->plan->address, .connections = w->connections, .slots = w->slots, .stream = o->stream, .tls = w->plan->tls};
    TRY(calls_create(&calls, &w->calls));
    if (o->region) {
        TRY(open_region(w));
    }
    return calls_connect(w->calls, w->plan->timeout_us);
}

// w->calls is not destroyed, since the process exits next: gRPC's shutdown may wait ten seconds for one of its polling threads.
static void worker_deinit(struct worker *w) {
    free(w->pending_calls);
    free(w->ring);
    free(w->pieces);
    free(w->ids);
    free(w->weights);
    free(w->scales);
    bench_region_close(&w->region);
}

static int64_t span_end_ns(const struct worker *w) {
    return atomic_load_explicit(&w->span_end_ns, memory_order_relaxed);
}

// ---- the receiving thread

static void count_failure(struct worker *w, const struct pending_call *pending, const struct calls_end *end) {
    atomic_fetch_add_explicit(&w->account->failed, 1, memory_order_relaxed);
    if (!pending || pending->measured) {
        w->account->result.failed++;
        result_add_failure(&w->account->result, end->grpc_code, end->reason, end->message, 1);
    }
}

static void compare_answer(struct worker *w, uint32_t slot, const struct wire_reply *reply) {
    const struct pending_call *pending = &w->pending_calls[slot];
    const struct bench_pool *pool = w->plan->pool;
    uint32_t every = w->plan->options->check_every;
    if (every == 0 || w->answers_seen++ % every != 0) {
        return;
    }
    w->account->result.compared++; // also in the warm-up: a wrong answer counts at any time
    struct wire_tensor answer = reply->output;
    if (w->plan->options->region) {
        answer = bench_region_answer(&w->region, slot, &reply->output, pool);
    }
    if (!pool_agrees(pool, pending->layer_index, &pending->window, &answer)) {
        w->account->result.wrong++;
        atomic_fetch_add_explicit(&w->account->wrong, 1, memory_order_relaxed);
    }
}

// A unary call ends at its deadline. In a stream the daemon enforces the timeout, counted from when it has read the request, so an
// answer may arrive later than the client's timeout.
static bool is_too_late(const struct worker *w, const struct calls_end *end) {
    return w->plan->options->stream && end->at_ns - w->pending_calls[end->slot].sent_ns > w->plan->timeout_us * NS_PER_US;
}

static void count_answer(struct worker *w, const struct calls_end *end) {
    const struct pending_call *pending = &w->pending_calls[end->slot];
    struct bench_result *result = &w->account->result;
    compare_answer(w, end->slot, end->reply);
    if (is_too_late(w, end)) {
        struct calls_end late = {.grpc_code = DEADLINE_EXCEEDED, .reason = "LATE", .message = "its answer came after the timeout"};
        count_failure(w, pending, &late);
        return;
    }
    atomic_fetch_add_explicit(&w->account->answers, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&w->account->tokens, pending->window.tokens, memory_order_relaxed);
    if (pending->measured) {
        result->answers++;
        histogram_add(&result->response, (end->at_ns - pending->intended_ns) / NS_PER_US);
        histogram_add(&result->service, (end->at_ns - pending->sent_ns) / NS_PER_US);
    }
    // The span of a trace lasts until the last answer.
    bool in_span = w->plan->trace ? pending->measured : end->at_ns >= w->span_start_ns && end->at_ns < span_end_ns(w);
    if (in_span) {
        result->span_answers++;
        result->span_tokens += pending->window.tokens;
        w->last_end_ns = end->at_ns;
    }
}

static void handle_end(struct worker *w, const struct calls_end *end) {
    if (end->slot == CALLS_NO_SLOT) {
        count_failure(w, NULL, end);
        return;
    }
    struct pending_call *pending = &w->pending_calls[end->slot];
    if (end->answered) {
        count_answer(w, end);
    } else {
        count_failure(w, pending, end);
    }
    pending->in_flight = false;
    w->ended++;
    atomic_fetch_sub_explicit(&w->account->inflight, 1, memory_order_relaxed);
    uint64_t in = atomic_load_explicit(&w->ring_in, memory_order_relaxed);
    w->ring[in % w->slots] = end->slot;
    atomic_store_explicit(&w->ring_in, in + 1, memory_order_release);
    sem_post(&w->free_slots);
}

// Runs until all calls have ended, or their time is over.
static void *receive_all(void *argument) {
    struct worker *w = argument;
    int64_t give_up_ns = CLOCK_NEVER;
    for (;;) {
        struct calls_end end;
        int64_t now_ns = clock_now_ns();
        if (calls_next(w->calls, now_ns + POLL_NS, &end)) {
            handle_end(w, &end);
        }
        if (!atomic_load_explicit(&w->sent_all, memory_order_acquire)) {
            continue;
        }
        give_up_ns = give_up_ns == CLOCK_NEVER ? now_ns + w->plan->timeout_us * NS_PER_US + GRACE_NS : give_up_ns;
        if (w->ended >= atomic_load_explicit(&w->started, memory_order_acquire) || now_ns > give_up_ns) {
            return NULL;
        }
    }
}

// ---- the sending thread

static bool should_stop(const struct worker *w) {
    return atomic_load_explicit(&w->shared->stop, memory_order_relaxed);
}

// False: the run was stopped meanwhile.
static bool sleep_until(const struct worker *w, int64_t at_ns) {
    for (int64_t now_ns = clock_now_ns(); now_ns < at_ns; now_ns = clock_now_ns()) {
        if (should_stop(w)) {
            return false;
        }
        int64_t wake_ns = at_ns - now_ns > POLL_NS ? now_ns + POLL_NS : at_ns;
        struct timespec wake = {wake_ns / NS_PER_S, wake_ns % NS_PER_S};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, NULL);
    }
    return !should_stop(w);
}

// Takes a free slot. False: none was free by until_ns. *waited: none was free at first.
static bool take_slot(struct worker *w, int64_t until_ns, uint32_t *slot, bool *waited) {
    *waited = sem_trywait(&w->free_slots) != 0;
    for (bool have = !*waited; !have;) {
        int64_t now_ns = clock_now_ns();
        if (should_stop(w) || now_ns >= until_ns) {
            return false;
        }
        int64_t wake_ns = until_ns - now_ns > POLL_NS ? now_ns + POLL_NS : until_ns;
        struct timespec wake = {wake_ns / NS_PER_S, wake_ns % NS_PER_S};
        have = sem_clockwait(&w->free_slots, CLOCK_MONOTONIC, &wake) == 0;
    }
    INVARIANT(w->ring_out < atomic_load_explicit(&w->ring_in, memory_order_acquire));
    *slot = w->ring[w->ring_out++ % w->slots];
    return true;
}

// The next call of the schedule; false: no more calls. at_ns counts from the start; -1: send it as soon as a slot is free.
static bool next_call(struct worker *w, struct trace_call *out) {
    const struct bench_plan *plan = w->plan;
    if (plan->trace) {
        if (w->trace_at >= plan->trace->count) {
            return false;
        }
        *out = plan->trace->calls[w->trace_at];
        w->trace_at += plan->options->processes;
        return out->at_ns < plan->warmup_ns + plan->duration_ns;
    }
    out->at_ns = plan->rate > 0 ? schedule_next_ns(&w->schedule) : -1;
    out->layer = (uint32_t)bench_random_below(&w->random, plan->target->num_layers);
    out->tokens = tokens_draw(&plan->options->tokens, &w->random);
    return out->at_ns < plan->warmup_ns + plan->duration_ns;
}

static struct wire_tensor matrix(enum expertd_dtype dtype, uint64_t rows, uint64_t columns, void *data) {
    return (struct wire_tensor){.present = true,
                                .view = {.dtype = dtype,
                                         .rank = 2,
                                         .shape = {rows, columns},
                                         .data = data,
                                         .bytes = rows * columns * expertd_dtype_size(dtype)}};
}

static void send_pending(struct worker *w, uint32_t slot, const struct pending_call *pending) {
    const struct bench_plan *plan = w->plan;
    const struct bench_pool *pool = plan->pool;
    const struct target_layer *layer = &plan->target->layers[pending->layer_index];
    uint64_t tokens = pending->window.tokens;
    struct wire_request request = {
        .layer = layer->layer,
        .weights_id = layer->weights_id,
        .timeout_us = plan->options->stream ? (uint64_t)plan->timeout_us : 0,
        .hidden = matrix(pool->dtype, tokens, pool->hidden_size, NULL), // the data are call.pieces
    };
    memcpy(request.model, plan->target->model, sizeof request.model);
    if (pool->scales) {
        pool_scales(pool, &pending->window, w->scales);
        request.hidden_scale = matrix(EXPERTD_DTYPE_F32, tokens, 1, w->scales);
    }
    if (pool->routed) {
        pool_routes(pool, &pending->window, w->ids, w->weights);
        request.routing = WIRE_ROUTING_ROUTES;
        request.ids = matrix(EXPERTD_DTYPE_I32, tokens, pool->choices, w->ids);
        request.weights = matrix(EXPERTD_DTYPE_F32, tokens, pool->choices, w->weights);
    }
    struct calls_request call = {
        .slot = slot,
        .connection = (uint32_t)(w->turn++ % w->connections),
        .request = &request,
        .pieces = w->pieces,
        .num_pieces = pool_pieces(pool, &pending->window, w->pieces),
        .timeout_us = plan->timeout_us,
    };
    if (plan->options->region) {
        bench_region_fill(&w->region, slot, w->pieces, call.num_pieces, pool, &request);
        call.num_pieces = 0;
    }
    calls_start(w->calls, &call);
}

static void send_call(struct worker *w, uint32_t slot, const struct trace_call *call, int64_t start_ns, bool waited) {
    const struct bench_routing *routing = &w->plan->options->routing;
    struct bench_result *result = &w->account->result;
    struct pending_call *pending = &w->pending_calls[slot];
    int64_t now_ns = clock_now_ns();
    *pending = (struct pending_call){
        .intended_ns = call->at_ns < 0 ? now_ns : start_ns + call->at_ns,
        .sent_ns = now_ns,
        .layer_index = call->layer,
        .window = pool_group(w->plan->pool, routing_phases(routing), routing_phase_at(routing, now_ns - start_ns)),
        .in_flight = true,
    };
    pending->window.tokens = call->tokens;
    pending->window.start = (uint32_t)bench_random_below(&w->random, pending->window.count);
    pending->measured = pending->intended_ns >= w->span_start_ns;
    result->slots_waited += call->at_ns >= 0 && waited;
    if (pending->measured) {
        result->calls++;
        if (call->at_ns >= 0) {
            histogram_add(&result->lag, (now_ns - pending->intended_ns) / NS_PER_US);
        }
    }
    atomic_fetch_add_explicit(&w->account->inflight, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&w->started, 1, memory_order_release);
    send_pending(w, slot, pending);
}

// CPU seconds so far: of the process, the sending thread, the receiving thread.
struct cpu_times {
    double process, sender, receiver;
};

static double clock_seconds(clockid_t clock) {
    struct timespec t = {0};
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / NS_PER_S;
}

static struct cpu_times cpu_times_now(const struct worker *w) {
    clockid_t receiver;
    bool known = pthread_getcpuclockid(w->receiver, &receiver) == 0;
    return (struct cpu_times){clock_seconds(CLOCK_PROCESS_CPUTIME_ID), clock_seconds(CLOCK_THREAD_CPUTIME_ID),
                              known ? clock_seconds(receiver) : 0};
}

static void account_cpu(struct worker *w, struct cpu_times before, int64_t since_ns) {
    struct cpu_times after = cpu_times_now(w);
    double seconds = (double)(clock_now_ns() - since_ns) / NS_PER_S, sender = after.sender - before.sender,
           receiver = after.receiver - before.receiver;
    w->account->result.cpus = seconds > 0 ? (after.process - before.process) / seconds : 0;
    w->account->result.thread_share = seconds > 0 ? (sender > receiver ? sender : receiver) / seconds : 0;
}

// The number of calls that will not be sent, `call` and the later ones: the schedule has ended and the client was too late.
static uint64_t left_unsent(const struct worker *w, const struct trace_call *call) {
    const struct bench_plan *plan = w->plan;
    if (plan->trace) {
        return 1 + (plan->trace->count - (w->trace_at < plan->trace->count ? w->trace_at : plan->trace->count)) /
                       plan->options->processes;
    }
    return 1 + (uint64_t)((double)(plan->warmup_ns + plan->duration_ns - call->at_ns) / w->schedule.gap_ns);
}

// Sends all calls until the end of the span, or until the run is stopped.
static void send_all(struct worker *w, int64_t start_ns) {
    struct cpu_times before = {0};
    int64_t measured_from_ns = 0;
    // A trace is sent completely, even if late; a rate ends with the span.
    int64_t late_ns = w->plan->trace ? w->plan->timeout_us * NS_PER_US : w->plan->rate > 0 ? LATE_NS : 0;
    struct trace_call call;
    while (next_call(w, &call)) {
        bool open = call.at_ns >= 0, waited;
        uint32_t slot;
        int64_t give_up_ns = span_end_ns(w) + late_ns;
        if (open && !sleep_until(w, start_ns + call.at_ns)) {
            break;
        }
        bool have = take_slot(w, give_up_ns, &slot, &waited);
        int64_t now_ns = clock_now_ns();
        if (!have || now_ns >= give_up_ns || should_stop(w)) {
            w->account->result.unsent = open && !should_stop(w) ? left_unsent(w, &call) : 0;
            w->account->result.slots_waited += open && !have;
            break;
        }
        if (measured_from_ns == 0 && now_ns >= w->span_start_ns) {
            before = cpu_times_now(w);
            measured_from_ns = now_ns;
        }
        send_call(w, slot, &call, start_ns, waited);
    }
    if (measured_from_ns) {
        account_cpu(w, before, measured_from_ns);
    }
}

// ---- the process

static int64_t wait_for_start(const struct worker *w) {
    for (;;) {
        int64_t start_ns = atomic_load_explicit(&w->shared->start_ns, memory_order_acquire);
        if (start_ns || should_stop(w)) {
            return start_ns ? start_ns : clock_now_ns();
        }
        struct timespec pause = {0, NS_PER_MS};
        nanosleep(&pause, NULL);
    }
}

static void count_unanswered(struct worker *w) {
    for (uint32_t i = 0; i < w->slots; i++) {
        if (w->pending_calls[i].in_flight) {
            struct calls_end end = {
                .grpc_code = DEADLINE_EXCEEDED, .reason = "UNANSWERED", .message = "no answer came within the timeout"};
            count_failure(w, &w->pending_calls[i], &end);
        }
    }
}

// Ends the measured span now: nothing is sent any more, so later answers do not belong to the load's rate.
static void cut_span(struct worker *w, int64_t now_ns) {
    if (now_ns < span_end_ns(w)) {
        atomic_store_explicit(&w->span_end_ns, now_ns, memory_order_relaxed);
    }
}

static FALLIBLE run(struct worker *w) {
    TRY(worker_init(w));
    atomic_store(&w->account->state, ACCOUNT_READY);
    int64_t start_ns = wait_for_start(w);
    w->span_start_ns = start_ns + w->plan->warmup_ns;
    atomic_store_explicit(&w->span_end_ns, w->span_start_ns + w->plan->duration_ns, memory_order_relaxed);
    if (pthread_create(&w->receiver, NULL, receive_all, w) != 0) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot start a thread: raise the limit on processes, or give fewer --processes");
    }
    send_all(w, start_ns);
    if (!w->plan->trace) { // the last call of a slow schedule may be well before the span's end
        sleep_until(w, span_end_ns(w));
    }
    if (should_stop(w)) {
        cut_span(w, clock_now_ns());
    }
    atomic_store_explicit(&w->sent_all, true, memory_order_release);
    pthread_join(w->receiver, NULL);
    count_unanswered(w);
    int64_t end_ns = w->plan->trace ? w->last_end_ns : span_end_ns(w);
    w->account->result.span_s = end_ns > w->span_start_ns ? (double)(end_ns - w->span_start_ns) / NS_PER_S : 0;
    return OK;
}

void bench_worker(const struct bench_plan *plan, uint32_t process, struct bench_shared *shared) {
    prctl(PR_SET_TIMERSLACK, 1UL); // the default of 50 us would delay calls by as much
    struct worker w = {.plan = plan, .process = process, .shared = shared, .account = &shared->accounts[process]};
    err_t e = run(&w);
    if (err_is(e)) {
        err_save(e, &w.account->error);
    }
    worker_deinit(&w);
    atomic_store(&w.account->state, err_is(e) ? ACCOUNT_FAILED : ACCOUNT_DONE);
}
