// Checks a model's routing parameters. They come from config.json, so every value is possible.
#include <math.h>

#include "base/err.h"
#include "expertd/kernels/routing.h"

static FALLIBLE check_counts(const struct expertd_routing *r) {
    if (r->num_experts < 1 || r->num_experts > EXPERTD_ROUTING_EXPERTS_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "the router has %u experts: 1 to %d can be routed", r->num_experts,
             EXPERTD_ROUTING_EXPERTS_MAX);
    }
    if (r->top_k < 1 || r->top_k > EXPERTD_ROUTING_TOP_K_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "the router chooses %u experts per token: 1 to %d can be chosen", r->top_k,
             EXPERTD_ROUTING_TOP_K_MAX);
    }
    if (r->top_k > r->num_experts) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "the router chooses %u experts per token, but has %u", r->top_k, r->num_experts);
    }
    return OK;
}

static FALLIBLE check_groups(const struct expertd_routing *r) {
    if (r->num_groups <= 1) {
        return OK;
    }
    if (r->num_experts % r->num_groups != 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%u expert groups do not divide %u experts evenly", r->num_groups, r->num_experts);
    }
    if (r->top_groups < 1 || r->top_groups > r->num_groups) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%u expert groups of %u are kept: it must be 1 to %u", r->top_groups, r->num_groups,
             r->num_groups);
    }
    uint32_t length = r->num_experts / r->num_groups;
    if (r->top_groups * length < r->top_k) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%u kept groups of %u experts leave fewer than the %u that each token chooses", r->top_groups,
             length, r->top_k);
    }
    if (r->group_score != EXPERTD_GROUP_MAX && r->group_score != EXPERTD_GROUP_TOP2_SUM) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "group score %d is unknown", (int)r->group_score);
    }
    if (r->group_score == EXPERTD_GROUP_TOP2_SUM && length < 2) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "groups are scored by their two best experts, but have %u each", length);
    }
    return OK;
}

static FALLIBLE check_norm(const struct expertd_routing *r) {
    switch (r->norm) {
    case EXPERTD_NORM_NONE:
        return OK;
    case EXPERTD_NORM_SUM:
    case EXPERTD_NORM_SUM_MAX:
        if (!(r->norm_epsilon >= 0.0f) || isinf(r->norm_epsilon)) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "the weights' norm has epsilon %g: it must be finite and not negative",
                 (double)r->norm_epsilon);
        }
        return OK;
    case EXPERTD_NORM_P:
        if (r->norm_p != 1.0f && r->norm_p != 2.0f) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "the weights are divided by their %g-norm: only p = 1 and p = 2 are supported",
                 (double)r->norm_p);
        }
        return OK;
    }
    FAIL(EXPERTD_ERR_CHECKPOINT, "weight norm %d is unknown", (int)r->norm);
}

static FALLIBLE check_score(const struct expertd_routing *r) {
    if (r->order != EXPERTD_ORDER_SCORE_TOPK && r->order != EXPERTD_ORDER_TOPK_SCORE) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "order of scoring and selection %d is unknown", (int)r->order);
    }
    switch (r->score) {
    case EXPERTD_SCORE_SOFTMAX:
    case EXPERTD_SCORE_SIGMOID:
    case EXPERTD_SCORE_SQRT_SOFTPLUS:
        return OK;
    case EXPERTD_SCORE_SPARSEMIXER:
        break;
    default:
        FAIL(EXPERTD_ERR_CHECKPOINT, "router score %d is unknown", (int)r->score);
    }
    if (r->top_k != 2) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "sparsemixer makes 2 choices per token, not %u", r->top_k);
    }
    if (r->num_groups > 1 || r->selection_bias || r->norm != EXPERTD_NORM_NONE || r->softcap != 0.0f) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "sparsemixer has no expert groups, no selection bias, no norm of the weights and no softcap");
    }
    if (!(r->jitter >= 0.0f) || isinf(r->jitter)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "sparsemixer's jitter is %g: it must be finite and not negative", (double)r->jitter);
    }
    return OK;
}

FALLIBLE expertd_routing_check(const struct expertd_routing *routing) {
    TRY(check_counts(routing));
    TRY(check_groups(routing));
    TRY(check_norm(routing));
    TRY(check_score(routing));
    if (!(routing->softcap >= 0.0f) || isinf(routing->softcap)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "the logits' softcap is %g: it must be finite and not negative", (double)routing->softcap);
    }
    if (!isfinite(routing->scale)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "the routed scale is %g: it must be finite", (double)routing->scale);
    }
    return OK;
}
