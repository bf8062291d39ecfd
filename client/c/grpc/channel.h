// What the blocking and the asynchronous client share of gRPC: how a connection is opened, and what a failed call says. Private to
// client/: gRPC's types are in its interface. Any thread.
#ifndef EXPERTD_CLIENT_C_GRPC_CHANNEL_H
#define EXPERTD_CLIENT_C_GRPC_CHANNEL_H

#include <grpc/grpc.h>

#include "client/c/address.h"
#include "proto/control/control.h"

// A connection of its own, opened by its first call; the caller's to destroy.
grpc_channel *channel_open(const struct address *address);

struct channel_status {
    enum expertd_err_code code;
    const char *name;
};

// What a status means that comes without our details: gRPC's own, or a proxy's.
struct channel_status channel_status(int status);

// The code of a reason; one of a newer daemon falls back on its status.
enum expertd_err_code channel_code_of_reason(const char *reason, int status);

// The daemon's own account of a failure. False where the trailing metadata have none.
bool channel_details(const grpc_metadata_array *trailing, struct proto_error_text *out);

#endif
