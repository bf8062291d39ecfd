// The admin server: expertd.admin.v1 on a gRPC server of its own, whose connections come from the admin address only. It passes an
// operator's requests to the mover, which makes every decision about placements. One ApplyPlacement call at a time moves experts,
// on a thread of its own ("admin-move"); everything else runs on the server's one thread.
#ifndef EXPERTD_DAEMON_ADMIN_ADMIN_H
#define EXPERTD_DAEMON_ADMIN_ADMIN_H

#include "base/err.h"
#include "daemon/admin/admin_options.h"

struct admin;

// The server runs when this returns. Methods that need the model are answered LOADING until admin_ready.
FALLIBLE admin_create(const struct admin_options *options, struct admin **out);
// Takes ownership of a connected, non-blocking socket, also on error. Any thread.
FALLIBLE admin_adopt(struct admin *admin, int fd, const char *peer);
FALLIBLE admin_adopt_tls(struct admin *admin, int fd, const char *peer); // rpc_adopt_tls
bool admin_has_called(struct admin *admin, int fd);                      // rpc_has_called

void admin_ready(struct admin *admin, const struct admin_backend *backend); // any thread, once

// Stops a running move after its current step, ends every call, refuses new ones. done(context) runs on the server's thread when no
// call is left. Any thread, once.
void admin_shutdown(struct admin *admin, void (*done)(void *context), void *context);
void admin_cancel(struct admin *admin);  // cancels the remaining calls; a move still completes its current step
void admin_destroy(struct admin *admin); // waits for a move's current step; NULL is legal

#endif
