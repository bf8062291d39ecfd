#include "daemon/admin/admin_status.h"

#include <stdlib.h>

#include "proto/control/control.h"

void admin_fail(struct admin_call *call, err_t e) {
    struct err_copy error;
    err_save(e, &error);
    struct proto_error proto = {.grpc_code = proto_grpc_code(error.code),
                                .reason = expertd_err_name(error.code),
                                .field = error.field,
                                .message = error.message,
                                .retry_after_ms = proto_retry_after_ms(error.code)};
    struct proto_bytes details = {0};
    if (err_is(proto_encode_status(&proto, &details))) {
        details = (struct proto_bytes){0}; // no memory: the code and the message are enough
    }
    rpc_finish(call->rpc, &(struct rpc_status){.code = proto.grpc_code,
                                               .message = error.message,
                                               .details = details.data,
                                               .details_length = details.length,
                                               .retry_after_ms = proto.retry_after_ms});
    free(details.data);
}

FALLIBLE admin_check_mover(const struct admin *admin) {
    if (!atomic_load(&admin->ready)) {
        FAIL(EXPERTD_ERR_LOADING, "the model is being loaded: try again shortly");
    }
    if (!admin->backend.mover.mover) {
        FAIL(EXPERTD_ERR_UNIMPLEMENTED, "this service does not move experts");
    }
    return OK;
}
