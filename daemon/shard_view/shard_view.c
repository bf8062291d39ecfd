#include "daemon/shard_view/shard_view.h"

#include <stdlib.h>

void shard_view_init(struct shard_view *view) {
    pthread_mutex_init(&view->mutex, NULL);
    view->front = NULL;
}

void shard_view_deinit(struct shard_view *view) {
    pthread_mutex_destroy(&view->mutex);
}

void shard_view_set(struct shard_view *view, struct front *front) {
    pthread_mutex_lock(&view->mutex);
    view->front = front;
    pthread_mutex_unlock(&view->mutex);
}

void shard_listing_deinit(struct shard_listing *listing) {
    free(listing->shards);
    *listing = (struct shard_listing){0};
}

static FALLIBLE check_front(const struct front *front) {
    if (!front) {
        FAIL(EXPERTD_ERR_LOADING, "the model is being read, and no shard is connected yet: try again shortly");
    }
    return OK;
}

static FALLIBLE list(struct front *front, struct shard_listing *out) {
    TRY(check_front(front));
    front_summary(front, &out->summary);
    out->shards = calloc((size_t)out->summary.slots + 1, sizeof *out->shards);
    if (!out->shards) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a list of up to %u shards", out->summary.slots);
    }
    out->count = front_shards(front, out->shards, out->summary.slots);
    return OK;
}

FALLIBLE shard_view_list(struct shard_view *view, struct shard_listing *out) {
    *out = (struct shard_listing){0};
    pthread_mutex_lock(&view->mutex);
    err_t e = list(view->front, out);
    pthread_mutex_unlock(&view->mutex);
    if (err_is(e)) {
        shard_listing_deinit(out);
    }
    return e;
}

static FALLIBLE apply(struct front *front, const char *address, enum shard_change change) {
    TRY(check_front(front));
    switch (change) {
    case SHARD_DRAIN:
        return front_drain(front, address, true);
    case SHARD_KEEP:
        return front_drain(front, address, false);
    case SHARD_ADD:
        return front_add(front, address);
    default:
        INVARIANT(change == SHARD_REMOVE);
        return front_remove(front, address);
    }
}

FALLIBLE shard_view_change(struct shard_view *view, const char *address, enum shard_change change) {
    pthread_mutex_lock(&view->mutex);
    err_t e = apply(view->front, address, change);
    pthread_mutex_unlock(&view->mutex);
    return e;
}
