// Encodes and decodes the small messages: Describe, regions, errors, health and reflection. Uses protobuf-c, whose generated types
// stay inside proto/; the interface consists of plain structs. Encoders return malloc'd bytes that the caller frees, or NULL bytes
// with EXPERTD_ERR_NOMEM. Any thread.
#ifndef EXPERTD_PROTO_CONTROL_CONTROL_H
#define EXPERTD_PROTO_CONTROL_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expertd/base/dtype.h"

struct proto_bytes {
    uint8_t *data; // malloc'd; free() it
    size_t length;
};

// ---- expertd.v1.Describe
struct describe_layer {
    uint32_t layer;
    const char *prefix;
    uint64_t weights_id;
    uint32_t hidden_size, num_experts, top_k;
    bool has_router, has_shared_experts, weights_on_input;
    enum expertd_dtype weight_dtype;
    const char *quantisation, *shared_quantisation, *numerics_id;
    bool ready, needs_token_ids, needs_router_input;
    uint32_t num_zero_experts, experts_held;
};

struct describe_shard {
    uint64_t bytes_used, bytes_max;
    uint32_t fronts, loading;
    bool draining;
};

struct describe_model {
    const char *name, *architecture;
    uint8_t digest[16];
    struct describe_layer *layers;
    size_t num_layers;
};

struct describe_response {
    struct describe_model *models;
    size_t num_models;
    uint64_t max_message_bytes, max_region_bytes;
    uint32_t max_tokens, max_top_k, max_inflight;
    const char *server_version;
    const char *const *features;
    size_t num_features;
    const enum expertd_dtype *hidden_dtypes;
    size_t num_hidden_dtypes;
    uint64_t placement_epoch;
    bool is_shard;
    struct describe_shard shard; // if is_shard
};

// Unknown fields are ignored in Describe. *model is malloc'd.
FALLIBLE proto_decode_describe_request(const uint8_t *bytes, size_t length, char **model);
FALLIBLE proto_encode_describe_response(const struct describe_response *response, struct proto_bytes *out);

// ---- expertd.v1.OpenRegion, CloseRegion: unknown fields are refused (EXPERTD_ERR_UNKNOWN_FIELD)
enum { REGION_TOKEN_LENGTH = 16, REGION_PATH_MAX = 108 }; // bytes of a Unix socket's path, including the terminator

struct open_region_response {
    uint64_t region;
    char socket[REGION_PATH_MAX];
    uint8_t token[REGION_TOKEN_LENGTH];
};
FALLIBLE proto_decode_open_region_request(const uint8_t *bytes, size_t length, uint64_t *region_bytes);
FALLIBLE proto_encode_open_region_response(const struct open_region_response *response, struct proto_bytes *out);
FALLIBLE proto_decode_close_region_request(const uint8_t *bytes, size_t length, uint64_t *region);
FALLIBLE proto_encode_close_region_response(struct proto_bytes *out);

// ---- errors: google.rpc.Status with ErrorInfo {reason, "expertd"}, BadRequest {field}, RetryInfo
struct proto_error {
    int grpc_code;      // google.rpc.Code
    const char *reason; // expertd_err_name
    const char *field;  // "" or NULL: no BadRequest
    const char *message;
    int64_t retry_after_ms; // < 0: no RetryInfo
};
FALLIBLE proto_encode_status(const struct proto_error *error, struct proto_bytes *out);

// The gRPC status code of an error code, and the time after which a client should retry (< 0: it should not).
int proto_grpc_code(enum expertd_err_code code);
int64_t proto_retry_after_ms(enum expertd_err_code code);

// The error code and the name of a gRPC status that comes without details: from gRPC itself, or from another server.
struct proto_status {
    enum expertd_err_code code;
    const char *name; // "UNAVAILABLE"
};
struct proto_status proto_status_of(int grpc_code);
// The error code of a reason. An unknown reason, from a newer server, gets the code of the status.
enum expertd_err_code proto_code_of_reason(const char *reason, int grpc_code);

// ---- grpc.health.v1
enum proto_serving { SERVING_UNKNOWN = 0, SERVING = 1, NOT_SERVING = 2, SERVICE_UNKNOWN = 3 };
FALLIBLE proto_decode_health_request(const uint8_t *bytes, size_t length, char **service);
FALLIBLE proto_encode_health_response(enum proto_serving status, struct proto_bytes *out);

// ---- grpc.reflection.v1 and v1alpha, whose messages have the same encoding: answers one request message.
// Serves the files embedded at build time. An unknown symbol gives an error_response (NOT_FOUND), not an err_t.
FALLIBLE proto_reflect(const uint8_t *bytes, size_t length, struct proto_bytes *out);

// ---- the client's side
struct describe_reply; // opaque: owns the memory of a decoded describe_response
FALLIBLE proto_encode_describe_request(const char *model, struct proto_bytes *out);
FALLIBLE proto_decode_describe_response(const uint8_t *bytes, size_t length, struct describe_response *out,
                                        struct describe_reply **owner);
void describe_reply_free(struct describe_reply *owner);
FALLIBLE proto_encode_open_region_request(uint64_t region_bytes, struct proto_bytes *out);
FALLIBLE proto_decode_open_region_response(const uint8_t *bytes, size_t length, struct open_region_response *out);
FALLIBLE proto_encode_close_region_request(uint64_t region, struct proto_bytes *out);
// A google.rpc.Status as sent in grpc-status-details-bin. Strings are truncated to the buffers. retry_after_ms < 0: no RetryInfo.
struct proto_error_text {
    int grpc_code;
    char reason[64], field[128], message[1024];
    int64_t retry_after_ms;
};
FALLIBLE proto_decode_status(const uint8_t *bytes, size_t length, struct proto_error_text *out);
FALLIBLE proto_encode_health_request(const char *service, struct proto_bytes *out);
FALLIBLE proto_decode_health_response(const uint8_t *bytes, size_t length, enum proto_serving *status);

#endif
