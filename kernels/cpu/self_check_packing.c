// The part of the self-check for decoding and packing: all bytes must equal the scalar twin's.
#include <string.h>

#include "kernels/cpu/backend/backends.h"
#include "kernels/layout/pack.h"

enum { LINES = 37, LINE_K = 23, CODES = 301, QUADS = 5, CODE_LINES = 3, PANEL_WORDS = LINE_K * EXPERTD_KERNEL_PANEL };

struct check {
    const struct kernel_backend *backend, *twin;
    uint8_t source[LINES * LINE_K * sizeof(uint32_t) + 1];
    _Alignas(64) uint32_t got[PANEL_WORDS];
    _Alignas(64) uint32_t want[PANEL_WORDS];
};

// Every byte value, in random order, so that a misplaced byte shows.
static void fill(uint8_t *bytes, size_t count) {
    uint32_t state = 2463534242u;
    for (size_t i = 0; i < count; i++) {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        bytes[i] = (uint8_t)(i ^ state >> 24);
    }
}

static void clear(struct check *check) {
    memset(check->got, 0x5a, sizeof check->got);
    memset(check->want, 0x5a, sizeof check->want);
}

static bool is_same(const struct check *check) {
    return memcmp(check->got, check->want, sizeof check->got) == 0;
}

// The source is at an odd address, as a tensor of a file may be.
static bool packs_alike(struct check *check, size_t element, bool k_major) {
    struct pack_args args = {.src = check->source + 1,
                             .stride = (k_major ? LINE_K : LINES) * element,
                             .element = element,
                             .lines = LINES,
                             .k = LINE_K,
                             .panels = check->got,
                             .panel_bytes = sizeof check->got};
    clear(check);
    (k_major ? check->backend->pack_k_major : check->backend->pack_n_major)(&args);
    args.panels = check->want;
    (k_major ? check->twin->pack_k_major : check->twin->pack_n_major)(&args);
    return is_same(check);
}

static bool decodes_alike(struct check *check, enum expertd_dtype dtype) {
    struct decode_args args = {dtype, check->source, CODES, (uint16_t *)check->got};
    clear(check);
    check->backend->decode(&args);
    args.dst = (uint16_t *)check->want;
    check->twin->decode(&args);
    return is_same(check);
}

static bool offsets_alike(struct check *check) {
    _Alignas(64) uint32_t quads[QUADS * EXPERTD_KERNEL_PANEL];
    memcpy(quads, check->source, sizeof quads);
    struct offsets_args args = {quads, QUADS, (int32_t *)check->got};
    clear(check);
    check->backend->quad_offsets(&args);
    args.offsets = (int32_t *)check->want;
    check->twin->quad_offsets(&args);
    return is_same(check);
}

static bool places_alike(struct check *check, unsigned bits) {
    _Alignas(64) uint32_t words[CODE_LINES * EXPERTD_KERNEL_PANEL];
    memcpy(words, check->source, sizeof words);
    struct place_args args = {words, CODE_LINES, bits, (uint8_t *)check->got};
    clear(check);
    check->backend->place_codes(&args);
    args.lines = (uint8_t *)check->want;
    check->twin->place_codes(&args);
    return is_same(check);
}

bool packing_self_check(const struct kernel_backend *backend) {
    struct check check = {.backend = backend, .twin = backend_twin(backend)};
    fill(check.source, sizeof check.source);
    for (size_t element = 1; element <= sizeof(uint32_t); element *= 2) {
        if (!packs_alike(&check, element, true) || !packs_alike(&check, element, false)) {
            return false;
        }
    }
    return decodes_alike(&check, EXPERTD_DTYPE_F8_E4M3) && decodes_alike(&check, EXPERTD_DTYPE_F8_E5M2) &&
           decodes_alike(&check, EXPERTD_DTYPE_U8) && offsets_alike(&check) && places_alike(&check, 4) && places_alike(&check, 8);
}
