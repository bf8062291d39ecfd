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

static const struct channel_status STATUSES[] = {
    [GRPC_STATUS_OK] = {EXPERTD_ERR_OK, "OK"},
    [GRPC_STATUS_CANCELLED] = {EXPERTD_ERR_CANCELLED, "CANCELLED"},
    [GRPC_STATUS_UNKNOWN] = {EXPERTD_ERR_INTERNAL, "UNKNOWN"},
    [GRPC_STATUS_INVALID_ARGUMENT] = {EXPERTD_ERR_INVALID, "INVALID_ARGUMENT"},
    [GRPC_STATUS_DEADLINE_EXCEEDED] = {EXPERTD_ERR_DEADLINE, "DEADLINE_EXCEEDED"},
    [GRPC_STATUS_NOT_FOUND] = {EXPERTD_ERR_MODEL_UNKNOWN, "NOT_FOUND"},
    [GRPC_STATUS_ALREADY_EXISTS] = {EXPERTD_ERR_INTERNAL, "ALREADY_EXISTS"},
    [GRPC_STATUS_PERMISSION_DENIED] = {EXPERTD_ERR_PERMISSION, "PERMISSION_DENIED"},
    [GRPC_STATUS_RESOURCE_EXHAUSTED] = {EXPERTD_ERR_QUEUE_FULL, "RESOURCE_EXHAUSTED"},
    [GRPC_STATUS_FAILED_PRECONDITION] = {EXPERTD_ERR_INVALID, "FAILED_PRECONDITION"},
    [GRPC_STATUS_ABORTED] = {EXPERTD_ERR_INTERNAL, "ABORTED"},
    [GRPC_STATUS_OUT_OF_RANGE] = {EXPERTD_ERR_INVALID, "OUT_OF_RANGE"},
    [GRPC_STATUS_UNIMPLEMENTED] = {EXPERTD_ERR_UNIMPLEMENTED, "UNIMPLEMENTED"},
    [GRPC_STATUS_INTERNAL] = {EXPERTD_ERR_INTERNAL, "INTERNAL"},
    [GRPC_STATUS_UNAVAILABLE] = {EXPERTD_ERR_UNAVAILABLE, "UNAVAILABLE"},
    [GRPC_STATUS_DATA_LOSS] = {EXPERTD_ERR_INTERNAL, "DATA_LOSS"},
    [GRPC_STATUS_UNAUTHENTICATED] = {EXPERTD_ERR_PERMISSION, "UNAUTHENTICATED"},
};
enum { STATUS_COUNT = sizeof STATUSES / sizeof *STATUSES };

struct channel_status channel_status(int status) {
    return status >= 0 && status < STATUS_COUNT ? STATUSES[status] : STATUSES[GRPC_STATUS_UNKNOWN];
}

enum expertd_err_code channel_code_of_reason(const char *reason, int status) {
    for (int code = EXPERTD_ERR_OK + 1; code < EXPERTD_ERR_CODE_COUNT; code++) {
        if (strcmp(expertd_err_name((enum expertd_err_code)code), reason) == 0) {
            return (enum expertd_err_code)code;
        }
    }
    return channel_status(status).code == EXPERTD_ERR_OK ? EXPERTD_ERR_INTERNAL : channel_status(status).code;
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
