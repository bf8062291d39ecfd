// Experts in a device's memory: slots of one rank, or of the shared expert, each with all that one expert has, row-major or as
// device_codes.h lays codes out. A slot is filled from the host, copied from another slot of any device, and told by its digest.

#ifndef EXPERTD_EXPERT_DEVICE_DEVICE_EXPERTS_H
#define EXPERTD_EXPERT_DEVICE_DEVICE_EXPERTS_H

#include <pthread.h>

#include "expert/model/expert_block.h"
#include "expertd/kernels/devices.h"

// A device, and pinned memory through which everything goes, which is one thread's.
struct device_lane {
    struct expertd_devices *devices;
    uint32_t device;
    char *staging;
    size_t staging_bytes;   // device_staging_bytes, or more
    pthread_mutex_t *mutex; // guards the device, from a copy's start until it has landed; NULL: one thread has it
};

// A piece of memory that is taken from, bit by bit; without memory the bytes are only counted.
struct device_pool {
    char *memory;
    size_t used;
};
void *device_pool_take(struct device_pool *pool, size_t bytes);

// What lies one after another for all slots: codes, scales, a bias, ...
struct device_part {
    char *base;   // [slots]
    size_t bytes; // of one slot
};
enum { DEVICE_PARTS_MAX = 4 * EXPERT_MATRICES + EXPERT_MATRICES + EXPERT_ORDERS };

struct device_experts {
    uint32_t slots;
    struct expertd_device_matrix matrix[EXPERT_MATRICES]; // groups = slots
    const float *bias[EXPERT_MATRICES];                   // [slots, n] or NULL
    struct device_part parts[DEVICE_PARTS_MAX];           // all of it: in the order of the matrices, biases, orders
    uint32_t part_count;
};

// The shape of the shared expert, whose weights are bound but are no block.
void device_shape_of(const struct expert_weights *weights, struct expert_shape *out);
size_t device_staging_bytes(const struct expert_shape *shape); // of what is staged at once: a matrix with all that belongs to it
size_t device_slot_bytes(const struct expert_shape *shape);    // of device memory, without what rounds a part up

void device_experts_lay_out(struct device_pool *pool, const struct expert_shape *shape, uint32_t slots, struct device_experts *out);

// Expert `group` of bound weights into a slot; it is there on return.
FALLIBLE device_experts_put(const struct device_experts *experts, uint32_t slot, const struct expert_weights *weights, size_t group,
                            const struct device_lane *lane);
// From another slot, of the same layer; it is there on return. `lane` and `from_lane` are of the devices that have them.
FALLIBLE device_experts_copy(const struct device_experts *experts, uint32_t slot, const struct device_lane *lane,
                             const struct device_experts *from, uint32_t from_slot, const struct device_lane *from_lane);
// XXH3-64 over a slot's parts, by way of the staging.
FALLIBLE device_experts_digest(const struct device_experts *experts, uint32_t slot, const struct device_lane *lane, uint64_t *out);

// One matrix of a group by itself, and a vector: the routers' and gates'.
FALLIBLE device_put(const struct device_lane *lane, void *to, const void *from, size_t bytes); // pageable memory, any size
FALLIBLE device_put_plain(const struct device_lane *lane, const struct expertd_packed_weights *packed, void *to);

#endif
