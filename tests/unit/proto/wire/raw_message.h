// Builds messages byte by byte, also invalid ones, for the tests of proto/.
#ifndef EXPERTD_TESTS_UNIT_PROTO_WIRE_RAW_MESSAGE_H
#define EXPERTD_TESTS_UNIT_PROTO_WIRE_RAW_MESSAGE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"

enum { RAW_MAX = 4096, RAW_VARINT = 0, RAW_FIXED64 = 1, RAW_BYTES = 2, RAW_GROUP = 3, RAW_GROUP_END = 4, RAW_FIXED32 = 5 };

struct raw {
    uint8_t bytes[RAW_MAX];
    size_t length;
};

static inline void raw_put(struct raw *raw, const void *bytes, size_t length) {
    assert_true(length <= RAW_MAX - raw->length);
    if (length > 0) {
        memcpy(raw->bytes + raw->length, bytes, length);
    }
    raw->length += length;
}

static inline void raw_varint(struct raw *raw, uint64_t value) {
    while (value >= 0x80) {
        raw_put(raw, &(uint8_t){(uint8_t)(value | 0x80)}, 1);
        value >>= 7;
    }
    raw_put(raw, &(uint8_t){(uint8_t)value}, 1);
}

static inline void raw_tag(struct raw *raw, uint64_t field, int type) {
    raw_varint(raw, field << 3 | (uint64_t)type);
}

static inline void raw_number(struct raw *raw, uint64_t field, uint64_t value) {
    raw_tag(raw, field, RAW_VARINT);
    raw_varint(raw, value);
}

static inline void raw_bytes(struct raw *raw, uint64_t field, const void *bytes, size_t length) {
    raw_tag(raw, field, RAW_BYTES);
    raw_varint(raw, length);
    raw_put(raw, bytes, length);
}

static inline void raw_text(struct raw *raw, uint64_t field, const char *text) {
    raw_bytes(raw, field, text, strlen(text));
}

static inline void raw_message(struct raw *raw, uint64_t field, const struct raw *message) {
    raw_bytes(raw, field, message->bytes, message->length);
}

// Adds a Tensor of `shape` whose data are ascending bytes, `element_bytes` per element.
static inline struct raw raw_tensor(uint64_t dtype, const uint64_t *shape, size_t rank, size_t element_bytes) {
    struct raw tensor = {.length = 0}, packed = {.length = 0};
    size_t bytes = element_bytes;
    for (size_t i = 0; i < rank; i++) {
        raw_varint(&packed, shape[i]);
        bytes *= shape[i];
    }
    uint8_t data[1024];
    assert_true(bytes <= sizeof data);
    for (size_t i = 0; i < bytes; i++) {
        data[i] = (uint8_t)i;
    }
    raw_number(&tensor, 1, dtype);
    raw_message(&tensor, 2, &packed);
    raw_bytes(&tensor, 15, data, bytes);
    return tensor;
}

// Copies the bytes to an allocation of exactly their length, so that a sanitizer detects a read past them. The caller frees it.
static inline uint8_t *raw_exact(const uint8_t *bytes, size_t length) {
    uint8_t *copy = malloc(length ? length : 1);
    assert_non_null(copy);
    if (length > 0) {
        memcpy(copy, bytes, length);
    }
    return copy;
}

static inline void assert_ok(err_t e) {
    if (err_is(e)) {
        fail_msg("%s: %s", expertd_err_name(e.code), expertd_err_message());
    }
}

// Checks the code, the field and a part of the message.
static inline void assert_refused(err_t e, enum expertd_err_code code, const char *field, const char *text) {
    if (e.code != code || strcmp(expertd_err_field(), field) != 0 || !strstr(expertd_err_message(), text)) {
        fail_msg("expected %s at '%s' saying '%s'; got %s at '%s' saying '%s'", expertd_err_name(code), field, text,
                 expertd_err_name(e.code), err_is(e) ? expertd_err_field() : "", err_is(e) ? expertd_err_message() : "");
    }
}

#endif
