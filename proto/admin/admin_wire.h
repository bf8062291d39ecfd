// Helpers of the files that implement proto/admin/admin.h: lists of numbers, Placement, complete messages. Private to proto/.
#ifndef EXPERTD_PROTO_ADMIN_ADMIN_WIRE_H
#define EXPERTD_PROTO_ADMIN_ADMIN_WIRE_H

#include "proto/admin/admin.h"
#include "proto/wire/wire_reader.h"
#include "proto/wire/wire_writer.h"

// A repeated number field, collected from packed and unpacked occurrences.
struct number_list {
    uint64_t *values; // [count], owned
    size_t count, reserved;
};

// Appends the numbers of `field`. EXPERTD_ERR_MALFORMED at `name` below `path`: a number exceeds `greatest`.
FALLIBLE admin_read_numbers(const struct wire_field *field, const char *path, const char *name, uint64_t greatest,
                            struct number_list *list);
// Converts the list to malloc'd 32-bit numbers, not NULL on success.
FALLIBLE admin_numbers_32(const struct number_list *list, uint32_t **out);

void admin_put_numbers_32(struct wire_writer *writer, uint32_t field, const uint32_t *values, size_t count);
void admin_put_numbers_64(struct wire_writer *writer, uint32_t field, const uint64_t *values, size_t count);
void admin_put_double(struct wire_writer *writer, uint32_t field, double value);
double admin_double(uint64_t bits);

// Writes a field that is a message: measures it with `put`, then writes it.
typedef void (*admin_put)(struct wire_writer *writer, const void *value);
void admin_put_message(struct wire_writer *writer, uint32_t field, admin_put put, const void *value);
// Encodes a complete message. out->data is not NULL on success, also for an empty message.
FALLIBLE admin_encode(admin_put put, const void *value, struct proto_bytes *out);

// Calls `on_field` for each known field of a message.
typedef err_t (*admin_on_field)(const struct wire_field *field, const struct wire_cursor *cursor, void *out);
FALLIBLE admin_decode(const struct wire_message *message, const char *path, struct wire_span span, enum wire_unknown unknown,
                      admin_on_field on_field, void *out);

// ---- admin_placement.c
void admin_put_placement(struct wire_writer *writer, const void *placement); // an admin_put for struct proto_placement
void admin_put_load(struct wire_writer *writer, const void *placement);
// On error *out is zeroed.
FALLIBLE admin_read_placement(struct wire_span span, const char *path, enum wire_unknown unknown, struct proto_placement *out);
FALLIBLE admin_read_load(struct wire_span span, struct proto_placement *out);

#endif
