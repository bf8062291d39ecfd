// grpc.health.v1, both sides.
#include "proto/control/control.h"

#include <stdlib.h>
#include <string.h>

#include "generated/grpc/health/v1/health.pb-c.h"
#include "proto/control/control_pack.h"
#include "proto/control/control_text.h"

FALLIBLE proto_decode_health_request(const uint8_t *bytes, size_t length, char **service) {
    *service = NULL;
    TRY(control_check_size("HealthCheckRequest", length));
    Grpc__Health__V1__HealthCheckRequest *request = grpc__health__v1__health_check_request__unpack(NULL, length, bytes);
    if (!request) {
        FAIL(EXPERTD_ERR_MALFORMED, "the bytes are not a valid HealthCheckRequest");
    }
    err_t e = control_check_text("service", request->service);
    if (!err_is(e)) {
        e = control_copy_text(request->service, service);
    }
    grpc__health__v1__health_check_request__free_unpacked(request, NULL);
    return e;
}

FALLIBLE proto_encode_health_response(enum proto_serving status, struct proto_bytes *out) {
    Grpc__Health__V1__HealthCheckResponse response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    response.status = (Grpc__Health__V1__HealthCheckResponse__ServingStatus)status;
    return control_pack(&response.base, out);
}

FALLIBLE proto_encode_health_request(const char *service, struct proto_bytes *out) {
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    request.service = (char *)service;
    return control_pack(&request.base, out);
}

FALLIBLE proto_decode_health_response(const uint8_t *bytes, size_t length, enum proto_serving *status) {
    *status = SERVING_UNKNOWN;
    TRY(control_check_size("HealthCheckResponse", length));
    Grpc__Health__V1__HealthCheckResponse *response = grpc__health__v1__health_check_response__unpack(NULL, length, bytes);
    if (!response) {
        FAIL(EXPERTD_ERR_MALFORMED, "the bytes are not a valid HealthCheckResponse");
    }
    int number = response->status;
    grpc__health__v1__health_check_response__free_unpacked(response, NULL);
    *status = number >= SERVING_UNKNOWN && number <= SERVICE_UNKNOWN ? (enum proto_serving)number : SERVING_UNKNOWN;
    return OK;
}
