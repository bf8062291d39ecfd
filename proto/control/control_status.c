// gRPC's status codes as error codes and names: for errors that a peer did not describe.
#include <string.h>

#include "proto/control/control.h"

static const struct proto_status STATUSES[] = {
    {EXPERTD_ERR_OK, "OK"},
    {EXPERTD_ERR_CANCELLED, "CANCELLED"},
    {EXPERTD_ERR_INTERNAL, "UNKNOWN"},
    {EXPERTD_ERR_INVALID, "INVALID_ARGUMENT"},
    {EXPERTD_ERR_DEADLINE, "DEADLINE_EXCEEDED"},
    {EXPERTD_ERR_MODEL_UNKNOWN, "NOT_FOUND"},
    {EXPERTD_ERR_INTERNAL, "ALREADY_EXISTS"},
    {EXPERTD_ERR_PERMISSION, "PERMISSION_DENIED"},
    {EXPERTD_ERR_QUEUE_FULL, "RESOURCE_EXHAUSTED"},
    {EXPERTD_ERR_INVALID, "FAILED_PRECONDITION"},
    {EXPERTD_ERR_INTERNAL, "ABORTED"},
    {EXPERTD_ERR_INVALID, "OUT_OF_RANGE"},
    {EXPERTD_ERR_UNIMPLEMENTED, "UNIMPLEMENTED"},
    {EXPERTD_ERR_INTERNAL, "INTERNAL"},
    {EXPERTD_ERR_UNAVAILABLE, "UNAVAILABLE"},
    {EXPERTD_ERR_INTERNAL, "DATA_LOSS"},
    {EXPERTD_ERR_PERMISSION, "UNAUTHENTICATED"},
};
enum { STATUS_COUNT = sizeof STATUSES / sizeof *STATUSES, STATUS_UNKNOWN = 2 };

struct proto_status proto_status_of(int grpc_code) {
    return STATUSES[grpc_code >= 0 && grpc_code < STATUS_COUNT ? grpc_code : STATUS_UNKNOWN];
}

enum expertd_err_code proto_code_of_reason(const char *reason, int grpc_code) {
    for (int code = EXPERTD_ERR_OK + 1; code < EXPERTD_ERR_CODE_COUNT; code++) {
        if (strcmp(expertd_err_name((enum expertd_err_code)code), reason) == 0) {
            return (enum expertd_err_code)code;
        }
    }
    enum expertd_err_code code = proto_status_of(grpc_code).code;
    return code == EXPERTD_ERR_OK ? EXPERTD_ERR_INTERNAL : code;
}
