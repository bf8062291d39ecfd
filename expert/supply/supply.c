#include "expert/supply/supply.h"

#include <string.h>

#include "base/arena.h"
#include "expert/checkpoint/digest.h"
#include "expert/quantised/quantise.h"
#include "kernels/device/device_codes.h"

void supply_close(struct supply *supply) {
    layer_tensors_free(supply->layers, supply->count);
    if (supply->source && supply->source->close) {
        supply->source->close(supply);
    }
    *supply = (struct supply){0};
}

static void set_shape(const struct layer_params *p, uint32_t expert, enum supply_tensor tensor, struct supply_matrix *out) {
    size_t width = expert == SUPPLY_SHARED ? p->shared_intermediate_size : p->intermediate_size;
    size_t outputs = p->routing.num_experts, rows = expert == SUPPLY_SHARED ? p->hidden_size : expert_row_size(p);
    const struct {
        size_t n, k;
    } shapes[SUPPLY_TENSORS] = {
        [SUPPLY_GATE] = {width, rows},
        [SUPPLY_UP] = {width, rows},
        [SUPPLY_DOWN] = {rows, width},
        [SUPPLY_GATE_BIAS] = {1, width},
        [SUPPLY_UP_BIAS] = {1, width},
        [SUPPLY_DOWN_BIAS] = {1, rows},
        [SUPPLY_ROUTER] = {outputs, p->hidden_size},
        [SUPPLY_ROUTER_BIAS] = {1, outputs},
        [SUPPLY_SELECTION_BIAS] = {1, outputs},
        [SUPPLY_SHARED_GATE] = {1, p->hidden_size},
        [SUPPLY_LATENT_IN] = {p->latent_size, p->hidden_size},
        [SUPPLY_LATENT_OUT] = {p->hidden_size, p->latent_size},
        [SUPPLY_OUTPUT_NORM] = {1, p->hidden_size},
    };
    out->n = shapes[tensor].n;
    out->k = shapes[tensor].k;
}

// Without a decision about widening.
static bool describe(const struct supply *supply, const struct layer_tensors *layer, uint32_t expert, enum supply_tensor tensor,
                     struct supply_matrix *out) {
    *out = (struct supply_matrix){0};
    set_shape(&layer->params, expert, tensor, out);
    if (!supply->source->describe(supply, layer, expert, tensor, out)) {
        return false;
    }
    bool of_routed_expert = expert != SUPPLY_SHARED && tensor <= SUPPLY_DOWN;
    out->quantise = of_routed_expert && !out->quantised ? supply->quantise : NULL;
    return true;
}

static bool is_widened(const struct supply_matrix *m) {
    return m->widen != EXPERTD_DTYPE_NONE;
}

const struct expertd_quantised_format *supply_codes(const struct supply_matrix *m) {
    return m->quantise ? quantise_codes(m->quantise) : m->quantised && !is_widened(m) ? &m->quantised->format : NULL;
}

static bool have_kernel_together(const struct supply_matrix *a, const struct supply_matrix *b) {
    const struct expertd_quantised_format *f = supply_codes(a), *g = supply_codes(b);
    return f && g ? device_codes_supported(f) && expertd_quantised_format_equal(f, g) : f == g;
}

// Can devices multiply the matrix as it is? The kernel of gate and up reads both in one format.
static bool has_device_kernel(const struct supply *supply, const struct layer_tensors *layer, uint32_t expert,
                              enum supply_tensor tensor, const struct supply_matrix *m) {
    struct supply_matrix other;
    const enum supply_tensor pair = tensor == SUPPLY_GATE ? SUPPLY_UP : tensor == SUPPLY_UP ? SUPPLY_GATE : SUPPLY_TENSORS;
    const bool paired = pair != SUPPLY_TENSORS && describe(supply, layer, expert, pair, &other);
    return have_kernel_together(m, paired ? &other : m);
}

bool supply_describe(const struct supply *supply, const struct layer_tensors *layer, uint32_t expert, enum supply_tensor tensor,
                     struct supply_matrix *out) {
    if (!describe(supply, layer, expert, tensor, out)) {
        return false;
    }
    if (out->widen != EXPERTD_DTYPE_NONE) {
        return true; // the implementation widens it
    }
    const enum expertd_dtype widened = out->quantised ? supply->widen_dtype : EXPERTD_DTYPE_NONE;
    if (supply->widen == SUPPLY_WIDEN_ALL) {
        out->widen = widened;
    } else if (supply->widen == SUPPLY_WIDEN_FOR_DEVICES && tensor <= SUPPLY_DOWN &&
               !has_device_kernel(supply, layer, expert, tensor, out)) {
        out->widen = widened;
        out->quantise = NULL; // the plain one of gate and up stays plain, as the other one becomes
    }
    return true;
}

// ---- staging memory: the rows of codes, the widened elements, the implementation's staging_bytes, as far as the tensor has them

static size_t rows_bytes(const struct supply_matrix *m) {
    return arena_rounded(m->quantised  ? quantised_rows_bytes(m->quantised, m->n, m->k)
                         : m->quantise ? quantise_staging_bytes(m->quantise, m->n, m->k)
                                       : 0);
}

static size_t source_staging_at(const struct supply_matrix *m) {
    return rows_bytes(m) + (is_widened(m) ? arena_rounded(m->n * m->k * expertd_dtype_size(m->widen)) : 0);
}

static size_t staging_of(const struct supply *supply, const struct layer_tensors *layer, uint32_t expert, int first, int end) {
    size_t most = 0;
    for (int t = first; t < end; t++) {
        struct supply_matrix m;
        if (supply_describe(supply, layer, expert, (enum supply_tensor)t, &m)) {
            size_t bytes = source_staging_at(&m) + supply->source->staging_bytes(&m);
            most = bytes > most ? bytes : most;
        }
    }
    return most;
}

size_t supply_staging_bytes(const struct supply *supply) {
    size_t most = 0;
    for (size_t i = 0; i < supply->count; i++) {
        const struct layer_tensors *layer = &supply->layers[i];
        size_t bytes = staging_of(supply, layer, SUPPLY_SHARED, 0, SUPPLY_TENSORS);
        most = bytes > most ? bytes : most;
        for (uint32_t e = 0; e < layer->params.num_experts; e++) {
            bytes = staging_of(supply, layer, e, 0, SUPPLY_EXPERT_TENSORS);
            most = bytes > most ? bytes : most;
        }
    }
    return most;
}

// ---- a tensor's steps ----

bool supply_fetch(const struct supply *supply, const struct layer_tensors *layer, uint32_t expert, enum supply_tensor tensor,
                  void *staging, struct supply_matrix *out) {
    if (!supply_describe(supply, layer, expert, tensor, out)) {
        return false;
    }
    if (supply->source->generate) {
        supply->source->generate(supply, layer, expert, tensor, (char *)staging + source_staging_at(out), out);
    }
    return true;
}

FALLIBLE supply_prepare(const struct supply *supply, const struct supply_matrix *matrix) {
    return supply->source->prepare ? supply->source->prepare(supply, matrix) : OK;
}

FALLIBLE supply_unpack(void *staging, struct supply_matrix *m) {
    return m->quantised ? quantised_rows_take(m->quantised, m->n, m->k, staging, &m->rows) : OK;
}

size_t supply_source_span(const struct supply_matrix *m) {
    const size_t last = (m->n - 1) * m->source.n_stride + (m->k - 1) * m->source.k_stride;
    return (last + 1) * expertd_dtype_size(m->source.dtype);
}

bool supply_is_zero(const struct supply_matrix *m) {
    const char *bytes = m->quantised ? m->quantised->range[0].data : m->source.data;
    const size_t count = m->quantised ? m->quantised->range[0].bytes : supply_source_span(m);
    return m->n > 1 && count > 0 && bytes[0] == 0 && memcmp(bytes, bytes + 1, count - 1) == 0;
}

void supply_digest(const struct supply_matrix *m, void *staging, struct digest *digest) {
    if (m->quantised) {
        quantised_rows_digest(&m->rows, m->n, m->k, digest);
    } else {
        digest_matrix(digest, &m->source, m->n, m->k, staging);
    }
}

FALLIBLE supply_convert(void *staging, struct supply_matrix *m) {
    if (m->quantise) {
        return quantise_rows(m->quantise, &m->source, m->n, m->k, staging, &m->rows);
    }
    if (is_widened(m)) {
        char *out = (char *)staging + rows_bytes(m);
        quantised_rows_widen(&m->rows, m->n, m->k, m->widen, out);
        m->source = (struct expertd_weight_source){.data = out, .dtype = m->widen, .n_stride = m->k, .k_stride = 1};
        return OK;
    }
    return m->quantised ? quantised_rows_check_minima(&m->rows) : OK;
}

void supply_release(const struct supply *supply, const struct supply_matrix *matrix) {
    if (supply->source->release) {
        supply->source->release(supply, matrix);
    }
}

const struct safetensors_entry *supply_tensor_of(const struct supply *supply, const struct supply_matrix *matrix) {
    return supply->source->tensor_of ? supply->source->tensor_of(supply, matrix) : NULL;
}

FALLIBLE supply_finish(const struct supply *supply) {
    return supply->source->finish ? supply->source->finish(supply) : OK;
}

uint64_t supply_matrix_bytes(const struct supply_matrix *m) {
    return m->quantised ? quantised_stored_bytes(m->quantised, m->n, m->k)
                        : (uint64_t)m->n * m->k * expertd_dtype_size(m->source.dtype);
}

const char *supply_file_of(const struct supply *supply, const struct safetensors_entry *tensor) {
    return supply->source->file_of ? supply->source->file_of(supply, tensor) : "";
}
