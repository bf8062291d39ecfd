// A front for the threads that show and change its shards: it comes while the daemon loads, and is replaced if the daemon loads a
// second time. Any thread, unless stated otherwise. A call holds the mutex here while it uses the front, so that the front is not
// destroyed meanwhile; functions of front_status.h do not wait for a peer.
#ifndef EXPERTD_DAEMON_SHARD_VIEW_SHARD_VIEW_H
#define EXPERTD_DAEMON_SHARD_VIEW_SHARD_VIEW_H

#include <pthread.h>

#include "base/err.h"
#include "daemon/front/front_status.h"

struct shard_view {
    pthread_mutex_t mutex;
    struct front *front; // borrowed; NULL: none yet
};

void shard_view_init(struct shard_view *view);
void shard_view_deinit(struct shard_view *view); // no call is running

// The loader's thread: after front_start; with NULL before front_stop, and then no call uses the front any more.
void shard_view_set(struct shard_view *view, struct front *front);

struct shard_listing {
    struct front_summary summary;
    size_t count;
    struct front_shard *shards; // [count] ascending by number
};
void shard_listing_deinit(struct shard_listing *listing); // legal on a zeroed struct

// The caller releases *out, which is zeroed on error. EXPERTD_ERR_LOADING: there is no front yet; EXPERTD_ERR_NOMEM.
FALLIBLE shard_view_list(struct shard_view *view, struct shard_listing *out);

enum shard_change { SHARD_DRAIN, SHARD_KEEP, SHARD_ADD, SHARD_REMOVE };

// As front_drain, front_add and front_remove. EXPERTD_ERR_LOADING: there is no front yet.
FALLIBLE shard_view_change(struct shard_view *view, const char *address, enum shard_change change);

#endif
