// The descriptors of the project's .proto files, embedded at build time: looked up for reflection. Private to proto/.
// Read in place, as one google.protobuf.FileDescriptorSet; constant, so any thread.
#ifndef EXPERTD_PROTO_CONTROL_DESCRIPTORS_H
#define EXPERTD_PROTO_CONTROL_DESCRIPTORS_H

#include <stdbool.h>

#include "proto/wire/wire_reader.h"

enum { DESCRIPTOR_FILES_MAX = 32, DESCRIPTOR_NAME_MAX = 256 };

// One FileDescriptorProto; length 0: none. They are numbered from 0 in the order of the set, imports before importers.
struct wire_span descriptors_file(size_t index);
size_t descriptors_count(void);

// The index of the file of this name ("expertd/v1/expertd.proto"), or of the file that declares this full name: a message, field,
// oneof, enum, enum value, service or method. False where there is none.
bool descriptors_find_file(const char *name, size_t *index);
bool descriptors_find_symbol(const char *symbol, size_t *index, bool *is_message);

// The nth import of a file; false past the last.
bool descriptors_import(size_t index, size_t nth, size_t *imported);
// The nth service of a file, as its full name; false past the last.
bool descriptors_service(size_t index, size_t nth, char name[DESCRIPTOR_NAME_MAX]);

#endif
