// The methods of expertd.admin.v1 about the shards of a front: ListShards, ChangeShard.
#ifndef EXPERTD_DAEMON_ADMIN_ADMIN_SHARDS_H
#define EXPERTD_DAEMON_ADMIN_ADMIN_SHARDS_H

#include "daemon/admin/admin_types.h"
#include "proto/control/control.h"

// *out is the encoded response, owned by the caller (free). EXPERTD_ERR_UNIMPLEMENTED: the daemon has no shards in other processes.
FALLIBLE admin_answer_shards(struct admin_call *call, const struct rpc_buffer *message, struct proto_bytes *out);

#endif
