// The unary methods of expertd.admin.v1: each a request decoded, the mover asked once per layer, an answer encoded.
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/admin/admin_internal.h"
#include "daemon/process/log.h"

// ---- layers asked for

static size_t layers_asked(const struct admin *admin, const struct proto_layers *asked) {
    return asked->count ? asked->count : admin->backend.model->num_layers;
}

static FALLIBLE layer_asked(const struct admin *admin, const struct proto_layers *asked, size_t i, const struct model_layer **out) {
    const struct model *model = admin->backend.model;
    *out = asked->count ? model_find_layer(model, asked->layers[i]) : &model->layers[i];
    if (!*out) {
        FAIL_FIELD(EXPERTD_ERR_LAYER_UNKNOWN, "layers", "layers: %" PRIu32 " is not served here; expertctl models lists what is",
                   asked->layers[i]);
    }
    return OK;
}

static FALLIBLE check_asked(const struct admin *admin, const struct proto_layers *asked) {
    if (asked->count > admin->backend.model->num_layers) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "layers", "layers: %zu are asked for, and %zu are served: name each once", asked->count,
                   admin->backend.model->num_layers);
    }
    return OK;
}

// ---- placements of the mover as those of the interface

static struct proto_placement placement_view(const struct mover_placement *p) {
    return (struct proto_placement){.layer = p->layer,
                                    .epoch = p->epoch,
                                    .ranks = p->ranks,
                                    .num_experts = p->num_experts,
                                    .first = p->first,
                                    .holders = p->holders,
                                    .rows = p->rows,
                                    .imbalance = p->imbalance};
}

// What is shown of several layers: `views` points into `shown`.
struct shown {
    struct mover_placement *shown;
    struct proto_placements views;
};

static void shown_deinit(const struct admin *admin, struct shown *shown) {
    for (size_t i = 0; i < shown->views.count; i++) {
        admin->backend.mover.placement_deinit(&shown->shown[i]);
    }
    free(shown->shown);
    free(shown->views.items);
}

static FALLIBLE show_layers(const struct admin *admin, const struct proto_layers *asked, struct shown *out) {
    const struct admin_mover *mover = &admin->backend.mover;
    size_t count = layers_asked(admin, asked);
    out->shown = calloc(count + 1, sizeof *out->shown);
    out->views.items = calloc(count + 1, sizeof *out->views.items);
    if (!out->shown || !out->views.items) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu placements", count);
    }
    for (size_t i = 0; i < count; i++) {
        const struct model_layer *layer;
        TRY(layer_asked(admin, asked, i, &layer));
        TRY(mover->show(mover->mover, layer->params.layer, &out->shown[i]));
        out->views.items[i] = placement_view(&out->shown[i]);
        out->views.count = i + 1;
    }
    return OK;
}

typedef err_t (*encode_placements)(const struct proto_placements *placements, struct proto_bytes *out);

static FALLIBLE answer_show(struct admin *admin, const struct rpc_buffer *message, encode_placements encode,
                            struct proto_bytes *out) {
    struct proto_layers asked;
    struct shown shown = {0};
    TRY(proto_decode_show_request(message->data, message->length, &asked));
    err_t e;
    TRY_OUT(e, check_asked(admin, &asked));
    TRY_OUT(e, show_layers(admin, &asked, &shown));
    e = encode(&shown.views, out);
out:
    shown_deinit(admin, &shown);
    free(asked.layers);
    return e;
}

// ---- PlanPlacement

static bool holds(const struct mover_placement *p, uint32_t expert, uint32_t rank) {
    for (uint32_t i = p->first[expert]; i < p->first[expert + 1]; i++) {
        if (p->holders[i] == rank) {
            return true;
        }
    }
    return false;
}

static uint32_t copies_between(const struct mover_placement *now, const struct mover_placement *planned) {
    uint32_t copies = 0;
    for (uint32_t e = 0; e < planned->num_experts; e++) {
        for (uint32_t i = planned->first[e]; i < planned->first[e + 1]; i++) {
            copies += !holds(now, e, planned->holders[i]);
        }
    }
    return copies;
}

static const struct proto_counts *find_counts(const struct proto_plan_request *request, uint32_t layer) {
    for (size_t i = 0; i < request->num_counts; i++) {
        if (request->counts[i].layer == layer) {
            return &request->counts[i];
        }
    }
    return NULL;
}

// One layer's plan: both placements are in `kept`, which the plan's views point into.
static FALLIBLE plan_layer(const struct admin *admin, const struct proto_plan_request *request, const struct model_layer *layer,
                           struct mover_placement kept[2], struct proto_plan *out) {
    const struct admin_mover *mover = &admin->backend.mover;
    const struct proto_counts *counts = find_counts(request, layer->params.layer);
    struct mover_plan_options options = {
        .layer = layer->params.layer,
        .policy = request->policy == PROTO_POLICY_CONTIGUOUS ? MOVER_CONTIGUOUS : MOVER_BALANCED,
        .replicas = request->replicas,
        .rows = counts ? counts->rows : NULL,
        .num_rows = counts ? counts->num_rows : 0,
    };
    if (counts && counts->num_rows != layer->params.num_experts) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "counts", "counts: %zu for layer %" PRIu32 ", which has %" PRIu32 " experts",
                   counts->num_rows, layer->params.layer, layer->params.num_experts);
    }
    TRY(mover->show(mover->mover, layer->params.layer, &kept[0]));
    TRY(mover->plan(mover->mover, &options, &kept[1]));
    INVARIANT(kept[0].num_experts == kept[1].num_experts);
    *out = (struct proto_plan){
        .now = placement_view(&kept[0]), .planned = placement_view(&kept[1]), .copies = copies_between(&kept[0], &kept[1])};
    out->copy_bytes = out->copies * (uint64_t)layer->shape.bytes; // as the move's progress counts them
    return OK;
}

static FALLIBLE check_plan(const struct admin *admin, const struct proto_plan_request *request) {
    TRY(check_asked(admin, &request->layers));
    if (request->replicas && request->policy == PROTO_POLICY_CONTIGUOUS) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "replicas", "replicas: only a balanced placement has them");
    }
    for (size_t i = 0; i < request->num_counts; i++) {
        uint32_t layer = request->counts[i].layer;
        if (!model_find_layer(admin->backend.model, layer)) {
            FAIL_FIELD(EXPERTD_ERR_LAYER_UNKNOWN, "counts", "counts: layer %" PRIu32 " is not served here", layer);
        }
        if (find_counts(request, layer) != &request->counts[i]) {
            FAIL_FIELD(EXPERTD_ERR_INVALID, "counts", "counts: layer %" PRIu32 " is there twice", layer);
        }
    }
    return OK;
}

static FALLIBLE plan_layers(const struct admin *admin, const struct proto_plan_request *request, struct mover_placement *kept,
                            struct proto_plans *out) {
    for (size_t i = 0; i < out->count; i++) {
        const struct model_layer *layer;
        TRY(layer_asked(admin, &request->layers, i, &layer));
        TRY(plan_layer(admin, request, layer, &kept[2 * i], &out->items[i]));
    }
    return OK;
}

static FALLIBLE answer_plan(struct admin *admin, const struct rpc_buffer *message, struct proto_bytes *out) {
    struct proto_plan_request request;
    TRY(proto_decode_plan_request(message->data, message->length, &request));
    struct proto_plans plans = {0};
    struct mover_placement *kept = NULL;
    size_t count = 0;
    err_t e;
    TRY_OUT(e, check_plan(admin, &request));
    count = layers_asked(admin, &request.layers);
    plans.items = calloc(count + 1, sizeof *plans.items);
    kept = calloc(2 * count + 1, sizeof *kept);
    if (!plans.items || !kept) {
        e = err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for %zu plans", count);
        goto out;
    }
    plans.count = count;
    TRY_OUT(e, plan_layers(admin, &request, kept, &plans));
    e = proto_encode_plan_response(&plans, out);
out:
    for (size_t i = 0; kept && i < 2 * count; i++) {
        admin->backend.mover.placement_deinit(&kept[i]);
    }
    free(kept);
    free(plans.items);
    proto_plan_request_deinit(&request);
    return e;
}

// ---- Drain

static FALLIBLE answer_drain(struct admin_call *call, const struct rpc_buffer *message, struct proto_bytes *out) {
    const struct admin_options *options = &call->admin->options;
    char reason[PROTO_REASON_MAX + 1], quoted[2 * PROTO_REASON_MAX + 8];
    TRY(proto_decode_drain_request(message->data, message->length, reason));
    TRY(proto_encode_drain_response(options->active(options->context), out));
    log_line(LOG_LEVEL_INFO, "drain_asked", "reason=%s", log_quote(reason, quoted, sizeof quoted));
    call->drain_after = true;
    return OK;
}

FALLIBLE admin_answer(struct admin_call *call, const struct rpc_buffer *message, struct proto_bytes *out) {
    struct admin *admin = call->admin;
    if (call->method == RPC_ADMIN_DRAIN) {
        return answer_drain(call, message, out);
    }
    TRY(admin_has_mover(admin));
    switch (call->method) {
    case RPC_ADMIN_SHOW_PLACEMENT:
        return answer_show(admin, message, proto_encode_show_response, out);
    case RPC_ADMIN_GET_LOAD:
        return answer_show(admin, message, proto_encode_load_response, out);
    default:
        INVARIANT(call->method == RPC_ADMIN_PLAN_PLACEMENT);
        return answer_plan(admin, message, out);
    }
}
