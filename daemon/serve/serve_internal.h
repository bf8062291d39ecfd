// What the serve_* files share. Everything of a call and of its requests belongs to the call's completion-queue thread, but for the
// worker_item while the worker has it.
#ifndef EXPERTD_DAEMON_SERVE_SERVE_INTERNAL_H
#define EXPERTD_DAEMON_SERVE_SERVE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "daemon/http/metrics.h"
#include "daemon/request/connections.h"
#include "daemon/request/request.h"
#include "daemon/request/request_regions.h"
#include "daemon/request/worker.h"
#include "daemon/serve/health.h"
#include "daemon/serve/reflection.h"
#include "daemon/serve/serve.h"
#include "expert/model/shards.h"
#include "proto/control/control.h"
#include "proto/wire/wire.h"

struct call;

// One Forward request, unary or of a stream.
struct serve_request {
    struct request_core core;
    struct serve *serve;
    struct call *call; // NULL: nobody is left to answer
    struct connection *connection;
    unsigned thread;
    bool is_stream, has_slot, admitted, in_backlog, counted;
    bool is_empty;              // no expert sees any of its rows: the answer is zeros
    struct rpc_buffer *message; // its tensors are views into it
    struct wire_request wire;
    const struct model_layer *layer;
    struct worker_item item; // item.request.output is the output's data
    struct request_regions regions;
    struct rpc_buffer *output; // NULL until admitted, and where it is zeros
    uint64_t output_bytes, admitted_bytes;
    int64_t opened_ns, read_ns, deadline_ns; // deadline_ns: of the phase at hand
    int64_t admitted_ns;
    struct err_copy error;
    TAILQ_ENTRY(serve_request) active;    // in its thread's list, from opened to released
    STAILQ_ENTRY(serve_request) slot;     // waits for a read slot
    STAILQ_ENTRY(serve_request) answer;   // waits for its stream's writer
    STAILQ_ENTRY(serve_request) finished; // in the mailbox of computed requests
    bool waits_for_slot;
};

// One gRPC call of any method.
struct call {
    struct serve *serve;
    struct rpc_call *rpc;
    enum rpc_method method;
    struct connection *connection; // NULL: refused
    bool has_place;                // among the connection's calls, or checks
    unsigned thread;
    int64_t deadline_ns;
    bool closed, finished;         // finished: our status is on its way
    struct serve_request *reading; // whose message was asked for
    // streams
    bool has_stream, half_closed; // half_closed: the peer sends no more
    uint32_t inflight;            // read and not yet let go
    STAILQ_HEAD(, serve_request) answers;
    struct serve_request *writing; // handed to the transport
    struct serve_request *last;    // whose error ends the stream, once the answers under way have left
    int64_t write_deadline_ns;
    // other methods
    int64_t message_deadline_ns; // of the first one
    struct proto_bytes reply;    // borrowed by the transport until written
    void *plugin;                // health's or reflection's own
    TAILQ_ENTRY(call) open;
};

struct serve_thread {
    TAILQ_HEAD(, serve_request) active;
    STAILQ_HEAD(, serve_request) slots; // those that wait for a read slot, by arrival
    TAILQ_HEAD(, call) calls;
    int64_t due_ns;       // when the next tick is to run at the latest
    int64_t calls_due_ns; // not after the first deadline of a call's message or of its reader
    // Guards `finished` alone: the worker puts in, the thread takes out; taken with nothing else held.
    pthread_mutex_t mutex;
    STAILQ_HEAD(, serve_request) finished;
};

struct serve {
    struct serve_options options;
    struct rpc_handler handler;
    struct rpc_server *server;
    struct health *health;
    struct serve_backend backend; // written before `ready` is set; read after it, or by requests that admission let in
    struct serve_thread *threads;
    struct region_registry *regions;   // NULL: shared memory is off
    char region_path[REGION_PATH_MAX]; // of the socket that hands regions out
    // Guards admission, backlog, connections and all their shares; taken with nothing else held, for a few additions.
    pthread_mutex_t mutex;
    struct admission admission;
    struct backlog backlog;
    struct connections connections;
    atomic_bool ready, draining, ending;
    atomic_uint open_calls;
    atomic_uint slot_waiters; // requests of all threads that wait for a read slot
    atomic_ullong active;     // requests between being read and let go
};

// ---- serve.c: the map
void serve_step(struct serve_request *r, enum request_event_kind kind, enum expertd_err_code error);
struct serve_request *serve_request_create(struct call *call); // NULL: no memory
void serve_no_memory(struct call *call);                       // ends the call for that
void serve_stream_read(struct call *call);                     // the stream's next message, where it may have one, or its end

// ---- serve_intake.c: from bytes to a checked request
FALLIBLE serve_intake(struct serve_request *r);

// ---- serve_budget.c: what calls and requests hold of the budgets
FALLIBLE serve_enter_call(struct call *call); // EXPERTD_ERR_QUEUE_FULL: its connection has its share
void serve_leave_call(struct call *call);
bool serve_checks_crowded(struct serve *serve);
void serve_enter_request(struct serve_request *r);
void serve_leave_request(struct serve_request *r); // everything that it held but its slot
FALLIBLE serve_take_stream(struct call *call);
FALLIBLE serve_may_open(struct serve_request *r); // unread
bool serve_take_slot(struct serve_request *r);
struct serve_request *serve_grant_slot(struct serve *serve, unsigned thread); // to a waiting one, still in the list; NULL: none may
void serve_give_slot(struct serve_request *r);
FALLIBLE serve_admit(struct serve_request *r); // read
void serve_leave_backlog(struct serve_request *r);
int64_t serve_retry_after_ms(struct serve *serve, enum expertd_err_code code); // < 0: never

// ---- serve_answer.c: from a result or an error to the transport
void serve_answer(struct serve_request *r);
bool serve_fail(struct serve_request *r);                                // false: the transport holds nothing of the request
void serve_finish_call(struct call *call, const struct err_copy *error); // error NULL: OK
void serve_count_call(const struct call *call, int grpc_code);           // an answer, once
void serve_pump(struct call *call);                                      // the next answer of a stream, where none is being written

// ---- serve_control.c: Describe, OpenRegion, CloseRegion
void serve_control_message(struct call *call, const uint8_t *bytes, size_t length);

// ---- serve_call.c: the transport's callbacks; serve_tick.c: what is due on a thread
void serve_due(struct serve *serve, unsigned index, int64_t at_ns); // something is due then: its own thread only
void serve_call_due(struct call *call, int64_t at_ns);              // one of the call's deadlines is
void serve_grant_slots(struct serve *serve, unsigned thread);
int64_t serve_tick(void *context, unsigned index, int64_t now_ns);

#endif
