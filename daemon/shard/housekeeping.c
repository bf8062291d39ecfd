#include "daemon/shard/housekeeping.h"

#include <inttypes.h>

#include "base/clock.h"
#include "daemon/log/log.h"
#include "daemon/shard/session.h"
#include "shard/catalogue/bits.h"

#define LATE_NS (2 * (int64_t)NS_PER_S)

uint32_t housekeeping_loading(const struct shard_service *service, uint64_t *bytes) {
    const struct holder *holder = &service->holder;
    uint32_t count = 0;
    *bytes = 0;
    BITS_FOR_EACH(cell, holder->assigned, holder->options.catalogue.cells) {
        if (holder->cells[cell] != CELL_LOADED) {
            count++;
            *bytes += catalogue_bytes(&holder->options.catalogue, cell);
        }
    }
    return count;
}

// A late tick means that this process did not run, so it heard nobody: the silence does not count.
static void hear_fronts(struct shard_service *service, int64_t now_ns, bool is_late) {
    struct shard_session *session;
    TAILQ_FOREACH(session, &service->sessions, link) {
        if (is_late) {
            atomic_store(&session->heard_ns, now_ns);
        }
        holder_heard(&service->holder, session->number, atomic_load(&session->heard_ns));
    }
    holder_tick(&service->holder, now_ns);
    session_holder_changed(service);
}

// Fronts are told while experts are being loaded, and once after the last. True: there is something to tell, and to log.
static bool measure_progress(struct shard_service *service, int64_t now_ns) {
    struct shard_progress *progress = &service->progress;
    const uint64_t bytes = service->loaded_bytes - service->loaded_bytes_seen;
    const int64_t spent_ns = now_ns - service->progress_ns;
    const bool was_loading = progress->loading > 0;
    progress->loading = housekeeping_loading(service, &progress->bytes_left);
    if (bytes > 0 && spent_ns > 0) {
        progress->bytes_per_second = (uint64_t)((double)bytes * NS_PER_S / (double)spent_ns);
    }
    service->loaded_bytes_seen = service->loaded_bytes;
    service->progress_ns = now_ns;
    const bool is_due = was_loading || progress->loading > 0 || bytes > 0;
    progress->version += is_due;
    return is_due;
}

int64_t housekeeping_tick(struct shard_service *service, int64_t now_ns) {
    if (!atomic_load(&service->ready)) {
        return CLOCK_NEVER; // shard_ready wakes the thread
    }
    if (now_ns < service->tick_ns) {
        return service->tick_ns;
    }
    const bool is_late = now_ns - service->tick_ns > LATE_NS;
    service->tick_ns = clock_add_ns(now_ns, NS_PER_S);
    pthread_mutex_lock(&service->mutex);
    hear_fronts(service, now_ns, is_late);
    const bool loads = measure_progress(service, now_ns);
    const struct shard_progress progress = service->progress;
    const uint64_t used = service->holder.bytes_used, count = service->count.loads;
    pthread_mutex_unlock(&service->mutex);
    if (loads) {
        log_line(LOG_LEVEL_INFO, "experts",
                 "loaded=%" PRIu64 " loading=%u left_bytes=%" PRIu64 " bytes_per_second=%" PRIu64 " used_bytes=%" PRIu64, count,
                 progress.loading, progress.bytes_left, progress.bytes_per_second, used);
        session_wake_threads(service);
    }
    return service->tick_ns;
}
