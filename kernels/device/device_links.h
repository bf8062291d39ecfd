// Links between devices: transfers of rows from one device's memory to another's over NCCL. Part of the module's table
// (expertd/kernels/device.h). The module's side is shard/nccl.cc, the host program's side is shard/links.h.
//
// A link is one rank's end of a communicator, whose ranks may be devices of several processes. Calls only start work. The work is
// in progress until `settled` reports that it is not; until then, neither the link nor its device's stream may get other work.
// Between `begin` and `end`, calls for several links of this process form one group: a thread with more than one rank must join,
// transfer and leave inside such a group. Use a link from one thread at a time; no other thread may be inside a call when a link is
// aborted. C and C++.
#ifndef EXPERTD_KERNELS_DEVICE_DEVICE_LINKS_H
#define EXPERTD_KERNELS_DEVICE_DEVICE_LINKS_H

#include "expertd/kernels/device.h"

struct device_link;

enum { DEVICE_LINK_ID_BYTES = 128, DEVICE_LINKS_TEXT_MAX = 32 };

// Identifies a communicator. All its ranks must have the same bytes; other processes get a copy.
struct device_link_id {
    unsigned char bytes[DEVICE_LINK_ID_BYTES];
};

// One message to or from a peer. Both sides must list the same messages in the same order; empty messages are omitted on both.
struct device_transfer {
    void *memory; // of the link's device; only read where the message is outgoing
    size_t bytes; // > 0
    uint32_t peer;
    int incoming;
};

// A function that fails sets *error. After EXPERTD_DEVICE_FAILED, only `abort` may be called for the link.
struct expertd_device_links {
    // Loads NCCL; call it first. EXPERTD_DEVICE_MISSING: the message says what is missing. version: NCCL's version as text.
    enum expertd_device_code (*load)(char version[DEVICE_LINKS_TEXT_MAX], struct expertd_device_error *error);
    enum expertd_device_code (*make_id)(struct device_link_id *out, struct expertd_device_error *error);
    enum expertd_device_code (*begin)(struct expertd_device_error *error);
    enum expertd_device_code (*end)(struct expertd_device_error *error); // also required after a failure since `begin`
    enum expertd_device_code (*join)(struct expertd_device *device, const struct device_link_id *id, uint32_t rank, uint32_t ranks,
                                     struct device_link **out, struct expertd_device_error *error);
    // Enqueues transfers on the device's stream: they start after earlier work, and later work waits for them.
    enum expertd_device_code (*transfer)(struct device_link *link, const struct device_transfer *transfers, size_t count,
                                         struct expertd_device_error *error);
    // busy: work is still in progress. EXPERTD_DEVICE_FAILED: an error since the last call, of this rank or a peer.
    enum expertd_device_code (*settled)(struct device_link *link, int *busy, struct expertd_device_error *error);
    // Ends a link whose transfers are all done; call `destroy` next.
    enum expertd_device_code (*leave)(struct device_link *link, struct expertd_device_error *error);
    void (*destroy)(struct device_link *link); // NULL is legal
    // Cancels the work in progress and destroys the link; the device's stream continues as if the rows had arrived. For the last
    // link of the process, it may wait for work ahead of a transfer on any of the links' streams, and so for a kernel that does not
    // end.
    void (*abort)(struct device_link *link); // NULL is legal
};

// Inside the module: makes the device current for the calling thread. Returns its stream, or NULL on an error.
struct CUstream_st;
#ifdef __cplusplus
extern "C" {
#endif
struct CUstream_st *device_enter(struct expertd_device *device, struct expertd_device_error *error);
extern const struct expertd_device_links expertd_device_links;
#ifdef __cplusplus
}
#endif

#endif
