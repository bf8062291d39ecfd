#include "daemon/shard/load_threads.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory_cause.h"
#include "base/threads/thread_priority.h"
#include "daemon/log/log.h"
#include "daemon/shard/session.h"
#include "shard/catalogue/bits.h"

// The caller holds the mutex, which is released meanwhile. A batch that computes with the expert holds a reference to it, so its
// memory stays for the milliseconds of that piece.
static void free_next(struct shard_service *service, uint32_t cell) {
    struct expert_id id = catalogue_id(&service->holder.options.catalogue, cell);
    bits_clear(service->freeing, cell);
    pthread_mutex_unlock(&service->mutex);
    holdings_remove(service->backend.holdings, id.layer, id.expert);
    pthread_mutex_lock(&service->mutex);
    service->count.frees++;
    holder_freed(&service->holder, id);
    session_holder_changed(service);
}

static const struct topology_node *home_of(const struct shard_service *service, struct expert_id id) {
    const struct topology *topology = service->backend.topology;
    return topology->count > 1 ? &topology->nodes[id.expert % topology->count] : NULL;
}

// The caller holds the mutex.
static void keep_failure(struct shard_service *service, struct expert_id id, const char *message) {
    struct load_failure *failure = &service->failures[service->num_failures++ % FAILURES_MAX];
    failure->expert = id;
    snprintf(failure->message, sizeof failure->message, "%.*s", (int)sizeof failure->message - 1, message);
    service->count.load_failures++;
    holder_load_failed(&service->holder, id);
}

// Logs at most one line per second, with the number of failures left out.
static void log_failure(struct shard_service *service, struct expert_id id, enum expertd_err_code code) {
    const int64_t now_ns = clock_now_ns();
    char quoted[2 * EXPERTD_ERR_MESSAGE_MAX];
    pthread_mutex_lock(&service->mutex);
    const bool is_due = now_ns >= service->next_failure_ns;
    const unsigned long suppressed = service->suppressed_failures;
    service->suppressed_failures = is_due ? 0 : suppressed + 1;
    service->next_failure_ns = is_due ? clock_add_ns(now_ns, NS_PER_S) : service->next_failure_ns;
    pthread_mutex_unlock(&service->mutex);
    if (is_due) {
        log_line(LOG_LEVEL_ERROR, "expert_failed", "layer=%u expert=%u reason=%s since_last=%lu message=%s",
                 service->layer_numbers[id.layer], id.expert, expertd_err_name(code), suppressed,
                 log_quote(expertd_err_message(), quoted, sizeof quoted));
    }
}

// The caller holds the mutex, which is released meanwhile.
static void load_next(struct shard_service *service, struct expert_id id, unsigned thread) {
    struct expert_block *block;
    uint64_t digest;
    pthread_mutex_unlock(&service->mutex);
    err_t e = expert_store_load(service->backend.store, id.layer, id.expert, thread, home_of(service, id), &block, &digest);
    if (!err_is(e)) {
        holdings_put(service->backend.holdings, id.layer, id.expert, block, digest);
    } else {
        log_failure(service, id, e.code);
    }
    pthread_mutex_lock(&service->mutex);
    if (err_is(e)) {
        keep_failure(service, id, expertd_err_message());
    } else {
        service->count.loads++;
        service->loaded_bytes += service->expert_bytes[id.layer];
        holder_loaded(&service->holder, id, digest);
    }
    session_holder_changed(service);
}

// Frees before it loads: a load may wait for the memory.
static void work(struct shard_service *service, unsigned number) {
    const uint32_t cells = service->holder.options.catalogue.cells;
    pthread_mutex_lock(&service->mutex);
    while (!service->stopping) {
        uint32_t cell = bits_next(service->freeing, 0, cells);
        struct expert_id id;
        if (cell < cells) {
            free_next(service, cell);
        } else if (holder_take_load(&service->holder, &id)) {
            load_next(service, id, number);
        } else {
            pthread_cond_wait(&service->load_wake, &service->mutex);
        }
    }
    pthread_mutex_unlock(&service->mutex);
}

static void *load_main(void *context) {
    struct shard_service *service = context;
    thread_relax(); // computing comes first
    pthread_mutex_lock(&service->mutex);
    unsigned number = service->loader_numbers++;
    pthread_mutex_unlock(&service->mutex);
    work(service, number);
    return NULL;
}

FALLIBLE load_threads_start(struct shard_service *service) {
    int error = 0;
    while (service->loaders_run < service->backend.loaders && !error) {
        char name[16];
        pthread_t *thread = &service->loaders[service->loaders_run];
        error = pthread_create(thread, NULL, load_main, service);
        if (!error) {
            snprintf(name, sizeof name, "load-%u", service->loaders_run++);
            pthread_setname_np(*thread, name);
        }
    }
    if (service->loaders_run == 0) {
        char cause[MEMORY_CAUSE_MAX];
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot start a thread that loads experts: %s", memory_cause_of_thread(error, cause));
    }
    return OK;
}

void load_threads_join(struct shard_service *service) {
    while (service->loaders_run > 0) {
        pthread_join(service->loaders[--service->loaders_run], NULL);
    }
}
