// The layout of quantised weights on devices: with one 16-byte load, a lane of a warp reads codes in the order in which mma.sync
// and wgmma need them in its registers. C and C++, host and device.
//
// Columns (n) are padded to a multiple of 64 and cut into tiles of 16. Each tile has a unit of 512 bytes per 64 k of 4-bit codes
// (per 32 k of 8-bit codes): 16 bytes per lane. A step of 16 k takes 4 (8) of these bytes: the lane's four registers of a fragment
// of 16 columns by 16 k. Register i holds column lane / 4 (+ 8 where i is odd). Its low half is k = lane % 4 * 2 (+ 8 for i >= 2),
// its high half is the next k.
//
//   4 bits: nibble i of the 32-bit word is the low half of register i, nibble i + 4 its high half: one shift and mask per register
//   8 bits: one word for registers 0 and 1, one for 2 and 3; bytes 0 and 2 are the first register's halves, 1 and 3 the second's
//
// Codes: [groups][tiles][units][512]. Scales per column: [groups][tiles][scale groups][16] in the format's dtype; zero points: the
// same in bytes. Scales of 64 columns: [groups][n / 64][scale groups] in fp32, with the global scale applied. Padding is 0.
#ifndef EXPERTD_KERNELS_DEVICE_DEVICE_CODES_H
#define EXPERTD_KERNELS_DEVICE_DEVICE_CODES_H

#include <stdint.h>

#include "expertd/kernels/quantised_format.h"

enum {
    DEVICE_CODES_PANEL = 64,
    DEVICE_CODES_TILE = 16,
    DEVICE_CODES_UNIT = 512,
    DEVICE_CODES_STAGE = 64, // k of one stage of the wgmma kernels
};

// The format in which devices hold weights of `format`: codes that their kernels decode, of the same values. UINT4 becomes INT4
// with zero points of 0, IQ4 becomes INT8. Scales with super scales become F32.
static inline struct expertd_quantised_format device_codes_format(const struct expertd_quantised_format *format) {
    struct expertd_quantised_format held = *format;
    if (format->code == EXPERTD_CODE_UINT4) {
        held.code = EXPERTD_CODE_INT4;
        held.zero_points = true;
    } else if (format->code == EXPERTD_CODE_IQ4) {
        held.code = EXPERTD_CODE_INT8;
    }
    held.scale = format->scale == EXPERTD_DTYPE_I8 ? EXPERTD_DTYPE_F32 : format->scale;
    return held;
}

// Whether devices have kernels for the format; not for minima.
static inline bool device_codes_supported(const struct expertd_quantised_format *format) {
    return !format->minima;
}

// Below, a format is one in which devices hold weights, unless stated otherwise.

EXPERTD_INLINE_ON_DEVICE uint32_t device_codes_bits(enum expertd_weight_code code) {
    return code == EXPERTD_CODE_E2M1 || code == EXPERTD_CODE_INT4 ? 4 : 8;
}

// k of one unit.
EXPERTD_INLINE_ON_DEVICE uint32_t device_codes_unit_k(enum expertd_weight_code code) {
    return device_codes_bits(code) == 4 ? 64 : 32;
}

EXPERTD_INLINE_ON_DEVICE size_t device_codes_tiles(size_t n) {
    return (n + DEVICE_CODES_PANEL - 1) / DEVICE_CODES_PANEL * (DEVICE_CODES_PANEL / DEVICE_CODES_TILE);
}

EXPERTD_INLINE_ON_DEVICE size_t device_codes_units(enum expertd_weight_code code, size_t k) {
    return (k + device_codes_unit_k(code) - 1) / device_codes_unit_k(code);
}

// Scale groups of K.
EXPERTD_INLINE_ON_DEVICE size_t device_codes_scales(const struct expertd_quantised_format *format, size_t k) {
    return format->scale_k == 0 ? (k > 0) : (k + format->scale_k - 1) / format->scale_k;
}

// Whether the wgmma kernels support a format, where k is in order and a multiple of DEVICE_CODES_STAGE: the scale groups per stage
// (4 or 2); 1: a scale group has one or more full stages; 0: not supported, mma.sync only.
EXPERTD_INLINE_ON_DEVICE int device_codes_parts(const struct expertd_quantised_format *format) {
    const bool fp4 = format->code == EXPERTD_CODE_E2M1,
               integers = format->code == EXPERTD_CODE_INT4 || format->code == EXPERTD_CODE_INT8;
    if (format->scale_k == 16) {
        return fp4 && format->scale == EXPERTD_DTYPE_F8_E4M3 && !format->scale_of_panel ? 4 : 0;
    }
    if (format->scale_k == 32) {
        return !format->scale_of_panel && (integers || format->scale == EXPERTD_DTYPE_F8_E8M0) ? 2 : 0;
    }
    return !fp4 && format->scale_k % DEVICE_CODES_STAGE == 0 && (format->scale != EXPERTD_DTYPE_F8_E4M3 || format->scale_of_panel);
}

// Bytes of one group's codes, scales and zero points.
struct device_codes_size {
    size_t codes, scales, zeros;
};

static inline struct device_codes_size device_codes_bytes(const struct expertd_quantised_format *format, size_t n, size_t k) {
    size_t tiles = device_codes_tiles(n), scales = device_codes_scales(format, k);
    struct device_codes_size bytes = {tiles * device_codes_units(format->code, k) * DEVICE_CODES_UNIT, 0, 0};
    bytes.scales =
        format->scale_of_panel ? tiles / 4 * scales * sizeof(float) : tiles * scales * 16 * expertd_dtype_size(format->scale);
    bytes.zeros = format->zero_points ? tiles * scales * DEVICE_CODES_TILE : 0;
    return bytes;
}

// The byte offset of code (column, k) in its group's codes; *shift: the code's lowest bit in that byte.
EXPERTD_INLINE_ON_DEVICE size_t device_code_at(enum expertd_weight_code code, size_t units, size_t column, size_t k,
                                               unsigned *shift) {
    const size_t row = column % 16, unit_k = device_codes_unit_k(code), step = k % unit_k / 16, kk = k % 16;
    const size_t lane = row % 8 * 4 + kk % 8 / 2, i = row / 8 + kk / 8 * 2, half = kk % 2;
    const size_t at = (column / 16 * units + k / unit_k) * DEVICE_CODES_UNIT + lane * 16;
    if (unit_k == 64) {
        *shift = (unsigned)(i % 2 * 4);
        return at + step * 4 + i / 2 + half * 2;
    }
    *shift = 0;
    return at + step * 8 + i / 2 * 4 + i % 2 + half * 2;
}

// Converts one group from the layout of expertd_pack_quantised in `format`, which device_codes_supported accepts, to
// device_codes_format(format). codes, scales, zeros: device_codes_bytes of that format; all bytes are written.
void device_codes_pack(const struct expertd_quantised_format *format, const void *packed, size_t n, size_t k, void *codes,
                       void *scales, void *zeros);

#endif
