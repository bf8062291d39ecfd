#include "expert/checkpoint/digest.h"

#include <string.h>

// Inlined, so that the size of the state is known at build time and does not depend on the library that is found at run time.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/err.h"
#include "expert/checkpoint/gathered_rows.h"

_Static_assert(sizeof(XXH3_state_t) <= DIGEST_STATE_BYTES, "a digest must hold XXH3's state");
_Static_assert(_Alignof(XXH3_state_t) <= _Alignof(struct digest), "XXH3's state must be aligned");

static XXH3_state_t *state_of(struct digest *digest) {
    return (XXH3_state_t *)(void *)digest->state;
}

void digest_init(struct digest *digest) {
    // One state serves both widths: XXH3 has the same state for 64 and 128 bits; only the final step differs.
    INVARIANT(XXH3_128bits_reset(state_of(digest)) == XXH_OK);
}

void digest_update(struct digest *digest, const void *bytes, size_t count) {
    if (count > 0) {
        INVARIANT(XXH3_128bits_update(state_of(digest), bytes, count) == XXH_OK);
    }
}

void digest_u32(struct digest *digest, uint32_t value) {
    unsigned char bytes[4];
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (unsigned char)(value >> (8 * i));
    }
    digest_update(digest, bytes, sizeof bytes);
}

void digest_u64(struct digest *digest, uint64_t value) {
    digest_u32(digest, (uint32_t)value);
    digest_u32(digest, (uint32_t)(value >> 32));
}

void digest_f32(struct digest *digest, float value) {
    digest_u32(digest, expertd_f32_bits(value));
}

void digest_text(struct digest *digest, const char *text) {
    size_t length = strlen(text);
    digest_u64(digest, length);
    digest_update(digest, text, length);
}

size_t digest_scratch_bytes(const struct expertd_weight_source *source, size_t n, size_t k) {
    return source->k_stride == 1 ? 0 : gathered_rows_at_once(n) * k * expertd_dtype_size(source->dtype);
}

void digest_matrix(struct digest *digest, const struct expertd_weight_source *source, size_t n, size_t k, void *scratch) {
    size_t size = expertd_dtype_size(source->dtype);
    const unsigned char *data = source->data;
    if (source->k_stride == 1 && (source->n_stride == k || n == 1)) {
        digest_update(digest, data, n * k * size);
        return;
    }
    size_t step = source->k_stride == 1 ? 1 : gathered_rows_at_once(n);
    for (size_t row = 0; row < n; row += step) {
        size_t rows = n - row < step ? n - row : step;
        if (source->k_stride == 1) {
            digest_update(digest, data + row * source->n_stride * size, k * size);
        } else {
            gather_rows(source, row, rows, k, scratch);
            digest_update(digest, scratch, rows * k * size);
        }
    }
}

uint64_t digest_64(const struct digest *digest) {
    return XXH3_64bits_digest((const XXH3_state_t *)(const void *)digest->state);
}

void digest_128(const struct digest *digest, uint8_t out[DIGEST_128_BYTES]) {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest((const XXH3_state_t *)(const void *)digest->state));
    memcpy(out, canonical.digest, DIGEST_128_BYTES);
}
