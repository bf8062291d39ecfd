#include "expert/layer/layer_sizes.h"

#include "base/arena.h"
#include "expertd/kernels/routing.h"

static void add_expert_rows(struct layer_sizes *sizes, const struct layer_params *p, enum expertd_dtype dtype) {
    size_t bytes = arena_rounded(expert_row_size(p) * expertd_dtype_size(dtype));
    sizes->expert_row_bytes = bytes > sizes->expert_row_bytes ? bytes : sizes->expert_row_bytes;
    if (p->latent_size > sizes->max_latent_size) {
        sizes->max_latent_size = p->latent_size;
        sizes->latent_row_bytes = bytes;
    }
}

struct layer_sizes layer_sizes_of(const struct model *model) {
    struct layer_sizes sizes = {.row_bytes = arena_rounded(model->max_hidden_size * expertd_dtype_size(model->compute_dtype))};
    for (size_t i = 0; i < model->num_layers; i++) {
        const struct layer_params *p = &model->layers[i].params;
        add_expert_rows(&sizes, p, model->compute_dtype);
        size_t outputs = p->num_experts + p->num_zero_experts;
        sizes.router_outputs = outputs > sizes.router_outputs ? outputs : sizes.router_outputs;
        size_t bytes = p->has_router ? arena_rounded(expertd_routing_scratch_bytes(&p->routing)) : 0;
        sizes.routing_bytes = bytes > sizes.routing_bytes ? bytes : sizes.routing_bytes;
        sizes.weights_on_input |= p->weights_on_input;
        sizes.shared |= shared_has_expert(p->shared);
        sizes.router_input |= p->needs_router_input;
        sizes.ordered |= model->layers[i].ordered;
        if (p->shared_intermediate_size > sizes.shared_intermediate_size) {
            sizes.shared_intermediate_size = p->shared_intermediate_size;
        }
    }
    return sizes;
}

struct exchange_options layer_exchange_options(const struct model *model, const struct layer_limits *limits,
                                               const struct layer_sizes *sizes) {
    return (struct exchange_options){
        .ranks = model->ranks,
        .layers = (uint32_t)model->num_layers,
        .max_tokens = limits->max_tokens,
        .max_rows = limits->max_choices,
        .row_bytes_max = sizes->expert_row_bytes,
        .expanded = sizes->weights_on_input,
    };
}
