// Tells ThreadSanitizer about an order of memory accesses that it cannot see, because a library which is not instrumented makes it:
// what a thread wrote before THREAD_HAND_OVER(address) is visible to a thread after THREAD_TAKE(address). Without ThreadSanitizer
// they do nothing.
#ifndef EXPERTD_BASE_THREADS_THREAD_ORDER_H
#define EXPERTD_BASE_THREADS_THREAD_ORDER_H

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define THREAD_ORDER_TSAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define THREAD_ORDER_TSAN 1
#endif

#ifdef THREAD_ORDER_TSAN
void __tsan_acquire(void *address);
void __tsan_release(void *address);
#define THREAD_HAND_OVER(address) __tsan_release(address)
#define THREAD_TAKE(address) __tsan_acquire(address)
#else
#define THREAD_HAND_OVER(address) ((void)(address))
#define THREAD_TAKE(address) ((void)(address))
#endif

#endif
