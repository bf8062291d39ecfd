// The parts of the asynchronous client, client/c/calls.h: what a slot and a connection hold, and which operations they start.
// Private to client/c/grpc/.
#ifndef EXPERTD_CLIENT_C_GRPC_CALLS_H
#define EXPERTD_CLIENT_C_GRPC_CALLS_H

#include <grpc/grpc.h>
#include <pthread.h>
#include <stdatomic.h>

#include "client/c/calls.h"
#include "client/c/grpc/channel.h"

enum op { OP_UNARY, OP_CONNECT, OP_STREAM_START, OP_STREAM_READ, OP_STREAM_WRITE, OP_STREAM_STATUS };

// What gRPC gives back with a finished operation.
struct op_tag {
    enum op op;
    uint32_t index; // of the slot (unary) or the connection
};

// How a call or stream ended.
struct call_end {
    grpc_status_code status;
    grpc_slice status_text;
    grpc_metadata_array trailing;
};

struct slot {
    struct op_tag tag;
    // The request in flight: the call's number and the slot's; 0 for none. Set by the starting thread before anything is started,
    // cleared by the taking one.
    _Atomic uint64_t id;
    uint32_t connection;
    bool lost;                 // its stream broke: an end for calls_next to give. Taking thread.
    grpc_byte_buffer *request; // unary: until the end; stream: until it is written
    uint32_t next_waiting;     // stream: of the connection's queue
    grpc_call *call;           // unary, as all below
    grpc_byte_buffer *answer;
    grpc_metadata_array initial;
    struct call_end end;
};

enum stream_state { STREAM_CLOSED, STREAM_OPEN, STREAM_ENDING };

struct connection {
    grpc_channel *channel;
    void *forward, *stream; // the methods, registered
    struct op_tag start, read, write, status;
    pthread_mutex_t lock; // of all below, and of the ids of this connection's slots in a stream; nothing is locked under it
    enum stream_state state;
    uint32_t ops;                         // started and not yet finished
    uint32_t first_waiting, last_waiting; // slots whose request is not yet being written; CALLS_NO_SLOT: none
    grpc_call *call;
    grpc_byte_buffer *outgoing, *incoming;
    grpc_metadata_array initial;
    struct call_end end;
};

struct calls {
    struct address address;
    grpc_completion_queue *queue;
    uint32_t num_connections, num_slots;
    bool stream;
    struct connection *connections; // owned
    struct slot *slots;             // owned
    uint64_t numbers;               // of calls started; starting thread
    grpc_slice *gathered;           // [CALLS_PIECES_MAX + 1], owned; starting thread
    // taking thread
    uint32_t lost, lost_from; // slots that broke with their stream and are still to be given, and where to look for them
    uint8_t *bytes;           // the last answer, owned
    size_t capacity;
    struct wire_reply reply;
    struct proto_error_text failure;
};

void call_end_init(struct call_end *end);
void call_end_deinit(struct call_end *end);
grpc_op call_end_op(struct call_end *end);

// Fills out's failure from how a call ended, by way of calls->failure.
void calls_describe_end(struct calls *calls, const struct call_end *end, struct calls_end *out);
// Reads `answer` into calls->bytes and calls->reply. False: out holds why it is none.
bool calls_read_answer(struct calls *calls, grpc_byte_buffer *answer, struct calls_end *out);

// Starting thread: hands slot `index`'s request to its connection's stream, which is opened where it is closed.
void stream_send(struct calls *calls, struct connection *c, uint32_t index, uint64_t id);
// Taking thread: what a finished operation of a stream means. True: `out` is an end.
bool stream_op_done(struct calls *calls, const struct op_tag *tag, bool success, struct calls_end *out);
// The next slot that was lost with a stream; calls->lost > 0.
void stream_take_lost(struct calls *calls, struct calls_end *out);

#endif
