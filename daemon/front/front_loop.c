#include "daemon/front/front_loop.h"

#include "base/clock.h"
#include "daemon/front/front_connection.h"
#include "daemon/front/front_hosts.h"
#include "daemon/front/front_local.h"
#include "daemon/front/front_step.h"
#include "daemon/front/front_tables.h"
#include "daemon/log/log.h"
#include "daemon/metrics/metrics.h"

enum { LOAD_PERIOD_S = 5 };

static void set_live(struct front *front) {
    const struct membership *m = &front->membership;
    for (uint32_t rank = front->local; rank < front->ranks; rank++) {
        row_links_use(front->links, rank, membership_is_live(m, rank), member_reason_name(m->members[rank].reason));
    }
}

// ---- the log

// A shard must not be able to fill the log.
static bool may_log(struct front *front, uint32_t member) {
    return log_limit_allows(&front->notes[member].log, clock_now_ns(), front->membership.members[member].address);
}

static void log_owner(struct front *front) {
    if (!log_limit_allows(&front->owner_log, clock_now_ns(), "placement_owner")) {
        return;
    }
    const struct membership *m = &front->membership;
    char denied_by[2 * MEMBER_ADDRESS_MAX + 16] = "", quoted[2 * MEMBER_ADDRESS_MAX];
    for (uint32_t i = front->local; !m->is_acting && !denied_by[0] && i < front->ranks; i++) {
        if (m->members[i].is_used && m->members[i].lease == LEASE_DENIED) {
            snprintf(denied_by, sizeof denied_by, " denied_by=%s", log_quote(m->members[i].address, quoted, sizeof quoted));
        }
    }
    log_line(LOG_LEVEL_INFO, "placement_owner", "this_front=%s%s", m->is_acting ? "true" : "false", denied_by);
}

static void log_refused(const struct front *front, const struct membership_action *action, const struct member *member) {
    char address[2 * MEMBER_ADDRESS_MAX], theirs[2 * MEMBER_VALUE_MAX], ours[2 * MEMBER_VALUE_MAX], expert[64] = "";
    const struct member_refusal *refusal = &member->refusal;
    if (refusal->reason == MEMBER_REFUSES_US) { // its text names both values and the mend
        char why[2 * FRONT_WHY_MAX];
        log_line(LOG_LEVEL_ERROR, "shard_refused", "shard=%u address=%s reason=%s message=%s", action->member,
                 log_quote(member->address, address, sizeof address), member_reason_name(refusal->reason),
                 log_quote(front->notes[action->member].why, why, sizeof why));
        return;
    }
    if (refusal->reason == MEMBER_OTHER_EXPERT) {
        snprintf(expert, sizeof expert, " layer=%u expert=%u", front->layer_numbers[refusal->expert.layer], refusal->expert.expert);
    }
    log_line(LOG_LEVEL_ERROR, "shard_refused", "shard=%u address=%s reason=%s%s theirs=%s ours=%s mend=\"%s\"", action->member,
             log_quote(member->address, address, sizeof address), member_reason_name(refusal->reason), expert,
             log_quote(refusal->theirs, theirs, sizeof theirs), log_quote(refusal->ours, ours, sizeof ours),
             member_reason_mend(refusal->reason));
}

static void log_member(struct front *front, const struct membership_action *action) {
    const struct member *member = &front->membership.members[action->member];
    if (!may_log(front, action->member)) {
        return;
    }
    if (action->to == MEMBER_REFUSED) {
        log_refused(front, action, member);
        return;
    }
    bool is_bad = action->to == MEMBER_SUSPECT || action->to == MEMBER_DEAD;
    char address[2 * MEMBER_ADDRESS_MAX], why[2 * FRONT_WHY_MAX] = "", quoted[2 * FRONT_WHY_MAX];
    const char *text = front->notes[action->member].why;
    if (text[0] && action->from != MEMBER_FREE && !member_is_up(member)) { // a used slot has the text of its last shard
        snprintf(why, sizeof why, " message=%s", log_quote(text, quoted, sizeof quoted));
    }
    log_line(is_bad ? LOG_LEVEL_WARNING : LOG_LEVEL_INFO, "shard", "shard=%u address=%s state=%s before=%s reason=%s%s",
             action->member, log_quote(member->address, address, sizeof address), member_state_name(action->to),
             member_state_name(action->from), member_reason_name(action->reason), why);
}

static void log_drained(struct front *front, uint32_t member) {
    char address[2 * MEMBER_ADDRESS_MAX];
    if (!may_log(front, member)) {
        return;
    }
    log_line(LOG_LEVEL_INFO, "shard_drained",
             "shard=%u address=%s message=\"it holds no expert that is needed: it may be stopped\"", member,
             log_quote(front->membership.members[member].address, address, sizeof address));
}

// ---- actions

static void command(struct front *front, const struct membership_action *action) {
    if (front->membership.members[action->member].is_local) {
        front_local_command(front, action);
    } else {
        front_connection_command(front, action);
    }
}

static void carry_out(struct front *front, const struct membership_action *action) {
    switch (action->kind) {
    case MEMBERSHIP_SET_LIVE:
        set_live(front);
        break;
    case MEMBERSHIP_OWNER:
        log_owner(front);
        break;
    case MEMBERSHIP_LOG:
        log_member(front, action);
        break;
    case MEMBERSHIP_CLOSE:
        front_connection_close(front, action->member, action->connection, "the front ends the connection");
        break;
    case MEMBERSHIP_DIAL:
        front_connection_dial(front, action->member, action->connection);
        break;
    case MEMBERSHIP_USE:
        front_tables_want(front, action->layer, action->epoch);
        break;
    case MEMBERSHIP_DRAIN:
    case MEMBERSHIP_RELEASE:
    case MEMBERSHIP_RETIRE:
    case MEMBERSHIP_ASSIGN:
        command(front, action);
        break;
    case MEMBERSHIP_DRAINED:
        log_drained(front, action->member);
        break;
    }
}

static bool next(struct front *front, struct membership_event *event) {
    return front_local_next(front, event) || front_connection_next(front, event);
}

const struct front_steps FRONT_STEPS = {.carry_out = carry_out, .next = next, .settled = front_tables_check};

// ---- time

// The rows of each expert since the last measurement: the placement follows the present load.
static void measure_load(struct front *front, int64_t now_ns) {
    const struct catalogue *catalogue = &front->catalogue;
    uint64_t rows[CATALOGUE_EXPERTS_MAX];
    front->load_ns = clock_add_ns(now_ns, (int64_t)LOAD_PERIOD_S * NS_PER_S);
    for (uint32_t layer = 0; layer < catalogue->layers; layer++) {
        uint64_t *before = &front->load_rows[(size_t)layer * catalogue->stride], sum = 0;
        metrics_expert_rows(front->metrics, layer, rows);
        for (uint32_t e = 0; e < catalogue->layer_experts[layer]; e++) {
            uint64_t now = rows[e];
            rows[e] = now - before[e];
            before[e] = now;
            sum += rows[e];
        }
        if (sum > 0) { // a layer without calls says nothing
            membership_set_load(&front->membership, layer, rows, now_ns);
            front_run(front);
        }
    }
}

// The rows per second that the status shows.
static void measure_rates(struct front *front, int64_t now_ns) {
    if (now_ns < clock_add_ns(front->rates_ns, NS_PER_S)) {
        return;
    }
    double seconds = (double)(now_ns - front->rates_ns) / NS_PER_S;
    front->rates_ns = now_ns;
    for (uint32_t rank = front->local; rank < front->ranks; rank++) {
        struct front_note *note = &front->notes[rank];
        struct row_link_figures figures;
        row_links_figures(front->links, rank, &figures);
        note->rows_per_second = (double)(figures.rows - note->rows_counted) / seconds;
        note->rows_counted = figures.rows;
    }
}

int64_t front_tick(void *context, unsigned thread, int64_t now_ns) {
    struct front *front = context;
    if (thread != FRONT_CONTROL_THREAD) {
        return CLOCK_NEVER;
    }
    front_lock(front);
    if (!front->is_stopping && now_ns >= front->tick_ns) {
        front->tick_ns = clock_add_ns(now_ns, front->membership.options.health.interval_ns);
        front_hosts_list(front);
        front_connection_heartbeats(front);
        measure_rates(front, now_ns);
        if (front->metrics && now_ns >= front->load_ns) {
            measure_load(front, now_ns);
        }
        front_event(front, &(struct membership_event){.kind = MEMBERSHIP_TICK});
    }
    int64_t next_ns = front->is_stopping ? CLOCK_NEVER : front->tick_ns;
    front_unlock(front);
    return next_ns;
}
