// The tags of the completion queues: each is a function to run on the queue's thread. A tag is outstanding once at a time.
#ifndef EXPERTD_DAEMON_GRPC_QUEUE_TAG_H
#define EXPERTD_DAEMON_GRPC_QUEUE_TAG_H

#include <stdbool.h>
#include <stddef.h>

#include "base/threads/thread_order.h"

struct tag {
    void (*done)(struct tag *tag, bool ok);
};

#define TAG_OWNER(tag, type, member) ((type *)(void *)((char *)(tag)-offsetof(type, member)))

// libgrpc is not instrumented, so ThreadSanitizer does not see the locks of its queues. These annotations state that writes before
// a tag was posted are visible to the thread that receives the tag.
#define TAG_HAND_OVER(tag) THREAD_HAND_OVER(tag)
#define TAG_TAKE(tag) THREAD_TAKE(tag)

#endif
