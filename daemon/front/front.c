#include "daemon/front/front.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/threads/thread_priority.h"
#include "daemon/front/front_connection.h"
#include "daemon/front/front_hosts.h"
#include "daemon/front/front_local.h"
#include "daemon/front/front_loop.h"
#include "daemon/front/front_replies.h"
#include "daemon/front/front_state.h"
#include "daemon/front/front_tables.h"
#include "expert/model/memory.h"

_Static_assert((int)OPTIONS_RANKS_MAX == (int)MEMBERS_MAX, "the options leave a slot for each entry of shard_hosts");

enum { SLOTS_MIN = 16, STOP_TIMEOUT_S = 60, REFUSAL_PAUSE_MAX_S = 10 };

// Of a shard. Its size has nothing to do with --max-message-bytes, the limit for callers.
enum { MESSAGE_MAX = ROWS_RESULTS_MAX + ROWS_REPLY_HEAD_MAX };

uint32_t front_ranks(const struct options *options) {
    struct options_host host;
    uint32_t hosts = 0;
    for (const char *at = options->shard_hosts; options_hosts_next(&at, &host); hosts++) {
        hosts += host.is_name ? SLOTS_MIN : 0;
    }
    uint32_t slots = 2 * hosts < SLOTS_MIN ? SLOTS_MIN : 2 * hosts, most = MEMBERS_MAX;
    return options->shards + slots < most ? options->shards + slots : most;
}

// ---- creation

static FALLIBLE describe_layers(struct front *front) {
    const struct model *model = front->options.model;
    size_t layers = model->num_layers;
    front->layer_numbers = calloc(layers, sizeof *front->layer_numbers);
    front->layer_experts = calloc(layers, sizeof *front->layer_experts);
    front->expert_bytes = calloc(layers, sizeof *front->expert_bytes);
    if (!front->layer_numbers || !front->layer_experts || !front->expert_bytes) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the table of %zu layers", layers);
    }
    for (size_t i = 0; i < layers; i++) {
        front->layer_numbers[i] = model->layers[i].params.layer;
        front->layer_experts[i] = model->layers[i].params.num_experts;
        front->expert_bytes[i] = expert_shapes_bytes_max(&model->layers[i].shapes);
    }
    return catalogue_init(&front->catalogue, (uint32_t)layers, front->layer_experts, front->expert_bytes);
}

// The memory for experts, divided among the shards of this process.
static FALLIBLE divide_memory(struct front *front) {
    struct memory_limit limit;
    TRY(memory_available(&limit));
    uint64_t most = front->options.options->memory_max;
    uint64_t bytes = most > 0 && most < limit.bytes ? most : limit.bytes;
    front->local_bytes_max = calloc((size_t)front->local + 1, sizeof *front->local_bytes_max);
    front->locals = calloc((size_t)front->local + 1, sizeof *front->locals);
    front->notes = calloc(front->ranks, sizeof *front->notes);
    front->load_rows = calloc(front->catalogue.cells, sizeof *front->load_rows);
    front->reports = calloc(FRONT_REPORTS_MAX, sizeof *front->reports);
    if (!front->local_bytes_max || !front->locals || !front->notes || !front->load_rows || !front->reports) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %u shards", front->ranks);
    }
    for (uint32_t rank = 0; rank < front->local; rank++) {
        front->local_bytes_max[rank] = bytes / front->local;
    }
    for (uint32_t rank = 0; rank < front->ranks; rank++) {
        front->notes[rank].host = -1;
    }
    return OK;
}

static FALLIBLE create_membership(struct front *front) {
    const struct options *o = front->options.options;
    const struct model *model = front->options.model;
    struct membership_options options = membership_defaults();
    options.catalogue = front->catalogue;
    options.identity = (struct member_identity){.protocol = SHARD_PROTOCOL,
                                                .numerics_id = model->numerics_id,
                                                .compute_dtype = model->compute_dtype == EXPERTD_DTYPE_BF16 ? "bf16" : "f32"};
    expert_store_fingerprint(front->options.store, options.identity.model_digest);
    options.members_max = front->ranks;
    options.local_members = front->local;
    options.local_bytes_max = front->local_bytes_max;
    options.copies = o->copies;
    options.replicas = o->replicas;
    options.is_owner = o->placement_owner;
    options.health.interval_ns = (int64_t)o->heartbeat_ms * NS_PER_MS;
    options.health.sole_after_ns = 5 * options.health.missed_max * options.health.interval_ns;
    if (options.health.dead_after_ns <= 2 * options.health.missed_max * options.health.interval_ns) {
        options.health.dead_after_ns = 2 * options.health.missed_max * options.health.interval_ns;
    }
    options.refusal.max_ns = REFUSAL_PAUSE_MAX_S * (int64_t)NS_PER_S;
    options.rereplicate_after_ns = (int64_t)o->rereplicate_after * NS_PER_S;
    TRY(membership_check(&options));
    front->membership_memory = aligned_alloc(ARENA_ALIGN, arena_rounded(membership_bytes(&options)));
    if (!front->membership_memory) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the tables of %u shards", front->ranks);
    }
    return membership_init(&front->membership, &options, front->membership_memory, clock_now_ns());
}

static FALLIBLE create_links(struct front *front) {
    const struct model *model = front->options.model;
    struct dialler_options dialler = {.threads = front_dial_threads(front),
                                      .name = "front",
                                      .is_urgent = true,
                                      .max_message_bytes = MESSAGE_MAX,
                                      .tick = front_tick,
                                      .context = front};
    TRY(dialler_create(&dialler, &front->dialler));
    struct row_links_options links = {.ranks = front->ranks,
                                      .local_ranks = front->local,
                                      .layers = front->layer_numbers,
                                      .num_layers = model->num_layers,
                                      .dialler = front->dialler,
                                      .opened = front_connection_rows_opened,
                                      .ended = front_connection_rows_ended,
                                      .context = front};
    return row_links_create(&links, &front->links);
}

static FALLIBLE build(struct front *front) {
    TRY(describe_layers(front));
    TRY(divide_memory(front));
    TRY(front_tables_create(front));
    TRY(front_hosts_create(front));
    TRY(front_local_create(front));
    front->tick_ns = CLOCK_NEVER; // front_start
    return create_links(front);
}

FALLIBLE front_create(const struct front_options *options, struct front **out) {
    *out = NULL;
    struct front *front = calloc(1, sizeof *front);
    if (!front) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the shards in other processes");
    }
    front->options = *options;
    front->steps = &FRONT_STEPS;
    front->local = options->options->shards;
    front->ranks = options->model->ranks;
    LIST_INIT(&front->connections);
    thread_mutex_init(&front->mutex);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&front->ready, &attributes);
    pthread_cond_init(&front->unconnected, &attributes);
    pthread_condattr_destroy(&attributes);
    while (front->instance == 0) {
        INVARIANT(getrandom(&front->instance, sizeof front->instance, 0) == sizeof front->instance);
    }
    err_t e = build(front);
    if (err_is(e)) {
        front_destroy(front);
        return e;
    }
    *out = front;
    return OK;
}

const struct remote_links *front_links(struct front *front) {
    return row_links_remote(front->links);
}

FALLIBLE front_start(struct front *front) {
    TRY(create_membership(front)); // its time begins now
    TRY(front_local_start(front));
    TRY(front_tables_start(front));
    TRY(front_hosts_start(front));
    front_lock(front);
    front->tick_ns = clock_now_ns();
    front_unlock(front);
    dialler_wake(front->dialler, FRONT_CONTROL_THREAD);
    return OK;
}

// ---- waiting

static void until_ms(unsigned wait_ms, struct timespec *until) {
    clock_gettime(CLOCK_MONOTONIC, until);
    int64_t ns = until->tv_nsec + (int64_t)wait_ms * NS_PER_MS;
    until->tv_sec += ns / NS_PER_S;
    until->tv_nsec = ns % NS_PER_S;
}

// The digests that the shards have stated make up the ids of the weights.
static void identify(struct front *front) {
    const struct membership *m = &front->membership;
    for (uint32_t layer = 0; layer < front->catalogue.layers; layer++) {
        memcpy(front->options.model->layers[layer].expert_digests, &m->digests[layer * front->catalogue.stride],
               front->layer_experts[layer] * sizeof *m->digests);
    }
    expert_store_identify(front->options.store);
}

bool front_wait(struct front *front, unsigned wait_ms) {
    struct timespec until;
    until_ms(wait_ms, &until);
    front_lock(front);
    int error = 0;
    while (!front->is_complete && !error) {
        error = pthread_cond_timedwait(&front->ready, &front->mutex, &until);
    }
    bool complete = front->is_complete;
    if (complete && !front->is_identified) {
        identify(front);
        front->is_identified = true;
    }
    front_unlock(front);
    return complete;
}

const char *front_waits_for(struct front *front, char text[FRONT_TEXT_MAX]) {
    front_lock(front);
    const struct membership *m = &front->membership;
    uint32_t experts = 0;
    for (uint32_t layer = 0; layer < front->catalogue.layers; layer++) {
        experts += front->layer_experts[layer];
    }
    size_t used =
        (size_t)snprintf(text, FRONT_TEXT_MAX, "%u of %u experts have no shard yet", membership_uncovered_total(m), experts);
    bool all_ready = true;
    for (uint32_t i = front->local; i < front->ranks; i++) {
        const struct member *member = &m->members[i];
        all_ready = all_ready && (!member->is_used || member->state == MEMBER_READY);
        if (member->is_used && member->state != MEMBER_READY && used < FRONT_TEXT_MAX) {
            const char *why = front->notes[i].why;
            used += (size_t)snprintf(text + used, FRONT_TEXT_MAX - used, "; %s is %s (%s)", member->address,
                                     member_state_name(member->state), why[0] ? why : member_reason_name(member->reason));
        }
    }
    if (all_ready) {
        snprintf(text + used, FRONT_TEXT_MAX - used,
                 ", and every shard is ready: together they lack memory for them (raise their --memory-max, or add a shard), or no "
                 "front places experts (--placement-owner)");
    }
    front_unlock(front);
    return text;
}

void front_use_metrics(struct front *front, struct metrics *metrics) {
    front_lock(front);
    front->metrics = metrics;
    front_unlock(front);
}

// ---- the end

static void close_connections(struct front *front) {
    struct front_connection *c, *next;
    struct timespec until;
    for (c = LIST_FIRST(&front->connections); c; c = next) {
        next = LIST_NEXT(c, link);
        front_connection_close(front, c->member, c->number, "the front ends");
    }
    until_ms(STOP_TIMEOUT_S * 1000, &until);
    int error = 0;
    while (!LIST_EMPTY(&front->connections) && !error) {
        error = pthread_cond_timedwait(&front->unconnected, &front->mutex, &until);
    }
    INVARIANT(LIST_EMPTY(&front->connections)); // the channels are cut: nothing of the peer delays the end
}

void front_stop(struct front *front) {
    front_lock(front);
    front->is_stopping = true;
    front_unlock(front);
    front_local_stop(front);
    front_tables_stop(front);
    front_hosts_stop(front);
    front_lock(front);
    close_connections(front);
    front_unlock(front);
}

void front_destroy(struct front *front) {
    if (!front) {
        return;
    }
    row_links_destroy(front->links);
    dialler_destroy(front->dialler);
    front_local_destroy(front);
    front_hosts_destroy(front);
    front_tables_destroy(front);
    free(front->membership_memory);
    free(front->layer_numbers);
    free(front->layer_experts);
    free(front->expert_bytes);
    free(front->local_bytes_max);
    free(front->locals);
    free(front->notes);
    free(front->load_rows);
    free(front->reports);
    pthread_cond_destroy(&front->ready);
    pthread_cond_destroy(&front->unconnected);
    pthread_mutex_destroy(&front->mutex);
    free(front);
}
