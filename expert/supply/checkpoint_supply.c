#include "expert/supply/checkpoint_supply.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "expert/architecture/architecture.h"
#include "expert/checkpoint/checkpoint.h"
#include "expert/checkpoint/digest.h"
#include "expert/config/config.h"
#include "expert/layout/layer_finder.h"
#include "expert/quantised/quantised_tensors.h"

enum { RELEASE_BYTES_MIN = 64 << 10 }; // smaller ranges are not worth a system call

static bool is_vector(enum supply_tensor tensor) {
    return (tensor >= SUPPLY_GATE_BIAS && tensor <= SUPPLY_DOWN_BIAS) || tensor == SUPPLY_ROUTER_BIAS ||
           tensor == SUPPLY_SELECTION_BIAS || tensor == SUPPLY_OUTPUT_NORM;
}

static const struct vector_source *vector_in_file(const struct layer_tensors *layer, const struct expert_source *expert,
                                                  enum supply_tensor tensor) {
    return tensor == SUPPLY_ROUTER_BIAS      ? &layer->router_bias
           : tensor == SUPPLY_SELECTION_BIAS ? &layer->selection_bias
           : tensor == SUPPLY_OUTPUT_NORM    ? &layer->output_norm
                                             : &expert->bias[PART_GATE + (tensor - SUPPLY_GATE_BIAS)];
}

static void describe_vector(const struct vector_source *vector, struct supply_matrix *out) {
    if (vector->blocks) {
        out->generated = quantised_of_blocks(vector->blocks, 0, out->k);
        out->quantised = &out->generated;
        out->widen = EXPERTD_DTYPE_F32;
    } else {
        out->source =
            (struct expertd_weight_source){.data = vector->data, .dtype = vector->dtype, .n_stride = 0, .k_stride = vector->stride};
    }
}

static void describe_common(const struct layer_tensors *layer, enum supply_tensor tensor, struct supply_matrix *out) {
    const struct common_matrix *matrix = tensor == SUPPLY_ROUTER        ? &layer->router
                                         : tensor == SUPPLY_SHARED_GATE ? &layer->shared_gate
                                         : tensor == SUPPLY_LATENT_IN   ? &layer->latent_in
                                                                        : &layer->latent_out;
    out->source = matrix->plain;
    if (matrix->quantised.codes.data) {
        out->quantised = &matrix->quantised;
        out->widen = EXPERTD_DTYPE_F32;
    }
}

static bool describe(const struct supply *supply, const struct layer_tensors *layer, uint32_t expert, enum supply_tensor tensor,
                     struct supply_matrix *out) {
    (void)supply;
    INVARIANT(expert == SUPPLY_SHARED || layer->experts);
    const struct expert_source *e = expert == SUPPLY_SHARED ? &layer->shared : &layer->experts[expert];
    bool of_shared_expert = expert == SUPPLY_SHARED && tensor < SUPPLY_EXPERT_TENSORS;
    if (of_shared_expert && layer->params.shared == SHARED_NONE) {
        return false;
    }
    if (tensor <= SUPPLY_DOWN) {
        const int part = PART_GATE + (tensor - SUPPLY_GATE);
        out->quantised = e->quantised[part].codes.data ? &e->quantised[part] : NULL;
        out->source = e->weight[part];
    } else if (is_vector(tensor)) {
        describe_vector(vector_in_file(layer, e, tensor), out);
    } else {
        describe_common(layer, tensor, out);
    }
    return out->quantised || out->source.data != NULL;
}

static size_t staging_bytes(const struct supply_matrix *m) {
    return m->quantised ? 0 : digest_scratch_bytes(&m->source, m->n, m->k);
}

// ---- pages ----

struct page_range {
    char *start;
    size_t bytes;
};

// All pages that contain some of the bytes. Releasing the first and the last page is harmless: another tensor on them reads them
// again.
static struct page_range pages_of(const void *data, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t start = (uintptr_t)data / page * page;
    uintptr_t end = ((uintptr_t)data + bytes + page - 1) / page * page;
    return (struct page_range){.start = (char *)start, .bytes = end - start};
}

// The i-th range of the file that holds the tensor; false past the last.
static bool range_of(const struct supply_matrix *m, size_t i, struct page_range *out) {
    if (m->quantised) {
        bool exists = i < m->quantised->ranges;
        *out = exists ? pages_of(m->quantised->range[i].data, m->quantised->range[i].bytes) : (struct page_range){0};
        return exists;
    }
    *out = pages_of(m->source.data, supply_source_span(m));
    return i == 0;
}

static err_t prepare(const struct supply *supply, const struct supply_matrix *matrix) {
    (void)supply;
    struct page_range pages;
    for (size_t i = 0; range_of(matrix, i, &pages); i++) {
        (void)madvise(pages.start, pages.bytes, MADV_WILLNEED); // only advice: its failure does not matter
        // MADV_POPULATE_READ reports a truncated file as an error; touching its pages would raise SIGBUS. Kernels before 5.14 do
        // not know it: there the handler of base/mapped.h reports the file.
        if (madvise(pages.start, pages.bytes, MADV_POPULATE_READ) != 0 && errno == EFAULT) {
            FAIL(EXPERTD_ERR_CHECKPOINT,
                 "the file became shorter while it was read: do not change a checkpoint that is being loaded");
        }
    }
    return OK;
}

static void release(const struct supply *supply, const struct supply_matrix *matrix) {
    (void)supply;
    struct page_range pages;
    for (size_t i = 0; range_of(matrix, i, &pages); i++) {
        if (pages.bytes >= RELEASE_BYTES_MIN) {
            (void)madvise(pages.start, pages.bytes, MADV_DONTNEED);
        }
    }
}

// ---- opening and closing ----

static const char *file_of(const struct supply *supply, const struct safetensors_entry *tensor) {
    return checkpoint_file_of(supply->checkpoint, tensor);
}

static const struct safetensors_entry *tensor_of(const struct supply *supply, const struct supply_matrix *m) {
    const char *data = m->quantised ? m->quantised->range[0].data : m->source.data;
    for (size_t i = 0; i < checkpoint_count(supply->checkpoint); i++) {
        const struct safetensors_entry *entry = checkpoint_at(supply->checkpoint, i);
        const char *first = entry->view.data;
        if (first && data >= first && data < first + entry->view.bytes) {
            return entry;
        }
    }
    return NULL;
}

static err_t finish(const struct supply *supply) {
    return checkpoint_check_unchanged(supply->checkpoint);
}

static void close_checkpoint(struct supply *supply) {
    checkpoint_close(supply->checkpoint);
}

static const struct supply_source SOURCE = {
    .describe = describe,
    .staging_bytes = staging_bytes,
    .prepare = prepare,
    .release = release,
    .file_of = file_of,
    .tensor_of = tensor_of,
    .finish = finish,
    .close = close_checkpoint,
};

FALLIBLE checkpoint_supply(const char *folder, const struct layer_tensors_options *options, struct supply *out) {
    struct supply supply = {.source = &SOURCE};
    const struct architecture *architecture = NULL;
    err_t e;
    TRY_OUT(e, checkpoint_open(folder, &supply.checkpoint));
    const struct config *config = checkpoint_config(supply.checkpoint);
    TRY_OUT(e, architecture_find(config, &architecture));
    TRY_OUT(e, layer_tensors_find(supply.checkpoint, architecture, options, &supply.layers, &supply.count));
    const char *model_type = architecture_model_type(architecture); // if config.json has only class names
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
