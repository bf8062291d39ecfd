// The communicator between the devices of this process, a rank each: joined at start, watched while rows are under way, given up
// when a rank fails or does not answer, joined anew for the next batch. The host program's side of device_links.h. One device needs
// none.
//
// The thread that has a batch issues its transfers, watches and gives up: so no other thread is inside NCCL when a communicator is
// aborted, which a thread of its own does (aborter.h). It never waits without a deadline where another rank has to answer, or a
// device to end what it was given.
#ifndef EXPERTD_SHARD_LINKS_H
#define EXPERTD_SHARD_LINKS_H

#include <stdbool.h>

#include "base/err.h"
#include "expertd/kernels/devices.h"
#include "kernels/device/device_links.h"

struct links;

struct links_options {
    struct expertd_devices *devices; // borrowed; rank i is devices->all[i]
    int64_t timeout_ns; // of what was put into the devices' streams, from when it is waited for; of a group's start; of an abort
    int64_t join_timeout_ns; // also of an abort that takes its time though no device holds it up
};

// EXPERTD_ERR_UNAVAILABLE: NCCL is missing (what, and what mends it), no thread is to be had, or the ranks do not find each other.
FALLIBLE links_create(const struct links_options *options, struct links **out);
void links_destroy(struct links *links); // leaves in order; NULL is legal

// Before a device is given anything of a batch. EXPERTD_ERR_SHARD_LOST: one has failed for good, or has not ended what it was given
// before.
FALLIBLE links_alive(struct links *links);
// Before a batch is worked on: links_alive, and joins anew where the communicator was given up. EXPERTD_ERR_SHARD_LOST: also where
// joining failed.
FALLIBLE links_ready(struct links *links);

// What NCCL takes of the device's memory for itself, at the join and at the first transfer: what is left for it beside all that is
// reserved. An estimate, seen on no GPU.
size_t links_bytes(const struct expertd_devices *devices, uint32_t device);

// What one device sends and takes.
struct link_transfers {
    const struct device_transfer *all;
    size_t count;
};
// of_device [devices->count]: all of it as one group, put into the devices' streams. EXPERTD_ERR_SHARD_LOST: the communicator was
// given up.
FALLIBLE links_transfer(struct links *links, const struct link_transfers *of_device);

// At start: so that what a transfer needs is had then or never, links_transfer and links_wait in one, with the time of a join.
FALLIBLE links_try(struct links *links, const struct link_transfers *of_device);

// Until everything that the devices' streams were given is done; the thread sleeps in between. EXPERTD_ERR_SHARD_LOST names the
// device that failed or did not end in time; the communicator was given up.
FALLIBLE links_wait(struct links *links);
// After any error: nothing is under way any more, or the device that still has something is lost.
void links_settle(struct links *links);

struct links_state {
    uint64_t rebuilds; // communicators that took another's place
    bool lost;         // a device has failed for good: no batch will be answered any more
};
// Any thread.
void links_state(const struct links *links, struct links_state *out);

#endif
