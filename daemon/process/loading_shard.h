// Opens the model of a shard on the loader thread: threads, the store of experts, memory for what fronts will assign. No expert is
// loaded.
#ifndef EXPERTD_DAEMON_PROCESS_LOADING_SHARD_H
#define EXPERTD_DAEMON_PROCESS_LOADING_SHARD_H

#include "daemon/process/loading.h"
#include "daemon/shard/shard.h"

// Logs the result. Blocks. Any thread. Errors as loading_load. Unloaded with loading_unload, after shard_stop; also on error.
FALLIBLE loading_load_shard(const struct options *options, struct shard_service *service, struct loaded *out);

#endif
