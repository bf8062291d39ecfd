#include "expert/loader/loader_tensors.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "expert/loader/model_audit.h"

static void widen_vector(const struct vector_source *s, size_t count, float *out) {
    const char *data = s->data;
    size_t stride = s->stride * expertd_dtype_size(s->dtype);
    for (size_t i = 0; i < count; i++) {
        expertd_dtype_widen(s->dtype, data + i * stride, 1, out + i);
    }
}

static void store_vector(const struct supply_matrix *m, float *out) {
    struct vector_source source = {.data = m->source.data, .dtype = m->source.dtype, .stride = m->source.k_stride};
    widen_vector(&source, m->k, out);
}

static FALLIBLE pack_into(const struct supply_matrix *m, const struct expertd_packed_weights *packed, size_t group) {
    INVARIANT(packed->data);
    if (packed->format) {
        return expertd_pack_quantised(&m->rows.source, packed->format, m->k, m->n, packed->data[group]);
    }
    expertd_pack_weights(&m->source, m->k, m->n, packed->dtype, packed->layout, packed->data[group]);
    return OK;
}

// Stores the permutation of k. Gate and up read the same row, so that up's must equal gate's, which is stored already (`is_set`).
static FALLIBLE store_order(const struct supply_matrix *m, bool is_set, void *const *orders, size_t group) {
    if (!orders || !m->rows.order) {
        return OK;
    }
    if (!is_set) {
        memcpy(orders[group], m->rows.order, m->k * sizeof *m->rows.order);
    } else if (memcmp(orders[group], m->rows.order, m->k * sizeof *m->rows.order) != 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "gate and up have different g_idx, so that one permuted row of activations cannot serve both: "
                                     "serve this model with --widen");
    }
    return OK;
}

static FALLIBLE store_matrix(const struct supply_matrix *m, enum supply_tensor tensor, const struct expert_weights *experts,
                             size_t group) {
    bool gated = experts->gate.data != NULL;
    const struct expertd_packed_weights *packed = tensor == SUPPLY_GATE ? &experts->gate
                                                  : tensor == SUPPLY_UP ? &experts->up
                                                                        : &experts->down;
    TRY(store_order(m, tensor == SUPPLY_UP && gated, tensor == SUPPLY_DOWN ? experts->inner_order : experts->hidden_order, group));
    return pack_into(m, packed, group);
}

// Writes the tensor to its place in the model.
static FALLIBLE store(const struct supply_matrix *m, enum supply_tensor tensor, struct model_layer *layer,
                      const struct expert_weights *experts, size_t group) {
    switch (tensor) {
    case SUPPLY_GATE:
    case SUPPLY_UP:
    case SUPPLY_DOWN:
        return store_matrix(m, tensor, experts, group);
    case SUPPLY_GATE_BIAS:
        store_vector(m, experts->gate_bias[group]);
        break;
    case SUPPLY_UP_BIAS:
        store_vector(m, experts->up_bias[group]);
        break;
    case SUPPLY_DOWN_BIAS:
        store_vector(m, experts == &layer->shared ? layer->output_bias : experts->down_bias[group]);
        break;
    case SUPPLY_ROUTER:
        return pack_into(m, &layer->router, 0);
    case SUPPLY_ROUTER_BIAS:
        store_vector(m, layer->router_bias);
        break;
    case SUPPLY_SELECTION_BIAS:
        store_vector(m, layer->selection_bias);
        break;
    case SUPPLY_SHARED_GATE:
        return pack_into(m, &layer->shared_gate, 0);
    case SUPPLY_LATENT_IN:
        return pack_into(m, &layer->latent_in, 0);
    case SUPPLY_LATENT_OUT:
        return pack_into(m, &layer->latent_out, 0);
    case SUPPLY_OUTPUT_NORM:
        store_vector(m, layer->output_norm);
        break;
    case SUPPLY_TENSORS:
        break;
    }
    INVARIANT(tensor < SUPPLY_TENSORS);
    return OK;
}

static const char *tensor_text(enum supply_tensor tensor) {
    static const char *const NAMES[SUPPLY_TENSORS] = {"gate",
                                                      "up",
                                                      "down",
                                                      "gate's bias",
                                                      "up's bias",
                                                      "down's bias",
                                                      "router",
                                                      "router bias",
                                                      "selection bias",
                                                      "shared gate",
                                                      "projection into the latent space",
                                                      "projection out of the latent space",
                                                      "output norm"};
    return NAMES[tensor];
}

// The position of a matrix in the order of layers, experts and tensors; the lowest bit is 1 for its global scale. The first
// suspicious matrix is the one with the smallest key, whichever thread loads it.
static uint64_t key_of(const struct load_item *item, enum supply_tensor tensor, bool global) {
    return (uint64_t)item->layer << 48 | (uint64_t)item->expert << 16 | (uint64_t)tensor << 1 | global;
}

static void count_suspicious(struct suspicious *suspicious, size_t count, uint64_t key) {
    uint64_t first = atomic_load_explicit(&suspicious->first, memory_order_relaxed);
    if (count == 0) {
        return;
    }
    atomic_fetch_add_explicit(&suspicious->count, count, memory_order_relaxed);
    while (key < first && !atomic_compare_exchange_weak(&suspicious->first, &first, key)) {
    }
}

static void count_odd_values(struct load *load, const struct load_item *item, enum supply_tensor tensor,
                             const struct supply_matrix *m) {
    const struct quantised_rows *r = &m->rows;
    count_suspicious(&load->zero_matrices, supply_is_zero(m), key_of(item, tensor, false));
    if (!m->quantised) {
        return;
    }
    count_suspicious(&load->suspicious_scales, r->not_finite_scales + r->global_is_not_finite,
                     key_of(item, tensor, r->not_finite_scales == 0));
    count_suspicious(&load->zeros_of_16, r->zeros_of_16, key_of(item, tensor, false));
}

// The matrix of a key_of; false: none.
static bool matrix_of(const struct supply *supply, uint64_t key, struct supply_matrix *out) {
    return key != UINT64_MAX && supply_describe(supply, &supply->layers[key >> 48], (uint32_t)(key >> 16),
                                                (enum supply_tensor)((key & 0xffff) >> 1), out);
}

static void name_tensor(const struct supply *supply, const struct suspicious *suspicious, const struct safetensors_entry *tensor,
                        struct model_suspicious *out) {
    out->count = atomic_load(&suspicious->count);
    if (tensor) { // NULL for generated weights
        snprintf(out->tensor, sizeof out->tensor, "%s", tensor->name);
        snprintf(out->file, sizeof out->file, "%s", supply_file_of(supply, tensor));
    }
}

void load_name_odd_tensors(struct load *load) {
    const struct supply *supply = load->supply;
    struct model *model = load->model;
    const uint64_t scales = atomic_load(&load->suspicious_scales.first), zeros = atomic_load(&load->zeros_of_16.first),
                   matrix = atomic_load(&load->zero_matrices.first);
    struct supply_matrix m;
    const struct safetensors_entry *tensor = NULL;
    if (matrix_of(supply, scales, &m)) {
        tensor = scales & 1 ? m.quantised->global_tensor : m.quantised->scales_tensor;
    }
    name_tensor(supply, &load->suspicious_scales, tensor, &model->suspicious_scales);
    tensor = matrix_of(supply, zeros, &m) ? m.quantised->zeros_tensor : NULL;
    name_tensor(supply, &load->zeros_of_16, tensor, &model->zeros_of_16);
    tensor = matrix_of(supply, matrix, &m) ? supply_tensor_of(supply, &m) : NULL;
    name_tensor(supply, &load->zero_matrices, tensor, &model->zero_matrices);
}

// One tensor: read, digest, pack, release.
static FALLIBLE load_tensor(struct load *load, const struct load_item *item, enum supply_tensor tensor, struct supply_matrix *m,
                            struct digest *digest) {
    const struct supply *supply = load->supply;
    TRY(supply_prepare(supply, m));
    TRY(supply_unpack(item->staging, m));
    supply_digest(m, item->staging, digest);
    count_odd_values(load, item, tensor, m);
    if (load->options->audit) {
        const struct audit_place at = {
            .layer = supply->layers[item->layer].params.layer, .expert = item->expert, .tensor = (uint32_t)tensor};
        TRY(model_audit_add(load->options->audit, supply, m, &at));
    }
    TRY(supply_convert(item->staging, m));
    TRY(store(m, tensor, &load->model->layers[item->layer], item->experts, item->group));
    supply_release(supply, m);
    atomic_fetch_add_explicit(&load->done_bytes, supply_matrix_bytes(m), memory_order_relaxed);
    return OK;
}

// Adds the file and the tensor to an error.
static err_t name_on_error(const struct supply *supply, const struct supply_matrix *m, err_t e) {
    const struct safetensors_entry *tensor = err_is(e) ? supply_tensor_of(supply, m) : NULL;
    return tensor ? err_context(e, "%s: tensor %s", supply_file_of(supply, tensor), tensor->name) : e;
}

FALLIBLE load_tensors(struct load *load, const struct load_item *item, int first, int end, struct digest *digest) {
    const struct layer_tensors *tensors = &load->supply->layers[item->layer];
    for (int t = first; t < end; t++) {
        struct supply_matrix m;
        enum supply_tensor tensor = (enum supply_tensor)t;
        if (supply_fetch(load->supply, tensors, item->expert, tensor, item->staging, &m)) {
            TRY_IN(name_on_error(load->supply, &m, load_tensor(load, item, tensor, &m, digest)), "%s", tensor_text(tensor));
        }
    }
    return OK;
}

// The router divides each normalised row by sqrt(H). The division is folded into the norm's weight.
void load_router_input(const struct layer_tensors *tensors, struct model_layer *layer, struct digest *digest) {
    const struct layer_params *p = &layer->params;
    const struct vector_source *sources[2] = {&tensors->router_norm, &tensors->expert_scale};
    float *out[2] = {layer->router_norm, layer->expert_scale};
    size_t counts[2] = {p->hidden_size, p->num_experts};
    for (int i = 0; i < 2; i++) {
        widen_vector(sources[i], counts[i], out[i]);
        for (size_t j = 0; j < counts[i]; j++) {
            digest_f32(digest, out[i][j]);
        }
    }
    float root = sqrtf((float)p->hidden_size);
    for (size_t i = 0; i < p->hidden_size; i++) {
        layer->router_norm[i] /= root;
    }
}

// ---- the state of a load

uint64_t load_staging_bytes(const struct supply *supply, const struct model_options *options) {
    const unsigned threads = options->team ? expertd_team_threads(options->team) : 1;
    return threads * arena_rounded(supply_staging_bytes(supply));
}

FALLIBLE load_begin(struct load *load, const struct supply *supply, const struct model_options *options, struct model *model) {
    *load = (struct load){.supply = supply,
                          .options = options,
                          .model = model,
                          .staging_bytes = arena_rounded(supply_staging_bytes(supply)),
                          .suspicious_scales.first = UINT64_MAX,
                          .zeros_of_16.first = UINT64_MAX,
                          .zero_matrices.first = UINT64_MAX};
    TRY_IN(arena_init(&load->staging, load_staging_bytes(supply, options)), "staging memory");
    return OK;
}

void load_end(struct load *load) {
    arena_deinit(&load->staging);
}

void *load_staging(const struct load *load, unsigned thread) {
    return load->staging_bytes ? load->staging.base + thread * load->staging_bytes : NULL;
}
