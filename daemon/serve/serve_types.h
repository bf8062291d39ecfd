// The types that the serve_* files share, and the deadlines of a thread. A call and its requests belong to the call's
// completion-queue thread, except a request's worker_item while the worker has it.
#ifndef EXPERTD_DAEMON_SERVE_SERVE_TYPES_H
#define EXPERTD_DAEMON_SERVE_SERVE_TYPES_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "daemon/grpc/rpc.h"
#include "daemon/metrics/metrics.h"
#include "daemon/request/connections.h"
#include "daemon/request/request.h"
#include "daemon/request/request_regions.h"
#include "daemon/request/worker.h"
#include "daemon/serve/serve_options.h"
#include "proto/control/control.h"
#include "proto/wire/wire.h"

struct call;
struct health;

// One Forward request: the only one of a unary call, or one of a stream.
struct serve_request {
    struct request_core core;
    struct serve *serve;
    struct call *call; // NULL: the call was released before the request
    struct connection *connection;
    unsigned thread;
    bool is_stream;
    bool has_slot, waits_for_slot; // serve_budget.c
    bool admitted, in_backlog;     // serve_budget.c
    bool is_active;                // its message was read: counted in serve.active and, for a stream, in call.inflight
    bool is_empty;                 // no token is routed to an expert: the answer is zeros
    struct rpc_buffer *message;    // the tensors of `wire` are views into it
    struct wire_request wire;
    const struct model_layer *layer;
    struct worker_item item; // item.request.output points into `output`
    struct request_regions regions;
    struct rpc_buffer *output; // NULL before admission, and if the answer is zeros
    uint64_t output_bytes, admitted_bytes;
    int64_t opened_ns, read_ns, admitted_ns;
    int64_t deadline_ns; // of the current phase: reading, then the whole request
    struct err_copy error;
    TAILQ_ENTRY(serve_request) active;    // in its thread's list, from creation to release
    STAILQ_ENTRY(serve_request) slot;     // in its thread's list, while it waits for a read slot
    STAILQ_ENTRY(serve_request) answer;   // in its stream's list, while it waits for the stream's previous write
    STAILQ_ENTRY(serve_request) finished; // in the mailbox of computed requests
};

// One gRPC call of any method.
struct call {
    struct serve *serve;
    struct rpc_call *rpc;
    enum rpc_method method;
    struct connection *connection; // NULL: refused
    bool is_counted;               // among the connection's calls or health checks
    unsigned thread;
    int64_t deadline_ns;
    bool closed;
    bool finished;                 // the status was passed to the transport
    struct serve_request *reading; // the request whose message is being read
    // streams
    bool has_stream, half_closed; // half_closed: the peer sends no more messages
    uint32_t inflight;            // requests that were read and are not released yet
    STAILQ_HEAD(, serve_request) answers;
    struct serve_request *writing;      // its answer is with the transport
    struct serve_request *last_request; // its error ends the stream, after the answers of the requests in flight
    int64_t write_deadline_ns;
    // other methods
    int64_t message_deadline_ns; // of the first message
    struct proto_bytes reply;    // borrowed by the transport until written
    void *service_state;         // data of health.h or reflection.h
    TAILQ_ENTRY(call) open;
};

struct serve_thread {
    TAILQ_HEAD(, serve_request) active;
    STAILQ_HEAD(, serve_request) slot_queue; // requests that wait for a read slot, in order of arrival
    TAILQ_HEAD(, call) calls;
    int64_t due_ns;       // the next tick is not later than this
    int64_t calls_due_ns; // not later than the first message or write deadline of a call
    int64_t next_lost_ns; // of the log line of a request that failed with SHARD_LOST
    unsigned long losses_unlogged;
    // Guards `finished`: the worker inserts, the thread removes. Taken with no other lock held.
    pthread_mutex_t mutex;
    STAILQ_HEAD(, serve_request) finished;
};

struct serve {
    struct serve_options options;
    struct rpc_handler handler;
    struct rpc_server *server;
    struct health *health;
    struct serve_backend backend; // written before `ready` is set; read after it, and by admitted requests
    struct serve_thread *threads;
    struct region_registry *regions;   // NULL: shared memory is off
    char region_path[REGION_PATH_MAX]; // of the socket that passes regions to clients
    // Guards admission, backlog, connections and their shares. Taken with no other lock held, for a few additions.
    pthread_mutex_t mutex;
    struct admission admission;
    struct backlog backlog;
    struct connections connections;
    atomic_bool ready, draining, ending;
    atomic_uint open_calls;
    atomic_uint slot_waiters; // requests of all threads that wait for a read slot
    atomic_ullong active;     // requests whose message was read and that are not released yet
};

// Makes the thread's next tick run no later than at_ns. On the thread itself only.
static inline void serve_due(struct serve *serve, unsigned thread, int64_t at_ns) {
    if (at_ns < serve->threads[thread].due_ns) {
        serve->threads[thread].due_ns = at_ns;
        rpc_wake(serve->server, thread); // the tick returns the new due_ns to the transport
    }
}

// The same for a message or write deadline of the call.
static inline void serve_call_due(struct call *call, int64_t at_ns) {
    struct serve_thread *thread = &call->serve->threads[call->thread];
    thread->calls_due_ns = at_ns < thread->calls_due_ns ? at_ns : thread->calls_due_ns;
    serve_due(call->serve, call->thread, at_ns);
}

#endif
