// expertd.v1.OpenRegion and CloseRegion, both sides.
#include "proto/control/control.h"

#include <stdio.h>
#include <string.h>

#include "generated/expertd/v1/expertd.pb-c.h"
#include "proto/control/control_pack.h"
#include "proto/control/control_text.h"

// Refuses unknown fields: they could change the meaning of the request.
static FALLIBLE refuse_unknown(const ProtobufCMessage *message) {
    if (message->n_unknown_fields > 0) {
        char field[16];
        snprintf(field, sizeof field, "%u", (unsigned)message->unknown_fields[0].tag);
        FAIL_FIELD(EXPERTD_ERR_UNKNOWN_FIELD, field, "field %s of %s is unknown to this daemon", field,
                   message->descriptor->short_name);
    }
    return OK;
}

FALLIBLE proto_decode_open_region_request(const uint8_t *bytes, size_t length, uint64_t *region_bytes) {
    *region_bytes = 0;
    TRY(control_check_size("OpenRegionRequest", length));
    Expertd__V1__OpenRegionRequest *request = expertd__v1__open_region_request__unpack(NULL, length, bytes);
    if (!request) {
        FAIL(EXPERTD_ERR_MALFORMED, "the bytes are not a valid OpenRegionRequest");
    }
    err_t e = refuse_unknown(&request->base);
    *region_bytes = request->bytes;
    expertd__v1__open_region_request__free_unpacked(request, NULL);
    return e;
}

FALLIBLE proto_encode_open_region_request(uint64_t region_bytes, struct proto_bytes *out) {
    Expertd__V1__OpenRegionRequest request = EXPERTD__V1__OPEN_REGION_REQUEST__INIT;
    request.bytes = region_bytes;
    return control_pack(&request.base, out);
}

FALLIBLE proto_encode_open_region_response(const struct open_region_response *response, struct proto_bytes *out) {
    Expertd__V1__OpenRegionResponse message = EXPERTD__V1__OPEN_REGION_RESPONSE__INIT;
    message.region = response->region;
    message.socket = (char *)response->socket;
    message.token.data = (uint8_t *)response->token;
    message.token.len = sizeof response->token;
    return control_pack(&message.base, out);
}

FALLIBLE proto_decode_open_region_response(const uint8_t *bytes, size_t length, struct open_region_response *out) {
    *out = (struct open_region_response){0};
    TRY(control_check_size("OpenRegionResponse", length));
    Expertd__V1__OpenRegionResponse *message = expertd__v1__open_region_response__unpack(NULL, length, bytes);
    if (!message) {
        FAIL(EXPERTD_ERR_MALFORMED, "the bytes are not a valid OpenRegionResponse");
    }
    err_t e = OK;
    if (message->token.len != sizeof out->token || strlen(message->socket) >= sizeof out->socket) {
        e = err_record(EXPERTD_ERR_MALFORMED, NULL,
                       "OpenRegionResponse has a token of %zu bytes and a socket path of %zu: expected %zu and fewer than %zu",
                       message->token.len, strlen(message->socket), sizeof out->token, sizeof out->socket);
    } else {
        out->region = message->region;
        memcpy(out->token, message->token.data, sizeof out->token);
        memcpy(out->socket, message->socket, strlen(message->socket) + 1);
    }
    expertd__v1__open_region_response__free_unpacked(message, NULL);
    return e;
}

FALLIBLE proto_decode_close_region_request(const uint8_t *bytes, size_t length, uint64_t *region) {
    *region = 0;
    TRY(control_check_size("CloseRegionRequest", length));
    Expertd__V1__CloseRegionRequest *request = expertd__v1__close_region_request__unpack(NULL, length, bytes);
    if (!request) {
        FAIL(EXPERTD_ERR_MALFORMED, "the bytes are not a valid CloseRegionRequest");
    }
    err_t e = refuse_unknown(&request->base);
    *region = request->region;
    expertd__v1__close_region_request__free_unpacked(request, NULL);
    return e;
}

FALLIBLE proto_encode_close_region_request(uint64_t region, struct proto_bytes *out) {
    Expertd__V1__CloseRegionRequest request = EXPERTD__V1__CLOSE_REGION_REQUEST__INIT;
    request.region = region;
    return control_pack(&request.base, out);
}

FALLIBLE proto_encode_close_region_response(struct proto_bytes *out) {
    Expertd__V1__CloseRegionResponse response = EXPERTD__V1__CLOSE_REGION_RESPONSE__INIT;
    return control_pack(&response.base, out);
}
