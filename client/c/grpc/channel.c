#include "client/c/grpc/channel.h"

#include <errno.h>
#include <grpc/grpc_security.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/tls/tls_failure.h"

enum {
    READ_CHUNK_BYTES = 1 << 20, // with gRPC's default of 64 KiB, a message of 16 MiB arrives in 290 pieces
    RECONNECT_MS = 100,
    PROBE_TIMEOUT_US = 1000000,
};

static grpc_arg integer_arg(const char *key, int value) {
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)key, .value.integer = value};
}

static FALLIBLE read_tls(const struct client_tls *tls, struct channel_settings *out) {
    struct tls_paths paths = {.cert = tls->cert, .key = tls->key, .ca = tls->ca};
    if (tls->server_name && strlen(tls->server_name) >= sizeof out->server_name) {
        FAIL(EXPERTD_ERR_USAGE, "the server name '%.40s...' is longer than a host name", tls->server_name);
    }
    snprintf(out->server_name, sizeof out->server_name, "%s", tls->server_name ? tls->server_name : "");
    out->tls = true;
    return tls_texts_read(&paths, TLS_USE_CLIENT, EXPERTD_ERR_CONFIG, &out->texts);
}

FALLIBLE channel_settings_read(const char *address, const struct client_tls *tls, struct channel_settings *out) {
    *out = (struct channel_settings){0};
    TRY(address_parse(address, &out->address));
    err_t e = tls && tls->on && !out->address.is_unix ? read_tls(tls, out) : OK;
    if (err_is(e)) {
        *out = (struct channel_settings){0};
    }
    return e;
}

void channel_settings_deinit(struct channel_settings *settings) {
    tls_texts_deinit(&settings->texts);
}

static grpc_channel_credentials *credentials_of(const struct channel_settings *settings) {
    if (!settings->tls) {
        return grpc_insecure_credentials_create();
    }
    const struct tls_texts *texts = &settings->texts;
    grpc_ssl_pem_key_cert_pair own = {.private_key = texts->key, .cert_chain = texts->cert};
    return grpc_ssl_credentials_create_ex(texts->ca, texts->cert ? &own : NULL, NULL, NULL);
}

grpc_channel *channel_open(const struct channel_settings *settings) {
    grpc_arg args[] = {
        integer_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, -1),
        integer_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1),
        integer_arg(GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE, READ_CHUNK_BYTES),
        integer_arg(GRPC_ARG_TCP_READ_CHUNK_SIZE, READ_CHUNK_BYTES),
        integer_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, RECONNECT_MS),
        integer_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1), // one connection per client
        integer_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),         // ignore the environment's proxy for web pages
        integer_arg(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
        {.type = GRPC_ARG_STRING, .key = (char *)GRPC_SSL_TARGET_NAME_OVERRIDE_ARG, .value.string = (char *)settings->server_name},
    };
    size_t count = sizeof args / sizeof *args - !settings->server_name[0]; // the last only if a name is given
    grpc_channel_args list = {count, args};
    char target[ADDRESS_TARGET_MAX];
    address_target(&settings->address, target);
    grpc_channel_credentials *credentials = credentials_of(settings);
    grpc_channel *channel = grpc_channel_create(target, credentials, &list);
    grpc_channel_credentials_release(credentials);
    return channel;
}

// Whether the failure is one of TLS, and its explanation.
static bool probe(const struct channel_settings *settings, char explanation[EXPERTD_ERR_MESSAGE_MAX]) {
    const char *name = settings->server_name[0] ? settings->server_name : NULL;
    struct tls_probe probe = {.host = settings->address.host,
                              .port = settings->address.port,
                              .server_name = name,
                              .texts = &settings->texts,
                              .timeout_us = PROBE_TIMEOUT_US};
    struct tls_failure_context context = {.address = settings->address.text, .tls = settings->tls, .server_name = name};
    struct tls_probe_result result;
    tls_probe_run(&probe, &result);
    return tls_failure_of_probe(&context, &result, explanation, EXPERTD_ERR_MESSAGE_MAX);
}

FALLIBLE channel_unreachable(const struct channel_settings *settings, const char *text) {
    const char *address = settings->address.text;
    if (settings->address.is_unix && strstr(text, strerror(EACCES))) {
        FAIL(EXPERTD_ERR_UNAVAILABLE,
             "uid %u may not connect to %s (%s): the daemon's allow_uids lists the users that may; only the daemon's own user and "
             "root may use its admin socket",
             (unsigned)geteuid(), address, text);
    }
    char explanation[EXPERTD_ERR_MESSAGE_MAX];
    if (!settings->address.is_unix && probe(settings, explanation)) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "%s", explanation);
    }
    FAIL(EXPERTD_ERR_UNAVAILABLE,
         "no daemon answers at %s (%s): start one with `expertd --model DIR --listen %s`, or give the address of one that runs",
         address, text, address);
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
