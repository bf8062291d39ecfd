// Settings of the gRPC C core for this daemon: environment, allocator and channel arguments. tuning.c gives the reason of each.
#ifndef EXPERTD_DAEMON_GRPC_QUEUE_TUNING_H
#define EXPERTD_DAEMON_GRPC_QUEUE_TUNING_H

#include <grpc/grpc.h>

enum { TUNING_ARGS = 17 };

struct tuning {
    grpc_arg args[TUNING_ARGS + 1]; // and one of the caller
};

// Process-wide; the first call does the work. Before grpc_init, and before other threads read the environment.
void tuning_process(void);
// The arguments are stored in `tuning`; the quota is borrowed.
grpc_channel_args tuning_server_args(struct tuning *tuning, unsigned max_calls, grpc_resource_quota *quota);

struct tuning_dial {
    unsigned keepalive_time_ms, keepalive_timeout_ms; // 0: none
    int reconnect_ms;                                 // first delay of gRPC's own attempts
    grpc_resource_quota *quota;
};
// The same for an outgoing channel.
grpc_channel_args tuning_dial_args(struct tuning *tuning, const struct tuning_dial *dial);

#endif
