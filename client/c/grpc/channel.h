// gRPC code that the blocking and the asynchronous client share: opening a connection, and reading a failed call's error. Private
// to client/, since its interface has gRPC types. Any thread.
#ifndef EXPERTD_CLIENT_C_GRPC_CHANNEL_H
#define EXPERTD_CLIENT_C_GRPC_CHANNEL_H

#include <grpc/grpc.h>

#include "client/c/address.h"
#include "proto/control/control.h"

// A channel with a connection of its own, which the first call opens. The caller destroys it.
grpc_channel *channel_open(const struct address *address);

// Reads the daemon's error details. False if the trailing metadata have none.
bool channel_details(const grpc_metadata_array *trailing, struct proto_error_text *out);

#endif
