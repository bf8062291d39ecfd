// A holder's inventory message in the form of proto/shard: entries of one layer and state are grouped.
#ifndef EXPERTD_DAEMON_SHARD_CORE_INVENTORY_H
#define EXPERTD_DAEMON_SHARD_CORE_INVENTORY_H

#include "proto/shard/shard_control.h"
#include "shard/membership/holder.h"

struct inventory_scratch {
    struct shard_copies copies[HOLDER_LIST_MAX];
    uint32_t experts[HOLDER_LIST_MAX];
    uint64_t digests[HOLDER_LIST_MAX];
};

// message: of kind HOLDER_INVENTORY. layer_numbers: [L] the checkpoint's numbers of the catalogue's layers. *out borrows the
// scratch.
void inventory_of(const struct holder_message *message, const uint32_t *layer_numbers, uint64_t bytes_used,
                  struct inventory_scratch *scratch, struct shard_inventory *out);

#endif
