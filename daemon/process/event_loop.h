// The daemon's event loop: signals, a timer, and messages from other threads. Built on libuv, whose types stay in .c files.
#ifndef EXPERTD_DAEMON_PROCESS_EVENT_LOOP_H
#define EXPERTD_DAEMON_PROCESS_EVENT_LOOP_H

#include "base/err.h"

struct event_loop;

enum event_loop_message {
    EVENT_LOOP_LOADED,     // the loader thread has ended
    EVENT_LOOP_RPC_DOWN,   // the transport has shut down
    EVENT_LOOP_DRAIN,      // an operator requested a drain
    EVENT_LOOP_ADMIN_DOWN, // the admin service has shut down
    EVENT_LOOP_LOST,       // a device has failed permanently
    EVENT_LOOP_MESSAGES
};

// The callbacks run on the loop thread.
struct event_loop_handler {
    void *context;
    void (*signalled)(void *context, int number); // SIGTERM, SIGINT, SIGHUP
    void (*message)(void *context, enum event_loop_message message);
    void (*timer)(void *context);
};

FALLIBLE event_loop_create(const struct event_loop_handler *handler, struct event_loop **out);
void *event_loop_uv(struct event_loop *loop); // uv_loop_t *, for the listeners
void event_loop_run(struct event_loop *loop); // returns after event_loop_close, once all listeners are closed too
// Any thread. A message that is posted twice may arrive once.
void event_loop_post(struct event_loop *loop, enum event_loop_message message);
void event_loop_start_timer(struct event_loop *loop, unsigned period_ms);
void event_loop_close(struct event_loop *loop);   // no callback runs afterwards
void event_loop_destroy(struct event_loop *loop); // after event_loop_run; NULL is legal

#endif
