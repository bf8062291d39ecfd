#include "proto/control/control_pack.h"

#include <protobuf-c/protobuf-c.h>
#include <stdlib.h>
#include <string.h>

FALLIBLE control_pack(const ProtobufCMessage *message, struct proto_bytes *out) {
    size_t length = protobuf_c_message_get_packed_size(message);
    *out = (struct proto_bytes){malloc(length + 1), length};
    if (!out->data) {
        out->length = 0;
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a %s of %zu bytes", message->descriptor->short_name, length);
    }
    protobuf_c_message_pack(message, out->data);
    return OK;
}

FALLIBLE control_copy_text(const char *text, char **out) {
    *out = strdup(text);
    if (!*out) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a text of %zu bytes", strlen(text));
    }
    return OK;
}
