// Expert weights in device memory. A rank has slots, and a slot holds everything of one expert: matrices (row-major, or codes in
// the layout of device_codes.h), biases and k orders. The shared expert is stored in the same way, in one slot. A slot is filled
// from the host or copied from a slot of any device; its digest identifies its contents. Private to expert/.
#ifndef EXPERTD_EXPERT_DEVICE_DEVICE_EXPERTS_H
#define EXPERTD_EXPERT_DEVICE_DEVICE_EXPERTS_H

#include <pthread.h>

#include "expert/model/expert_block.h"
#include "expertd/kernels/devices.h"

// A staging buffer: pinned memory of one thread for copies to and from one device.
struct device_staging {
    struct expertd_devices *devices;
    uint32_t device;
    char *memory;
    size_t bytes;           // device_staging_bytes, or more
    pthread_mutex_t *mutex; // guards the device from the start of a copy to its end; NULL: no other thread uses the device
};

// A block of device memory from which pieces are taken in order. With memory NULL the bytes are only counted.
struct device_pool {
    char *memory;
    size_t used;
};
void *device_pool_take(struct device_pool *pool, size_t bytes);

// One array with an entry for every slot, such as all codes, all scales, or all biases of one matrix.
struct device_part {
    char *base;   // [slots]
    size_t bytes; // of one slot
};
enum { DEVICE_PARTS_MAX = 4 * EXPERT_MATRICES + EXPERT_MATRICES + EXPERT_ORDERS };

struct device_experts {
    uint32_t slots;
    struct expertd_device_matrix matrix[EXPERT_MATRICES]; // groups = slots
    const float *bias[EXPERT_MATRICES];                   // [slots, n] or NULL
    struct device_part parts[DEVICE_PARTS_MAX];           // everything: matrices, then biases, then orders
    uint32_t part_count;
};

// Sets *out to the shape of the shared expert, whose weights are not in an expert block.
void device_shape_of(const struct expert_weights *weights, struct expert_shape *out);
size_t device_staging_bytes(const struct expert_shape *shape); // of the largest piece staged at once: a matrix with its scales
size_t device_slot_bytes(const struct expert_shape *shape);    // of device memory for one slot

void device_experts_lay_out(struct device_pool *pool, const struct expert_shape *shape, uint32_t slots, struct device_experts *out);

// Copies expert `group` of the host's weights into a slot. The copy has ended on return.
FALLIBLE device_experts_put(const struct device_experts *experts, uint32_t slot, const struct expert_weights *weights, size_t group,
                            const struct device_staging *staging);
// Copies a slot from another slot of the same layer. The copy has ended on return. `staging` and `from_staging` name the devices of
// the two slots.
FALLIBLE device_experts_copy(const struct device_experts *experts, uint32_t slot, const struct device_staging *staging,
                             const struct device_experts *from, uint32_t from_slot, const struct device_staging *from_staging);
// XXH3-64 over a slot's parts, downloaded through the staging buffer.
FALLIBLE device_experts_digest(const struct device_experts *experts, uint32_t slot, const struct device_staging *staging,
                               uint64_t *out);

// For routers and gates. device_put copies a vector of any size from pageable memory; device_put_plain copies a matrix that is not
// quantised.
FALLIBLE device_put(const struct device_staging *staging, void *to, const void *from, size_t bytes);
FALLIBLE device_put_plain(const struct device_staging *staging, const struct expertd_packed_weights *packed, void *to);

#endif
