// Aborts links on a thread of its own. NCCL's abort waits for earlier work in a device's stream, and that may be a kernel that
// never ends. Then the thread stays inside the abort and keeps the links, and the program continues without them.
//
// One thread at a time calls these functions. The thread is created in advance, so that no resource is needed when a
// rank has failed.
#ifndef EXPERTD_SHARD_ABORTER_H
#define EXPERTD_SHARD_ABORTER_H

#include <stdbool.h>

#include "base/err.h"
#include "kernels/device/device_links.h"

struct aborter;

// calls: borrowed until the process ends. EXPERTD_ERR_NOMEM; EXPERTD_ERR_UNAVAILABLE: no thread can be created.
FALLIBLE aborter_create(const struct expertd_device_links *calls, struct aborter **out);
// A thread that is inside an abort is detached and frees its memory when the abort ends. NULL is legal.
void aborter_destroy(struct aborter *aborter);

// Aborts links[count], any of which may be NULL, and waits for the end. Takes ownership of the links. Illegal while an abort is
// running. False: the abort did not end within timeout_ns, and continues.
bool aborter_abort(struct aborter *aborter, struct device_link *const *links, uint32_t count, int64_t timeout_ns);
// Waits up to timeout_ns until no abort is running. True: none is running.
bool aborter_wait_idle(struct aborter *aborter, int64_t timeout_ns);

#endif
