#include "daemon/grpc/accept.h"

#include <grpc/support/time.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/grpc/call.h"
#include "daemon/grpc/security/identity.h"
#include "daemon/log/log.h"
#include "proto/control/control.h"

struct method {
    const char *name;
    enum rpc_role role;
};

static const struct method METHODS[RPC_METHOD_COUNT] = {
    [RPC_DESCRIBE] = {"expertd.v1.Experts/Describe", RPC_ROLE_CALLER},
    [RPC_FORWARD] = {"expertd.v1.Experts/Forward", RPC_ROLE_CALLER},
    [RPC_STREAM] = {"expertd.v1.Experts/Stream", RPC_ROLE_CALLER},
    [RPC_OPEN_REGION] = {"expertd.v1.Experts/OpenRegion", RPC_ROLE_CALLER},
    [RPC_CLOSE_REGION] = {"expertd.v1.Experts/CloseRegion", RPC_ROLE_CALLER},
    [RPC_HEALTH_CHECK] = {"grpc.health.v1.Health/Check", RPC_ROLE_ANY},
    [RPC_HEALTH_WATCH] = {"grpc.health.v1.Health/Watch", RPC_ROLE_ANY},
    [RPC_REFLECT_V1] = {"grpc.reflection.v1.ServerReflection/ServerReflectionInfo", RPC_ROLE_CALLER},
    [RPC_REFLECT_V1ALPHA] = {"grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", RPC_ROLE_CALLER},
    [RPC_SHARD_CONTROL] = {"expertd.shard.v1.Shard/Control", RPC_ROLE_FRONT},
    [RPC_SHARD_ROWS] = {"expertd.shard.v1.Shard/Rows", RPC_ROLE_FRONT},
    [RPC_ADMIN_SHOW_PLACEMENT] = {"expertd.admin.v1.Admin/ShowPlacement", RPC_ROLE_ADMIN},
    [RPC_ADMIN_PLAN_PLACEMENT] = {"expertd.admin.v1.Admin/PlanPlacement", RPC_ROLE_ADMIN},
    [RPC_ADMIN_APPLY_PLACEMENT] = {"expertd.admin.v1.Admin/ApplyPlacement", RPC_ROLE_ADMIN},
    [RPC_ADMIN_DRAIN] = {"expertd.admin.v1.Admin/Drain", RPC_ROLE_ADMIN},
    [RPC_ADMIN_GET_LOAD] = {"expertd.admin.v1.Admin/GetLoad", RPC_ROLE_ADMIN},
    [RPC_ADMIN_LIST_SHARDS] = {"expertd.admin.v1.Admin/ListShards", RPC_ROLE_ADMIN},
    [RPC_ADMIN_CHANGE_SHARD] = {"expertd.admin.v1.Admin/ChangeShard", RPC_ROLE_ADMIN},
};

static const char *const PLANE_TEXTS[] = {
    [RPC_PLANE_PUBLIC] =
        ("this server has expertd.v1.Experts, grpc.health.v1.Health and server reflection; expertd.shard.v1.Shard is "
         "served by processes started with --role shard"),
    [RPC_PLANE_SHARD] = "this server has expertd.shard.v1.Shard, expertd.v1.Experts, grpc.health.v1.Health and server reflection",
    [RPC_PLANE_ADMIN] = "this is the admin socket, which has expertd.admin.v1.Admin only",
};

static bool is_on(int method, enum rpc_plane plane) {
    if (method >= RPC_ADMIN_SHOW_PLACEMENT) {
        return plane == RPC_PLANE_ADMIN;
    }
    return plane == RPC_PLANE_SHARD || (plane == RPC_PLANE_PUBLIC && method < RPC_SHARD_CONTROL);
}

const char *rpc_method_name(enum rpc_method method) {
    INVARIANT((unsigned)method < RPC_METHOD_COUNT);
    return METHODS[method].name;
}

// RPC_METHOD_COUNT: the plane has no method of this path. Paths begin with a slash.
static int find_method(grpc_slice path, enum rpc_plane plane) {
    const char *text = (const char *)GRPC_SLICE_START_PTR(path);
    size_t length = GRPC_SLICE_LENGTH(path);
    for (int method = 0; method < RPC_METHOD_COUNT; method++) {
        if (is_on(method, plane) && length == strlen(METHODS[method].name) + 1 &&
            !memcmp(text + 1, METHODS[method].name, length - 1)) {
            return method;
        }
    }
    return RPC_METHOD_COUNT;
}

static int64_t monotonic_ns(gpr_timespec deadline) {
    gpr_timespec forever = gpr_inf_future(deadline.clock_type);
    if (!gpr_time_cmp(deadline, forever)) {
        return CLOCK_NEVER;
    }
    gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
    if (left.tv_sec >= CLOCK_NEVER / NS_PER_S) {
        return CLOCK_NEVER;
    }
    return clock_add_ns(clock_now_ns(), left.tv_sec * (int64_t)NS_PER_S + left.tv_nsec);
}

static void request_call(struct accept_slot *slot) {
    struct rpc_thread *thread = slot->thread;
    grpc_call_details_init(&slot->details);
    grpc_metadata_array_init(&slot->metadata);
    TAG_HAND_OVER(&slot->tag);
    grpc_call_error failed = grpc_server_request_call(thread->server->server, &slot->call, &slot->details, &slot->metadata,
                                                      thread->queue.queue, thread->queue.queue, &slot->tag);
    INVARIANT(failed == GRPC_CALL_OK);
}

static void refuse(struct accept_slot *slot, int method, const struct proto_error *error) {
    struct proto_bytes details = {0};
    if (err_is(proto_encode_status(error, &details))) {
        details = (struct proto_bytes){0}; // no memory: the code and the message are enough
    }
    struct rpc_status status = {.code = error->grpc_code,
                                .message = error->message,
                                .details = details.data,
                                .details_length = details.length,
                                .retry_after_ms = error->retry_after_ms};
    call_begin(slot->thread, &(struct call_start){.raw = slot->call, .method = method}, &status);
    free(details.data);
}

static void refuse_unknown(struct accept_slot *slot) {
    char text[384];
    snprintf(text, sizeof text, "unknown method %.*s: %s",
             (int)(GRPC_SLICE_LENGTH(slot->details.method) > 120 ? 120 : GRPC_SLICE_LENGTH(slot->details.method)),
             (const char *)GRPC_SLICE_START_PTR(slot->details.method), PLANE_TEXTS[slot->thread->server->plane]);
    refuse(slot, RPC_METHOD_COUNT,
           &(struct proto_error){.grpc_code = GRPC_STATUS_UNIMPLEMENTED,
                                 .reason = expertd_err_name(EXPERTD_ERR_UNIMPLEMENTED),
                                 .message = text,
                                 .retry_after_ms = proto_retry_after_ms(EXPERTD_ERR_UNIMPLEMENTED)});
}

static void refuse_full(struct accept_slot *slot, int method) {
    char text[128];
    snprintf(text, sizeof text, "%u calls are open, the limit of this server (max_calls): try again later",
             slot->thread->server->max_calls);
    refuse(slot, method,
           &(struct proto_error){.grpc_code = GRPC_STATUS_RESOURCE_EXHAUSTED,
                                 .reason = expertd_err_name(EXPERTD_ERR_QUEUE_FULL),
                                 .message = text,
                                 .retry_after_ms = proto_retry_after_ms(EXPERTD_ERR_QUEUE_FULL)});
}

// Logs at most one line per second, with the number of suppressed ones.
static void log_refusal(struct accept_slot *slot, int method) {
    struct rpc_thread *thread = slot->thread;
    int64_t now_ns = clock_now_ns();
    if (now_ns < thread->next_refusal_ns) {
        thread->suppressed++;
        return;
    }
    char names[RPC_IDENTITY_MAX], quoted[2 * RPC_IDENTITY_MAX];
    log_line(LOG_LEVEL_WARNING, "identity_refused", "method=%s names=%s since_last=%lu", METHODS[method].name,
             log_quote(identity_text(slot->call, names), quoted, sizeof quoted), thread->suppressed);
    thread->next_refusal_ns = clock_add_ns(now_ns, NS_PER_S);
    thread->suppressed = 0;
}

static void refuse_identity(struct accept_slot *slot, int method) {
    char text[EXPERTD_ERR_MESSAGE_MAX];
    log_refusal(slot, method);
    identity_refusal(slot->call, METHODS[method].role, text);
    refuse(slot, method,
           &(struct proto_error){.grpc_code = GRPC_STATUS_PERMISSION_DENIED,
                                 .reason = expertd_err_name(EXPERTD_ERR_PERMISSION),
                                 .message = text,
                                 .retry_after_ms = proto_retry_after_ms(EXPERTD_ERR_PERMISSION)});
}

// Health/Check does not count against max_calls, so that a full server still answers probes. Admission bounds the checks.
static bool is_counted(int method) {
    return method != RPC_HEALTH_CHECK;
}

static void dispatch(struct accept_slot *slot) {
    struct rpc_server *server = slot->thread->server;
    int method = find_method(slot->details.method, server->plane);
    if (method == RPC_METHOD_COUNT) {
        refuse_unknown(slot);
        return;
    }
    if (!identity_allowed(slot->call, &server->tls, METHODS[method].role)) {
        refuse_identity(slot, method);
        return;
    }
    bool counted = is_counted(method);
    if (counted && atomic_fetch_add(&server->open_calls, 1) >= server->max_calls) {
        atomic_fetch_sub(&server->open_calls, 1);
        atomic_fetch_add(&server->refused_calls, 1);
        refuse_full(slot, method);
        return;
    }
    struct call_start start = {
        .raw = slot->call, .method = method, .counted = counted, .deadline_ns = monotonic_ns(slot->details.deadline)};
    call_begin(slot->thread, &start, NULL);
}

// gRPC allocates and writes this memory without ThreadSanitizer's knowledge. Its last instruction is a jump to free, so that the
// report names this function as the caller: tests/tsan.supp suppresses it by name, hence noinline.
static __attribute__((noinline)) void forget_details(struct accept_slot *slot) {
    grpc_call_details_destroy(&slot->details);
    grpc_metadata_array_destroy(&slot->metadata);
}

static void on_accept(struct tag *tag, bool ok) {
    struct accept_slot *slot = TAG_OWNER(tag, struct accept_slot, tag);
    if (ok) {
        dispatch(slot);
    }
    forget_details(slot);
    if (ok) {
        request_call(slot); // the tag comes back with ok == false once the server stops
    }
}

void accept_start(struct rpc_thread *thread) {
    for (size_t i = 0; i < ACCEPTS_PER_THREAD; i++) {
        thread->accepts[i].thread = thread;
        thread->accepts[i].tag.done = on_accept;
        request_call(&thread->accepts[i]);
    }
}
