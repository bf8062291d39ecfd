// expertd.admin.v1 for the C client: what an operator asks of a running daemon. `client` is one of the admin socket
// (client_create with the address that Describe's features name). Threads, timeouts and errors as client.h says.
#ifndef EXPERTD_CLIENT_C_ADMIN_H
#define EXPERTD_CLIENT_C_ADMIN_H

#include <stddef.h>
#include <stdint.h>

#include "client/c/client.h"
#include "proto/admin/admin.h"

enum { ADMIN_ADDRESS_MAX = 128 };

// The admin socket's address among the features that a description names; EXPERTD_ERR_UNAVAILABLE where there is none.
FALLIBLE client_admin_address(const struct client_description *description, char out[ADMIN_ADDRESS_MAX]);

// No layers: all. On error *out is zeroed; else proto_placements_deinit, proto_plans_deinit are the caller's.
FALLIBLE client_show_placement(struct client *client, const struct proto_layers *layers, int64_t timeout_us,
                               struct proto_placements *out);
FALLIBLE client_plan_placement(struct client *client, const struct proto_plan_request *request, int64_t timeout_us,
                               struct proto_plans *out);

// Returns when the placement is in force; `progress` (may be NULL) is called on this thread as it goes. *last is then the message
// that said so.
FALLIBLE client_apply_placement(struct client *client, const struct proto_placement *placement,
                                void (*progress)(void *context, const struct proto_progress *), void *context,
                                struct proto_progress *last);

// Returns when the daemon has taken it, before it drains. *active: requests under way.
FALLIBLE client_drain(struct client *client, const char *reason, int64_t timeout_us, uint64_t *active);

#endif
