// Looks up the descriptors of the .proto files for reflection. They are embedded at build time as a
// google.protobuf.FileDescriptorSet and read in place. Constant, so any thread. Private to proto/.
#ifndef EXPERTD_PROTO_CONTROL_DESCRIPTORS_H
#define EXPERTD_PROTO_CONTROL_DESCRIPTORS_H

#include <stdbool.h>

#include "proto/wire/wire_reader.h"

enum { DESCRIPTOR_FILES_MAX = 32, DESCRIPTOR_NAME_MAX = 256 };

// Returns a FileDescriptorProto; length 0: there is no such file. Files are numbered from 0 in the order of the set, in which
// imports precede the files that import them.
struct wire_span descriptors_file(size_t index);
size_t descriptors_count(void);

// Find the file with this name ("expertd/v1/expertd.proto"), or the file that declares this full name: a message, field, oneof,
// enum, enum value, service or method. False: there is none.
bool descriptors_find_file(const char *name, size_t *index);
bool descriptors_find_symbol(const char *symbol, size_t *index, bool *is_message);

// The nth import of a file. False: it has fewer.
bool descriptors_import(size_t index, size_t nth, size_t *imported);
// The full name of the nth service of a file. False: it has fewer.
bool descriptors_service(size_t index, size_t nth, char name[DESCRIPTOR_NAME_MAX]);

#endif
