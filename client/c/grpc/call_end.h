// How a call or stream ended: its status and error details, and the answer of a good one. Private to client/c/grpc/.
#ifndef EXPERTD_CLIENT_C_GRPC_CALL_END_H
#define EXPERTD_CLIENT_C_GRPC_CALL_END_H

#include "client/c/grpc/calls_types.h"

void call_end_init(struct call_end *end);
void call_end_deinit(struct call_end *end);
grpc_op call_end_op(struct call_end *end);

// Describes a call's failure in *out; the texts lie in calls->failure.
void calls_describe_end(struct calls *calls, const struct call_end *end, struct calls_end *out);
// Reads `answer` into calls->bytes and calls->reply. False: it cannot be read, and *out has the cause.
bool calls_read_answer(struct calls *calls, grpc_byte_buffer *answer, struct calls_end *out);
// The answer is not one that the request can have: *out is an error that says why. Returns false.
bool calls_invalid_answer(struct calls *calls, const char *why, struct calls_end *out);

#endif
