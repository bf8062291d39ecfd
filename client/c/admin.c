#include "client/c/admin.h"

#include <stdlib.h>
#include <string.h>

static const char SHOW[] = "/expertd.admin.v1.Admin/ShowPlacement";
static const char PLAN[] = "/expertd.admin.v1.Admin/PlanPlacement";
static const char APPLY[] = "/expertd.admin.v1.Admin/ApplyPlacement";
static const char DRAIN[] = "/expertd.admin.v1.Admin/Drain";

static const char LIST_SHARDS[] = "/expertd.admin.v1.Admin/ListShards";
static const char CHANGE_SHARD[] = "/expertd.admin.v1.Admin/ChangeShard";

static const char FEATURE[] = "admin:";
enum { FEATURE_LENGTH = sizeof FEATURE - 1 };

FALLIBLE client_admin_address(const struct client_description *description, char out[ADMIN_ADDRESS_MAX]) {
    const struct describe_response *response = &description->response;
    for (size_t i = 0; i < response->num_features; i++) {
        const char *feature = response->features[i];
        if (strncmp(feature, FEATURE, FEATURE_LENGTH) == 0 && strlen(feature + FEATURE_LENGTH) < ADMIN_ADDRESS_MAX) {
            memcpy(out, feature + FEATURE_LENGTH, strlen(feature + FEATURE_LENGTH) + 1);
            return OK;
        }
    }
    FAIL(EXPERTD_ERR_UNAVAILABLE,
         "this daemon has no admin socket: start it with --admin unix:PATH, or with a Unix --listen address");
}

FALLIBLE client_show_placement(struct client *client, const struct proto_layers *layers, int64_t timeout_us,
                               struct proto_placements *out) {
    *out = (struct proto_placements){0};
    struct proto_bytes request, answer;
    TRY(proto_encode_show_request(layers, &request));
    TRY(client_unary_take(client, SHOW, request, timeout_us, &answer));
    err_t e = proto_decode_show_response(answer.data, answer.length, out);
    free(answer.data);
    return err_context(e, "the placements from %s", client_address(client));
}

FALLIBLE client_plan_placement(struct client *client, const struct proto_plan_request *request, int64_t timeout_us,
                               struct proto_plans *out) {
    *out = (struct proto_plans){0};
    struct proto_bytes bytes, answer;
    TRY(proto_encode_plan_request(request, &bytes));
    TRY(client_unary_take(client, PLAN, bytes, timeout_us, &answer));
    err_t e = proto_decode_plan_response(answer.data, answer.length, out);
    free(answer.data);
    return err_context(e, "the plan from %s", client_address(client));
}

struct apply {
    void (*progress)(void *context, const struct proto_progress *);
    void *context;
    struct proto_progress *last;
};

static err_t on_progress(void *context, const uint8_t *bytes, size_t length) {
    struct apply *apply = context;
    TRY(proto_decode_progress(bytes, length, apply->last));
    if (apply->progress) {
        apply->progress(apply->context, apply->last);
    }
    return OK;
}

FALLIBLE client_apply_placement(struct client *client, const struct proto_placement *placement,
                                void (*progress)(void *context, const struct proto_progress *), void *context,
                                struct proto_progress *last) {
    *last = (struct proto_progress){0};
    struct apply apply = {progress, context, last};
    struct proto_bytes request;
    TRY(proto_encode_apply_request(placement, &request));
    TRY(client_stream_take(client, APPLY, request, 0, on_progress, &apply));
    if (!last->done) {
        FAIL(EXPERTD_ERR_MALFORMED, "the stream from %s ended with OK, but no message said that the placement is in force",
             client_address(client));
    }
    return OK;
}

FALLIBLE client_list_shards(struct client *client, int64_t timeout_us, struct proto_shards *out) {
    *out = (struct proto_shards){0};
    struct proto_bytes request, answer;
    TRY(proto_encode_list_shards_request(&request));
    TRY(client_unary_take(client, LIST_SHARDS, request, timeout_us, &answer));
    err_t e = proto_decode_list_shards_response(answer.data, answer.length, out);
    free(answer.data);
    return err_context(e, "the shards from %s", client_address(client));
}

FALLIBLE client_change_shard(struct client *client, const struct proto_change_shard *change, int64_t timeout_us) {
    struct proto_bytes request, answer;
    TRY(proto_encode_change_shard_request(change, &request));
    TRY(client_unary_take(client, CHANGE_SHARD, request, timeout_us, &answer));
    err_t e = proto_decode_change_shard_response(answer.data, answer.length);
    free(answer.data);
    return err_context(e, "the answer from %s", client_address(client));
}

FALLIBLE client_drain(struct client *client, const char *reason, int64_t timeout_us, uint64_t *active) {
    *active = 0;
    struct proto_bytes request, answer;
    TRY(proto_encode_drain_request(reason, &request));
    TRY(client_unary_take(client, DRAIN, request, timeout_us, &answer));
    err_t e = proto_decode_drain_response(answer.data, answer.length, active);
    free(answer.data);
    return err_context(e, "the answer from %s", client_address(client));
}
