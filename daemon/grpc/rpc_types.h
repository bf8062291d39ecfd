// The types that the files of daemon/grpc/ share: the server, its completion-queue threads, a call. Other folders include
// daemon/grpc/rpc.h only.
#ifndef EXPERTD_DAEMON_GRPC_RPC_TYPES_H
#define EXPERTD_DAEMON_GRPC_RPC_TYPES_H

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/queue.h>

#include "daemon/grpc/message/message.h"
#include "daemon/grpc/peers.h"
#include "daemon/grpc/rpc.h"
#include "daemon/grpc/security/credentials.h"

enum {
    ACCEPTS_PER_THREAD = 32, // calls requested from gRPC in advance, so that a burst of new calls does not wait
    IDLE_CALLS_MAX = 1024,   // freed call structs that a thread caches for reuse
};

struct rpc_thread;

// The memory into which gRPC writes the next call. Every slot always has one request outstanding.
struct accept_slot {
    struct tag tag;
    struct rpc_thread *thread;
    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array metadata;
};

struct rpc_call {
    struct rpc_server *server;
    struct rpc_thread *thread;
    grpc_call *call; // NULL once everything but a body has come back
    enum rpc_method method;
    void *data;   // the handler's (rpc_call_data)
    bool handled; // passed to the handler's `opened`; false: the call is refused here
    bool counted; // against max_calls
    int fd;       // of its connection; -1: unknown
    char peer[RPC_PEER_MAX];

    struct tag close_tag, read_tag, write_tag, finish_tag;
    unsigned batches; // outstanding
    int cancelled;    // written by gRPC before close_tag comes back

    bool reading, writing;           // requested and not reported yet
    bool write_batch;                // the write's batch is outstanding
    bool write_ok;                   // result of that batch
    bool started;                    // the initial metadata has been sent
    bool finish_requested, finished; // status requested by the handler; status passed to gRPC
    bool cancel_requested;
    bool closed;
    bool late_read, late_write; // requested on a closed call: completed by the thread's loop
    bool on_late_list, on_stuck_list;
    int64_t stuck_at_ns; // the connection is shut down if the call has not ended by then

    grpc_byte_buffer *incoming, *outgoing;
    struct sent_body body;
    // The status, valid until its batch is back.
    grpc_status_code status_code;
    grpc_slice status_message;
    grpc_metadata trailing[2];
    size_t trailing_count;

    struct rpc_call *next_late; // on thread->late
    LIST_ENTRY(rpc_call) stuck_link;
    struct rpc_call *next_idle; // on thread->idle
};

// One completion queue, and the thread that owns the queue and its calls.
struct rpc_thread {
    struct queue_thread queue;
    struct rpc_server *server;
    unsigned index;
    char name[16];
    struct accept_slot accepts[ACCEPTS_PER_THREAD];
    int64_t next_refusal_ns;  // no refused identity is logged before this time
    unsigned long suppressed; // refused identities not logged since the last line
    // Only this thread reads and writes the fields below.
    struct rpc_call *late, *idle;
    unsigned idle_count;
    LIST_HEAD(, rpc_call) stuck; // calls that have until stuck_at_ns to end
    int64_t next_stuck_ns;       // not later than the first stuck_at_ns
    bool ticking;
    int64_t next_tick_ns;
};

struct rpc_server {
    struct rpc_handler handler;
    enum rpc_plane plane;
    bool is_urgent;
    bool is_watched; // another server's threads poll its sockets
    uint64_t max_message_bytes;
    unsigned max_calls;
    atomic_uint open_calls;
    atomic_ullong refused_calls;
    struct pool pool;
    struct peers peers;

    grpc_server *server;
    grpc_server_credentials *credentials; // of rpc_adopt
    struct rpc_tls tls;
    struct server_certificates certificates;
    void *external;            // external_acceptor.h; NULL without TLS
    pthread_mutex_t tls_mutex; // held while a socket is passed to `external`, which ends when `stopping` is set
    struct rpc_thread threads[RPC_THREADS_MAX];
    unsigned thread_count;
    bool started;

    atomic_bool stopping;
    struct tag shutdown_tag;
    // server_ref.h
    atomic_uint references; // one per call, and one for the server until shutdown_tag is back
    sem_t shut_down;        // posted when the last reference is dropped
    void (*done)(void *context);
    void *done_context;
};

#endif
