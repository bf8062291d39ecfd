// A thread that runs the tags of one completion queue, jobs that other threads post to it, and its owner's due work.
//
// To wake the thread, an empty batch is started on a call that is never used otherwise, on a channel that leads nowhere: it posts
// its tag to the queue at once. This is the only public way of the gRPC C core to post to a NEXT queue without a timer (the alarms
// of the C++ library are not part of it).
#ifndef EXPERTD_DAEMON_GRPC_QUEUE_QUEUE_THREAD_H
#define EXPERTD_DAEMON_GRPC_QUEUE_QUEUE_THREAD_H

#include <grpc/grpc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/err.h"
#include "daemon/grpc/queue/tag.h"

struct queue_thread;

// Work that any thread may post; embedded in its owner. Posted at most once until it runs.
struct queue_job {
    void (*run)(struct queue_job *job);
    struct queue_job *next;
};

struct queue_thread_options {
    const char *name; // at most 15 bytes
    bool polls;       // false: waits for tags only; other threads of the process poll its sockets
    // Does the due work, on the thread, after every tag. woken: queue_thread_wake was called. Returns the time of the next due work
    // (CLOCK_NEVER: none); 0: at once.
    int64_t (*run_due)(struct queue_thread *thread, int64_t now_ns, bool woken);
    // Before the first run_due, on the thread. May be NULL.
    void (*started)(struct queue_thread *thread);
};

struct queue_thread {
    struct queue_thread_options options;
    grpc_completion_queue *queue;
    pthread_t id;
    bool running; // started and not joined
    grpc_channel *lame_channel;
    grpc_call *wake_call;
    struct tag wake_tag;
    atomic_bool wake_posted;          // wake_tag is in the queue: another wake has nothing to do
    _Atomic(struct queue_job *) jobs; // pushed by any thread, emptied by this one
    atomic_uint posting;              // threads inside queue_thread_post
    // Only this thread reads and writes the fields below.
    bool woken;
    bool waiting;   // in grpc_completion_queue_next, which only a tag ends
    int64_t due_ns; // latest planned end of the queue's wait
};

// `name` of the options is copied when the thread starts, and is borrowed until then.
FALLIBLE queue_thread_init(struct queue_thread *thread, const struct queue_thread_options *options);
FALLIBLE queue_thread_start(struct queue_thread *thread); // EXPERTD_ERR_UNAVAILABLE
// Waits for threads inside queue_thread_post, also for one whose job has run. Shuts the queue down, runs the tags and jobs left in
// it, and joins the thread if it was started. Legal on a zeroed struct.
void queue_thread_stop(struct queue_thread *thread);
void queue_thread_deinit(struct queue_thread *thread); // legal on a zeroed struct

// Makes run_due run soon. Any thread; several wakes may become one.
void queue_thread_wake(struct queue_thread *thread);
// Runs the job on the thread, soon. Any thread.
void queue_thread_post(struct queue_thread *thread, struct queue_job *job);
// Whether the thread runs this much later than planned: it was stopped with its process or its machine. In run_due only.
bool queue_thread_was_stopped(const struct queue_thread *thread, int64_t now_ns);

#endif
