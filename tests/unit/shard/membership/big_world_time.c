// The course of time in the big world: messages, loads, ticks, and what the cores do in answer.
#include "tests/unit/shard/membership/big_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/shard/membership/big_world_state.h"

uint64_t big_random(struct big_world *w) {
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return w->random;
}

static int64_t between(struct big_world *w, int64_t least, int64_t most) {
    return least + (int64_t)(big_random(w) % (uint64_t)(most - least + 1));
}

// -- events in order of time
// --------------------------------------------------------------------------------------------------------

static bool is_sooner(const struct event *a, const struct event *b) {
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void push(struct big_world *w, struct event event) {
    if (w->heap_count == w->heap_max) {
        w->heap_max = w->heap_max ? 2 * w->heap_max : 1024;
        w->heap = realloc(w->heap, w->heap_max * sizeof *w->heap);
        assert_non_null(w->heap);
    }
    event.order = w->next_order++;
    size_t at = w->heap_count++;
    for (; at > 0 && is_sooner(&event, &w->heap[(at - 1) / 2]); at = (at - 1) / 2) {
        w->heap[at] = w->heap[(at - 1) / 2];
    }
    w->heap[at] = event;
}

static struct event pop(struct big_world *w) {
    struct event first = w->heap[0], last = w->heap[--w->heap_count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < w->heap_count; at = child) {
        child += child + 1 < w->heap_count && is_sooner(&w->heap[child + 1], &w->heap[child]);
        if (is_sooner(&last, &w->heap[child])) {
            break;
        }
        w->heap[at] = w->heap[child];
    }
    w->heap[at] = last;
    return first;
}

// -- streams
// ------------------------------------------------------------------------------------------------------------------------

static void empty_stream(struct stream *stream) {
    while (stream->first) {
        struct message *next = stream->first->next;
        free(stream->first);
        stream->first = next;
    }
    stream->last = NULL;
}

void big_schedule(struct big_world *w, uint32_t f, uint32_t s) {
    push(w, (struct event){.at_ns = w->now_ns, .kind = EVENT_DELIVER, .front = f, .shard = s});
}

static void send(struct big_world *w, uint32_t f, uint32_t s, struct stream *stream, const struct message *message) {
    struct message *copy = malloc(sizeof *copy);
    assert_non_null(copy);
    *copy = *message;
    copy->next = NULL;
    copy->at_ns = w->now_ns + between(w, MS / 5, 2 * MS);
    if (stream->last && stream->last->at_ns > copy->at_ns) {
        copy->at_ns = stream->last->at_ns;
    }
    *(stream->last ? &stream->last->next : &stream->first) = copy;
    stream->last = copy;
    push(w, (struct event){.at_ns = copy->at_ns, .kind = EVENT_DELIVER, .front = f, .shard = s});
}

static struct message *receive(struct big_world *w, struct stream *stream) {
    struct message *first = stream->first;
    if (!first || first->at_ns > w->now_ns) {
        return NULL;
    }
    stream->first = first->next;
    stream->last = stream->first ? stream->last : NULL;
    return first;
}

void big_end_streams(struct big_world *w, uint32_t f, uint32_t s) {
    struct connection *c = big_connection(w, f, s);
    empty_stream(&c->to_shard);
    empty_stream(&c->to_front);
    int64_t soon = w->now_ns + MS / 3;
    if (c->front_open && !c->is_cut) {
        push(w, (struct event){.at_ns = soon, .kind = EVENT_FRONT_NOTICES, .front = f, .shard = s, .number = c->number});
    }
    if (c->shard_open && !c->is_cut) {
        push(w, (struct event){.at_ns = soon, .kind = EVENT_SHARD_NOTICES, .front = f, .shard = s, .number = c->session});
    }
    c->shard_open = false;
}

// -- shards
// -------------------------------------------------------------------------------------------------------------------------

static void start_load(struct big_world *w, uint32_t s) {
    struct shard *shard = &w->shards[s];
    if (!shard->is_loading && holder_take_load(&shard->holder, &shard->loading)) {
        shard->is_loading = true;
        int64_t at_ns = w->now_ns + between(w, 20 * MS, 200 * MS);
        push(w, (struct event){.at_ns = at_ns, .kind = EVENT_LOADED, .shard = s, .value = shard->instance});
    }
}

static void pump_shard(struct big_world *w, uint32_t s) {
    struct shard *shard = &w->shards[s];
    struct holder_action action;
    while (holder_next(&shard->holder, &action)) {
        if (action.kind == HOLDER_FREE) {
            holder_freed(&shard->holder, action.expert);
        }
        for (uint32_t f = 0; action.kind == HOLDER_CLOSE && f < BIG_FRONTS; f++) {
            if (big_connection(w, f, s)->shard_open && big_connection(w, f, s)->session == action.session) {
                big_end_streams(w, f, s);
            }
        }
    }
    start_load(w, s);
    for (uint32_t f = 0; f < BIG_FRONTS; f++) {
        struct connection *c = big_connection(w, f, s);
        struct message message = {.kind = TO_FRONT_MESSAGE};
        while (c->shard_open && holder_next_message(&shard->holder, c->session, &message.holder)) {
            message.count = message.holder.count;
            if (message.count > 0) {
                memcpy(message.reports, message.holder.reports, message.count * sizeof *message.reports);
            }
            send(w, f, s, &c->to_front, &message);
        }
    }
}

static void shard_receives(struct big_world *w, uint32_t f, uint32_t s, struct message *m) {
    struct connection *c = big_connection(w, f, s);
    struct shard *shard = &w->shards[s];
    struct holder *holder = &shard->holder;
    err_t e = OK;
    holder_heard(holder, c->session, w->now_ns);
    switch (m->kind) {
    case TO_SHARD_HELLO:
        c->shard_open = true;
        e = holder_connect(holder, c->session, m->value, f == 0, w->now_ns);
        send(w, f, s, &c->to_front,
             &(struct message){.kind = TO_FRONT_HELLO, .flag = holder->is_draining, .value = shard->instance});
        break;
    case TO_SHARD_ASSIGN:
        e = holder_assign(holder, c->session, m->number, m->experts, m->count);
        break;
    case TO_SHARD_RETIRE:
        e = holder_retire(holder, c->session, m->number, m->experts, m->count);
        break;
    case TO_SHARD_RELEASE:
        e = holder_release(holder, c->session, m->number, m->experts, m->count);
        break;
    default:
        holder_drain(holder, m->flag);
    }
    if (err_is(e)) { // too many fronts: those that restarted are not noticed yet
        big_end_streams(w, f, s);
    }
    pump_shard(w, s);
}

// -- fronts
// -------------------------------------------------------------------------------------------------------------------------

static void dial(struct big_world *w, uint32_t f, uint32_t s, uint32_t number) {
    struct connection *c = big_connection(w, f, s);
    big_end_streams(w, f, s);
    c->front_open = true;
    c->number = number;
    c->session = ++w->next_session;
    if (!w->shards[s].runs) {
        push(w, (struct event){.at_ns = w->now_ns + MS, .kind = EVENT_FRONT_NOTICES, .front = f, .shard = s, .number = number});
        return;
    }
    send(w, f, s, &c->to_shard, &(struct message){.kind = TO_SHARD_HELLO, .value = w->front_ids[f]});
}

static void send_action(struct big_world *w, uint32_t f, const struct membership_action *action, enum kind kind) {
    struct connection *c = big_connection(w, f, action->member);
    struct message message = {.kind = kind, .number = action->number, .flag = action->drains, .count = action->count};
    memcpy(message.experts, action->experts, action->count * sizeof *message.experts);
    if (c->front_open && c->number == action->connection) {
        send(w, f, action->member, &c->to_shard, &message);
    }
}

static void act(struct big_world *w, uint32_t f, const struct membership_action *action) {
    struct connection *c = big_connection(w, f, action->member);
    w->counts.actions += action->kind != MEMBERSHIP_DIAL;
    w->action_ns = action->kind != MEMBERSHIP_DIAL ? w->now_ns : w->action_ns;
    switch (action->kind) {
    case MEMBERSHIP_SET_LIVE:
    case MEMBERSHIP_OWNER:
    case MEMBERSHIP_DRAINED:
        break;
    case MEMBERSHIP_LOG: {
        bool was = action->from == MEMBER_READY || action->from == MEMBER_LOADING || action->from == MEMBER_DRAINING;
        bool is = action->to == MEMBER_READY || action->to == MEMBER_LOADING || action->to == MEMBER_DRAINING;
        w->counts.live_changes[action->member] += f == 0 && was != is;
        break;
    }
    case MEMBERSHIP_CLOSE:
        if (c->front_open && c->number == action->connection) {
            c->front_open = false;
            big_end_streams(w, f, action->member);
        }
        break;
    case MEMBERSHIP_DIAL:
        dial(w, f, action->member, action->connection);
        break;
    case MEMBERSHIP_USE:
        push(w, (struct event){.at_ns = w->now_ns + between(w, MS / 10, 5 * MS), // batches with the table before end
                               .kind = EVENT_TAKE_UP,
                               .front = f,
                               .shard = action->layer,
                               .value = action->epoch});
        break;
    case MEMBERSHIP_DRAIN:
        send_action(w, f, action, TO_SHARD_DRAIN);
        break;
    case MEMBERSHIP_RELEASE:
        send_action(w, f, action, TO_SHARD_RELEASE);
        break;
    case MEMBERSHIP_RETIRE:
        w->counts.retired += action->count;
        send_action(w, f, action, TO_SHARD_RETIRE);
        break;
    case MEMBERSHIP_ASSIGN:
        w->counts.assigned += action->count;
        send_action(w, f, action, TO_SHARD_ASSIGN);
        break;
    }
}

void big_take_actions(struct big_world *w, uint32_t f) {
    struct membership_action action;
    for (uint32_t i = 0; membership_next(&w->fronts[f], &action); i++) {
        assert_true(i < 8 * w->options.shards + 1000);
        act(w, f, &action);
    }
}

void big_feed(struct big_world *w, uint32_t f, struct membership_event event) {
    event.now_ns = w->now_ns;
    membership_step(&w->fronts[f], &event);
    big_take_actions(w, f);
}

static void front_receives(struct big_world *w, uint32_t f, uint32_t s, struct message *m) {
    struct membership_event event = {.kind = MEMBERSHIP_HELLO, .member = s, .connection = big_connection(w, f, s)->number};
    if (m->kind == TO_FRONT_HELLO) {
        event.hello = (struct member_hello){w->fronts[f].options.identity, m->value, w->options.shard_memory, m->flag};
    } else if (m->holder.kind == HOLDER_LEASE) {
        event.kind = MEMBERSHIP_LEASE;
        event.lease.is_granted = m->holder.is_granted;
        event.lease.owner = m->holder.owner;
    } else if (m->holder.kind == HOLDER_DRAINS) {
        event.kind = MEMBERSHIP_SHARD_DRAINS;
        event.drains = m->holder.drains;
    } else {
        event.kind = MEMBERSHIP_INVENTORY;
        event.inventory =
            (struct member_inventory){m->holder.sequence, m->holder.commands_seen, m->holder.is_complete, m->reports, m->count};
    }
    big_feed(w, f, event);
}

static bool hears(const struct big_world *w, uint32_t f, uint32_t s) {
    const struct connection *c = &w->connections[f][s];
    return c->front_open && c->shard_open && !c->is_cut && w->shards[s].runs && !w->shards[s].is_stopped;
}

static void tick(struct big_world *w, uint32_t f) {
    for (uint32_t s = 0; s < w->options.shards; s++) {
        if (hears(w, f, s)) {
            holder_heard(&w->shards[s].holder, w->connections[f][s].session, w->now_ns);
            big_feed(w, f,
                     (struct membership_event){
                         .kind = MEMBERSHIP_ECHO, .member = s, .connection = w->connections[f][s].number, .round_trip_ns = MS});
        }
        if (f == 0 && w->shards[s].runs && !w->shards[s].is_stopped) {
            holder_tick(&w->shards[s].holder, w->now_ns);
            if (w->shards[s].holder.closing_count > 0) {
                pump_shard(w, s);
            }
        }
    }
    big_feed(w, f, (struct membership_event){.kind = MEMBERSHIP_TICK});
    push(w, (struct event){.at_ns = w->now_ns + w->fronts[f].options.health.interval_ns, .kind = EVENT_TICK, .front = f});
}

// -- the course of time
// -------------------------------------------------------------------------------------------------------------

static void deliver(struct big_world *w, uint32_t f, uint32_t s) {
    struct connection *c = big_connection(w, f, s);
    struct message *m;
    while (!c->is_cut && w->shards[s].runs && !w->shards[s].is_stopped && (m = receive(w, &c->to_shard))) {
        shard_receives(w, f, s, m);
        free(m);
    }
    while (!c->is_cut && c->front_open && (m = receive(w, &c->to_front))) {
        front_receives(w, f, s, m);
        free(m);
    }
}

static void loaded(struct big_world *w, uint32_t s, uint64_t instance) {
    struct shard *shard = &w->shards[s];
    if (!shard->runs || shard->instance != instance) {
        return;
    }
    shard->is_loading = false;
    w->counts.loads++;
    if (w->options.failing_loads && big_random(w) % w->options.failing_loads == 0) {
        holder_load_failed(&shard->holder, shard->loading);
    } else {
        holder_loaded(&shard->holder, shard->loading, 1000u * shard->loading.layer + shard->loading.expert);
    }
    pump_shard(w, s);
}

static void handle(struct big_world *w, const struct event *event) {
    struct connection *c = event->kind <= EVENT_SHARD_NOTICES ? big_connection(w, event->front, event->shard) : NULL;
    switch (event->kind) {
    case EVENT_DELIVER:
        deliver(w, event->front, event->shard);
        break;
    case EVENT_FRONT_NOTICES:
        if (c->front_open && c->number == event->number) {
            c->front_open = false;
            big_feed(
                w, event->front,
                (struct membership_event){.kind = MEMBERSHIP_DISCONNECTED, .member = event->shard, .connection = event->number});
        }
        break;
    case EVENT_SHARD_NOTICES:
        holder_disconnected(&w->shards[event->shard].holder, event->number);
        pump_shard(w, event->shard);
        break;
    case EVENT_LOADED:
        loaded(w, event->shard, event->value);
        break;
    case EVENT_TAKE_UP:
        if (event->value == w->fronts[event->front].epochs[event->shard]) { // else the front has restarted
            big_feed(w, event->front,
                     (struct membership_event){.kind = MEMBERSHIP_IN_FORCE, .in_force = {event->shard, event->value}});
        }
        break;
    case EVENT_TICK:
        tick(w, event->front);
        break;
    }
}

void big_pass(struct big_world *w, int64_t ns) {
    int64_t end_ns = w->now_ns + ns;
    while (w->heap_count > 0 && w->heap[0].at_ns <= end_ns) {
        struct event event = pop(w);
        w->now_ns = event.at_ns;
        handle(w, &event);
    }
    w->now_ns = end_ns;
}

void big_come_to_rest(struct big_world *w, int64_t quiet_ns, int64_t ns) {
    int64_t end_ns = w->now_ns + ns;
    w->action_ns = w->now_ns;
    while (w->now_ns - w->action_ns < quiet_ns) {
        big_pass(w, 100 * MS);
        big_check(w);
        assert_true(w->now_ns < end_ns);
    }
}

void big_init_front(struct big_world *w, uint32_t f) {
    struct membership_options options = membership_defaults();
    options.catalogue = w->catalogue;
    options.identity = (struct member_identity){1, "1/bf16/cpu", "bf16", {1}};
    options.members_max = w->options.shards;
    options.copies = w->options.copies;
    options.is_owner = f == 0;
    options.health.interval_ns = 50 * MS;
    options.health.missed_max = 3;
    options.health.dead_after_ns = 1000 * MS;
    options.rereplicate_after_ns = 3000 * MS;
    options.settle_after_ns = 1000 * MS;
    options.review_interval_ns = 50 * MS;
    if (!w->front_memory[f]) {
        w->front_memory[f] = aligned_alloc(64, membership_bytes(&options));
        assert_non_null(w->front_memory[f]);
    }
    assert_false(err_is(membership_init(&w->fronts[f], &options, w->front_memory[f], w->now_ns)));
    w->front_ids[f] = ++w->next_id;
    for (uint32_t s = 0; s < w->options.shards; s++) {
        char address[32];
        uint32_t member;
        snprintf(address, sizeof address, "shard-%u:7413", s);
        assert_false(err_is(membership_add(&w->fronts[f], address, w->now_ns, &member)));
    }
    big_take_actions(w, f);
}

// -- life
// ---------------------------------------------------------------------------------------------------------------------------

struct big_world *big_create(const struct big_options *options) {
    struct big_world *w = calloc(1, sizeof *w);
    w->options = *options;
    w->random = options->seed;
    for (uint32_t l = 0; l < BIG_LAYERS; l++) {
        w->layer_experts[l] = options->experts;
        w->expert_bytes[l] = 1;
    }
    assert_false(err_is(catalogue_init(&w->catalogue, BIG_LAYERS, w->layer_experts, w->expert_bytes)));
    w->shards = calloc(options->shards, sizeof *w->shards);
    w->counts.live_changes = calloc(options->shards, sizeof *w->counts.live_changes);
    for (uint32_t s = 0; s < options->shards; s++) {
        big_start(w, s);
    }
    for (uint32_t f = 0; f < BIG_FRONTS; f++) {
        w->connections[f] = calloc(options->shards, sizeof *w->connections[f]);
        big_init_front(w, f);
        push(w, (struct event){.at_ns = 0, .kind = EVENT_TICK, .front = f});
    }
    return w;
}

void big_destroy(struct big_world *w) {
    for (uint32_t f = 0; f < BIG_FRONTS; f++) {
        for (uint32_t s = 0; s < w->options.shards; s++) {
            empty_stream(&big_connection(w, f, s)->to_shard);
            empty_stream(&big_connection(w, f, s)->to_front);
        }
        free(w->connections[f]);
        free(w->front_memory[f]);
    }
    for (uint32_t s = 0; s < w->options.shards; s++) {
        free(w->shards[s].memory);
    }
    free(w->shards);
    free(w->counts.live_changes);
    free(w->heap);
    free(w);
}

int64_t big_now(const struct big_world *w) {
    return w->now_ns;
}

struct big_counts *big_counts(struct big_world *w) {
    return &w->counts;
}

struct membership *big_front(struct big_world *w, uint32_t f) {
    return &w->fronts[f];
}
