// The thread "compute": takes pieces from the sessions in turn, computes them with the process's team, and queues the answers.
#ifndef EXPERTD_DAEMON_SHARD_COMPUTE_THREAD_H
#define EXPERTD_DAEMON_SHARD_COMPUTE_THREAD_H

#include "daemon/shard/shard_types.h"

void *compute_thread_main(void *argument); // argument: the service. Runs until service->stopping

#endif
