// The generations of a link, and the calls to the exchange's half of the interface.
#include <stdio.h>
#include <string.h>

#include "daemon/rows/row_link.h"
#include "shard/remote/remote_results.h"

FALLIBLE row_link_init(struct row_link *link, struct row_links *links, uint32_t rank) {
    int failed = pthread_mutex_init(&link->mutex, NULL);
    if (failed) {
        FAIL(EXPERTD_ERR_NOMEM, "cannot create the mutex of a shard's link: %s", strerror(failed));
    }
    pthread_cond_init(&link->changed, NULL);
    link->links = links;
    link->rank = rank;
    snprintf(link->why, sizeof link->why, "it was never in use");
    return OK;
}

void row_link_deinit(struct row_link *link) {
    if (link->links) {
        pthread_cond_destroy(&link->changed);
        pthread_mutex_destroy(&link->mutex);
    }
}

void row_link_begin_generation(struct row_link *link) {
    const struct row_stream *stream = link->stream;
    if (link->in_use && stream && stream->is_ready && !stream->is_ending && link->generation == 0) {
        atomic_store(&link->generation, ++link->last_generation);
        row_count(&link->generations, 1);
    }
}

void row_link_end_generation(struct row_link *link, const char *why, struct row_loss *loss) {
    *loss = (struct row_loss){.generation = link->generation};
    STAILQ_INIT(&loss->discarded);
    if (loss->generation == 0) {
        return;
    }
    atomic_store(&link->generation, 0);
    snprintf(link->why, sizeof link->why, "%s", why);
    STAILQ_CONCAT(&loss->discarded, &link->stream->queue);
    loss->results = row_link_begin_call(link);
}

void row_link_report_loss(struct row_link *link, struct row_loss *loss, const char *why) {
    if (loss->results) {
        remote_results_lose(loss->results, link->rank, loss->generation, why);
        row_link_end_call(link);
    }
    row_queue_release(link->links->options.dialler, &loss->discarded);
}

struct remote_results *row_link_begin_call(struct row_link *link) {
    link->calls += link->results != NULL;
    return link->results;
}

void row_link_end_call(struct row_link *link) {
    pthread_mutex_lock(&link->mutex);
    if (--link->calls == 0) {
        pthread_cond_broadcast(&link->changed);
    }
    pthread_mutex_unlock(&link->mutex);
}
