#include "daemon/front/front_local.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/memory_cause.h"
#include "daemon/front/front_step.h"
#include "daemon/log/log.h"

enum { SESSION = 1 }; // of this front at its own holders

static FALLIBLE create_one(struct front *front, uint32_t rank) {
    struct front_local *local = &front->locals[rank];
    struct holder_options options = {
        .catalogue = front->catalogue, .bytes_max = front->local_bytes_max[rank], .fronts_max = 1, .front_after_ns = INT64_MAX};
    local->holder_memory = aligned_alloc(ARENA_ALIGN, arena_rounded(holder_bytes(&options)));
    if (!local->holder_memory) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the tables of a shard");
    }
    TRY(holder_init(&local->holder, &options, local->holder_memory));
    TRY(holdings_create(front->options.model, &local->holdings));
    return holder_connect(&local->holder, SESSION, front->instance, true, 0);
}

FALLIBLE front_local_create(struct front *front) {
    pthread_cond_init(&front->work, NULL);
    for (uint32_t rank = 0; rank < front->local; rank++) {
        TRY(create_one(front, rank));
    }
    return OK;
}

void front_local_destroy(struct front *front) {
    for (uint32_t rank = 0; front->locals && rank < front->local; rank++) {
        holdings_destroy(front->locals[rank].holdings);
        free(front->locals[rank].holder_memory);
    }
    pthread_cond_destroy(&front->work);
}

void front_local_command(struct front *front, const struct membership_action *action) {
    struct holder *holder = &front->locals[action->member].holder;
    switch (action->kind) {
    case MEMBERSHIP_ASSIGN:
        INVARIANT(!err_is(holder_assign(holder, SESSION, action->number, action->experts, action->count)));
        break;
    case MEMBERSHIP_RETIRE:
        INVARIANT(!err_is(holder_retire(holder, SESSION, action->number, action->experts, action->count)));
        break;
    case MEMBERSHIP_RELEASE:
        INVARIANT(!err_is(holder_release(holder, SESSION, action->number, action->experts, action->count)));
        break;
    default: // MEMBERSHIP_DRAIN
        holder_drain(holder, action->drains);
    }
}

// ---- loading

static struct front_loader *idle_loader(struct front *front) {
    for (unsigned i = 0; i < front->loader_count; i++) {
        if (front->loaders[i].state == LOADER_IDLE) {
            return &front->loaders[i];
        }
    }
    return NULL;
}

// While batches are computed one thread loads; before, all do.
static bool may_load(const struct front *front) {
    unsigned busy = 0;
    for (unsigned i = 0; i < front->loader_count; i++) {
        busy += front->loaders[i].state == LOADER_HAS_WORK;
    }
    return busy < (front->is_complete ? 1 : front->loader_count);
}

static void hand_out_loads(struct front *front, uint32_t rank) {
    struct front_loader *loader;
    struct expert_id expert;
    while (!front->is_stopping && may_load(front) && (loader = idle_loader(front)) &&
           holder_take_load(&front->locals[rank].holder, &expert)) {
        loader->rank = rank;
        loader->expert = expert;
        loader->state = LOADER_HAS_WORK;
        pthread_cond_broadcast(&front->work);
    }
}

static void report_failure(const struct front *front, const struct front_loader *loader) {
    char quoted[2 * EXPERTD_ERR_MESSAGE_MAX];
    log_line(LOG_LEVEL_ERROR, "shard_load_failed", "shard=%u layer=%u expert=%u message=%s", loader->rank,
             front->layer_numbers[loader->expert.layer], loader->expert.expert,
             log_quote(expertd_err_message(), quoted, sizeof quoted));
}

// Loads without the mutex, which the caller holds.
static void load(struct front *front, struct front_loader *loader) {
    struct front_local *local = &front->locals[loader->rank];
    struct expert_block *block;
    uint64_t digest;
    front_unlock(front);
    err_t e = expert_store_load(front->options.store, loader->expert.layer, loader->expert.expert, loader->index,
                                topology_home(front->options.topology, front->local, loader->rank), &block, &digest);
    if (err_is(e)) {
        report_failure(front, loader);
    } else {
        holdings_put(local->holdings, loader->expert.layer, loader->expert.expert, block, digest);
    }
    front_lock(front);
    if (err_is(e)) {
        holder_load_failed(&local->holder, loader->expert);
    } else {
        holder_loaded(&local->holder, loader->expert, digest);
    }
}

static void *loader_main(void *context) {
    struct front_loader *loader = context;
    struct front *front = loader->front;
    front_lock(front);
    while (!front->is_stopping) {
        if (loader->state == LOADER_IDLE) {
            pthread_cond_wait(&front->work, &front->mutex);
            continue;
        }
        load(front, loader);
        loader->state = LOADER_IDLE;
        front_run(front);
    }
    front_unlock(front);
    return NULL;
}

FALLIBLE front_local_start(struct front *front) {
    unsigned wanted = front->local == 0                            ? 0
                      : front->options.loaders < FRONT_LOADERS_MAX ? front->options.loaders
                                                                   : FRONT_LOADERS_MAX;
    for (unsigned i = 0; i < wanted; i++) {
        struct front_loader *loader = &front->loaders[i];
        *loader = (struct front_loader){.front = front, .index = i};
        int error = pthread_create(&loader->thread, NULL, loader_main, loader);
        if (error) {
            char cause[MEMORY_CAUSE_MAX];
            FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot start a loading thread: %s", memory_cause_of_thread(error, cause));
        }
        pthread_setname_np(loader->thread, "loader");
        front_lock(front);
        front->loader_count = i + 1;
        front_unlock(front);
    }
    return OK;
}

void front_local_stop(struct front *front) {
    pthread_cond_broadcast(&front->work); // is_stopping is set
    for (unsigned i = 0; i < front->loader_count; i++) {
        pthread_join(front->loaders[i].thread, NULL);
    }
    front->loader_count = 0;
}

// ---- what the holders say

static void carry_out(struct front *front, uint32_t rank) {
    struct front_local *local = &front->locals[rank];
    struct holder_action action;
    while (holder_next(&local->holder, &action)) {
        INVARIANT(action.kind == HOLDER_FREE); // this front is not closed by itself
        holdings_remove(local->holdings, action.expert.layer, action.expert.expert);
        holder_freed(&local->holder, action.expert);
    }
}

// False: the message is nothing for the membership, which has the lease of its own process.
static bool event_of(uint32_t rank, const struct holder_message *message, struct membership_event *event) {
    *event = (struct membership_event){.member = rank};
    switch (message->kind) {
    case HOLDER_INVENTORY:
        event->kind = MEMBERSHIP_INVENTORY;
        event->inventory = (struct member_inventory){.sequence = message->sequence,
                                                     .commands_seen = message->commands_seen,
                                                     .is_complete = message->is_complete,
                                                     .reports = message->reports,
                                                     .count = message->count};
        return true;
    case HOLDER_DRAINS:
        event->kind = MEMBERSHIP_SHARD_DRAINS;
        event->drains = message->drains;
        return true;
    default:
        return false;
    }
}

bool front_local_next(struct front *front, struct membership_event *event) {
    struct holder_message message;
    for (uint32_t rank = 0; rank < front->local; rank++) {
        carry_out(front, rank);
        hand_out_loads(front, rank);
        while (holder_next_message(&front->locals[rank].holder, SESSION, &message)) {
            if (event_of(rank, &message, event)) {
                return true;
            }
        }
    }
    return false;
}
