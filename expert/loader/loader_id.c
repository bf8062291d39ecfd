// weights_id and the model's digest: ids of everything on which an output depends. Each field is added separately and in this
// order, so that an id is the same on every machine and in every build. A change here changes the ids of all models and needs a new
// WEIGHTS_FORMAT.
#include <stdio.h>
#include <string.h>

#include "expert/checkpoint/digest.h"
#include "expert/loader/loader.h"

static const char WEIGHTS_FORMAT[] = "expertd weights 1";
static const char SHAPES_FORMAT[] = "expertd shapes 1"; // of loader_shapes_digest, which no id depends on

// The enums' values are part of the ids.
_Static_assert(EXPERTD_SCORE_SOFTMAX == 0 && EXPERTD_SCORE_SIGMOID == 1 && EXPERTD_SCORE_SQRT_SOFTPLUS == 2 &&
                   EXPERTD_SCORE_SPARSEMIXER == 3,
               "part of weights_id");
_Static_assert(EXPERTD_ORDER_SCORE_TOPK == 0 && EXPERTD_ORDER_TOPK_SCORE == 1, "part of weights_id");
_Static_assert(EXPERTD_NORM_NONE == 0 && EXPERTD_NORM_SUM == 1 && EXPERTD_NORM_SUM_MAX == 2 && EXPERTD_NORM_P == 3,
               "part of weights_id");
_Static_assert(EXPERTD_GROUP_MAX == 0 && EXPERTD_GROUP_TOP2_SUM == 1, "part of weights_id");
_Static_assert(EXPERTD_ACTIVATION_SILU == 0 && EXPERTD_ACTIVATION_GELU_TANH == 1 && EXPERTD_ACTIVATION_SWIGLU_OAI == 2 &&
                   EXPERTD_ACTIVATION_RELU2 == 3,
               "part of weights_id");
_Static_assert(EXPERTD_CLAMP_NONE == 0 && EXPERTD_CLAMP_BEFORE == 1 && EXPERTD_CLAMP_AFTER == 2, "part of weights_id");
_Static_assert(SHARED_NONE == 0 && SHARED_PLAIN == 1 && SHARED_SIGMOID == 2 && SHARED_AVERAGE == 3 && SHARED_BIAS == 4,
               "part of weights_id");

// A bit that no group score uses: models without the field keep the ids that they had before the field was added.
enum { MASKED_GROUPS_ARE_ZERO = 1 << 8 };
// Likewise, bits that needs_router_input does not use.
enum { HAS_LATENT_SIZE = 1 << 1, HAS_OUTPUT_NORM = 1 << 2 };

// Fields that have no effect are added as 0, so that their values do not change the id.
static void add_routing(struct digest *d, const struct expertd_routing *r) {
    bool grouped = r->num_groups > 1;
    digest_u32(d, r->score);
    digest_u32(d, r->order);
    digest_u32(d, r->norm);
    digest_f32(d, r->norm == EXPERTD_NORM_NONE ? 0 : r->norm_epsilon);
    digest_f32(d, r->norm == EXPERTD_NORM_P ? r->norm_p : 0);
    digest_f32(d, r->scale);
    digest_f32(d, r->score == EXPERTD_SCORE_SPARSEMIXER ? r->jitter : r->softcap); // no router uses both
    digest_u32(d, r->num_experts);
    digest_u32(d, r->top_k);
    digest_u32(d, grouped ? r->num_groups : 0);
    digest_u32(d, grouped ? r->top_groups : 0);
    digest_u32(d, grouped ? r->group_score | (r->masked_groups_are_zero ? MASKED_GROUPS_ARE_ZERO : 0) : 0);
}

static void add_activation(struct digest *d, const struct expertd_activation *a) {
    digest_u32(d, a->kind);
    digest_u32(d, a->clamp);
    digest_f32(d, a->kind == EXPERTD_ACTIVATION_SWIGLU_OAI ? a->alpha : 0);
    digest_f32(d, a->kind == EXPERTD_ACTIVATION_SWIGLU_OAI || a->clamp != EXPERTD_CLAMP_NONE ? a->limit : 0);
}

// Without the layer's number: equal weights have equal ids in any layer.
static void add_params(struct digest *d, const struct layer_params *p) {
    bool shared = shared_has_expert(p->shared);
    digest_u32(d, p->hidden_size);
    digest_u32(d, p->intermediate_size);
    digest_u32(d, p->num_experts);
    digest_u32(d, p->num_zero_experts);
    digest_u32(d, p->has_router);
    if (p->has_router) {
        add_routing(d, &p->routing);
    }
    digest_u32(d, p->router_has_bias);
    digest_u32(d, p->router_has_selection_bias);
    digest_f32(d, p->routed_scale);
    digest_u32(d, p->weights_on_input);
    add_activation(d, &p->activation);
    digest_u32(d, p->expert_has_bias);
    digest_u32(d, p->shared);
    if (shared) {
        digest_u32(d, p->shared_intermediate_size);
        add_activation(d, &p->shared_activation);
    }
    digest_u32(d, p->needs_token_ids);
    digest_u32(d, (p->needs_router_input ? 1 : 0) | (p->latent_size > 0 ? HAS_LATENT_SIZE : 0) |
                      (p->has_output_norm ? HAS_OUTPUT_NORM : 0));
    if (p->latent_size > 0) {
        digest_u32(d, p->latent_size);
    }
    if (p->needs_router_input) {
        digest_f32(d, p->router_norm_epsilon);
    }
    if (p->has_output_norm) {
        digest_f32(d, p->output_norm_epsilon);
    }
}

// Equal bytes of two dtypes are different weights.
static void add_dtypes(struct digest *d, const struct supply *supply, const struct layer_tensors *layer, uint32_t expert, int first,
                       int end) {
    for (int t = first; t < end; t++) {
        struct supply_matrix m;
        bool exists = supply_describe(supply, layer, expert, (enum supply_tensor)t, &m);
        digest_text(d, !exists ? "" : m.quantised ? "quantised" : expertd_dtype_name(m.source.dtype));
        if (exists && m.quantised) {
            quantised_digest_format(m.quantised, d);
        }
    }
}

// The formats of the first expert: "mxfp4", "int4_group32+fp8_channel". Ids keep this form, which the name in Describe had before
// experts of one layer could differ; add_dtypes covers the formats of all.
static void add_first_formats(struct digest *d, const struct supply *supply, const struct layer_tensors *layer) {
    struct supply_matrix up, down;
    char texts[2][QUANTISED_NAME_MAX] = {"", ""}, name[2 * QUANTISED_NAME_MAX];
    if (supply_describe(supply, layer, 0, SUPPLY_UP, &up) && up.quantised) {
        quantised_name(up.quantised, texts[0]);
    }
    if (supply_describe(supply, layer, 0, SUPPLY_DOWN, &down) && down.quantised) {
        quantised_name(down.quantised, texts[1]);
    }
    bool same = strcmp(texts[0], texts[1]) == 0;
    snprintf(name, sizeof name, "%s%s%s", texts[0], same || !texts[0][0] ? "" : "+", same ? "" : texts[1]);
    digest_text(d, name);
}

static uint64_t weights_id(const struct supply *supply, const struct layer_tensors *tensors, const struct model_layer *layer,
                           const struct loader_digests *digests) {
    struct digest d;
    digest_init(&d);
    digest_text(&d, WEIGHTS_FORMAT);
    add_params(&d, &layer->params);
    add_first_formats(&d, supply, tensors);
    for (uint32_t e = 0; e < layer->params.num_experts; e++) {
        add_dtypes(&d, supply, tensors, e, 0, SUPPLY_EXPERT_TENSORS);
        digest_u64(&d, layer->expert_digests[e]);
    }
    add_dtypes(&d, supply, tensors, SUPPLY_SHARED, 0, layer->params.latent_size > 0 ? SUPPLY_OUTPUT_NORM : SUPPLY_LATENT_IN);
    if (layer->params.has_output_norm) {
        add_dtypes(&d, supply, tensors, SUPPLY_SHARED, SUPPLY_OUTPUT_NORM, SUPPLY_TENSORS);
    }
    digest_u64(&d, digests->router);
    digest_u64(&d, digests->shared);
    uint64_t id = digest_64(&d);
    return id ? id : 1; // 0 means "any" in a request
}

void loader_shapes_digest(const struct supply *supply, const struct model *model, uint8_t digest[16]) {
    struct digest d;
    digest_init(&d);
    digest_text(&d, SHAPES_FORMAT);
    for (size_t i = 0; i < model->num_layers; i++) {
        const struct layer_params *p = &model->layers[i].params;
        digest_u32(&d, p->layer);
        add_params(&d, p);
        for (uint32_t e = 0; e < p->num_experts; e++) {
            add_dtypes(&d, supply, &supply->layers[i], e, 0, SUPPLY_EXPERT_TENSORS);
        }
    }
    digest_update(&d, supply->identity, supply->identity_length);
    digest_128(&d, digest);
}

void loader_identify(const struct supply *supply, const struct loader_digests *digests, struct model *model) {
    struct digest d;
    digest_init(&d);
    for (size_t i = 0; i < model->num_layers; i++) {
        model->layers[i].weights_id = weights_id(supply, &supply->layers[i], &model->layers[i], &digests[i]);
        digest_u64(&d, model->layers[i].weights_id);
    }
    digest_update(&d, supply->identity, supply->identity_length);
    digest_128(&d, model->digest);
}
