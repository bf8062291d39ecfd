#include "daemon/front/front_status.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/config/options_address.h"
#include "daemon/config/options_transport.h"
#include "daemon/front/front_state.h"
#include "daemon/front/front_step.h"

enum { MENDS_AGE_MS = 10 };

_Static_assert((int)FRONT_ADDRESS_MAX == (int)MEMBER_ADDRESS_MAX && (int)FRONT_MESSAGE_MAX == (int)FRONT_WHY_MAX, "front_status.h");

void front_summary(struct front *front, struct front_summary *out) {
    front_lock(front);
    const struct membership *m = &front->membership;
    *out = (struct front_summary){.slots = front->ranks,
                                  .uncovered = membership_uncovered_total(m),
                                  .below_copies = membership_below_copies(m),
                                  .places = m->is_acting,
                                  .stalls = m->stalls};
    for (uint32_t layer = 0; layer < front->catalogue.layers; layer++) {
        out->experts += front->layer_experts[layer];
    }
    for (uint32_t i = 0; i < front->ranks; i++) {
        out->shards += m->members[i].is_used;
        out->live += m->members[i].is_used && membership_is_live(m, i);
    }
    front_unlock(front);
}

static void explain(const struct front *front, uint32_t rank, const struct member_status *status, struct front_shard *out) {
    const struct member_refusal *refusal = status->refusal;
    if (refusal && refusal->reason != MEMBER_REFUSES_US) {
        snprintf(out->message, sizeof out->message, "%s: the shard has %s, this front %s; %s", member_reason_name(refusal->reason),
                 refusal->theirs, refusal->ours, member_reason_mend(refusal->reason));
    } else if (!status->is_live) {
        const char *why = front->notes[rank].why;
        snprintf(out->message, sizeof out->message, "%s", why[0] ? why : member_reason_mend(status->reason));
    }
}

static void describe(const struct front *front, uint32_t rank, const struct member_status *status, struct front_shard *out) {
    struct row_link_figures figures = {0};
    if (!status->is_local) {
        row_links_figures(front->links, rank, &figures);
    }
    *out = (struct front_shard){.shard = rank,
                                .state = member_state_name(status->state),
                                .reason = member_reason_name(status->reason),
                                .is_local = status->is_local,
                                .is_listed = status->is_listed,
                                .is_live = status->is_live,
                                .is_draining = status->is_draining,
                                .is_drained = status->is_drained,
                                .ready = status->ready,
                                .loading = status->loading,
                                .retiring = status->retiring,
                                .failed = status->failed,
                                .bytes = status->bytes,
                                .bytes_max = status->bytes_max,
                                .bytes_left = front->notes[rank].bytes_left,
                                .bytes_per_second = front->notes[rank].bytes_per_second,
                                .heard_age_ns = status->heard_age_ns,
                                .round_trip_ns = status->heard_age_ns >= 0 ? status->round_trip_ns : 0,
                                .false_alarms = status->false_alarms,
                                .connections = figures.connections,
                                .batches = figures.batches,
                                .pieces = figures.pieces,
                                .rows = figures.rows,
                                .bytes_sent = figures.bytes_sent,
                                .rows_answered = figures.rows_answered,
                                .bytes_received = figures.bytes_received,
                                .compute_ns = figures.compute_ns,
                                .errors = figures.errors,
                                .refused = figures.refused,
                                .rows_per_second = front->notes[rank].rows_per_second};
    snprintf(out->address, sizeof out->address, "%s", status->address);
    explain(front, rank, status, out);
}

size_t front_shards(struct front *front, struct front_shard *out, size_t max) {
    size_t count = 0;
    front_lock(front);
    for (uint32_t rank = 0; rank < front->ranks && count < max; rank++) {
        struct member_status status;
        if (membership_member(&front->membership, rank, clock_now_ns(), &status)) {
            describe(front, rank, &status, &out[count++]);
        }
    }
    front_unlock(front);
    return count;
}

bool front_mends(struct front *front) {
    front_lock(front);
    int64_t now_ns = clock_now_ns();
    if (now_ns >= front->mends_until_ns) {
        front->mends = membership_all_mend(&front->membership);
        front->mends_until_ns = clock_add_ns(now_ns, (int64_t)MENDS_AGE_MS * NS_PER_MS);
    }
    bool mends = front->mends;
    front_unlock(front);
    return mends;
}

// ---- what operators ask

// With the mutex.
static FALLIBLE find(const struct front *front, const char *address, uint32_t *rank) {
    for (*rank = 0; *rank < front->ranks; (*rank)++) {
        const struct member *member = &front->membership.members[*rank];
        if (member->is_used && strcmp(member->address, address) == 0) {
            return OK;
        }
    }
    FAIL_FIELD(EXPERTD_ERR_INVALID, "address", "no shard has the address %s: expertctl shards lists them", address);
}

static FALLIBLE find_remote(const struct front *front, const char *address, uint32_t *rank) {
    TRY(find(front, address, rank));
    if (*rank < front->local) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "address",
                   "%s is a shard of this process, which has it until it ends: --shards sets their number", address);
    }
    return OK;
}

static FALLIBLE ask(struct front *front, const char *address, enum membership_event_kind kind, bool drains) {
    struct membership_event event = {.kind = kind, .drains = drains};
    front_lock(front);
    err_t e = find_remote(front, address, &event.member);
    if (!err_is(e)) {
        front_event(front, &event);
    }
    front_unlock(front);
    return e;
}

FALLIBLE front_drain(struct front *front, const char *address, bool drains) {
    return ask(front, address, MEMBERSHIP_ASK_DRAIN, drains);
}

FALLIBLE front_remove(struct front *front, const char *address) {
    return ask(front, address, MEMBERSHIP_UNLIST, false);
}

FALLIBLE front_add(struct front *front, const char *address) {
    TRY(options_address_check(address, false, EXPERTD_ERR_INVALID));
    err_t e = options_check_dial(front->options.options, address);
    if (!err_is(e)) {
        uint32_t rank;
        front_lock(front);
        e = membership_add(&front->membership, address, clock_now_ns(), &rank);
        if (!err_is(e)) {
            front_run(front);
        }
        front_unlock(front);
    }
    return err_is(e) ? (err_t){EXPERTD_ERR_INVALID} : OK;
}
