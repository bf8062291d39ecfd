#include "client/c/grpc/channel.h"

#include <grpc/grpc_security.h>
#include <string.h>

enum {
    READ_CHUNK_BYTES = 1 << 20, // with gRPC's default of 64 KiB, a message of 16 MiB arrives in 290 pieces
    RECONNECT_MS = 100,
};

static grpc_arg integer_arg(const char *key, int value) {
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)key, .value.integer = value};
}

grpc_channel *channel_open(const struct address *address) {
    grpc_arg args[] = {
        integer_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, -1),
        integer_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1),
        integer_arg(GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE, READ_CHUNK_BYTES),
        integer_arg(GRPC_ARG_TCP_READ_CHUNK_SIZE, READ_CHUNK_BYTES),
        integer_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, RECONNECT_MS),
        integer_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1), // one connection per client
        integer_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),         // ignore the environment's proxy for web pages
        integer_arg(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
    };
    grpc_channel_args list = {sizeof args / sizeof *args, args};
    char target[ADDRESS_TARGET_MAX];
    address_target(address, target);
    grpc_channel_credentials *credentials = grpc_insecure_credentials_create();
    grpc_channel *channel = grpc_channel_create(target, credentials, &list);
    grpc_channel_credentials_release(credentials);
    return channel;
}

static const grpc_metadata *find_details(const grpc_metadata_array *trailing) {
    for (size_t i = 0; i < trailing->count; i++) {
        if (grpc_slice_str_cmp(trailing->metadata[i].key, "grpc-status-details-bin") == 0) {
            return &trailing->metadata[i];
        }
    }
    return NULL;
}

bool channel_details(const grpc_metadata_array *trailing, struct proto_error_text *out) {
    const grpc_metadata *details = find_details(trailing);
    return details && !err_is(proto_decode_status(GRPC_SLICE_START_PTR(details->value), GRPC_SLICE_LENGTH(details->value), out)) &&
           out->reason[0] != '\0';
}
