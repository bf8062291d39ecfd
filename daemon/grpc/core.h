// What the files of daemon/grpc/ share: the server, its completion-queue threads, a call. Everything else sees daemon/grpc/rpc.h.
#ifndef EXPERTD_DAEMON_GRPC_CORE_H
#define EXPERTD_DAEMON_GRPC_CORE_H

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "daemon/grpc/peers.h"
#include "daemon/grpc/pool.h"
#include "daemon/grpc/rpc.h"
#include "daemon/grpc/tag.h"

enum {
    THREADS_MAX = RPC_THREADS_MAX,
    ACCEPTS_PER_THREAD = 32, // requests for a call that are always outstanding: a burst finds one
    CALLS_KEPT = 1024,       // idle call structs that a thread keeps for reuse
};

struct rpc_thread;

// Where gRPC puts the next call; each one is always outstanding.
struct accept_slot {
    struct tag tag;
    struct rpc_thread *thread;
    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array metadata;
};

// A body that gRPC holds by reference. It may be read until the last slice of it goes, on any thread of gRPC's, before or after the
// batch's tag: who comes second reports.
enum { BODY_SENT = 1, BODY_FREED = 2 };

struct rpc_call {
    struct rpc_server *server;
    struct rpc_thread *thread;
    grpc_call *call; // NULL once nothing but a body is outstanding
    enum rpc_method method;
    void *data;
    bool handled; // the handler knows of it; otherwise it is being refused
    bool counted; // against max_calls
    int fd;       // of its connection, -1: unknown
    char peer[RPC_PEER_MAX];

    struct tag close_tag, read_tag, write_tag, finish_tag;
    unsigned batches; // outstanding
    int cancelled;    // filled in by gRPC before close_tag comes back

    bool reading, writing;       // asked for and not reported yet
    bool write_batch;            // the write's batch is outstanding
    bool write_ok;               // of the batch
    bool started;                // initial metadata went with a batch
    bool finish_asked, finished; // asked for; handed to gRPC
    bool cancel_asked;
    bool closed;
    bool late_read, late_write; // asked for on a closed call: answered from the loop
    bool on_late_list, on_stuck_list;
    int64_t stuck_at_ns; // when the connection is given up, if the call is not over by then

    grpc_byte_buffer *incoming, *outgoing;
    bool has_body;
    atomic_uint body; // BODY_*
    // The status, kept until its batch is back.
    grpc_status_code status_code;
    grpc_slice status_message;
    grpc_metadata trailing[2];
    size_t trailing_count;

    struct rpc_call *next_freed; // on thread->freed
    struct rpc_call *next_late;  // on thread->late
    LIST_ENTRY(rpc_call) stuck_link;
    struct rpc_call *next_idle; // on thread->idle
};

// One completion queue and the thread that owns it and its calls.
struct rpc_thread {
    struct rpc_server *server;
    unsigned index;
    grpc_completion_queue *queue;
    pthread_t id;
    bool running; // started and not joined
    struct accept_slot accepts[ACCEPTS_PER_THREAD];

    // A call on a channel that leads nowhere, never started: an empty batch on it posts its tag to the queue at once, from any
    // thread. This is the only public way of the C core to post to a NEXT queue without a timer (the C++ library's alarms are not
    // in it).
    grpc_call *wake_call;
    struct tag wake_tag;
    atomic_bool wake_posted; // wake_tag is under way, so another wake has nothing to do

    _Atomic(struct rpc_call *) freed; // bodies freed after their batch, pushed by any thread, taken whole by this one
    // this thread only
    struct rpc_call *late, *idle;
    unsigned idle_count;
    LIST_HEAD(, rpc_call) stuck; // calls that are to be over soon
    int64_t next_stuck_ns;       // not after the first of them is due
    int64_t due_ns;              // when the thread meant to be back, at the latest
    bool ticking, tick_due;
    bool waiting; // inside gRPC's wait, which only a posted tag ends
    int64_t next_tick_ns;
};

struct rpc_server {
    struct rpc_handler handler;
    enum rpc_plane plane;
    bool is_watched; // by another server's threads
    uint64_t max_message_bytes;
    unsigned max_calls;
    atomic_uint open_calls;
    atomic_ullong refused_calls;
    struct pool pool;
    struct peers peers;

    grpc_server *server;
    grpc_server_credentials *credentials;
    grpc_channel *nowhere; // of the wake calls
    struct rpc_thread threads[THREADS_MAX];
    unsigned thread_count;
    bool started;

    atomic_bool stopping;
    struct tag shutdown_tag;
    atomic_uint alive; // calls not released yet, and one for the server until shutdown_tag is back: the last one tells `done`
    sem_t shut_down;   // posted then
    void (*done)(void *context);
    void *done_context;
};

// ---- thread.c
FALLIBLE thread_init(struct rpc_thread *thread, struct rpc_server *server, unsigned index);
FALLIBLE thread_start(struct rpc_thread *thread);
// Shuts the queue down and empties it; joins the thread, if there is one.
void thread_stop(struct rpc_thread *thread);
void thread_deinit(struct rpc_thread *thread);
void thread_wake(struct rpc_thread *thread);

// ---- server.c
void server_let_go(struct rpc_server *server); // of `alive`

// ---- backup_poll.c
void backup_poll_end(void); // before grpc_shutdown, when no queue of ours polls any more

// ---- accept.c
void accept_start(struct rpc_thread *thread);

// ---- call.c
struct call_start {
    grpc_call *raw; // taken over
    int method;     // enum rpc_method, or RPC_METHOD_COUNT for one to refuse
    bool counted;   // against max_calls, until released
    int64_t deadline_ns;
};
// `refusal` NULL: the handler gets the call.
void call_begin(struct rpc_thread *thread, const struct call_start *start, const struct rpc_status *refusal);
void call_body_freed(struct rpc_call *call);  // on its thread, after its batch
void call_answer_late(struct rpc_call *call); // what was asked for after `closed`
// Ends the connection of a call whose peer takes nothing; false where there is none.
bool call_abandon_connection(struct rpc_call *call);

// The peer of a call that is to be over soon has its time once more, from now on.
void call_renew_stuck(struct rpc_call *call, int64_t now_ns);

// ---- message.c
// The message of a batch as one pooled buffer; takes the byte buffer.
FALLIBLE message_gather(struct rpc_call *call, grpc_byte_buffer *bytes, struct rpc_buffer **out);
// Header copied; a small body too; a large one borrowed until call_body_freed, and then *borrowed. body NULL: zeros.
grpc_byte_buffer *message_compose(struct rpc_call *call, const uint8_t *header, size_t header_length, const uint8_t *body,
                                  size_t body_length, bool *borrowed);

#endif
