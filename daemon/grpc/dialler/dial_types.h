// The structs that the files of daemon/grpc/dialler/ share. Private to daemon/grpc/dialler/.
#ifndef EXPERTD_DAEMON_GRPC_DIALLER_DIAL_TYPES_H
#define EXPERTD_DAEMON_GRPC_DIALLER_DIAL_TYPES_H

#include <grpc/grpc.h>
#include <sys/queue.h>

#include "daemon/grpc/dial.h"
#include "daemon/grpc/message/message.h"
#include "daemon/grpc/queue/queue_thread.h"
#include "proto/control/control.h"

struct dial_thread {
    struct queue_thread queue;
    struct dialler *dialler;
    unsigned index;
    char name[16];
    // Only this thread reads and writes the fields below.
    LIST_HEAD(, dial_stream) opening; // streams with a time limit until `opened`
    int64_t next_tick_ns;
    bool ticking;
};

struct dialler {
    struct dialler_options options; // `name` is valid during dialler_create only
    struct pool pool;
    struct dial_thread threads[DIAL_THREADS_MAX];
};

// The descriptor of the socket that a gRPC channel connected last. Referenced by gRPC.
struct socket_watch;

// One connection: a gRPC channel that is used until its connection fails. Streams and dial_channel.current hold references.
struct connection {
    atomic_uint references;
    atomic_bool was_up; // a stream has opened on it
    grpc_channel *grpc;
    struct socket_watch *socket;
};

struct dial_channel {
    struct dialler *dialler;
    struct dial_thread *thread;
    char *address, *allowed_servers; // NULL: the address's host
    struct tls_store *tls;
    unsigned keepalive_time_ms, keepalive_timeout_ms;
    pthread_mutex_t mutex;      // guards the fields below. dial_stream.mutex may be taken under it
    struct connection *current; // NULL: the next stream connects anew
    LIST_HEAD(, dial_stream) streams;
};

struct dial_end_texts { // the memory of the strings of a struct dial_end
    struct proto_error_text details;
    char message[EXPERTD_ERR_MESSAGE_MAX];
};

struct dial_stream {
    struct dial_channel *channel;
    struct dial_thread *thread;
    struct connection *connection; // until `closed`
    const struct dial_handler *handler;
    void *data;
    LIST_ENTRY(dial_stream) in_channel; // guarded by channel->mutex

    pthread_mutex_t mutex; // guards the fields up to the next comment; no other lock is taken under it, and gRPC is not called
    unsigned batches;      // outstanding or about to be started
    bool reading, writing; // requested and not reported yet
    bool ended;            // the status has arrived, or creating the call failed
    bool cancelled;        // by the owner
    bool opened;
    bool writes_ended;
    bool released;           // by the owner
    bool closed_done;        // `closed` has returned
    struct err_copy refusal; // a received message that was refused; code EXPERTD_ERR_OK: none

    grpc_call *call; // set in dial_open; released on the thread when no batch is outstanding
    struct tag start_tag, initial_tag, read_tag, write_tag, end_tag, status_tag;
    struct queue_job begin; // starts the time limit
    // The thread's, from dial_open on.
    bool on_opening_list;
    LIST_ENTRY(dial_stream) in_opening;
    int64_t connect_until_ns;
    bool late; // connect_until_ns has passed
    int64_t connect_timeout_ns;
    grpc_metadata_array initial, trailing;
    grpc_status_code status;
    grpc_slice status_text;
    grpc_byte_buffer *incoming, *outgoing;
    struct sent_body body;
    bool write_ok;
    char identity[DIAL_IDENTITY_MAX];
    struct dial_end end; // when the status has arrived
    struct dial_end_texts texts;
};

#endif
