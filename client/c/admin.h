// expertd.admin.v1 for the C client: the operator's calls. `client` is connected to the admin socket (client_create with the
// address that client_admin_address finds). Threads, timeouts and errors are as in client.h.
#ifndef EXPERTD_CLIENT_C_ADMIN_H
#define EXPERTD_CLIENT_C_ADMIN_H

#include <stddef.h>
#include <stdint.h>

#include "client/c/client.h"
#include "proto/admin/admin.h"

enum { ADMIN_ADDRESS_MAX = 128 };

// Finds the admin socket's address in the description's features. EXPERTD_ERR_UNAVAILABLE: the daemon has no admin socket.
FALLIBLE client_admin_address(const struct client_description *description, char out[ADMIN_ADDRESS_MAX]);

// Without layers: all. On error *out is zeroed; otherwise the caller releases it with proto_placements_deinit or
// proto_plans_deinit.
FALLIBLE client_show_placement(struct client *client, const struct proto_layers *layers, int64_t timeout_us,
                               struct proto_placements *out);
FALLIBLE client_plan_placement(struct client *client, const struct proto_plan_request *request, int64_t timeout_us,
                               struct proto_plans *out);

// Returns when the placement is in force. `progress` (may be NULL) is called on this thread during the move. *last is the final
// progress message.
FALLIBLE client_apply_placement(struct client *client, const struct proto_placement *placement,
                                void (*progress)(void *context, const struct proto_progress *), void *context,
                                struct proto_progress *last);

// Returns when the daemon has accepted the call, before it drains. *active: requests that are not finished yet.
FALLIBLE client_drain(struct client *client, const char *reason, int64_t timeout_us, uint64_t *active);

#endif
