// Links between devices: rows from one device's memory to another's, over NCCL. Part of the module's table (device.h); the module's
// side is shard/nccl.cc, the host program's shard/links.h.
//
// A link is one rank's end of a communicator: a device of this process, or of another one that has the same id. Everything here
// only starts: what it started is under way until `settled` says that it is not, and until then neither the link nor its device's
// stream may be given anything else. Between `begin` and `end`, calls for several links of this process count as one: a thread that
// has more than one rank must join, transfer and leave so. One thread has a link at a time, and no other is inside when it aborts.
// C and C++.
#ifndef EXPERTD_KERNELS_DEVICE_DEVICE_LINKS_H
#define EXPERTD_KERNELS_DEVICE_DEVICE_LINKS_H

#include "expertd/kernels/device.h"

struct device_link;

enum { DEVICE_LINK_ID_BYTES = 128, DEVICE_LINKS_TEXT_MAX = 32 };

// What the ranks of one communicator know each other by. Plain bytes: another process gets them as they are.
struct device_link_id {
    unsigned char bytes[DEVICE_LINK_ID_BYTES];
};

// What one rank sends to a peer, or takes from it. Both sides name the same bytes, in the same order; what has no bytes is named by
// neither.
struct device_transfer {
    void *memory; // of the link's device; an outgoing one's is only read
    size_t bytes; // > 0
    uint32_t peer;
    int incoming;
};

// A call that fails fills in *error. After EXPERTD_DEVICE_FAILED a link is good for `abort` alone.
struct expertd_device_links {
    // Finds the library, which nothing needs before. EXPERTD_DEVICE_MISSING says what is missing. version: its own, as text.
    enum expertd_device_code (*load)(char version[DEVICE_LINKS_TEXT_MAX], struct expertd_device_error *error);
    enum expertd_device_code (*make_id)(struct device_link_id *out, struct expertd_device_error *error);
    enum expertd_device_code (*begin)(struct expertd_device_error *error);
    enum expertd_device_code (*end)(struct expertd_device_error *error); // also after a failure since `begin`
    enum expertd_device_code (*join)(struct expertd_device *device, const struct device_link_id *id, uint32_t rank, uint32_t ranks,
                                     struct device_link **out, struct expertd_device_error *error);
    // In the device's stream: what was put there before is done by then, what comes after waits for it.
    enum expertd_device_code (*transfer)(struct device_link *link, const struct device_transfer *transfers, size_t count,
                                         struct expertd_device_error *error);
    // busy: what was started is still under way. EXPERTD_DEVICE_FAILED: an error since the last time, also of a peer.
    enum expertd_device_code (*settled)(struct device_link *link, int *busy, struct expertd_device_error *error);
    enum expertd_device_code (*leave)(struct device_link *link,
                                      struct expertd_device_error *error); // once all that was transferred is done; then
    void (*destroy)(struct device_link *link);                             // NULL is legal
    // Ends whatever is under way and destroys the link; its device's stream goes on as if the rows had come. Of the last link in
    // this process it may wait for what stands before a transfer in any of their streams, and so for a kernel that does not end.
    void (*abort)(struct device_link *link); // NULL is legal
};

// Inside the module: makes the device the calling thread's; its stream, or NULL.
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
