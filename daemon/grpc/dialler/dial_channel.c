// Channels: the settings of an address.
#include <stdlib.h>
#include <string.h>

#include "daemon/grpc/dialler/connection.h"
#include "daemon/grpc/dialler/dial_stream.h"
#include "daemon/tls/tls_store.h"
#include "proto/tls/tls_identity.h"

static FALLIBLE check(const struct dialler *dialler, const struct dial_channel_options *options) {
    if (options->thread >= dialler->options.threads) {
        FAIL(EXPERTD_ERR_CONFIG, "the dialler has no thread %u", options->thread);
    }
    const char *colon = strrchr(options->address, ':');
    if (!colon || colon == options->address || !colon[1] || strchr(options->address, '/')) {
        FAIL(EXPERTD_ERR_CONFIG, "\"%s\" is not HOST:PORT", options->address);
    }
    if (options->allowed_servers) {
        TRY(tls_identity_check(options->allowed_servers, EXPERTD_ERR_CONFIG));
    }
    if (options->tls) {
        const struct tls_snapshot *snapshot = tls_store_take(options->tls);
        bool has_ca = snapshot->texts.ca != NULL;
        tls_store_release(options->tls, snapshot);
        if (!has_ca) {
            FAIL(EXPERTD_ERR_CONFIG,
                 "%s cannot be dialled with TLS: tls_ca is not set, the CA that its certificate is checked against",
                 options->address);
        }
    }
    return OK;
}

FALLIBLE dial_channel_create(struct dialler *dialler, const struct dial_channel_options *options, struct dial_channel **out) {
    *out = NULL;
    TRY(check(dialler, options));
    struct dial_channel *channel = calloc(1, sizeof *channel);
    char *address = strdup(options->address), *allowed = options->allowed_servers ? strdup(options->allowed_servers) : NULL;
    if (!channel || !address || (options->allowed_servers && !allowed)) {
        free(channel);
        free(address);
        free(allowed);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a channel to %s", options->address);
    }
    channel->dialler = dialler;
    channel->thread = &dialler->threads[options->thread];
    channel->address = address;
    channel->allowed_servers = allowed;
    channel->tls = options->tls;
    channel->keepalive_time_ms = options->keepalive_time_ms;
    channel->keepalive_timeout_ms = options->keepalive_timeout_ms;
    pthread_mutex_init(&channel->mutex, NULL);
    LIST_INIT(&channel->streams);
    *out = channel;
    return OK;
}

void dial_channel_destroy(struct dial_channel *channel) {
    if (!channel) {
        return;
    }
    INVARIANT(LIST_EMPTY(&channel->streams));
    connection_unref(channel->current);
    pthread_mutex_destroy(&channel->mutex);
    free(channel->address);
    free(channel->allowed_servers);
    free(channel);
}

const char *dial_channel_address(const struct dial_channel *channel) {
    return channel->address;
}

void dial_channel_cut(struct dial_channel *channel) {
    struct dial_stream *stream;
    pthread_mutex_lock(&channel->mutex);
    struct connection *current = channel->current;
    channel->current = NULL;
    LIST_FOREACH(stream, &channel->streams, in_channel) {
        dial_stream_cut(stream);
    }
    pthread_mutex_unlock(&channel->mutex);
    connection_unref(current);
}
