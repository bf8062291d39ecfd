#include "proto/wire/wire_tensor.h"

#include <inttypes.h>
#include <stdio.h>

#include "expertd/base/dtype.h"

enum { DTYPE_WIRE_LAST = 7 };

// The interface and base use the same numbers for dtypes.
_Static_assert(EXPERTD_DTYPE_NONE == 0 && EXPERTD_DTYPE_F32 == 1 && EXPERTD_DTYPE_F16 == 2 && EXPERTD_DTYPE_BF16 == 3 &&
                   EXPERTD_DTYPE_F8_E4M3 == 4 && EXPERTD_DTYPE_F8_E5M2 == 5 && EXPERTD_DTYPE_I32 == 6 && EXPERTD_DTYPE_I64 == 7 &&
                   DTYPE_WIRE_LAST == 7,
               "expertd.v1.DType");

enum { EXTENT_REGION = 1, EXTENT_OFFSET = 2, EXTENT_LENGTH = 3 };
enum { TENSOR_DTYPE = 1, TENSOR_SHAPE = 2, TENSOR_EXTENT = 3, TENSOR_DATA = 15, TENSOR_PLACE_ONEOF = 1 };

static const struct wire_rule EXTENT_RULES[] = {
    [EXTENT_REGION] = {.name = "region", .type = WIRE_VARINT},
    [EXTENT_OFFSET] = {.name = "offset", .type = WIRE_VARINT},
    [EXTENT_LENGTH] = {.name = "length", .type = WIRE_VARINT},
};
static const struct wire_message EXTENT = {"Extent", EXTENT_RULES, sizeof EXTENT_RULES / sizeof *EXTENT_RULES};

static const struct wire_rule TENSOR_RULES[] = {
    [TENSOR_DTYPE] = {.name = "dtype", .type = WIRE_VARINT},
    [TENSOR_SHAPE] = {.name = "shape", .type = WIRE_VARINT, .repeated = true},
    [TENSOR_EXTENT] = {.name = "extent", .type = WIRE_BYTES, .oneof = TENSOR_PLACE_ONEOF},
    [TENSOR_DATA] = {.name = "data", .type = WIRE_BYTES, .oneof = TENSOR_PLACE_ONEOF},
};
static const struct wire_message TENSOR = {"Tensor", TENSOR_RULES, sizeof TENSOR_RULES / sizeof *TENSOR_RULES};

FALLIBLE wire_read_dtype(uint64_t value, const char *path, const char *name, enum expertd_dtype *out) {
    if (value > DTYPE_WIRE_LAST) {
        return wire_fail(EXPERTD_ERR_DTYPE_UNSUPPORTED, path, name,
                         "%" PRId64 " is not a DType; the greatest known value is %d (I64)", (int64_t)value, DTYPE_WIRE_LAST);
    }
    *out = (enum expertd_dtype)value;
    return OK;
}

FALLIBLE wire_read_uint32(uint64_t value, const char *path, const char *name, uint32_t *out) {
    if (value > UINT32_MAX) {
        return wire_fail(EXPERTD_ERR_MALFORMED, path, name, "%" PRIu64 " exceeds 32 bits", value);
    }
    *out = (uint32_t)value;
    return OK;
}

FALLIBLE wire_read_extent(struct wire_span span, enum wire_unknown unknown, const char *path, struct wire_extent *out) {
    struct wire_cursor cursor = {.message = &EXTENT, .path = path, .rest = span, .unknown = unknown};
    struct wire_field field;
    bool more;
    *out = (struct wire_extent){0};
    for (;;) {
        TRY(wire_next(&cursor, &field, &more));
        if (!more) {
            break;
        }
        uint64_t *member = field.number == EXTENT_REGION   ? &out->region
                           : field.number == EXTENT_OFFSET ? &out->offset
                                                           : &out->length;
        *member = field.value;
    }
    if (out->offset % WIRE_EXTENT_ALIGN != 0) {
        return wire_fail(EXPERTD_ERR_TENSOR_BYTES, path, "offset", "%" PRIu64 " is not a multiple of %d", out->offset,
                         WIRE_EXTENT_ALIGN);
    }
    uint64_t end;
    if (__builtin_add_overflow(out->offset, out->length, &end)) {
        return wire_fail(EXPERTD_ERR_TENSOR_BYTES, path, "length", "offset %" PRIu64 " plus length %" PRIu64 " exceeds 2^64",
                         out->offset, out->length);
    }
    return OK;
}

static FALLIBLE append_dim(uint64_t dim, const char *path, struct expertd_tensor_view *view) {
    if (view->rank == EXPERTD_TENSOR_RANK_MAX) {
        return wire_fail(EXPERTD_ERR_SHAPE_MISMATCH, path, "shape", "more than %d dimensions", EXPERTD_TENSOR_RANK_MAX);
    }
    view->shape[view->rank++] = dim;
    return OK;
}

// Reads one dimension, or several packed ones.
static FALLIBLE read_shape(const struct wire_field *field, const char *path, struct expertd_tensor_view *view) {
    if (field->type == WIRE_VARINT) {
        return append_dim(field->value, path, view);
    }
    struct wire_span rest = field->span;
    while (rest.length > 0) { // at most EXPERTD_TENSOR_RANK_MAX iterations
        uint64_t dim;
        if (err_is(wire_read_varint(&rest, &dim))) {
            return wire_fail(EXPERTD_ERR_MALFORMED, path, "shape", "the packed dimensions end inside a varint");
        }
        TRY(append_dim(dim, path, view));
    }
    return OK;
}

static FALLIBLE read_extent_of(struct wire_span span, enum wire_unknown unknown, const char *path, struct wire_extent *out) {
    char place[EXPERTD_ERR_FIELD_MAX];
    snprintf(place, sizeof place, "%s.extent", path);
    return wire_read_extent(span, unknown, place, out);
}

static FALLIBLE check_bytes(const struct wire_tensor *tensor, const char *path) {
    const struct expertd_tensor_view *view = &tensor->view;
    if (view->dtype == EXPERTD_DTYPE_NONE) {
        return wire_fail(EXPERTD_ERR_DTYPE_UNSUPPORTED, path, "dtype", "the tensor has no dtype");
    }
    char text[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
    uint64_t needed;
    if (err_is(expertd_tensor_bytes(view->dtype, view->shape, view->rank, &needed))) {
        return wire_fail(EXPERTD_ERR_SHAPE_MISMATCH, path, "shape", "the size of %s%s exceeds 63 bits",
                         expertd_dtype_name(view->dtype), expertd_tensor_shape_text(view->shape, view->rank, text));
    }
    uint64_t received = tensor->has_extent ? tensor->extent.length : view->bytes;
    if (received != needed) {
        return wire_fail(EXPERTD_ERR_TENSOR_BYTES, path, tensor->has_extent ? "extent.length" : "data",
                         "received %" PRIu64 " bytes, but %s%s has %" PRIu64, received, expertd_dtype_name(view->dtype),
                         expertd_tensor_shape_text(view->shape, view->rank, text), needed);
    }
    return OK;
}

FALLIBLE wire_read_tensor(struct wire_span span, enum wire_unknown unknown, const char *path, struct wire_tensor *out) {
    struct wire_cursor cursor = {.message = &TENSOR, .path = path, .rest = span, .unknown = unknown};
    struct wire_field field;
    bool more;
    *out = (struct wire_tensor){.present = true};
    for (;;) {
        TRY(wire_next(&cursor, &field, &more));
        if (!more) {
            return check_bytes(out, path);
        }
        switch (field.number) {
        case TENSOR_DTYPE:
            TRY(wire_read_dtype(field.value, path, "dtype", &out->view.dtype));
            break;
        case TENSOR_SHAPE:
            TRY(read_shape(&field, path, &out->view));
            break;
        case TENSOR_EXTENT:
            out->has_extent = true;
            TRY(read_extent_of(field.span, unknown, path, &out->extent));
            break;
        case TENSOR_DATA:
            out->view.data = field.span.bytes;
            out->view.bytes = field.span.length;
            break;
        default:
            INVARIANT(!"a field of the table");
        }
    }
}
