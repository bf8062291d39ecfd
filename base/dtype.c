#include "expertd/base/dtype.h"

#include "base/err.h"

struct dtype_row {
    const char *name;
    size_t size;
};

static const struct dtype_row ROWS[EXPERTD_DTYPE_COUNT] = {
    [EXPERTD_DTYPE_F32] = {"F32", 4},         [EXPERTD_DTYPE_F16] = {"F16", 2},         [EXPERTD_DTYPE_BF16] = {"BF16", 2},
    [EXPERTD_DTYPE_F8_E4M3] = {"F8_E4M3", 1}, [EXPERTD_DTYPE_F8_E5M2] = {"F8_E5M2", 1}, [EXPERTD_DTYPE_I32] = {"I32", 4},
    [EXPERTD_DTYPE_I64] = {"I64", 8},         [EXPERTD_DTYPE_F64] = {"F64", 8},         [EXPERTD_DTYPE_I8] = {"I8", 1},
    [EXPERTD_DTYPE_U8] = {"U8", 1},           [EXPERTD_DTYPE_I16] = {"I16", 2},         [EXPERTD_DTYPE_U16] = {"U16", 2},
    [EXPERTD_DTYPE_U32] = {"U32", 4},         [EXPERTD_DTYPE_U64] = {"U64", 8},         [EXPERTD_DTYPE_BOOL] = {"BOOL", 1},
    [EXPERTD_DTYPE_F8_E8M0] = {"F8_E8M0", 1},
};

const char *expertd_dtype_name(enum expertd_dtype dtype) {
    return dtype > EXPERTD_DTYPE_NONE && dtype < EXPERTD_DTYPE_COUNT ? ROWS[dtype].name : "?";
}

enum expertd_dtype expertd_dtype_from_name(const char *name, size_t length) {
    for (int d = EXPERTD_DTYPE_NONE + 1; d < EXPERTD_DTYPE_COUNT; d++) {
        if (strlen(ROWS[d].name) == length && memcmp(ROWS[d].name, name, length) == 0) {
            return (enum expertd_dtype)d;
        }
    }
    return EXPERTD_DTYPE_NONE;
}

size_t expertd_dtype_size(enum expertd_dtype dtype) {
    return dtype > EXPERTD_DTYPE_NONE && dtype < EXPERTD_DTYPE_COUNT ? ROWS[dtype].size : 0;
}

bool expertd_dtype_is_float16_or_32(enum expertd_dtype dtype) {
    return dtype == EXPERTD_DTYPE_F32 || dtype == EXPERTD_DTYPE_F16 || dtype == EXPERTD_DTYPE_BF16;
}

static void widen_16(float (*convert)(uint16_t), const uint8_t *src, size_t count, float *dst) {
    for (size_t i = 0; i < count; i++) {
        uint16_t h;
        memcpy(&h, src + 2 * i, sizeof h);
        dst[i] = convert(h);
    }
}

static void widen_bf16(const uint8_t *src, size_t count, float *dst) {
    for (size_t i = 0; i < count; i++) {
        uint16_t h;
        memcpy(&h, src + 2 * i, sizeof h);
        dst[i] = expertd_f32_from_bf16(h);
    }
}

static void widen_8(float (*convert)(uint8_t), const uint8_t *src, size_t count, float *dst) {
    for (size_t i = 0; i < count; i++) {
        dst[i] = convert(src[i]);
    }
}

void expertd_dtype_widen(enum expertd_dtype dtype, const void *src, size_t count, float *dst) {
    if (count == 0) {
        return;
    }
    switch (dtype) {
    case EXPERTD_DTYPE_F32:
        memcpy(dst, src, count * sizeof *dst);
        return;
    case EXPERTD_DTYPE_BF16:
        widen_bf16(src, count, dst);
        return;
    case EXPERTD_DTYPE_F16:
        widen_16(expertd_f32_from_f16, src, count, dst);
        return;
    case EXPERTD_DTYPE_F8_E4M3:
        widen_8(expertd_f32_from_e4m3, src, count, dst);
        return;
    case EXPERTD_DTYPE_F8_E5M2:
        widen_8(expertd_f32_from_e5m2, src, count, dst);
        return;
    default:
        INVARIANT(!"a float dtype");
    }
}

void expertd_dtype_narrow(const float *src, size_t count, enum expertd_dtype dtype, void *dst) {
    if (count == 0) {
        return;
    }
    uint8_t *bytes = dst;
    switch (dtype) {
    case EXPERTD_DTYPE_F32:
        memcpy(dst, src, count * sizeof *src);
        return;
    case EXPERTD_DTYPE_BF16:
        for (size_t i = 0; i < count; i++) {
            uint16_t h = expertd_bf16_from_f32(src[i]);
            memcpy(bytes + 2 * i, &h, sizeof h);
        }
        return;
    case EXPERTD_DTYPE_F16:
        for (size_t i = 0; i < count; i++) {
            uint16_t h = expertd_f16_from_f32(src[i]);
            memcpy(bytes + 2 * i, &h, sizeof h);
        }
        return;
    default:
        INVARIANT(!"F32, BF16 or F16");
    }
}
