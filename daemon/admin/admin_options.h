// The parameters of the admin server: callbacks into the daemon, passed at creation; the model and the mover, passed after the
// load.
#ifndef EXPERTD_DAEMON_ADMIN_ADMIN_OPTIONS_H
#define EXPERTD_DAEMON_ADMIN_ADMIN_OPTIONS_H

#include <stdint.h>

#include "base/err.h"
#include "daemon/admin/mover.h"
#include "daemon/grpc/rpc.h"
#include "daemon/shard_view/shard_view.h"
#include "expert/model/model.h"

// The functions of daemon/shard_view/shard_view.h, which tests may replace. view NULL: the methods about shards are UNIMPLEMENTED.
struct admin_shards {
    struct shard_view *view; // borrowed until admin_destroy
    err_t (*list)(struct shard_view *view, struct shard_listing *out);
    err_t (*change)(struct shard_view *view, const char *address, enum shard_change change);
};

struct admin_options {
    uint64_t (*active)(void *context); // requests in progress, for Drain's answer; on the server's thread
    void (*drain)(void *context);      // a client requested the drain and has its answer; on the server's thread
    void *context;
    struct rpc_server *watcher; // rpc_options.watcher; NULL: the server polls its own sockets
    struct admin_shards shards; // answered also before admin_ready: the daemon may be waiting for shards
    struct rpc_tls tls;         // rpc_options.tls, for admin_adopt_tls; without a watcher
};

// The functions of daemon/admin/mover.h, which tests may replace. mover NULL: the methods that need it are UNIMPLEMENTED.
struct admin_mover {
    struct mover *mover;
    err_t (*show)(struct mover *mover, uint32_t layer, struct mover_placement *out);
    err_t (*plan)(struct mover *mover, const struct mover_plan_options *options, struct mover_placement *out);
    err_t (*apply)(struct mover *mover, const struct mover_placement *placement,
                   bool (*progress)(void *context, const struct mover_progress *), void *context, uint64_t *new_epoch);
    void (*placement_deinit)(struct mover_placement *placement);
};

// Borrowed until admin_destroy, including the model and the mover.
struct admin_backend {
    const struct model *model;
    struct admin_mover mover;
};

#endif
