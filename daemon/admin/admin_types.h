// The types that the admin_* files share. Calls and `move` belong to the server's one thread; the mutex guards the fields that a
// move's thread shares with it.
#ifndef EXPERTD_DAEMON_ADMIN_ADMIN_TYPES_H
#define EXPERTD_DAEMON_ADMIN_ADMIN_TYPES_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "daemon/admin/admin_options.h"
#include "daemon/grpc/rpc.h"

struct move;

struct admin_call {
    struct admin *admin;
    struct rpc_call *rpc;
    enum rpc_method method;
    bool has_request;  // the request was read; further messages are ignored
    bool writing;      // a message of an ApplyPlacement is being written
    bool drain_after;  // the drain starts when this call is released
    struct move *move; // of an ApplyPlacement: running, or ended with its last message not sent yet
    LIST_ENTRY(admin_call) open;
};

struct admin {
    struct admin_options options;
    struct rpc_handler handler;
    struct rpc_server *server;
    struct admin_backend backend; // written before `ready` is set
    atomic_bool ready, ending;
    LIST_HEAD(, admin_call) calls;
    struct move *move; // the running one; NULL: none
    // Guards every move's mailbox, and `moving`. Taken with no other lock held, for a few copies and a wake.
    pthread_mutex_t mutex;
    pthread_cond_t idle; // `moving` became false
    bool moving;         // a move's thread may still use the server
};

#endif
