// The communicator between the devices of this process; each device is a rank. It is created at start, watched during transfers,
// aborted when a rank fails or does not answer, and created again for the next batch. This is the host program's side of
// device_links.h. A single device has no communicator.
//
// The thread that computes the batch starts the transfers, watches them, and requests an abort. So no thread is inside NCCL when
// the communicator is aborted. The abort runs on a thread of its own (aborter.h). Every wait for another rank or for a device has a
// deadline.
#ifndef EXPERTD_SHARD_LINKS_H
#define EXPERTD_SHARD_LINKS_H

#include <stdbool.h>

#include "base/err.h"
#include "expertd/kernels/devices.h"
#include "kernels/device/device_links.h"

struct links;

struct links_options {
    struct expertd_devices *devices; // borrowed; rank i is devices->all[i]
    int64_t timeout_ns;              // limit of links_wait; of the start of a group of transfers; of an abort
    int64_t join_timeout_ns;         // for a join, and for an abort that no device delays
};

// EXPERTD_ERR_UNAVAILABLE: NCCL is missing (the message says what is missing and how to install it), no thread can be created, or
// the ranks cannot connect.
FALLIBLE links_create(const struct links_options *options, struct links **out);
void links_destroy(struct links *links); // finalises the communicator; NULL is legal

// Call this before a device gets any work of a batch. EXPERTD_ERR_SHARD_LOST: a device has failed for good, or has not
// ended earlier work.
FALLIBLE links_alive(struct links *links);
// Call this before a batch is computed: does links_alive, and creates a new communicator if the last one was aborted.
// EXPERTD_ERR_SHARD_LOST: as links_alive, or joining failed.
FALLIBLE links_ready(struct links *links);

// The device memory that must stay free for NCCL, which allocates it at the join and at the first transfer. An estimate that was
// never measured on GPUs.
size_t links_bytes(const struct expertd_devices *devices, uint32_t device);

// The transfers of one device.
struct link_transfers {
    const struct device_transfer *all;
    size_t count;
};
// Puts the transfers of_device[devices->count] into the devices' streams as one group. EXPERTD_ERR_SHARD_LOST: the
// communicator was aborted.
FALLIBLE links_transfer(struct links *links, const struct link_transfers *of_device);

// links_transfer and links_wait at start, with join_timeout_ns, so that NCCL allocates then what transfers need.
FALLIBLE links_try(struct links *links, const struct link_transfers *of_device);

// Waits, sleeping, until all work in the devices' streams has ended. EXPERTD_ERR_SHARD_LOST: the message names the device that
// failed or did not end in time; the communicator was aborted.
FALLIBLE links_wait(struct links *links);
// Call this after any error. Afterwards no work is in progress, or the device on which work is in progress counts as lost.
void links_settle(struct links *links);

struct links_state {
    uint64_t rebuilds; // communicators created after one was aborted
    bool lost;         // a device has failed for good: no batch can be answered
};
// Any thread.
void links_state(const struct links *links, struct links_state *out);

#endif
