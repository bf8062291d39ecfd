// Each method decodes its request, calls the mover once per layer, and encodes the response.
#include "daemon/admin/admin_calls.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/admin/admin_shards.h"
#include "daemon/admin/admin_status.h"
#include "daemon/log/log.h"

// ---- the layers of a request

static size_t num_layers_of(const struct admin *admin, const struct proto_layers *requested) {
    return requested->count ? requested->count : admin->backend.model->num_layers;
}

static FALLIBLE find_layer(const struct admin *admin, const struct proto_layers *requested, size_t i,
                           const struct model_layer **out) {
    const struct model *model = admin->backend.model;
    *out = requested->count ? model_find_layer(model, requested->layers[i]) : &model->layers[i];
    if (!*out) {
        FAIL_FIELD(EXPERTD_ERR_LAYER_UNKNOWN, "layers", "layers: %" PRIu32 " is not served; expertctl models lists the layers",
                   requested->layers[i]);
    }
    return OK;
}

static FALLIBLE check_layers(const struct admin *admin, const struct proto_layers *requested) {
    if (requested->count > admin->backend.model->num_layers) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "layers", "layers: %zu are named, and %zu are served: name each once", requested->count,
                   admin->backend.model->num_layers);
    }
    return OK;
}

// ---- the mover's placements in the form of proto/admin

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

// The placements of several layers. `views` points into `placements`.
struct placement_list {
    struct mover_placement *placements;
    struct proto_placements views;
};

static void placement_list_deinit(const struct admin *admin, struct placement_list *shown) {
    for (size_t i = 0; i < shown->views.count; i++) {
        admin->backend.mover.placement_deinit(&shown->placements[i]);
    }
    free(shown->placements);
    free(shown->views.items);
}

static FALLIBLE show_layers(const struct admin *admin, const struct proto_layers *requested, struct placement_list *out) {
    const struct admin_mover *mover = &admin->backend.mover;
    size_t count = num_layers_of(admin, requested);
    out->placements = calloc(count + 1, sizeof *out->placements);
    out->views.items = calloc(count + 1, sizeof *out->views.items);
    if (!out->placements || !out->views.items) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu placements", count);
    }
    for (size_t i = 0; i < count; i++) {
        const struct model_layer *layer;
        TRY(find_layer(admin, requested, i, &layer));
        TRY(mover->show(mover->mover, layer->params.layer, &out->placements[i]));
        out->views.items[i] = placement_view(&out->placements[i]);
        out->views.count = i + 1;
    }
    return OK;
}

typedef err_t (*encode_placements)(const struct proto_placements *placements, struct proto_bytes *out);

static FALLIBLE answer_show(struct admin *admin, const struct rpc_buffer *message, encode_placements encode,
                            struct proto_bytes *out) {
    struct proto_layers requested;
    struct placement_list shown = {0};
    TRY(proto_decode_show_request(message->data, message->length, &requested));
    err_t e;
    TRY_OUT(e, check_layers(admin, &requested));
    TRY_OUT(e, show_layers(admin, &requested, &shown));
    e = encode(&shown.views, out);
out:
    placement_list_deinit(admin, &shown);
    free(requested.layers);
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

// Sets the copies that the plan adds, and their bytes, which are counted like the progress of a move.
static void count_copies(const struct expert_shapes *shapes, const struct mover_placement *now,
                         const struct mover_placement *planned, struct proto_plan *out) {
    for (uint32_t e = 0; e < planned->num_experts; e++) {
        for (uint32_t i = planned->first[e]; i < planned->first[e + 1]; i++) {
            bool is_copy = !holds(now, e, planned->holders[i]);
            out->copies += is_copy;
            out->copy_bytes += is_copy ? expert_shape_of(shapes, e)->bytes : 0;
        }
    }
}

static const struct proto_counts *find_counts(const struct proto_plan_request *request, uint32_t layer) {
    for (size_t i = 0; i < request->num_counts; i++) {
        if (request->counts[i].layer == layer) {
            return &request->counts[i];
        }
    }
    return NULL;
}

// One layer's plan. `placements` receives the current and the planned placement, and the plan's views point into it.
static FALLIBLE plan_layer(const struct admin *admin, const struct proto_plan_request *request, const struct model_layer *layer,
                           struct mover_placement placements[2], struct proto_plan *out) {
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
    TRY(mover->show(mover->mover, layer->params.layer, &placements[0]));
    TRY(mover->plan(mover->mover, &options, &placements[1]));
    INVARIANT(placements[0].num_experts == placements[1].num_experts);
    *out = (struct proto_plan){.now = placement_view(&placements[0]), .planned = placement_view(&placements[1])};
    count_copies(&layer->shapes, &placements[0], &placements[1], out);
    return OK;
}

static FALLIBLE check_plan(const struct admin *admin, const struct proto_plan_request *request) {
    TRY(check_layers(admin, &request->layers));
    if (request->replicas && request->policy == PROTO_POLICY_CONTIGUOUS) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "replicas", "replicas: only a balanced placement has them");
    }
    for (size_t i = 0; i < request->num_counts; i++) {
        uint32_t layer = request->counts[i].layer;
        if (!model_find_layer(admin->backend.model, layer)) {
            FAIL_FIELD(EXPERTD_ERR_LAYER_UNKNOWN, "counts", "counts: layer %" PRIu32 " is not served", layer);
        }
        if (find_counts(request, layer) != &request->counts[i]) {
            FAIL_FIELD(EXPERTD_ERR_INVALID, "counts", "counts: layer %" PRIu32 " is given twice", layer);
        }
    }
    return OK;
}

static FALLIBLE plan_layers(const struct admin *admin, const struct proto_plan_request *request, struct mover_placement *placements,
                            struct proto_plans *out) {
    for (size_t i = 0; i < out->count; i++) {
        const struct model_layer *layer;
        TRY(find_layer(admin, &request->layers, i, &layer));
        TRY(plan_layer(admin, request, layer, &placements[2 * i], &out->items[i]));
    }
    return OK;
}

static FALLIBLE answer_plan(struct admin *admin, const struct rpc_buffer *message, struct proto_bytes *out) {
    struct proto_plan_request request;
    TRY(proto_decode_plan_request(message->data, message->length, &request));
    struct proto_plans plans = {0};
    struct mover_placement *placements = NULL;
    size_t count = 0;
    err_t e;
    TRY_OUT(e, check_plan(admin, &request));
    count = num_layers_of(admin, &request.layers);
    plans.items = calloc(count + 1, sizeof *plans.items);
    placements = calloc(2 * count + 1, sizeof *placements);
    if (!plans.items || !placements) {
        e = err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for %zu plans", count);
        goto out;
    }
    plans.count = count;
    TRY_OUT(e, plan_layers(admin, &request, placements, &plans));
    e = proto_encode_plan_response(&plans, out);
out:
    for (size_t i = 0; placements && i < 2 * count; i++) {
        admin->backend.mover.placement_deinit(&placements[i]);
    }
    free(placements);
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
    if (call->method == RPC_ADMIN_LIST_SHARDS || call->method == RPC_ADMIN_CHANGE_SHARD) {
        return admin_answer_shards(call, message, out);
    }
    TRY(admin_check_mover(admin));
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
