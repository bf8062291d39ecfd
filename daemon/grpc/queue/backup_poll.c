#include "daemon/grpc/queue/backup_poll.h"

#include <grpc/grpc.h>
#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <grpc/support/time.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"

enum { BACKUP_POLL_WAIT_MS = 1000 };

static void fail_a_call(grpc_channel *channel, grpc_completion_queue *queue, int other_end) {
    grpc_metadata_array initial, trailing;
    grpc_metadata_array_init(&initial);
    grpc_metadata_array_init(&trailing);
    grpc_status_code status;
    grpc_slice details = grpc_empty_slice();
    grpc_call *call = grpc_channel_create_call(
        channel, NULL, GRPC_PROPAGATE_DEFAULTS, queue, grpc_slice_from_static_string("/nudge"), NULL,
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(BACKUP_POLL_WAIT_MS, GPR_TIMESPAN)), NULL);
    const grpc_op ops[] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA},
        {.op = GRPC_OP_RECV_INITIAL_METADATA, .data.recv_initial_metadata.recv_initial_metadata = &initial},
        {.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
         .data.recv_status_on_client = {.trailing_metadata = &trailing, .status = &status, .status_details = &details}}};
    grpc_call_error failed = grpc_call_start_batch(call, ops, sizeof ops / sizeof ops[0], call, NULL);
    close(other_end); // after the batch's write, which would otherwise detect it before the poller does
    INVARIANT(failed == GRPC_CALL_OK);
    grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL); // bounded by the call's deadline
    grpc_slice_unref(details);
    grpc_metadata_array_destroy(&initial);
    grpc_metadata_array_destroy(&trailing);
    grpc_call_unref(call);
}

void backup_poll_end(void) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends)) {
        return; // no descriptor left: grpc_shutdown may take ten seconds
    }
    grpc_channel_credentials *credentials = grpc_insecure_credentials_create();
    grpc_channel *channel = grpc_channel_create_from_fd("nudge", ends[0], credentials, NULL); // owns ends[0]
    grpc_completion_queue *queue = grpc_completion_queue_create_for_next(NULL);
    fail_a_call(channel, queue, ends[1]);
    grpc_channel_destroy(channel);
    grpc_channel_credentials_release(credentials);
    grpc_completion_queue_shutdown(queue);
    grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    grpc_completion_queue_destroy(queue);
}
