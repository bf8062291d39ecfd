// protobuf-c's messages into malloc'd bytes. Private to proto/.
#ifndef EXPERTD_PROTO_CONTROL_PACK_H
#define EXPERTD_PROTO_CONTROL_PACK_H

#include <protobuf-c/protobuf-c.h>

#include "proto/control.h"

// Never NULL on success, also where the message is empty. ERR_NOMEM.
FALLIBLE control_pack(const ProtobufCMessage *message, struct proto_bytes *out);
FALLIBLE control_copy_text(const char *text, char **out);

#endif
