// The state of the asynchronous client (client/c/calls.h): its slots, connections and gRPC operations. Private to client/c/grpc/.
#ifndef EXPERTD_CLIENT_C_GRPC_CALLS_TYPES_H
#define EXPERTD_CLIENT_C_GRPC_CALLS_TYPES_H

#include <grpc/grpc.h>
#include <pthread.h>
#include <stdatomic.h>

#include "client/c/calls.h"
#include "client/c/grpc/channel.h"

enum op { OP_UNARY, OP_CONNECT, OP_STREAM_START, OP_STREAM_READ, OP_STREAM_WRITE, OP_STREAM_STATUS };

// The tag that gRPC returns with a finished operation.
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
    // Id of the request in flight: the call's number in the upper 32 bits, the slot's in the lower; 0: none. The starting thread
    // sets it before it starts the call; the receiving thread clears it.
    _Atomic uint64_t id;
    uint32_t connection;
    bool lost;                 // its stream broke, and calls_next has still to report it. Receiving thread
    grpc_byte_buffer *request; // unary: kept until the end; stream: until it is written
    uint32_t next_waiting;     // stream: the next slot in the connection's queue
    grpc_call *call;           // unary only, as are the fields below
    grpc_byte_buffer *answer;
    grpc_metadata_array initial;
    struct call_end end;
};

enum stream_state { STREAM_CLOSED, STREAM_OPEN, STREAM_ENDING };

struct connection {
    grpc_channel *channel;
    void *forward, *stream; // registered methods
    struct op_tag start, read, write, status;
    pthread_mutex_t lock; // guards the fields below, and in streams the ids of this connection's slots; no lock is taken under it
    enum stream_state state;
    uint32_t ops;                         // operations started and not finished
    uint32_t first_waiting, last_waiting; // queue of slots whose request is still to be written; CALLS_NO_SLOT: empty
    grpc_call *call;
    grpc_byte_buffer *outgoing, *incoming;
    grpc_metadata_array initial;
    struct call_end end;
};

struct calls {
    struct channel_settings settings;
    grpc_completion_queue *queue;
    uint32_t num_connections, num_slots;
    bool stream;
    struct connection *connections; // owned
    struct slot *slots;             // owned
    uint64_t numbers;               // calls started so far; starting thread
    grpc_slice *gathered;           // [CALLS_PIECES_MAX + 1], owned; starting thread
    // Receiving thread:
    uint32_t lost, lost_from; // slots with `lost` set, and the first slot that may be one of them
    uint8_t *bytes;           // the last answer, owned
    size_t capacity;
    struct wire_reply reply;
    struct proto_error_text failure;
};

#endif
