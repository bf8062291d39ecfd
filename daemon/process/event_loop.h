// The daemon's loop thread: signals, a timer, and messages from other threads, over libuv (which stays in .c files).
#ifndef EXPERTD_DAEMON_PROCESS_EVENT_LOOP_H
#define EXPERTD_DAEMON_PROCESS_EVENT_LOOP_H

#include "base/err.h"

struct event_loop;

enum event_loop_message {
    EVENT_LOOP_LOADED,     // the loader thread has ended
    EVENT_LOOP_RPC_DOWN,   // the transport has shut down
    EVENT_LOOP_DRAIN,      // an operator asked for the end
    EVENT_LOOP_ADMIN_DOWN, // the admin service has shut down
    EVENT_LOOP_LOST,       // a device has failed for good
    EVENT_LOOP_MESSAGES
};

// All on the loop thread.
struct event_loop_handler {
    void *context;
    void (*signalled)(void *context, int number); // SIGTERM, SIGINT, SIGHUP
    void (*message)(void *context, enum event_loop_message message);
    void (*timer)(void *context);
};

FALLIBLE event_loop_create(const struct event_loop_handler *handler, struct event_loop **out);
void *event_loop_uv(struct event_loop *loop); // uv_loop_t *, for the listeners on it
void event_loop_run(struct event_loop *loop); // until event_loop_close and the listeners' ends
void event_loop_post(struct event_loop *loop,
                     enum event_loop_message message); // any thread; a message posted twice may arrive once
void event_loop_start_timer(struct event_loop *loop, unsigned period_ms);
void event_loop_close(struct event_loop *loop);   // no more events; event_loop_run returns when the listeners have ended too
void event_loop_destroy(struct event_loop *loop); // after event_loop_run; NULL is legal

#endif
