#include "proto/wire/wire_writer.h"

#include <string.h>

#include "proto/wire/wire_reader.h"

static void put_byte(struct wire_writer *writer, uint8_t byte) {
    if (writer->out) {
        INVARIANT(writer->used < writer->capacity);
        writer->out[writer->used] = byte;
    }
    writer->used++;
}

void wire_put_varint(struct wire_writer *writer, uint64_t value) {
    while (value >= 0x80) {
        put_byte(writer, (uint8_t)(value | 0x80));
        value >>= 7;
    }
    put_byte(writer, (uint8_t)value);
}

void wire_put_raw(struct wire_writer *writer, const void *bytes, size_t length) {
    if (writer->out && length > 0) {
        INVARIANT(length <= writer->capacity - writer->used);
        memcpy(writer->out + writer->used, bytes, length);
    }
    writer->used += length;
}

static void put_tag(struct wire_writer *writer, uint32_t field, enum wire_type type) {
    wire_put_varint(writer, (uint64_t)field << 3 | type);
}

void wire_put_number(struct wire_writer *writer, uint32_t field, uint64_t value) {
    if (value != 0) {
        put_tag(writer, field, WIRE_VARINT);
        wire_put_varint(writer, value);
    }
}

void wire_put_fixed64(struct wire_writer *writer, uint32_t field, uint64_t value) {
    if (value != 0) {
        put_tag(writer, field, WIRE_FIXED64);
        for (int shift = 0; shift < 64; shift += 8) {
            put_byte(writer, (uint8_t)(value >> shift));
        }
    }
}

void wire_put_prefix(struct wire_writer *writer, uint32_t field, size_t length) {
    put_tag(writer, field, WIRE_BYTES);
    wire_put_varint(writer, length);
}

static void put_extent_body(struct wire_writer *writer, const struct wire_extent *extent) {
    wire_put_number(writer, 1, extent->region);
    wire_put_number(writer, 2, extent->offset);
    wire_put_number(writer, 3, extent->length);
}

void wire_put_extent(struct wire_writer *writer, uint32_t field, const struct wire_extent *extent) {
    struct wire_writer measure = {0};
    put_extent_body(&measure, extent);
    wire_put_prefix(writer, field, measure.used);
    put_extent_body(writer, extent);
}

static void put_dims(struct wire_writer *writer, const struct wire_tensor_head *head) {
    for (uint32_t i = 0; i < head->rank; i++) {
        wire_put_varint(writer, head->shape[i]);
    }
}

static void put_tensor_body(struct wire_writer *writer, const struct wire_tensor_head *head) {
    wire_put_number(writer, 1, head->dtype);
    if (head->rank > 0) {
        struct wire_writer dims = {0};
        put_dims(&dims, head);
        wire_put_prefix(writer, 2, dims.used);
        put_dims(writer, head);
    }
    if (head->extent) {
        wire_put_extent(writer, 3, head->extent);
    } else {
        wire_put_prefix(writer, 15, head->data_bytes); // also if empty: a member of a oneof that is set is always sent
    }
}

void wire_put_tensor_head(struct wire_writer *writer, uint32_t field, const struct wire_tensor_head *head) {
    struct wire_writer measure = {0};
    put_tensor_body(&measure, head);
    wire_put_prefix(writer, field, measure.used + (head->extent ? 0 : head->data_bytes));
    put_tensor_body(writer, head);
}
