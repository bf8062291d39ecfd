#include "shard/membership/membership_status.h"

#include <string.h>

static bool names(const struct member *member, uint32_t cell) {
    return member->is_used && bits_test(member->table, cell);
}

uint32_t membership_table_copies(const struct membership *membership, uint32_t layer) {
    size_t words = catalogue_layer_words(&membership->options.catalogue);
    uint32_t copies = 0;
    for (uint32_t i = 0; i < membership->options.members_max; i++) {
        for (size_t word = layer * words; word < (layer + 1) * words; word++) {
            copies += (uint32_t)__builtin_popcountll(membership->members[i].table[word]);
        }
    }
    return copies;
}

void membership_table(const struct membership *membership, uint32_t layer, uint32_t *first, uint32_t *holders) {
    const struct catalogue *catalogue = &membership->options.catalogue;
    uint32_t count = 0;
    for (uint32_t e = 0; e < catalogue->layer_experts[layer]; e++) {
        first[e] = count;
        for (uint32_t i = 0; i < membership->options.members_max; i++) {
            if (names(&membership->members[i], layer * catalogue->stride + e)) {
                holders[count++] = i;
            }
        }
    }
    first[catalogue->layer_experts[layer]] = count;
}

uint32_t membership_holders(const struct membership *membership, struct expert_id expert, uint32_t *members, uint32_t max) {
    uint32_t cell = catalogue_cell(&membership->options.catalogue, expert), count = 0;
    BITS_FOR_EACH(i, membership->live, membership->options.members_max) {
        if (names(&membership->members[i], cell)) {
            if (count < max) {
                members[count] = i;
            }
            count++;
        }
    }
    return count;
}

bool membership_is_live(const struct membership *membership, uint32_t member) {
    return bits_test(membership->live, member);
}

// The cells of a word of tables that a live member's table has.
static uint64_t covered_cells(const struct membership *membership, size_t word) {
    uint64_t covered = 0;
    BITS_FOR_EACH(i, membership->live, membership->options.members_max) {
        covered |= membership->members[i].table[word];
    }
    return covered;
}

uint32_t membership_uncovered(const struct membership *membership, uint32_t layer) {
    const struct catalogue *catalogue = &membership->options.catalogue;
    size_t words = catalogue_layer_words(catalogue);
    uint32_t uncovered = catalogue->layer_experts[layer];
    for (size_t word = layer * words; word < (layer + 1) * words; word++) {
        uncovered -= (uint32_t)__builtin_popcountll(covered_cells(membership, word));
    }
    return uncovered;
}

uint32_t membership_uncovered_total(const struct membership *membership) {
    uint32_t uncovered = 0;
    for (uint32_t layer = 0; layer < membership->options.catalogue.layers; layer++) {
        uncovered += membership_uncovered(membership, layer);
    }
    return uncovered;
}

uint32_t membership_below_copies(const struct membership *membership) {
    const struct catalogue *catalogue = &membership->options.catalogue;
    uint32_t below = 0;
    for (uint32_t layer = 0; layer < catalogue->layers; layer++) {
        for (uint32_t e = 0; e < catalogue->layer_experts[layer]; e++) {
            struct expert_id expert = {(uint16_t)layer, (uint16_t)e};
            below += membership_holders(membership, expert, NULL, 0) < membership->options.copies;
        }
    }
    return below;
}

bool membership_is_mending(const struct membership *membership, struct expert_id expert) {
    uint32_t cell = catalogue_cell(&membership->options.catalogue, expert);
    for (uint32_t i = 0; i < membership->options.members_max; i++) {
        const struct member *member = &membership->members[i];
        bool loads = member->is_used && member_is_up(member) && bits_test(member->copies.cells[COPY_LOADING], cell);
        bool returns = member->is_used && member->is_listed && !member->is_live && !member->is_refused && names(member, cell);
        if (loads || returns) {
            return true;
        }
    }
    return false;
}

bool membership_all_mend(const struct membership *membership) {
    const struct catalogue *catalogue = &membership->options.catalogue;
    size_t words = catalogue_layer_words(catalogue);
    for (uint32_t layer = 0; layer < catalogue->layers; layer++) {
        uint64_t covered = 0;
        for (uint32_t e = 0; e < catalogue->layer_experts[layer]; e++) {
            covered = e % BITS_PER_WORD == 0 ? covered_cells(membership, layer * words + e / BITS_PER_WORD) : covered;
            bool is_covered = covered >> e % BITS_PER_WORD & 1;
            if (!is_covered && !membership_is_mending(membership, (struct expert_id){(uint16_t)layer, (uint16_t)e})) {
                return false;
            }
        }
    }
    return true;
}

bool membership_member(const struct membership *membership, uint32_t index, int64_t now_ns, struct member_status *status) {
    const struct member *member = &membership->members[index];
    bool connected = member->link == LINK_SYNCING || member->link == LINK_UP;
    bool pauses = member_is_up(member) && !member->is_live && member->health.usable_ns > now_ns;
    *status = (struct member_status){
        .address = member->address,
        .state = member->state,
        .reason = member->reason,
        .is_local = member->is_local,
        .is_listed = member->is_listed,
        .is_live = member->is_live,
        .is_draining = member->is_draining,
        .is_drained = member->is_drained,
        .instance = member->instance,
        .lease = member->lease,
        .lease_owner = member->lease_owner,
        .ready = member->copies.count[COPY_READY],
        .loading = member->copies.count[COPY_LOADING],
        .retiring = member->copies.count[COPY_RETIRING] + member->copies.count[COPY_RELEASED],
        .failed = member->copies.count[COPY_FAILED],
        .bytes = member->copies.bytes,
        .bytes_max = member->bytes_max,
        .heard_age_ns = connected ? now_ns - member->health.heard_ns : -1,
        .round_trip_ns = member->health.round_trip_ns,
        .false_alarms = member->health.false_alarms,
        .absences = member->health.absences,
        .pause_ns = pauses ? member->health.usable_ns - now_ns : 0,
        .refusal = member->is_refused ? &member->refusal : NULL,
    };
    return member->is_used;
}

const char *member_state_name(enum member_state state) {
    static const char *const NAMES[MEMBER_STATES] = {
        [MEMBER_FREE] = "free",   [MEMBER_JOINING] = "joining", [MEMBER_LOADING] = "loading",
        [MEMBER_READY] = "ready", [MEMBER_SUSPECT] = "suspect", [MEMBER_DRAINING] = "draining",
        [MEMBER_DEAD] = "dead",   [MEMBER_BACK] = "back",       [MEMBER_REFUSED] = "refused",
    };
    return NAMES[state];
}

static const char SILENT[] =
    "it does not answer heartbeats: see whether its host is up, its process stopped, or the network between cut";
static const char UNREACHABLE[] =
    "see whether its process runs and listens there, its host is up, and the network lets the port pass";

static const struct {
    const char *name, *mend;
} REASONS[MEMBER_REASONS] = {
    [MEMBER_ADDED] = {"added", ""},
    [MEMBER_CONNECTED] = {"connected", ""},
    [MEMBER_RETURNED] = {"returned", ""},
    [MEMBER_CONNECT_FAILED] = {"connect_failed", UNREACHABLE},
    [MEMBER_CONNECT_TIMED_OUT] = {"connect_timed_out", UNREACHABLE},
    [MEMBER_DISCONNECTED] = {"disconnected", ""},
    [MEMBER_SILENT] = {"silent", SILENT},
    [MEMBER_HEARD] = {"heard_again", ""},
    [MEMBER_SILENT_TOO_LONG] = {"silent_too_long", SILENT},
    [MEMBER_PAUSE_ENDED] = {"pause_ended", ""},
    [MEMBER_NEEDED] = {"needed", ""},
    [MEMBER_COPIES_CHANGED] = {"copies_changed", ""},
    [MEMBER_DRAIN_REQUESTED] = {"drain_requested", ""},
    [MEMBER_DRAIN_CANCELLED] = {"drain_cancelled", ""},
    [MEMBER_UNLISTED] = {"unlisted", ""},
    [MEMBER_OTHER_PROTOCOL] = {"other_protocol", "run the same version of expertd on the front and on the shard"},
    [MEMBER_OTHER_NUMERICS] = {"other_numerics",
                               "give the front and every shard --numerics portable, or run them on CPUs of the same kind"},
    [MEMBER_OTHER_DTYPE] = {"other_dtype", "give the front and the shard the same --compute-dtype"},
    [MEMBER_OTHER_MODEL] = {"other_model", "give the front and the shard copies of the same checkpoint, and the same --layers"},
    [MEMBER_OTHER_EXPERT] = {"other_expert",
                             "compare the checkpoint's files on the two hosts, and copy them anew where they differ"},
    [MEMBER_SAME_PROCESS] = {"same_process", "list one address for each shard"},
    [MEMBER_REFUSES_US] = {"refuses_this_front", ""},
    [MEMBER_BROKEN_MESSAGE] = {"broken_message", "run the same version of expertd on the front and on the shard"},
};

const char *member_reason_name(enum member_reason reason) {
    return REASONS[reason].name;
}

const char *member_reason_mend(enum member_reason reason) {
    return REASONS[reason].mend;
}
