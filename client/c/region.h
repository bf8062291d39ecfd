// Memory shared with a daemon of this host: tensors and answers lie in it, and requests carry their places (struct wire_extent)
// instead of their bytes.
//
// A region is open for as long as its lease, a connection, is: an end of this process ends it too. It belongs to the thread of its
// client, but any client of the daemon may name it by its id.
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

// At most limits.max_region_bytes of the description. timeout_us is of the call; the descriptor is then waited for as long again,
// for ever where it is 0. EXPERTD_ERR_PERMISSION over TCP, EXPERTD_ERR_UNIMPLEMENTED where the daemon shares none, EXPERTD_ERR_IO
// where the descriptor does not come. On error *out is zeroed.
FALLIBLE client_region_open(struct client *client, uint64_t bytes, int64_t timeout_us, struct client_region *out);
// Ends the lease, and so the region, and unmaps it; requests that are under way keep the daemon's side. Legal on a zeroed struct.
void client_region_close(struct client_region *region);

// The second half of client_region_open: what the offer's token buys at the offer's socket. For tests.
FALLIBLE client_region_fetch(const struct open_region_response *offer, uint64_t bytes, int64_t timeout_us,
                             struct client_region *out);

#endif
