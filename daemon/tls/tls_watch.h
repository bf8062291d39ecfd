// Looks for changed TLS files every second, on a thread of libuv's pool, and logs what it finds: a new certificate, wrong files,
// and the certificate's end ahead of time. Loop thread only.
#ifndef EXPERTD_DAEMON_TLS_TLS_WATCH_H
#define EXPERTD_DAEMON_TLS_TLS_WATCH_H

#include "daemon/tls/tls_store.h"

struct tls_watch;

// loop: uv_loop_t *, untyped so that libuv stays in .c files. The store is borrowed until the loop has ended.
FALLIBLE tls_watch_start(void *loop, struct tls_store *store, struct tls_watch **out);
void tls_watch_stop(struct tls_watch *watch); // the loop frees it; NULL is legal

// A line is logged when the certificate's end is 30, 14, 7, 3, 2 and 1 days away and when it has passed, but none in the first two
// thirds of its validity. Returns the days of the last line that is due; 0: expired; -1: none is due. Pure.
int tls_watch_notice(int64_t left_s, int64_t valid_s);

#endif
