#include "daemon/front/front_tables.h"

#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/memory_cause.h"
#include "daemon/front/front_step.h"
#include "daemon/log/log.h"

enum { RETRY_MS = 100 }; // after a lack of memory

FALLIBLE front_tables_create(struct front *front) {
    const struct model *model = front->options.model;
    pthread_cond_init(&front->tables, NULL);
    front->table_epochs = calloc(model->num_layers, sizeof *front->table_epochs);
    front->first = calloc((size_t)model->max_experts + 1, sizeof *front->first);
    front->holders = calloc((size_t)model->max_experts * front->ranks + 1, sizeof *front->holders);
    if (!front->table_epochs || !front->first || !front->holders) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the tables of %zu layers", model->num_layers);
    }
    return OK;
}

void front_tables_destroy(struct front *front) {
    free(front->table_epochs);
    free(front->first);
    free(front->holders);
    pthread_cond_destroy(&front->tables);
}

void front_tables_want(struct front *front, uint32_t layer, uint64_t epoch) {
    front->table_epochs[layer] = epoch;
    pthread_cond_signal(&front->tables);
}

void front_tables_check(struct front *front) {
    const struct membership *m = &front->membership;
    bool complete = !front->is_complete && membership_uncovered_total(m) == 0;
    for (uint32_t layer = 0; complete && layer < front->catalogue.layers; layer++) {
        complete = m->epochs[layer] > 0 && shards_epoch(front->options.model->layers[layer].in_force) == m->epochs[layer];
    }
    if (complete) {
        front->is_complete = true;
        pthread_cond_broadcast(&front->ready);
    }
}

// The blocks of the ranks of this process: their holders have reported them, and keep them while a table names them.
static void take_blocks(struct front *front, uint32_t layer, struct shards *shards) {
    const struct placement *placement = shards->placement;
    for (uint32_t rank = 0; rank < front->local; rank++) {
        for (uint32_t s = placement->rank_first[rank]; s < placement->rank_first[rank + 1]; s++) {
            shards->blocks[s] = holdings_take(front->locals[rank].holdings, layer, placement->rank_experts[s]);
            INVARIANT(shards->blocks[s]);
        }
    }
    shards_bind(shards);
}

// With the mutex.
static FALLIBLE make_shards(struct front *front, uint32_t layer, uint64_t epoch, struct shards **out) {
    const struct model_layer *target = &front->options.model->layers[layer];
    const struct placement_table table = {.num_experts = target->params.num_experts,
                                          .ranks = front->ranks,
                                          .first = front->first,
                                          .holders = front->holders,
                                          .is_partial = true};
    struct placement *placement;
    *out = NULL;
    membership_table(&front->membership, layer, front->first, front->holders);
    TRY(placement_from_table(&table, epoch, &placement));
    TRY(shards_create(placement, &target->shapes, front->local, out));
    take_blocks(front, layer, *out);
    return OK;
}

static void wait_to_retry(struct front *front) {
    struct timespec until;
    char quoted[2 * EXPERTD_ERR_MESSAGE_MAX];
    log_line(LOG_LEVEL_ERROR, "placement_delayed", "message=%s", log_quote(expertd_err_message(), quoted, sizeof quoted));
    clock_gettime(CLOCK_REALTIME, &until);
    int64_t ns = until.tv_nsec + (int64_t)RETRY_MS * NS_PER_MS;
    until.tv_sec += ns / NS_PER_S;
    until.tv_nsec = ns % NS_PER_S;
    pthread_cond_timedwait(&front->tables, &front->mutex, &until);
}

static void use_table(struct front *front, uint32_t layer) {
    uint64_t epoch = front->table_epochs[layer];
    struct shards *shards;
    if (err_is(make_shards(front, layer, epoch, &shards))) {
        wait_to_retry(front);
        return;
    }
    front->table_epochs[layer] = 0;
    front_unlock(front);
    shards_switch(front->options.model->layers[layer].in_force, shards); // waits for batches
    front_lock(front);
    struct membership_event event = {.kind = MEMBERSHIP_IN_FORCE};
    event.in_force.layer = layer;
    event.in_force.epoch = epoch;
    front_event(front, &event);
}

static void *placer_main(void *context) {
    struct front *front = context;
    uint32_t layers = front->catalogue.layers, layer = 0;
    front_lock(front);
    while (!front->is_stopping) {
        uint32_t looked = 0;
        for (; looked < layers && front->table_epochs[layer] == 0; looked++) {
            layer = (layer + 1) % layers;
        }
        if (looked == layers) {
            pthread_cond_wait(&front->tables, &front->mutex);
        } else {
            use_table(front, layer);
        }
    }
    front_unlock(front);
    return NULL;
}

FALLIBLE front_tables_start(struct front *front) {
    int error = pthread_create(&front->placer, NULL, placer_main, front);
    if (error) {
        char cause[MEMORY_CAUSE_MAX];
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot start the thread that changes placements: %s", memory_cause_of_thread(error, cause));
    }
    pthread_setname_np(front->placer, "placer");
    front->has_placer = true;
    return OK;
}

void front_tables_stop(struct front *front) {
    if (front->has_placer) {
        pthread_cond_signal(&front->tables); // is_stopping is set
        pthread_join(front->placer, NULL);
        front->has_placer = false;
    }
}
