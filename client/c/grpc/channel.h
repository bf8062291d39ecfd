// gRPC code that the blocking and the asynchronous client share: opening a connection, and reading a failed call's error. Private
// to client/, since its interface has gRPC types. Any thread.
#ifndef EXPERTD_CLIENT_C_GRPC_CHANNEL_H
#define EXPERTD_CLIENT_C_GRPC_CHANNEL_H

#include <grpc/grpc.h>

#include "client/c/address.h"
#include "client/c/tls.h"
#include "proto/control/control.h"
#include "proto/tls/tls_files.h"

// What is needed for opening connections to one daemon.
struct channel_settings {
    struct address address;
    bool tls;
    struct tls_texts texts;
    char server_name[ADDRESS_HOST_MAX]; // "": the host of the address
};

// Parses the address and reads the files. tls NULL: plain. EXPERTD_ERR_USAGE: the address or the name. EXPERTD_ERR_CONFIG: a file.
// On error *out is zeroed.
FALLIBLE channel_settings_read(const char *address, const struct client_tls *tls, struct channel_settings *out);
void channel_settings_deinit(struct channel_settings *settings);

// A channel with a connection of its own, which the first call opens. The caller destroys it.
grpc_channel *channel_open(const struct channel_settings *settings);

// "no daemon answers at ADDRESS ...": cause and remedy of a connection that could not be made, from gRPC's text.
FALLIBLE channel_unreachable(const struct channel_settings *settings, const char *text);

// Reads the daemon's error details. False if the trailing metadata have none.
bool channel_details(const grpc_metadata_array *trailing, struct proto_error_text *out);

#endif
