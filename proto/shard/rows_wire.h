// Encodes and decodes the messages of expertd.shard.v1.Rows: pieces of batches, and result rows. The rows themselves are never
// copied here: an encoder writes the head that precedes them, and a decoder finds their range in the parts in which the transport
// holds the message. No allocation. The input is not trusted. Any thread.
//
// Decoders refuse a singular field that occurs twice (EXPERTD_ERR_UNKNOWN_FIELD), and what does not parse or has lengths that do
// not fit each other (EXPERTD_ERR_MALFORMED); expertd_err_field() is the field at fault. Whether the numbers fit a model and the
// batch is the receiver's check.
#ifndef EXPERTD_PROTO_SHARD_ROWS_WIRE_H
#define EXPERTD_PROTO_SHARD_ROWS_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "proto/wire/wire_parts.h"

enum { ROWS_RESULTS_MAX = 16 << 20 }; // bytes: results of a piece
enum { ROWS_TOKEN_LENGTH = 16, ROWS_REASON_MAX = 64, ROWS_ERROR_MAX = 512 };

struct rows_request {
    uint64_t batch, epoch; // batch 0: the message has only the token
    uint32_t layer;        // the checkpoint's number
    uint32_t first_row, first_hidden;
    const uint32_t *groups; // [2 * num_groups] expert, rows, expert, rows, ...
    size_t num_groups;
    const uint32_t *hidden_rows; // [rows]
    size_t rows;
    uint32_t row_bytes;
    size_t num_hidden; // hidden rows in the message, of row_bytes each
    bool has_token;
    uint8_t token[ROWS_TOKEN_LENGTH];
};

// Writes the part of the message that precedes the hidden rows, and returns its length; with head NULL it only measures. The
// message is this head, followed by exactly num_hidden * row_bytes bytes.
size_t rows_encode_request(const struct rows_request *request, uint8_t *head, size_t capacity);

// The caller's memory for decoding, reused from message to message. `head` holds a copy of everything but the hidden rows.
struct rows_memory {
    uint32_t *groups; // [2 * groups_max]
    size_t groups_max;
    uint32_t *hidden_rows; // [rows_max]
    size_t rows_max;
    uint8_t *head;
    size_t head_bytes; // at least rows_head_bytes
};
// Bytes of the longest head of a message with so many groups and rows.
size_t rows_head_bytes(size_t groups_max, size_t rows_max);

// out->groups and out->hidden_rows are in the memory. *hidden is the range of the hidden rows in the message; its length is
// num_hidden * row_bytes. A message with a batch has row_bytes > 0. Unknown fields are refused. EXPERTD_ERR_TOO_LARGE: more groups
// or rows than the memory has.
FALLIBLE rows_decode_request(const struct wire_parts *message, const struct rows_memory *memory, struct rows_request *out,
                             struct wire_range *hidden);

// Finds the rows of a message of either kind, for `body_of` of rpc.h and dial.h. False: it has none, or is malformed. Checks
// nothing else; a decoder finds the same range.
bool rows_find(const struct wire_parts *message, struct wire_range *rows);

struct rows_reply {
    uint64_t batch, epoch;
    uint32_t first_row, rows;
    uint64_t compute_ns;
    bool has_error; // no rows: the rank cannot compute the batch
    char reason[ROWS_REASON_MAX], message[ROWS_ERROR_MAX];
    size_t result_bytes; // that follow the head
};

enum { ROWS_REPLY_HEAD_MAX = 64 + ROWS_REASON_MAX + ROWS_ERROR_MAX };

// As rows_encode_request: the message is the head, followed by exactly result_bytes bytes. At most ROWS_REPLY_HEAD_MAX bytes.
size_t rows_encode_reply(const struct rows_reply *reply, uint8_t *head, size_t capacity);

// *results is the range of the result rows in the message. Unknown fields are skipped; texts are cut to the buffers.
FALLIBLE rows_decode_reply(const struct wire_parts *message, struct rows_reply *out, struct wire_range *results);

#endif
