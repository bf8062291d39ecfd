// The tags of the completion queues: each is a function to run on the queue's thread. A tag is outstanding once at a time.
#ifndef EXPERTD_DAEMON_GRPC_QUEUE_TAG_H
#define EXPERTD_DAEMON_GRPC_QUEUE_TAG_H

#include <stdbool.h>
#include <stddef.h>

struct tag {
    void (*done)(struct tag *tag, bool ok);
};

#define TAG_OWNER(tag, type, member) ((type *)(void *)((char *)(tag)-offsetof(type, member)))

// libgrpc is not instrumented, so ThreadSanitizer does not see the locks of its queues. These annotations state that writes before
// a tag was posted are visible to the thread that receives the tag.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TAG_TSAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define TAG_TSAN 1
#endif

#ifdef TAG_TSAN
void __tsan_acquire(void *address);
void __tsan_release(void *address);
#define TAG_HAND_OVER(tag) __tsan_release(tag)
#define TAG_TAKE(tag) __tsan_acquire(tag)
#else
#define TAG_HAND_OVER(tag) ((void)(tag))
#define TAG_TAKE(tag) ((void)(tag))
#endif

#endif
