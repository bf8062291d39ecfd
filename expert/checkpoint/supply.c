#include "expert/checkpoint/supply.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/arena.h"
#include "expert/checkpoint/digest.h"
#include "expert/synthetic/synthetic.h"
#include "expert/synthetic/synthetic_quantised.h"

enum { RELEASE_BYTES_MIN = 64 << 10 }; // smaller ranges are not worth a system call

void supply_close(struct supply *supply) {
    layer_tensors_free(supply->layers, supply->count);
    checkpoint_close(supply->checkpoint);
    *supply = (struct supply){0};
}

FALLIBLE supply_open_checkpoint(const char *folder, const struct layer_tensors_options *options, struct supply *out) {
    struct supply supply = {0};
    const struct architecture *architecture = NULL;
    err_t e;
    TRY_OUT(e, checkpoint_open(folder, &supply.checkpoint));
    const struct config *config = checkpoint_config(supply.checkpoint);
    TRY_OUT(e, architecture_find(config, &architecture));
    TRY_OUT(e, layer_tensors_find(supply.checkpoint, architecture, options, &supply.layers, &supply.count));
    const char *model_type = architecture_model_type(architecture); // where config.json gives class names only
    bool found = false;
    TRY_OUT(e, config_string(config, (const char *const[]){"model_type", NULL}, &model_type, &found));
    snprintf(supply.model_type, sizeof supply.model_type, "%s", model_type);
    supply.identity = config_text_bytes(config, &supply.identity_length);
    *out = supply;
    return OK;
out:
    supply_close(&supply);
    return e;
}

static bool is_vector(enum supply_tensor tensor) {
    return (tensor >= SUPPLY_GATE_BIAS && tensor <= SUPPLY_DOWN_BIAS) || tensor == SUPPLY_ROUTER_BIAS ||
           tensor == SUPPLY_SELECTION_BIAS || tensor == SUPPLY_OUTPUT_NORM;
}

static void shape_of(const struct layer_params *p, uint32_t expert, enum supply_tensor tensor, struct supply_matrix *out) {
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

static void source_in_file(const struct layer_tensors *layer, uint32_t expert, enum supply_tensor tensor,
                           struct expertd_weight_source *out) {
    INVARIANT(expert == SUPPLY_SHARED || layer->experts);
    const struct expert_source *e = expert == SUPPLY_SHARED ? &layer->shared : &layer->experts[expert];
    const struct vector_source *vector = tensor == SUPPLY_ROUTER_BIAS      ? &layer->router_bias
                                         : tensor == SUPPLY_SELECTION_BIAS ? &layer->selection_bias
                                         : tensor == SUPPLY_OUTPUT_NORM    ? &layer->output_norm
                                         : is_vector(tensor)               ? &e->bias[PART_GATE + (tensor - SUPPLY_GATE_BIAS)]
                                                                           : NULL;
    if (vector) {
        *out =
            (struct expertd_weight_source){.data = vector->data, .dtype = vector->dtype, .n_stride = 0, .k_stride = vector->stride};
        return;
    }
    *out = tensor == SUPPLY_ROUTER        ? layer->router
           : tensor == SUPPLY_SHARED_GATE ? layer->shared_gate
           : tensor == SUPPLY_LATENT_IN   ? layer->latent_in
           : tensor == SUPPLY_LATENT_OUT  ? layer->latent_out
                                          : e->weight[PART_GATE + (tensor - SUPPLY_GATE)];
}

bool supply_describe(const struct supply *supply, const struct layer_tensors *layer, uint32_t expert, enum supply_tensor tensor,
                     struct supply_matrix *out) {
    *out = (struct supply_matrix){0};
    shape_of(&layer->params, expert, tensor, out);
    if (!supply->checkpoint) {
        out->source = (struct expertd_weight_source){.dtype = EXPERTD_DTYPE_BF16, .n_stride = out->k, .k_stride = 1};
        if (supply->format && tensor <= SUPPLY_DOWN) {
            synthetic_describe_codes(supply->format, out->n, out->k, &out->generated);
            out->quantised = &out->generated;
        }
        return synthetic_has(&layer->params, expert, tensor);
    }
    bool shared_only = expert == SUPPLY_SHARED && tensor < SUPPLY_EXPERT_TENSORS;
    if (shared_only && layer->params.shared == SHARED_NONE) {
        return false;
    }
    if (tensor <= SUPPLY_DOWN) {
        const struct expert_source *e = expert == SUPPLY_SHARED ? &layer->shared : &layer->experts[expert];
        const struct quantised_matrix *quantised = &e->quantised[PART_GATE + (tensor - SUPPLY_GATE)];
        out->quantised = quantised->codes.data ? quantised : NULL;
    }
    source_in_file(layer, expert, tensor, &out->source);
    return out->quantised || out->source.data != NULL;
}

bool supply_keeps_codes(const struct supply *supply, const struct supply_matrix *m) {
    return m->quantised && supply->widen == EXPERTD_DTYPE_NONE;
}

// Where the widened elements lie: behind the rows.
static size_t rows_bytes(const struct supply_matrix *m) {
    return arena_rounded(quantised_rows_bytes(m->quantised, m->n, m->k));
}

// And behind those, what is generated.
static size_t generated_at(const struct supply *supply, const struct supply_matrix *m) {
    return rows_bytes(m) + (supply_keeps_codes(supply, m) ? 0 : arena_rounded(m->n * m->k * expertd_dtype_size(supply->widen)));
}

static size_t staging_bytes(const struct supply *supply, const struct supply_matrix *m) {
    if (m->quantised) {
        size_t generated = supply->checkpoint ? 0 : synthetic_codes_bytes(m->quantised, m->n, m->k);
        return generated_at(supply, m) + generated;
    }
    return supply->checkpoint ? digest_scratch_bytes(&m->source, m->n, m->k) : (size_t)supply_matrix_bytes(m);
}

static size_t staging_of(const struct supply *supply, const struct layer_tensors *layer, uint32_t expert, int first, int end) {
    size_t most = 0;
    for (int t = first; t < end; t++) {
        struct supply_matrix m;
        if (supply_describe(supply, layer, expert, (enum supply_tensor)t, &m)) {
            size_t bytes = staging_bytes(supply, &m);
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

bool supply_fetch(const struct supply *supply, const struct layer_tensors *layer, uint32_t expert, enum supply_tensor tensor,
                  void *staging, struct supply_matrix *out) {
    if (!supply_describe(supply, layer, expert, tensor, out)) {
        return false;
    }
    if (out->quantised == &out->generated) {
        struct synthetic_tensor what = {supply->seed, layer->params.layer, expert, tensor, out->n, out->k};
        synthetic_fill_codes(&what, &out->generated, (char *)staging + generated_at(supply, out));
    } else if (!supply->checkpoint) {
        synthetic_fill(supply->seed, layer->params.layer, expert, tensor, out->n, out->k, staging);
        out->source.data = staging;
    }
    return true;
}

FALLIBLE supply_unpack(void *staging, struct supply_matrix *m) {
    return m->quantised ? quantised_rows_take(m->quantised, m->n, m->k, staging, &m->rows) : OK;
}

void supply_digest(const struct supply_matrix *m, void *staging, struct digest *digest) {
    if (m->quantised) {
        quantised_rows_digest(&m->rows, m->n, m->k, digest);
    } else {
        digest_matrix(digest, &m->source, m->n, m->k, staging);
    }
}

void supply_widen(const struct supply *supply, void *staging, struct supply_matrix *m) {
    char *out = (char *)staging + rows_bytes(m);
    quantised_rows_widen(&m->rows, m->n, m->k, supply->widen, out);
    m->source = (struct expertd_weight_source){.data = out, .dtype = supply->widen, .n_stride = m->k, .k_stride = 1};
}

uint64_t supply_matrix_bytes(const struct supply_matrix *m) {
    return m->quantised ? quantised_stored_bytes(m->quantised, m->n, m->k)
                        : (uint64_t)m->n * m->k * expertd_dtype_size(m->source.dtype);
}

struct page_range {
    char *start;
    size_t bytes;
};

// The whole pages of some bytes. Their neighbours' codes on the edges are only read again.
static struct page_range pages_of(const void *data, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t start = (uintptr_t)data / page * page;
    uintptr_t end = ((uintptr_t)data + bytes + page - 1) / page * page;
    return (struct page_range){.start = (char *)start, .bytes = end - start};
}

// The i-th range of the file that the tensor is read from; false past the last.
static bool range_of(const struct supply_matrix *m, size_t i, struct page_range *out) {
    if (m->quantised) {
        bool there = i < m->quantised->ranges;
        *out = there ? pages_of(m->quantised->range[i].data, m->quantised->range[i].bytes) : (struct page_range){0};
        return there;
    }
    size_t last = (m->n - 1) * m->source.n_stride + (m->k - 1) * m->source.k_stride;
    *out = pages_of(m->source.data, (last + 1) * expertd_dtype_size(m->source.dtype));
    return i == 0;
}

FALLIBLE supply_prepare(const struct supply *supply, const struct supply_matrix *matrix) {
    struct page_range pages;
    for (size_t i = 0; supply->checkpoint && range_of(matrix, i, &pages); i++) {
        (void)madvise(pages.start, pages.bytes, MADV_WILLNEED); // advice: reading works without
        // Populating tells of a file that shrank with an error, where touching its pages would end the process. Kernels before 5.14
        // do not know it; there the handler of base/mapped.h names the file.
        if (madvise(pages.start, pages.bytes, MADV_POPULATE_READ) != 0 && errno == EFAULT) {
            FAIL(EXPERTD_ERR_CHECKPOINT,
                 "a file of %s became shorter while it was read: do not change a checkpoint that is being loaded",
                 checkpoint_path(supply->checkpoint));
        }
    }
    return OK;
}

void supply_release(const struct supply *supply, const struct supply_matrix *matrix) {
    struct page_range pages;
    for (size_t i = 0; supply->checkpoint && range_of(matrix, i, &pages); i++) {
        if (pages.bytes >= RELEASE_BYTES_MIN) {
            (void)madvise(pages.start, pages.bytes, MADV_DONTNEED);
        }
    }
}
