#include "daemon/grpc/dialler/connection.h"

#include <grpc/grpc_security.h>
#include <stdlib.h>

#include "daemon/grpc/dialler/socket_watch.h"
#include "daemon/grpc/queue/tuning.h"
#include "daemon/grpc/security/credentials.h"

enum {
    RECONNECT_MS = 1000, // gRPC's own attempts: a connection is given up before the second one
    // The bound on messages that a connection is receiving; space for metadata without any message.
    MESSAGES_IN_TRANSPORT = 4,
    TRANSPORT_BYTES_MIN = 64 << 20,
};

// Each connection has a quota of its own: gRPC ends connections whose quota is used up, and a server that sends without end is to
// end its own only.
static grpc_resource_quota *create_quota(const struct dial_channel *channel) {
    uint64_t bytes, max_message_bytes = channel->dialler->options.max_message_bytes;
    if (__builtin_mul_overflow(max_message_bytes, MESSAGES_IN_TRANSPORT, &bytes) || bytes < TRANSPORT_BYTES_MIN) {
        bytes = max_message_bytes > TRANSPORT_BYTES_MIN ? SIZE_MAX : TRANSPORT_BYTES_MIN;
    }
    grpc_resource_quota *quota = grpc_resource_quota_create(channel->address);
    grpc_resource_quota_resize(quota, bytes);
    return quota;
}

static grpc_channel_credentials *create_credentials(const struct dial_channel *channel) {
    if (!channel->tls) {
        return grpc_insecure_credentials_create();
    }
    const struct tls_snapshot *snapshot = tls_store_take(channel->tls);
    grpc_channel_credentials *credentials = credentials_of_channel(&snapshot->texts, channel->allowed_servers);
    tls_store_release(channel->tls, snapshot);
    return credentials;
}

FALLIBLE connection_create(const struct dial_channel *channel, struct connection **out) {
    struct connection *connection = *out = calloc(1, sizeof *connection);
    struct socket_watch *socket = socket_watch_create();
    grpc_channel_credentials *credentials = create_credentials(channel);
    if (!connection || !socket || !credentials) {
        if (socket) {
            socket_watch_unref(socket);
        }
        if (credentials) {
            grpc_channel_credentials_release(credentials);
        }
        free(connection);
        *out = NULL;
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a connection to %s", channel->address);
    }
    struct tuning tuning;
    struct tuning_dial dial = {.keepalive_time_ms = channel->keepalive_time_ms,
                               .keepalive_timeout_ms = channel->keepalive_timeout_ms,
                               .reconnect_ms = RECONNECT_MS,
                               .quota = create_quota(channel)};
    grpc_channel_args args = tuning_dial_args(&tuning, &dial);
    tuning.args[args.num_args++] = socket_watch_arg(socket);
    atomic_init(&connection->references, 1);
    connection->socket = socket;
    connection->grpc = grpc_channel_create(channel->address, credentials, &args);
    grpc_channel_credentials_release(credentials);
    grpc_resource_quota_unref(dial.quota); // the channel holds it
    return OK;
}

struct connection *connection_ref(struct connection *connection) {
    atomic_fetch_add(&connection->references, 1);
    return connection;
}

void connection_unref(struct connection *connection) {
    if (connection && atomic_fetch_sub(&connection->references, 1) == 1) {
        grpc_channel_destroy(connection->grpc);
        socket_watch_unref(connection->socket);
        free(connection);
    }
}

bool connection_is_usable(struct connection *connection) {
    grpc_connectivity_state state = grpc_channel_check_connectivity_state(connection->grpc, 0);
    bool starts = state == GRPC_CHANNEL_IDLE || state == GRPC_CHANNEL_CONNECTING;
    return state == GRPC_CHANNEL_READY || (starts && !atomic_load(&connection->was_up));
}

void connection_shut_down(struct connection *connection) {
    socket_watch_shut_down(connection->socket);
}
