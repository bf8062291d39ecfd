// Serialises protobuf-c messages into malloc'd bytes. Private to proto/.
#ifndef EXPERTD_PROTO_CONTROL_CONTROL_PACK_H
#define EXPERTD_PROTO_CONTROL_CONTROL_PACK_H

#include "proto/control/control.h"

struct ProtobufCMessage; // the base of every generated message

// out->data is not NULL on success, also for an empty message. EXPERTD_ERR_NOMEM.
FALLIBLE control_pack(const struct ProtobufCMessage *message, struct proto_bytes *out);
FALLIBLE control_copy_text(const char *text, char **out);

#endif
