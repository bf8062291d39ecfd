// Encodes and decodes the messages of expertd.shard.v1.Control, for fronts and shards. Uses protobuf-c, whose generated types stay
// inside proto/; the interface consists of plain structs. Unknown fields are skipped: the peer may be of another version, which the
// hellos compare. Any thread.
//
// Encoders return malloc'd bytes that the caller frees, or NULL bytes with EXPERTD_ERR_NOMEM; they borrow the arrays and texts of
// the message. A decoded message points into *owner, which the caller frees with shard_message_free; NULL on error. Decoders fail
// with EXPERTD_ERR_MALFORMED, EXPERTD_ERR_TOO_LARGE or EXPERTD_ERR_NOMEM; expertd_err_field() is the field at fault.
#ifndef EXPERTD_PROTO_SHARD_SHARD_CONTROL_H
#define EXPERTD_PROTO_SHARD_SHARD_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "proto/control/control.h"

// Senders divide longer lists of experts over several messages.
enum { SHARD_PROTOCOL = 1, SHARD_CONTROL_MESSAGE_MAX = 64 << 10, SHARD_DIGEST_LENGTH = 16, SHARD_TOKEN_LENGTH = 16 };

struct shard_identity {
    uint32_t protocol;
    const char *numerics_id, *compute_dtype;
    uint8_t model_digest[SHARD_DIGEST_LENGTH];
};

// Experts of one layer.
struct shard_experts {
    uint32_t layer;
    const uint32_t *experts; // [count]
    size_t count;
};

struct shard_expert_lists {
    const struct shard_experts *lists; // [count]
    size_t count;
};

// ---- from a front

struct shard_front_hello {
    struct shard_identity identity;
    uint64_t instance; // not 0
    const char *version;
    bool asks_lease;
    uint32_t max_batch_rows, max_batch_hidden;
};

enum shard_request_kind { SHARD_FRONT_HELLO = 1, SHARD_ASSIGN, SHARD_RETIRE, SHARD_RELEASE, SHARD_HEARTBEAT, SHARD_DRAIN };

struct shard_request {
    enum shard_request_kind kind;
    union {
        struct shard_front_hello hello;
        struct { // SHARD_ASSIGN, SHARD_RETIRE: number of the command; SHARD_RELEASE: sequence of the inventory
            uint64_t number;
            struct shard_expert_lists experts;
        };
        uint64_t heartbeat;
        bool drains; // SHARD_DRAIN
    };
};

// ---- from a shard

struct shard_layer {
    uint32_t layer, num_experts;
    const char *format;
    uint64_t expert_bytes;
};

struct shard_hello {
    struct shard_identity identity;
    uint64_t instance; // not 0
    const char *version;
    uint8_t rows_token[SHARD_TOKEN_LENGTH];
    const struct shard_layer *layers; // [num_layers]
    size_t num_layers;
    uint64_t bytes_max;
    bool draining;
};

enum shard_copy_state { SHARD_COPY_NONE, SHARD_COPY_LOADING, SHARD_COPY_READY, SHARD_COPY_RETIRING, SHARD_COPY_FAILED };

// Copies of one layer's experts in one state.
struct shard_copies {
    uint32_t layer;
    enum shard_copy_state state;
    const uint32_t *experts; // [count]
    size_t count;
    const uint64_t *digests; // [count] of READY and RETIRING, else NULL
};

struct shard_inventory {
    uint64_t sequence;
    uint32_t commands_seen;
    bool complete;
    const struct shard_copies *copies; // [count]
    size_t count;
    uint64_t bytes_used;
};

enum shard_reply_kind { SHARD_HELLO = 1, SHARD_INVENTORY, SHARD_LEASE, SHARD_PROGRESS, SHARD_FAILURE, SHARD_ECHO, SHARD_DRAINING };

struct shard_reply {
    enum shard_reply_kind kind;
    union {
        struct shard_hello hello;
        struct shard_inventory inventory;
        struct {
            bool granted;
            uint64_t owner;
        } lease;
        struct {
            uint32_t loading;
            uint64_t bytes_left, bytes_per_second;
        } progress;
        struct {
            uint32_t layer, expert;
            const char *message;
        } failure;
        uint64_t echo;
        struct {
            bool drains;
            const char *reason;
        } draining;
    };
};

struct shard_message;                                 // opaque: owns the memory of a decoded message
void shard_message_free(struct shard_message *owner); // NULL is legal

FALLIBLE shard_encode_request(const struct shard_request *request, struct proto_bytes *out);
FALLIBLE shard_decode_request(const uint8_t *bytes, size_t length, struct shard_request *out, struct shard_message **owner);
FALLIBLE shard_encode_reply(const struct shard_reply *reply, struct proto_bytes *out);
FALLIBLE shard_decode_reply(const uint8_t *bytes, size_t length, struct shard_reply *out, struct shard_message **owner);

#endif
