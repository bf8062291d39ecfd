// What the files behind proto/admin/admin.h share: lists of numbers, a Placement, whole messages. Private to proto/.
#ifndef EXPERTD_PROTO_ADMIN_ADMIN_WIRE_H
#define EXPERTD_PROTO_ADMIN_ADMIN_WIRE_H

#include "proto/admin/admin.h"
#include "proto/wire/wire_reader.h"
#include "proto/wire/wire_writer.h"

// A repeated number field as it comes in: packed or not, in any number of pieces.
struct number_list {
    uint64_t *values; // [count], owned
    size_t count, reserved;
};

// Adds what `field` carries. EXPERTD_ERR_MALFORMED above `greatest`, at `name` below `path`.
FALLIBLE admin_take_numbers(const struct wire_field *field, const char *path, const char *name, uint64_t greatest,
                            struct number_list *list);
// The list as 32-bit numbers, malloc'd, never NULL on success.
FALLIBLE admin_numbers_32(const struct number_list *list, uint32_t **out);

void admin_put_numbers_32(struct wire_writer *writer, uint32_t field, const uint32_t *values, size_t count);
void admin_put_numbers_64(struct wire_writer *writer, uint32_t field, const uint64_t *values, size_t count);
void admin_put_double(struct wire_writer *writer, uint32_t field, double value);
double admin_double(uint64_t bits);

// A field that is a message: measured, then written.
typedef void (*admin_put)(struct wire_writer *writer, const void *value);
void admin_put_message(struct wire_writer *writer, uint32_t field, admin_put put, const void *value);
// A whole message. Never NULL on success, also where it is empty.
FALLIBLE admin_encode(admin_put put, const void *value, struct proto_bytes *out);

// Calls `take` for each field of a message that `message` knows.
typedef err_t (*admin_take)(const struct wire_field *field, const struct wire_cursor *cursor, void *out);
FALLIBLE admin_decode(const struct wire_message *message, const char *path, struct wire_span span, enum wire_unknown unknown,
                      admin_take take, void *out);

// ---- admin_placement.c
void admin_put_placement(struct wire_writer *writer, const void *placement); // an admin_put of struct proto_placement
void admin_put_load(struct wire_writer *writer, const void *placement);
// On error *out is zeroed.
FALLIBLE admin_read_placement(struct wire_span span, const char *path, enum wire_unknown unknown, struct proto_placement *out);
FALLIBLE admin_read_load(struct wire_span span, struct proto_placement *out);

#endif
