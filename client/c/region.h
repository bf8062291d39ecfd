// Memory shared with a daemon on the same host. Tensors and answers lie in it, and requests carry offsets (struct wire_extent)
// instead of bytes.
//
// A region is open as long as its lease, a connection, is open; it ends with this process. It belongs to the thread of its client,
// but requests of any client of the daemon may use its id.
#ifndef EXPERTD_CLIENT_C_REGION_H
#define EXPERTD_CLIENT_C_REGION_H

#include "client/c/client.h"

enum { CLIENT_REGION_ALIGN = 64 }; // of an extent's offset

struct client_region {
    uint64_t id;
    uint8_t *data;  // mapped, page-aligned, zeros at first
    uint64_t bytes; // 0: not open
    int lease;
};

// bytes: at most limits.max_region_bytes of the description. timeout_us limits the call, and then the wait for the descriptor; 0:
// no limit. EXPERTD_ERR_PERMISSION: the connection is TCP; EXPERTD_ERR_UNIMPLEMENTED: the daemon shares no memory; EXPERTD_ERR_IO:
// the descriptor was not received. On error *out is zeroed.
FALLIBLE client_region_open(struct client *client, uint64_t bytes, int64_t timeout_us, struct client_region *out);
// Ends the lease, and with it the region, and unmaps it. Requests in flight still finish, in the daemon's mapping. Legal on a
// zeroed struct.
void client_region_close(struct client_region *region);

// The second half of client_region_open: exchanges the offer's token for the descriptor at the offer's socket, and maps it. For
// tests.
FALLIBLE client_region_fetch(const struct open_region_response *offer, uint64_t bytes, int64_t timeout_us,
                             struct client_region *out);

#endif
