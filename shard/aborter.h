// Ends links on a thread of its own. NCCL's abort waits for what stands before its own work in a device's stream, and that may be a
// kernel which never ends: then the thread stays in there, with the links, and the program goes on without them.
//
// One thread at a time calls. The thread is there from creation on, so that nothing has to be had when a rank has failed.
#ifndef EXPERTD_SHARD_ABORTER_H
#define EXPERTD_SHARD_ABORTER_H

#include <stdbool.h>

#include "base/err.h"
#include "kernels/device/device_links.h"

struct aborter;

// calls: borrowed for as long as the process lives. EXPERTD_ERR_NOMEM; EXPERTD_ERR_UNAVAILABLE: no thread is to be had.
FALLIBLE aborter_create(const struct expertd_device_links *calls, struct aborter **out);
// Where it is at work it is left to itself, and its memory with it. NULL is legal.
void aborter_destroy(struct aborter *aborter);

// Aborts links[count], of which any may be NULL, and waits for the end of it; not while it is at work. They are the aborter's from
// here on. false: it did not end within timeout_ns, and goes on.
bool aborter_take(struct aborter *aborter, struct device_link *const *links, uint32_t count, int64_t timeout_ns);
// Is it at work no more? Waits for that so long.
bool aborter_rests(struct aborter *aborter, int64_t timeout_ns);

#endif
