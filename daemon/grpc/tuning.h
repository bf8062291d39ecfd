// What makes gRPC's C core fit this daemon: environment, allocator and channel arguments, with the reason of each.
#ifndef EXPERTD_DAEMON_GRPC_TUNING_H
#define EXPERTD_DAEMON_GRPC_TUNING_H

#include <grpc/grpc.h>

enum { TUNING_ARGS = 16 };

struct tuning {
    grpc_arg args[TUNING_ARGS];
};

// Process-wide, and done once however many servers there are; before grpc_init and before other threads read the environment.
void tuning_process(void);
// Arguments that live in `tuning`; the quota is borrowed.
grpc_channel_args tuning_server_args(struct tuning *tuning, unsigned max_calls, grpc_resource_quota *quota);

#endif
