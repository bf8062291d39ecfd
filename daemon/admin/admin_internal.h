// What the admin_* files share. Calls and `move` belong to the server's one thread, but for what the mutex guards.
#ifndef EXPERTD_DAEMON_ADMIN_ADMIN_INTERNAL_H
#define EXPERTD_DAEMON_ADMIN_ADMIN_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "daemon/admin/admin.h"
#include "daemon/grpc/rpc.h"
#include "proto/admin/admin.h"

struct move;

struct admin_call {
    struct admin *admin;
    struct rpc_call *rpc;
    enum rpc_method method;
    bool asked;        // its request has been taken: what follows is ignored
    bool writing;      // an ApplyPlacement's message is on its way
    bool drain_after;  // the service ends once this call has
    struct move *move; // of ApplyPlacement: running, or over with its end not yet sent
    LIST_ENTRY(admin_call) open;
};

struct admin {
    struct admin_options options;
    struct rpc_handler handler;
    struct rpc_server *server;
    struct admin_backend backend; // written before `ready` is set
    atomic_bool ready, ending;
    LIST_HEAD(, admin_call) calls;
    struct move *move; // the one that runs
    // Guards every move's mailbox, and `moving`; taken with nothing else held, for a few copies and a wake.
    pthread_mutex_t mutex;
    pthread_cond_t idle; // `moving` turned false
    bool moving;         // a move's thread may still touch the server
};

// ---- admin.c
void admin_fail(struct admin_call *call, err_t e); // ends the call with the thread's last failure
FALLIBLE admin_has_mover(const struct admin *admin);

// ---- admin_calls.c: the unary methods
FALLIBLE admin_answer(struct admin_call *call, const struct rpc_buffer *message, struct proto_bytes *out);

// ---- admin_move.c: ApplyPlacement
FALLIBLE admin_move_start(struct admin_call *call, const struct rpc_buffer *message);
void admin_move_pump(struct admin_call *call);    // sends what is news, where nothing is being written
void admin_move_collect(struct admin *admin);     // the server's tick: takes what the thread left
void admin_move_abandon(struct admin_call *call); // nobody listens any longer
void admin_move_stop(struct admin *admin);        // after its step
void admin_move_join(struct admin *admin);        // the server is gone

#endif
