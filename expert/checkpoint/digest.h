// Digests of weights and of everything that identifies a model: XXH3, 64 and 128 bits. xxhash is used in digest.c only.
// The input never depends on struct padding, pointers or the machine: numbers are added little-endian, one field at a time.
// A digest belongs to one thread; no allocation.
#ifndef EXPERTD_EXPERT_CHECKPOINT_DIGEST_H
#define EXPERTD_EXPERT_CHECKPOINT_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#include "expertd/kernels/weights.h"

enum { DIGEST_STATE_BYTES = 640, DIGEST_128_BYTES = 16 };

struct digest {
    _Alignas(64) unsigned char state[DIGEST_STATE_BYTES];
};

void digest_init(struct digest *digest);
void digest_update(struct digest *digest, const void *bytes, size_t count);
void digest_u32(struct digest *digest, uint32_t value);
void digest_u64(struct digest *digest, uint64_t value);
void digest_f32(struct digest *digest, float value);       // its bits
void digest_text(struct digest *digest, const char *text); // its length, then its bytes, so that {"ab", "c"} and {"a", "bc"} differ

// Adds the elements of a matrix [n, k] in row-major order for any strides of the source, so that fused, split, transposed and
// interleaved files give the same digest. scratch: digest_scratch_bytes(source, n, k), not 0 for sources that are not K-contiguous.
void digest_matrix(struct digest *digest, const struct expertd_weight_source *source, size_t n, size_t k, void *scratch);
size_t digest_scratch_bytes(const struct expertd_weight_source *source, size_t n, size_t k);

// The digest so far; more may be added afterwards.
uint64_t digest_64(const struct digest *digest);
void digest_128(const struct digest *digest, uint8_t out[DIGEST_128_BYTES]); // in the canonical form, big-endian

#endif
