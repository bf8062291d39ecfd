// What each step does to the small world.
#include "tests/unit/shard/membership/small_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "shard/membership/membership_status.h"

#define W world_current()

// -- the streams
// --------------------------------------------------------------------------------------------------------------------

static void send(struct queue *queue, struct message message) {
    assert_true(queue->count < QUEUE_MAX);
    queue->messages[queue->count++] = message;
}

static struct message receive(struct queue *queue, bool stays) {
    struct message first = queue->messages[0];
    if (!stays) {
        queue->count--;
        memmove(&queue->messages[0], &queue->messages[1], queue->count * sizeof first);
        memset(&queue->messages[queue->count], 0, sizeof first);
    }
    return first;
}

// What is on the way is lost. The front does not know yet; the shard keeps its session until it notices.
static void break_link(struct link *link) {
    memset(&link->to_shard, 0, sizeof link->to_shard);
    memset(&link->to_front, 0, sizeof link->to_front);
    if (link->shard_open) {
        link->lost_session = link->session;
    }
    link->shard_open = false;
    link->is_broken = true;
}

static uint8_t set_of(const struct expert_id *experts, size_t count) {
    uint8_t set = 0;
    for (size_t i = 0; i < count; i++) {
        set |= (uint8_t)(1u << experts[i].expert);
    }
    return set;
}

static size_t list_of(uint8_t set, struct expert_id experts[EXPERTS]) {
    size_t count = 0;
    for (uint32_t e = 0; e < EXPERTS; e++) {
        if (set >> e & 1) {
            experts[count++] = (struct expert_id){0, (uint16_t)e};
        }
    }
    return count;
}

// -- shards
// -------------------------------------------------------------------------------------------------------------------------

static void pump_shard(uint32_t s) {
    struct holder *shard = &W->shards[s];
    struct holder_action action;
    while (holder_next(shard, &action)) {
        if (action.kind == HOLDER_FREE) {
            world_check_free(s, action.expert.expert);
            W->generations[s][action.expert.expert]++;
            holder_freed(shard, action.expert);
            continue;
        }
        for (uint32_t f = 0; f < FRONTS; f++) {
            struct link *link = &W->links[f][s];
            link->lost_session = link->lost_session == action.session ? 0 : link->lost_session;
            if (link->shard_open && link->session == action.session) {
                break_link(link);
                link->lost_session = 0;
            }
        }
    }
    for (uint32_t f = 0; f < FRONTS; f++) {
        struct link *link = &W->links[f][s];
        struct holder_message m;
        while (link->shard_open && link->to_front.count < QUEUE_TO_FRONT && holder_next_message(shard, link->session, &m)) {
            struct message message = {.kind = MESSAGE_OTHER, .what = (uint8_t)m.kind};
            message.flag = m.is_granted || m.is_complete || m.drains;
            message.number = m.commands_seen;
            message.sequence = m.sequence;
            message.value = m.owner;
            for (size_t i = 0; i < m.count; i++) {
                message.experts |= (uint8_t)(1u << m.reports[i].id.expert);
                message.states[m.reports[i].id.expert] = (uint8_t)m.reports[i].state;
            }
            send(&link->to_front, message);
        }
    }
}

static void shard_receives(uint32_t f, uint32_t s, bool stays) {
    struct link *link = &W->links[f][s];
    struct holder *shard = &W->shards[s];
    struct message message = receive(&link->to_shard, stays);
    struct expert_id experts[EXPERTS];
    size_t count = list_of(message.experts, experts);
    err_t e = OK;
    switch (message.kind) {
    case MESSAGE_FRONT_HELLO:
        if (!link->shard_open) {
            link->shard_open = true;
            send(&link->to_front, (struct message){.kind = MESSAGE_HELLO, .flag = shard->is_draining, .value = W->instances[s]});
            if (err_is(holder_connect(shard, link->session, message.value, message.flag, W->now))) {
                break_link(link); // too many fronts: the shard has not noticed yet that those before a restart are gone
            }
        }
        break;
    case MESSAGE_COMMAND_ASSIGN:
        e = holder_assign(shard, link->session, message.number, experts, count);
        break;
    case MESSAGE_COMMAND_RETIRE:
        e = holder_retire(shard, link->session, message.number, experts, count);
        break;
    case MESSAGE_DRAIN:
        holder_drain(shard, message.flag);
        break;
    default:
        e = holder_release(shard, link->session, message.number, experts, count);
    }
    assert_false(err_is(e));
    pump_shard(s);
}

// -- fronts
// -------------------------------------------------------------------------------------------------------------------------

static void feed(uint32_t f, struct membership_event event);

static void dial(uint32_t f, uint32_t s, uint32_t connection) {
    struct link *link = &W->links[f][s];
    break_link(link);
    link->is_open = true;
    link->connection = connection;
    link->session = FRONTS * ++link->dials + f;
    link->is_broken = W->instances[s] == 0; // nobody listens: the front notices that it failed
    if (!link->is_broken) {
        send(&link->to_shard,
             (struct message){.kind = MESSAGE_FRONT_HELLO, .flag = W->fronts[f].options.is_owner, .value = W->front_ids[f]});
    }
}

static void act(uint32_t f, const struct membership_action *action) {
    struct link *link = &W->links[f][action->member];
    struct message message = {.experts = set_of(action->experts, action->count), .number = action->number};
    switch (action->kind) {
    case MEMBERSHIP_DIAL:
        dial(f, action->member, action->connection);
        return;
    case MEMBERSHIP_CLOSE:
        if (link->connection == action->connection) {
            break_link(link);
            link->is_open = false;
        }
        return;
    case MEMBERSHIP_USE:
        W->given[f] = action->epoch;
        return;
    case MEMBERSHIP_DRAIN:
        message.kind = MESSAGE_DRAIN;
        message.flag = action->drains;
        break;
    case MEMBERSHIP_RELEASE:
        world_check_release(f, action->member, message.experts);
        message.kind = MESSAGE_RELEASED;
        break;
    case MEMBERSHIP_RETIRE:
        world_check_retire(f, action->member, message.experts);
        message.kind = MESSAGE_COMMAND_RETIRE;
        break;
    case MEMBERSHIP_ASSIGN:
        message.kind = MESSAGE_COMMAND_ASSIGN;
        break;
    default:
        return;
    }
    if (link->is_open && !link->is_broken) {
        send(&link->to_shard, message);
    }
}

static void feed(uint32_t f, struct membership_event event) {
    event.now_ns = W->now;
    membership_step(&W->fronts[f], &event);
    struct membership_action action;
    for (int i = 0; membership_next(&W->fronts[f], &action); i++) {
        assert_true(i < 100);
        W->actions++;
        act(f, &action);
    }
}

static void feed_link(uint32_t f, uint32_t s, struct membership_event event) {
    event.member = s;
    event.connection = W->links[f][s].connection;
    feed(f, event);
}

static void front_receives(uint32_t f, uint32_t s, bool stays) {
    struct message m = receive(&W->links[f][s].to_front, stays);
    struct copy_report reports[EXPERTS];
    size_t count = 0;
    for (uint32_t e = 0; e < EXPERTS; e++) {
        if (m.experts >> e & 1) {
            reports[count++] = (struct copy_report){{0, (uint16_t)e}, (enum copy_state)m.states[e], 100u + e};
        }
    }
    struct membership_event event = {.kind = MEMBERSHIP_HELLO};
    if (m.kind == MESSAGE_HELLO) {
        event.hello = (struct member_hello){W->fronts[f].options.identity, m.value, world_options()->shard_memory, m.flag};
    } else if (m.what == HOLDER_LEASE) {
        event.kind = MEMBERSHIP_LEASE;
        event.lease.is_granted = m.flag;
        event.lease.owner = m.value;
    } else if (m.what == HOLDER_DRAINS) {
        event.kind = MEMBERSHIP_SHARD_DRAINS;
        event.drains = m.flag;
    } else {
        event.kind = MEMBERSHIP_INVENTORY;
        event.inventory = (struct member_inventory){m.sequence, m.number, m.flag, reports, count};
    }
    feed_link(f, s, event);
    pump_shard(s); // there is space in the stream again
}

// -- steps
// --------------------------------------------------------------------------------------------------------------------------

static bool take(uint8_t *budget) {
    if (*budget == 0) {
        return false;
    }
    --*budget;
    return true;
}

static void pass_time(uint32_t silent_front, uint32_t silent_shard) {
    W->now += STEP_TIME_UNITS;
    for (uint32_t f = 0; f < FRONTS; f++) {
        for (uint32_t s = 0; s < SHARDS; s++) {
            struct link *link = &W->links[f][s];
            if (link->is_open && !link->is_broken && link->shard_open && !(f == silent_front && s == silent_shard)) {
                holder_heard(&W->shards[s], link->session, W->now);
                feed_link(f, s, (struct membership_event){.kind = MEMBERSHIP_ECHO, .round_trip_ns = 1});
            }
        }
    }
    for (uint32_t f = 0; f < FRONTS; f++) {
        feed(f, (struct membership_event){.kind = MEMBERSHIP_TICK});
    }
    for (uint32_t s = 0; s < SHARDS; s++) {
        holder_tick(&W->shards[s], W->now);
        pump_shard(s);
    }
}

static bool load(uint32_t s, bool succeeds) {
    struct expert_id expert;
    if (!holder_take_load(&W->shards[s], &expert)) {
        return false;
    }
    if (succeeds) {
        holder_loaded(&W->shards[s], expert, 100u + expert.expert);
    } else {
        holder_load_failed(&W->shards[s], expert);
    }
    pump_shard(s);
    return true;
}

static void stop_shard(uint32_t s) {
    for (uint32_t f = 0; f < FRONTS; f++) {
        break_link(&W->links[f][s]);
        W->links[f][s].lost_session = 0;
    }
    for (uint32_t e = 0; e < EXPERTS; e++) {
        W->generations[s][e]++;
    }
    world_start_shard(s); // empty
    W->instances[s] = 0;
}

static void reworld_start_shard(uint32_t s) {
    stop_shard(s);
    world_start_shard(s);
}

static void list_shard(uint32_t f, uint32_t s) {
    static const char *const NAMES[SHARDS] = {"a", "b", "c"};
    uint32_t member;
    assert_false(err_is(membership_add(&W->fronts[f], NAMES[s], W->now, &member)));
    assert_int_equal(member, s);
    feed(f, (struct membership_event){.kind = MEMBERSHIP_TICK});
}

void world_list_shards(uint32_t f) {
    for (uint32_t s = 0; s < SHARDS; s++) {
        list_shard(f, s);
    }
    if (W->unlisted > 0) { // so that the slots have the numbers of the shards
        feed(f, (struct membership_event){.kind = MEMBERSHIP_UNLIST, .member = W->unlisted - 1});
    }
}

static bool change_list(uint32_t s, bool listed) {
    if (W->unlisted != (listed ? s + 1 : 0) || !take(&W->budget.lists)) {
        return false;
    }
    W->unlisted = listed ? 0 : s + 1;
    for (uint32_t f = 0; f < FRONTS; f++) {
        if (listed) {
            list_shard(f, s);
        } else {
            feed(f, (struct membership_event){.kind = MEMBERSHIP_UNLIST, .member = s});
        }
    }
    return true;
}

static bool ask_drain(uint32_t f, uint32_t s, bool drains) {
    if (!take(&W->budget.drains)) {
        return false;
    }
    feed(f, (struct membership_event){.kind = MEMBERSHIP_ASK_DRAIN, .member = s, .drains = drains});
    return true;
}

static void reworld_start_front(uint32_t f) {
    for (uint32_t s = 0; s < SHARDS; s++) {
        break_link(&W->links[f][s]);
        W->links[f][s].is_open = false;
    }
    world_start_front(f);
    world_list_shards(f);
}

static void begin_batch(uint32_t f) {
    struct batch *batch = &W->batches[f];
    *batch = (struct batch){.is_open = true};
    for (uint32_t s = 0; s < SHARDS; s++) {
        batch->sessions[s] = W->links[f][s].session;
        batch->experts[s] = membership_is_live(&W->fronts[f], s) ? (uint8_t)W->tables[f][s] : 0;
        memcpy(batch->generations[s], W->generations[s], sizeof batch->generations[s]);
    }
}

// The table that was taken up is in force when no batch uses the one before.
static void confirm_table(uint32_t f) {
    uint64_t epoch = W->given[f];
    if (W->is_taken_up[f] && !W->batches[f].is_old) {
        W->given[f] = 0;
        W->is_taken_up[f] = false;
        feed(f, (struct membership_event){.kind = MEMBERSHIP_IN_FORCE, .in_force = {0, epoch}});
    }
}

static void take_up_table(uint32_t f) {
    for (uint32_t s = 0; s < SHARDS; s++) {
        W->tables[f][s] = W->fronts[f].members[s].table[0];
    }
    W->is_taken_up[f] = true;
    W->batches[f].is_old = W->batches[f].is_open;
    confirm_table(f);
}

static void end_batch(uint32_t f) {
    W->batches[f] = (struct batch){0};
    confirm_table(f);
}

static bool step_link(const struct world_step *step);

static bool reconnect(uint32_t f, uint32_t s) {
    struct link *link = &W->links[f][s];
    if (!link->is_open) {
        return false;
    }
    break_link(link);
    step_link(&(struct world_step){STEP_SHARD_NOTICES, f, s});
    step_link(&(struct world_step){STEP_FRONT_NOTICES, f, s});
    feed(f, (struct membership_event){.kind = MEMBERSHIP_TICK}); // dials
    while (link->to_shard.count > 0 && !link->shard_open) {
        shard_receives(f, s, false);
    }
    while (link->to_front.count > 0) {
        front_receives(f, s, false);
    }
    return true;
}

static bool step_link(const struct world_step *step) {
    uint32_t f = step->front, s = step->shard;
    struct link *link = &W->links[f][s];
    bool repeats = step->kind == STEP_REPEAT_TO_SHARD || step->kind == STEP_REPEAT_TO_FRONT;
    switch (step->kind) {
    case STEP_DELIVER_TO_SHARD:
    case STEP_REPEAT_TO_SHARD:
        if (link->to_shard.count == 0 || (repeats && !take(&W->budget.repeats))) {
            return false;
        }
        shard_receives(f, s, repeats);
        return true;
    case STEP_DELIVER_TO_FRONT:
    case STEP_REPEAT_TO_FRONT:
        if (link->to_front.count == 0 || (repeats && !take(&W->budget.repeats))) {
            return false;
        }
        front_receives(f, s, repeats);
        return true;
    case STEP_BREAK:
        if (!link->is_open || link->is_broken || !take(&W->budget.breaks)) {
            return false;
        }
        break_link(link);
        return true;
    case STEP_FRONT_NOTICES:
        if (!link->is_open || !link->is_broken) {
            return false;
        }
        link->is_open = false;
        feed_link(f, s, (struct membership_event){.kind = MEMBERSHIP_DISCONNECTED});
        return true;
    case STEP_RECONNECT:
        return !link->is_broken && W->budget.reconnects > 0 && reconnect(f, s) && take(&W->budget.reconnects);
    default: // STEP_SHARD_NOTICES
        if (link->lost_session == 0) {
            return false;
        }
        holder_disconnected(&W->shards[s], link->lost_session);
        link->lost_session = 0;
        pump_shard(s);
        return true;
    }
}

bool world_step(const struct world_step *step) {
    uint32_t f = step->front, s = step->shard;
    switch (step->kind) {
    case STEP_LOAD:
        return load(s, true);
    case STEP_LOAD_FAILS:
        return W->budget.failures > 0 && load(s, false) && take(&W->budget.failures);
    case STEP_RESTART_SHARD:
    case STEP_RESTART_HEARD:
        if (!take(&W->budget.shard_restarts)) {
            return false;
        }
        reworld_start_shard(s);
        for (uint32_t i = 0; step->kind == STEP_RESTART_HEARD && i < FRONTS; i++) {
            reconnect(i, s);
        }
        return true;
    case STEP_STOP_SHARD:
        if (W->instances[s] == 0 || !take(&W->budget.shard_stops)) {
            return false;
        }
        stop_shard(s);
        return true;
    case STEP_RESTART_FRONT:
        if (!take(&W->budget.front_restarts)) {
            return false;
        }
        reworld_start_front(f);
        return true;
    case STEP_TIME:
        if (!take(&W->budget.times)) {
            return false;
        }
        pass_time(FRONTS, SHARDS);
        return true;
    case STEP_SILENCE:
        if (!take(&W->budget.silences)) {
            return false;
        }
        pass_time(f, s);
        return true;
    case STEP_TAKE_UP:
        if (W->given[f] == 0 || W->is_taken_up[f]) {
            return false;
        }
        take_up_table(f);
        return true;
    case STEP_BATCH_BEGINS:
        if (W->batches[f].is_open || !take(&W->budget.batches)) {
            return false;
        }
        begin_batch(f);
        return true;
    case STEP_BATCH_ENDS:
        if (!W->batches[f].is_open) {
            return false;
        }
        end_batch(f);
        return true;
    case STEP_DRAIN:
    case STEP_CANCEL_DRAIN:
        return ask_drain(f, s, step->kind == STEP_DRAIN);
    case STEP_UNLIST:
    case STEP_LIST:
        return change_list(s, step->kind == STEP_LIST);
    default:
        return step_link(step);
    }
}
