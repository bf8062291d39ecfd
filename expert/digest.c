#include "expert/digest.h"

#include <string.h>

// Inlined, so that the state's size is this build's and not that of whatever library is found at run time.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/err.h"

_Static_assert(sizeof(XXH3_state_t) <= DIGEST_STATE_BYTES, "a digest must hold XXH3's state");
_Static_assert(_Alignof(XXH3_state_t) <= _Alignof(struct digest), "XXH3's state must be aligned");

// Rows gathered at a time from a matrix that lies by columns: 64 two-byte codes are two whole cache lines of each column.
// Columns go through a tile, 32 at a time: rows of a power of two bytes lie in one cache set, and writing 64 of them element by
// element would evict each line before the next element of its row.
enum { GATHER_ROWS = 64, GATHER_COLUMNS = 32 };

static XXH3_state_t *state_of(struct digest *digest) {
    return (XXH3_state_t *)(void *)digest->state;
}

void digest_init(struct digest *digest) {
    // One state serves both widths: XXH3 keeps the same one for 64 and 128 bits, and only the last step differs.
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
    digest_u32(digest, f32_bits(value));
}

void digest_text(struct digest *digest, const char *text) {
    size_t length = strlen(text);
    digest_u64(digest, length);
    digest_update(digest, text, length);
}

static size_t gather_rows(size_t n) {
    return n < GATHER_ROWS ? n : GATHER_ROWS;
}

size_t digest_scratch_bytes(const struct weight_source *source, size_t n, size_t k) {
    return source->k_stride == 1 ? 0 : gather_rows(n) * k * dtype_size(source->dtype);
}

// dst[rows][k] = the rows of src that begin at element `first`. `size` is a constant at each call, so that the copies are moves.
static inline __attribute__((always_inline)) void gather_sized(const struct weight_source *source, size_t first, size_t rows,
                                                               size_t k, unsigned char *dst, size_t size) {
    unsigned char tile[GATHER_COLUMNS][GATHER_ROWS * sizeof(float)];
    const unsigned char *src = (const unsigned char *)source->data + first * source->n_stride * size;
    for (size_t c0 = 0; c0 < k; c0 += GATHER_COLUMNS) {
        size_t columns = k - c0 < GATHER_COLUMNS ? k - c0 : GATHER_COLUMNS;
        for (size_t c = 0; c < columns; c++) {
            const unsigned char *column = src + (c0 + c) * source->k_stride * size;
            for (size_t r = 0; r < rows; r++) {
                memcpy(&tile[c][r * size], column + r * source->n_stride * size, size);
            }
        }
        for (size_t r = 0; r < rows; r++) {
            for (size_t c = 0; c < columns; c++) {
                memcpy(dst + (r * k + c0 + c) * size, &tile[c][r * size], size);
            }
        }
    }
}

static void gather(const struct weight_source *source, size_t first, size_t rows, size_t k, unsigned char *dst) {
    size_t size = dtype_size(source->dtype);
    INVARIANT(size == sizeof(uint16_t) || size == sizeof(float));
    if (size == sizeof(uint16_t)) {
        gather_sized(source, first, rows, k, dst, sizeof(uint16_t));
    } else {
        gather_sized(source, first, rows, k, dst, sizeof(float));
    }
}

void digest_matrix(struct digest *digest, const struct weight_source *source, size_t n, size_t k, void *scratch) {
    size_t size = dtype_size(source->dtype);
    const unsigned char *data = source->data;
    if (source->k_stride == 1 && (source->n_stride == k || n == 1)) {
        digest_update(digest, data, n * k * size);
        return;
    }
    size_t step = source->k_stride == 1 ? 1 : gather_rows(n);
    for (size_t row = 0; row < n; row += step) {
        size_t rows = n - row < step ? n - row : step;
        if (source->k_stride == 1) {
            digest_update(digest, data + row * source->n_stride * size, k * size);
        } else {
            gather(source, row, rows, k, scratch);
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
