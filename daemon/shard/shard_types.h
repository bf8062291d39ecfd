// The types that the files of this folder share: the service, its streams, its fronts' sessions.
//
// A stream belongs to its completion-queue thread. A session is a front: its control stream, and the rows stream that has shown the
// token. The service's mutex guards sessions.
#ifndef EXPERTD_DAEMON_SHARD_SHARD_TYPES_H
#define EXPERTD_DAEMON_SHARD_SHARD_TYPES_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "daemon/grpc/rpc.h"
#include "daemon/log/log_limit.h"
#include "daemon/shard/core/piece_queue.h"
#include "daemon/shard/core/result_queue.h"
#include "daemon/shard/shard_options.h"
#include "expert/rank/rank_engine.h"
#include "proto/shard/shard_control.h"
#include "shard/membership/holder.h"

enum {
    PENDING_MAX = 64, // streams without a first message; a further one ends the oldest
    LOADERS_MAX = 8,
    FAILURES_MAX = 32, // failed loads that fronts may not have been told of yet; later ones replace them
    FAILURE_MESSAGE_MAX = 512,
    VERSION_MAX = 32, // of a front's program
};

struct shard_session;

struct shard_stream {
    struct shard_service *service;
    struct rpc_call *rpc;
    unsigned thread;
    bool is_rows;
    bool closed, finished, reading, writing;
    bool is_cut;                    // cancelled, because the front does not read
    int64_t first_deadline_ns;      // of the first message; CLOCK_NEVER: it has arrived
    int64_t write_deadline_ns;      // of the current write
    TAILQ_ENTRY(shard_stream) open; // in its thread's list
    // guarded by the service's mutex
    struct shard_session *session; // set once, with the first message; read by the stream's thread without the mutex
    bool is_pending;               // in the service's list
    bool is_evicted;               // the thread ends the stream
    TAILQ_ENTRY(shard_stream) pending;
};

struct shard_session {
    struct shard_service *service;
    // immutable
    uint32_t number; // of the holder's session
    uint64_t front;
    uint8_t token[SHARD_TOKEN_LENGTH];
    char version[VERSION_MAX];
    atomic_llong heard_ns; // of the last heartbeat
    // of the control stream's thread
    bool hello_due, echo_due;
    uint64_t echo;
    unsigned seen_version;  // of the holder, at which the holder had no further message for it
    uint64_t failures_told; // failures up to this number
    unsigned progress_told; // version of the progress
    // guarded by the service's mutex
    unsigned references; // one for each stream, one of the compute thread
    bool is_ended;
    bool is_listed;                      // in the service's list
    struct err_copy why;                 // of the end
    struct shard_stream *control, *rows; // NULL: released, or none
    uint64_t newest_batch;
    struct piece_queue pieces;
    struct result_queue results;
    TAILQ_ENTRY(shard_session) link;
    // of the compute thread
    struct rank_batch *batch;
};

// A failed load.
struct load_failure {
    struct expert_id expert;
    char message[FAILURE_MESSAGE_MAX];
};

// Load progress, as of the last second.
struct shard_progress {
    unsigned version; // incremented when fronts are to be told
    uint32_t loading;
    uint64_t bytes_left, bytes_per_second;
};

struct shard_thread { // of the completion-queue thread with the same number
    TAILQ_HEAD(, shard_stream) streams;
    struct piece decoded;      // the piece that is decoded next, exchanged with a slot of a queue
    struct rows_memory memory; // its lists, and a head
    int64_t due_ns;
    int64_t next_fault_ns;    // no fault of a front is logged before this time
    unsigned long suppressed; // faults not logged since the last line
};

struct shard_service {
    struct shard_options options;
    struct rpc_handler handler, rest;
    struct rpc_server *server;
    struct shard_thread *threads; // [rpc_threads]
    uint64_t instance;
    // set by shard_ready, before `ready`
    struct shard_backend backend;
    struct shard_identity identity;
    struct rank_engine *engine;
    uint32_t *layer_experts;    // [L] of the catalogue
    uint64_t *expert_bytes;     // [L] of the catalogue
    uint32_t *layer_numbers;    // [L] the checkpoint's numbers
    struct shard_layer *layers; // [L] of the hello
    void *holder_memory;
    pthread_t compute, loaders[LOADERS_MAX];
    bool compute_runs;
    unsigned loaders_run; // started
    atomic_bool ready, ending;
    atomic_uint streams;
    atomic_uint sessions_alive; // not freed yet, also ended ones
    int64_t tick_ns;            // of the next housekeeping; of the first completion-queue thread
    atomic_uint holder_version; // incremented by every change that fronts may have to be told of

    pthread_mutex_t mutex; // guards the following, and the marked fields of streams and sessions
    pthread_cond_t compute_wake, load_wake;
    struct holder holder;
    uint64_t *freeing;                    // set of cells that the loader threads take out of the holdings
    TAILQ_HEAD(, shard_session) sessions; // in the order in which they are computed next
    TAILQ_HEAD(, shard_stream) pending;
    unsigned num_pending, num_sessions;
    uint32_t last_session;
    unsigned loader_numbers; // given to loader threads so far
    bool draining, process_ends, stopping;
    struct load_failure failures[FAILURES_MAX];
    uint64_t num_failures;             // since the start
    int64_t next_failure_ns;           // no failed load is logged before this time
    unsigned long suppressed_failures; // failed loads not logged since the last line
    struct log_limit drain_log;
    struct shard_progress progress;
    int64_t progress_ns;
    uint64_t loaded_bytes, loaded_bytes_seen; // since the start; at progress_ns
    struct {                                  // since the start
        uint64_t pieces, rows, errors, compute_ns, dropped, loads, load_failures, frees, sessions, refused;
    } count;
};

#endif
