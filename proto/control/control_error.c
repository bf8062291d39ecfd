// google.rpc.Status with its details, and the table that maps error codes to gRPC status codes.
#include "proto/control/control.h"

#include <stdlib.h>
#include <string.h>

#include "generated/google/rpc/error_details.pb-c.h"
#include "generated/google/rpc/status.pb-c.h"
#include "proto/control/control_pack.h"
#include "proto/control/control_text.h"

enum grpc_code {
    GRPC_OK = 0,
    GRPC_CANCELLED = 1,
    GRPC_INVALID_ARGUMENT = 3,
    GRPC_DEADLINE_EXCEEDED = 4,
    GRPC_NOT_FOUND = 5,
    GRPC_PERMISSION_DENIED = 7,
    GRPC_RESOURCE_EXHAUSTED = 8,
    GRPC_FAILED_PRECONDITION = 9,
    GRPC_UNIMPLEMENTED = 12,
    GRPC_INTERNAL = 13,
    GRPC_UNAVAILABLE = 14,
};

enum { NO_RETRY = -1 };

struct status_row {
    enum grpc_code code;
    int retry_after_ms;
};

// Retry delays: a full queue drains within batches; the other errors last until a process has started or restarted.
static const struct status_row STATUS[EXPERTD_ERR_CODE_COUNT] = {
    [EXPERTD_ERR_OK] = {GRPC_OK, NO_RETRY},
    [EXPERTD_ERR_USAGE] = {GRPC_INTERNAL, NO_RETRY},
    [EXPERTD_ERR_CHECKPOINT] = {GRPC_INTERNAL, NO_RETRY},
    [EXPERTD_ERR_UNAVAILABLE] = {GRPC_UNAVAILABLE, 1000},
    [EXPERTD_ERR_INTERNAL] = {GRPC_INTERNAL, NO_RETRY},
    [EXPERTD_ERR_CONFIG] = {GRPC_INTERNAL, NO_RETRY},
    [EXPERTD_ERR_IO] = {GRPC_INTERNAL, NO_RETRY},
    [EXPERTD_ERR_NOMEM] = {GRPC_RESOURCE_EXHAUSTED, NO_RETRY},
    [EXPERTD_ERR_MALFORMED] = {GRPC_INVALID_ARGUMENT, NO_RETRY},
    [EXPERTD_ERR_MODEL_UNKNOWN] = {GRPC_NOT_FOUND, NO_RETRY},
    [EXPERTD_ERR_LAYER_UNKNOWN] = {GRPC_NOT_FOUND, NO_RETRY},
    [EXPERTD_ERR_REGION_UNKNOWN] = {GRPC_NOT_FOUND, NO_RETRY},
    [EXPERTD_ERR_SHAPE_MISMATCH] = {GRPC_INVALID_ARGUMENT, NO_RETRY},
    [EXPERTD_ERR_DTYPE_UNSUPPORTED] = {GRPC_INVALID_ARGUMENT, NO_RETRY},
    [EXPERTD_ERR_EXPERT_OUT_OF_RANGE] = {GRPC_INVALID_ARGUMENT, NO_RETRY},
    [EXPERTD_ERR_UNKNOWN_FIELD] = {GRPC_INVALID_ARGUMENT, NO_RETRY},
    [EXPERTD_ERR_TENSOR_BYTES] = {GRPC_INVALID_ARGUMENT, NO_RETRY},
    [EXPERTD_ERR_INVALID] = {GRPC_INVALID_ARGUMENT, NO_RETRY},
    [EXPERTD_ERR_WEIGHTS_CHANGED] = {GRPC_FAILED_PRECONDITION, NO_RETRY},
    [EXPERTD_ERR_NO_ROUTER] = {GRPC_FAILED_PRECONDITION, NO_RETRY},
    [EXPERTD_ERR_NO_SHARED_EXPERTS] = {GRPC_FAILED_PRECONDITION, NO_RETRY},
    [EXPERTD_ERR_QUEUE_FULL] = {GRPC_RESOURCE_EXHAUSTED, 50},
    [EXPERTD_ERR_TOO_LARGE] = {GRPC_RESOURCE_EXHAUSTED, NO_RETRY},
    [EXPERTD_ERR_DRAINING] = {GRPC_UNAVAILABLE, 1000},
    [EXPERTD_ERR_SHARD_LOST] = {GRPC_UNAVAILABLE, 1000},
    [EXPERTD_ERR_LOADING] = {GRPC_UNAVAILABLE, 2000},
    [EXPERTD_ERR_DEADLINE] = {GRPC_DEADLINE_EXCEEDED, NO_RETRY},
    [EXPERTD_ERR_CANCELLED] = {GRPC_CANCELLED, NO_RETRY},
    [EXPERTD_ERR_PERMISSION] = {GRPC_PERMISSION_DENIED, NO_RETRY},
    [EXPERTD_ERR_UNIMPLEMENTED] = {GRPC_UNIMPLEMENTED, NO_RETRY},
};

int proto_grpc_code(enum expertd_err_code code) {
    return (unsigned)code < EXPERTD_ERR_CODE_COUNT ? STATUS[code].code : GRPC_INTERNAL;
}

int64_t proto_retry_after_ms(enum expertd_err_code code) {
    return (unsigned)code < EXPERTD_ERR_CODE_COUNT ? STATUS[code].retry_after_ms : NO_RETRY;
}

#define TYPE_PREFIX "type.googleapis.com/"
static const char ERROR_INFO_TYPE[] = TYPE_PREFIX "google.rpc.ErrorInfo";
static const char BAD_REQUEST_TYPE[] = TYPE_PREFIX "google.rpc.BadRequest";
static const char RETRY_INFO_TYPE[] = TYPE_PREFIX "google.rpc.RetryInfo";
static const char ERROR_DOMAIN[] = "expertd";

enum { DETAILS_MAX = 3, MS_PER_S = 1000, NS_PER_MS = 1000000 };

// A Status under construction, with the memory of its details.
struct status_builder {
    Google__Rpc__Status status;
    Google__Protobuf__Any any[DETAILS_MAX];
    Google__Protobuf__Any *details[DETAILS_MAX];
    char message[EXPERTD_ERR_MESSAGE_MAX], field[EXPERTD_ERR_FIELD_MAX], reason[EXPERTD_ERR_FIELD_MAX];
};

static FALLIBLE add_detail(struct status_builder *builder, const char *type, const ProtobufCMessage *detail) {
    INVARIANT(builder->status.n_details < DETAILS_MAX);
    struct proto_bytes packed;
    TRY(control_pack(detail, &packed));
    size_t index = builder->status.n_details++;
    google__protobuf__any__init(&builder->any[index]);
    builder->any[index].type_url = (char *)type;
    builder->any[index].value = (ProtobufCBinaryData){packed.length, packed.data};
    builder->details[index] = &builder->any[index];
    return OK;
}

static FALLIBLE add_error_info(struct status_builder *builder) {
    Google__Rpc__ErrorInfo info = GOOGLE__RPC__ERROR_INFO__INIT;
    Google__Rpc__ErrorInfo__MetadataEntry entry = GOOGLE__RPC__ERROR_INFO__METADATA_ENTRY__INIT;
    Google__Rpc__ErrorInfo__MetadataEntry *entries[] = {&entry};
    info.reason = builder->reason;
    info.domain = (char *)ERROR_DOMAIN;
    if (*builder->field) {
        entry.key = (char *)"field";
        entry.value = builder->field;
        info.n_metadata = 1;
        info.metadata = entries;
    }
    return add_detail(builder, ERROR_INFO_TYPE, &info.base);
}

static FALLIBLE add_bad_request(struct status_builder *builder) {
    Google__Rpc__BadRequest__FieldViolation violation = GOOGLE__RPC__BAD_REQUEST__FIELD_VIOLATION__INIT;
    Google__Rpc__BadRequest__FieldViolation *violations[] = {&violation};
    Google__Rpc__BadRequest bad = GOOGLE__RPC__BAD_REQUEST__INIT;
    violation.field = builder->field;
    violation.description = builder->message;
    bad.n_field_violations = 1;
    bad.field_violations = violations;
    return add_detail(builder, BAD_REQUEST_TYPE, &bad.base);
}

static FALLIBLE add_retry_info(struct status_builder *builder, int64_t retry_after_ms) {
    Google__Protobuf__Duration delay = GOOGLE__PROTOBUF__DURATION__INIT;
    Google__Rpc__RetryInfo info = GOOGLE__RPC__RETRY_INFO__INIT;
    delay.seconds = retry_after_ms / MS_PER_S;
    delay.nanos = (int32_t)(retry_after_ms % MS_PER_S) * NS_PER_MS;
    info.retry_delay = &delay;
    return add_detail(builder, RETRY_INFO_TYPE, &info.base);
}

FALLIBLE proto_encode_status(const struct proto_error *error, struct proto_bytes *out) {
    struct status_builder builder = {.status = GOOGLE__RPC__STATUS__INIT};
    *out = (struct proto_bytes){0};
    builder.status.code = error->grpc_code;
    builder.status.message = control_clean_text(error->message, builder.message, sizeof builder.message);
    builder.status.details = builder.details;
    control_clean_text(error->field, builder.field, sizeof builder.field);
    control_clean_text(error->reason, builder.reason, sizeof builder.reason);

    err_t e;
    TRY_OUT(e, add_error_info(&builder));
    if (*builder.field) {
        TRY_OUT(e, add_bad_request(&builder));
    }
    if (error->retry_after_ms >= 0) {
        TRY_OUT(e, add_retry_info(&builder, error->retry_after_ms));
    }
    e = control_pack(&builder.status.base, out);
out:
    for (size_t i = 0; i < builder.status.n_details; i++) {
        free(builder.any[i].value.data);
    }
    return e;
}

static void read_error_info(const ProtobufCBinaryData *value, struct proto_error_text *out) {
    Google__Rpc__ErrorInfo *info = google__rpc__error_info__unpack(NULL, value->len, value->data);
    if (info) {
        control_clean_text(info->reason, out->reason, sizeof out->reason);
        google__rpc__error_info__free_unpacked(info, NULL);
    }
}

static void read_bad_request(const ProtobufCBinaryData *value, struct proto_error_text *out) {
    Google__Rpc__BadRequest *bad = google__rpc__bad_request__unpack(NULL, value->len, value->data);
    if (bad && bad->n_field_violations > 0) {
        control_clean_text(bad->field_violations[0]->field, out->field, sizeof out->field);
    }
    if (bad) {
        google__rpc__bad_request__free_unpacked(bad, NULL);
    }
}

static void read_retry_info(const ProtobufCBinaryData *value, struct proto_error_text *out) {
    Google__Rpc__RetryInfo *info = google__rpc__retry_info__unpack(NULL, value->len, value->data);
    const Google__Protobuf__Duration *delay = info ? info->retry_delay : NULL;
    if (delay && delay->seconds >= 0 && delay->seconds < INT32_MAX && delay->nanos >= 0) {
        out->retry_after_ms = delay->seconds * MS_PER_S + delay->nanos / NS_PER_MS;
    }
    if (info) {
        google__rpc__retry_info__free_unpacked(info, NULL);
    }
}

// Skips a detail that cannot be decoded: code and message are useful without it.
static void read_detail(const Google__Protobuf__Any *any, struct proto_error_text *out) {
    if (strcmp(any->type_url, ERROR_INFO_TYPE) == 0) {
        read_error_info(&any->value, out);
    } else if (strcmp(any->type_url, BAD_REQUEST_TYPE) == 0) {
        read_bad_request(&any->value, out);
    } else if (strcmp(any->type_url, RETRY_INFO_TYPE) == 0) {
        read_retry_info(&any->value, out);
    }
}

FALLIBLE proto_decode_status(const uint8_t *bytes, size_t length, struct proto_error_text *out) {
    *out = (struct proto_error_text){.retry_after_ms = NO_RETRY};
    TRY(control_check_size("google.rpc.Status", length));
    Google__Rpc__Status *status = google__rpc__status__unpack(NULL, length, bytes);
    if (!status) {
        FAIL(EXPERTD_ERR_MALFORMED, "the bytes are not a valid google.rpc.Status");
    }
    out->grpc_code = status->code;
    control_clean_text(status->message, out->message, sizeof out->message);
    for (size_t i = 0; i < status->n_details; i++) {
        read_detail(status->details[i], out);
    }
    google__rpc__status__free_unpacked(status, NULL);
    return OK;
}
