// The unary methods of expertd.admin.v1: ShowPlacement, GetLoad, PlanPlacement, Drain; and those of admin_shards.h.
#ifndef EXPERTD_DAEMON_ADMIN_ADMIN_CALLS_H
#define EXPERTD_DAEMON_ADMIN_ADMIN_CALLS_H

#include "daemon/admin/admin_types.h"
#include "proto/admin/admin.h"

// *out is the encoded response, owned by the caller (free). On error the caller ends the call.
FALLIBLE admin_answer(struct admin_call *call, const struct rpc_buffer *message, struct proto_bytes *out);

#endif
