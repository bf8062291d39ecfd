// The admin plane: expertd.admin.v1 on a gRPC server of its own, whose connections come from the admin socket alone. It decides
// nothing about placements: it asks the mover, on behalf of an operator. One call of ApplyPlacement at a time moves experts, on a
// thread of its own ("admin-move"); everything else runs on the server's one thread.
#ifndef EXPERTD_DAEMON_ADMIN_ADMIN_H
#define EXPERTD_DAEMON_ADMIN_ADMIN_H

#include <stdint.h>

#include "base/err.h"
#include "daemon/admin/mover.h"
#include "expert/model/model.h"

struct admin;

struct admin_options {
    uint64_t (*active)(void *context); // requests under way, for Drain's answer; the server's thread
    void (*drain)(void *context);      // somebody asked for the end, and has been answered; the server's thread
    void *context;
    struct rpc_server *watcher; // of rpc_options; NULL: the server's own thread
};

// The server runs when this returns; calls that need the model are answered LOADING until admin_ready.
FALLIBLE admin_create(const struct admin_options *options, struct admin **out);
// Takes a connected, non-blocking socket over (also on error). Any thread.
FALLIBLE admin_adopt(struct admin *admin, int fd, const char *peer);

// The mover's functions (daemon/admin/mover.h), so that a test may bring its own. `mover` NULL: there is none, and what needs it is
// UNIMPLEMENTED.
struct admin_mover {
    struct mover *mover;
    err_t (*show)(struct mover *mover, uint32_t layer, struct mover_placement *out);
    err_t (*plan)(struct mover *mover, const struct mover_plan_options *options, struct mover_placement *out);
    err_t (*apply)(struct mover *mover, const struct mover_placement *placement,
                   bool (*progress)(void *context, const struct mover_progress *), void *context, uint64_t *new_epoch);
    void (*placement_deinit)(struct mover_placement *placement);
};

// Borrowed until admin_destroy, the model and the mover with it.
struct admin_backend {
    const struct model *model;
    struct admin_mover mover;
};
void admin_ready(struct admin *admin, const struct admin_backend *backend); // any thread, once

// Stops a move after its step, ends every call, refuses new ones; done(context) runs on the server's thread when none is left. Any
// thread, once.
void admin_shutdown(struct admin *admin, void (*done)(void *context), void *context);
void admin_cancel(struct admin *admin);  // calls that still run are given up; a move ends with its step all the same
void admin_destroy(struct admin *admin); // waits for a move's step; NULL is legal

#endif
