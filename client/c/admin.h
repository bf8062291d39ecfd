// expertd.admin.v1 for the C client: the operator's calls. `client` is connected to the admin socket (client_create with the
// address that client_admin_address finds). Threads, timeouts and errors are as in client.h.
#ifndef EXPERTD_CLIENT_C_ADMIN_H
#define EXPERTD_CLIENT_C_ADMIN_H

#include <stddef.h>
#include <stdint.h>

#include "client/c/client.h"
#include "proto/admin/admin.h"
#include "proto/admin/admin_shards.h"

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

// The shards of a front. On error *out is zeroed; otherwise the caller releases it with proto_shards_deinit.
// EXPERTD_ERR_UNIMPLEMENTED: the daemon was started without --shard-hosts; EXPERTD_ERR_LOADING: it has not begun to connect.
FALLIBLE client_list_shards(struct client *client, int64_t timeout_us, struct proto_shards *out);
// Returns when the change has begun. EXPERTD_ERR_INVALID: no shard has the address, or it cannot be added.
FALLIBLE client_change_shard(struct client *client, const struct proto_change_shard *change, int64_t timeout_us);

// Returns when the daemon has accepted the call, before it drains. *active: requests that are not finished yet.
FALLIBLE client_drain(struct client *client, const char *reason, int64_t timeout_us, uint64_t *active);

#endif
