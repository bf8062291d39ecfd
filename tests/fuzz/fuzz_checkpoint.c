// Fuzzes an untrusted checkpoint: a safetensors file, a GGUF file, or config.json, an index and a safetensors header together. An
// accepted checkpoint must be consistent: every element that a kernel would read must lie in the file.
//
// Input: 'S' and the bytes of a safetensors file; 'G' and those of a GGUF file; or 'C', config.json, 0x1e, the index (may be empty:
// none), 0x1e, the JSON of the safetensors header, to which the fuzzer adds the length and zeroed data of the claimed size (up to a
// limit).
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/safetensors.h"
#include "expert/architecture/architecture.h"
#include "expert/checkpoint/digest.h"
#include "expert/layout/layer_finder.h"
#include "expert/quantised/quantised_tensors.h"

enum { DATA_BYTES_MAX = 1 << 20, SEPARATOR = 0x1e, WEIGHTS_READ_MAX = 1 << 15 };

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    json_object_seed(1); // otherwise jansson's hash tables, from which libFuzzer learns, differ from run to run
    return 0;
}

struct range {
    const char *begin, *end;
};

static void check_inside(const struct range *file, const void *first, const void *last, size_t bytes) {
    INVARIANT((const char *)first >= file->begin && (const char *)last >= (const char *)first);
    INVARIANT((const char *)last + bytes <= file->end);
}

static void check_matrix(const struct range *file, const struct expertd_weight_source *w, size_t n, size_t k) {
    if (w->data) {
        size_t bytes = expertd_dtype_size(w->dtype);
        INVARIANT(expertd_dtype_is_float16_or_32(w->dtype) && n > 0 && k > 0);
        check_inside(file, w->data, (const char *)w->data + ((n - 1) * w->n_stride + (k - 1) * w->k_stride) * bytes, bytes);
    }
}

static void check_vector(const struct range *file, const struct vector_source *v, size_t n) {
    if (v->data) {
        size_t bytes = expertd_dtype_size(v->dtype);
        INVARIANT(expertd_dtype_is_float16_or_32(v->dtype) && n > 0);
        check_inside(file, v->data, (const char *)v->data + (n - 1) * v->stride * bytes, bytes);
    }
}

static void check_codes(const struct range *file, const struct expertd_code_words *c, size_t n, size_t k) {
    size_t in_word = c->order ? c->word - 1 : (n - 1) % c->word;
    size_t last = (n - 1) / c->word * c->n_word_stride + in_word * c->n_stride + (k - 1) / c->word * c->k_word_stride +
                  (k - 1) % c->word * c->k_stride;
    INVARIANT(c->bits == 4 || c->bits == 8);
    check_inside(file, c->data, (const char *)c->data + last * c->bits / 8, 1);
}

// Reads every code, scale and zero point, like the loader.
static void read_quantised(const struct quantised_matrix *m, size_t n, size_t k) {
    struct quantised_rows rows;
    struct digest digest;
    size_t bytes = (quantised_rows_bytes(m, n, k) + 64) / 64 * 64;
    void *staging = aligned_alloc(64, bytes);
    float *wide = calloc(n * k, sizeof *wide);
    INVARIANT(staging && wide);
    if (!err_is(quantised_rows_take(m, n, k, staging, &rows))) {
        digest_init(&digest);
        quantised_rows_digest(&rows, n, k, &digest);
        quantised_rows_widen(&rows, n, k, EXPERTD_DTYPE_F32, wide);
    }
    free(staging);
    free(wide);
}

static void check_quantised(const struct range *file, const struct quantised_matrix *m, size_t n, size_t k) {
    if (!m->codes.data) {
        return;
    }
    INVARIANT(!err_is(expertd_quantised_check(&m->format)) && n > 0 && k > 0);
    if (m->blocks) {
        check_inside(file, m->codes.data, m->codes.data, quantised_stored_bytes(m, n, k));
    } else if (m->affine.bits) {
        size_t last = (n - 1) * m->scale_n_stride + (quantised_scales(&m->format, k) - 1) * m->scale_g_stride;
        size_t row = m->codes.n_stride * m->affine.bits / 8, bytes = expertd_dtype_size(m->affine.dtype);
        check_inside(file, m->codes.data, (const char *)m->codes.data + (n - 1) * row, k * m->affine.bits / 8);
        check_inside(file, m->scales, (const char *)m->scales + last * bytes, bytes);
        check_inside(file, m->affine.biases, (const char *)m->affine.biases + last * bytes, bytes);
    } else {
        check_codes(file, &m->codes, n, k);
    }
    for (size_t i = 0; i < m->ranges; i++) {
        check_inside(file, m->range[i].data, m->range[i].data, m->range[i].bytes);
    }
    if (n * k <= WEIGHTS_READ_MAX) {
        read_quantised(m, n, k);
    }
}

// In blocks, of GGUF files: a vector, with n = 1.
static void check_blocks(const struct range *file, const struct safetensors_entry *blocks, size_t n, size_t k) {
    const struct quantised_matrix m = quantised_of_blocks(blocks, 0, k);
    check_quantised(file, &m, n, k);
}

static void check_common(const struct range *file, const struct common_matrix *m, size_t n, size_t k) {
    check_matrix(file, &m->plain, n, k);
    check_quantised(file, &m->quantised, n, k);
}

static void check_any_vector(const struct range *file, const struct vector_source *v, size_t n) {
    if (v->blocks) {
        check_blocks(file, v->blocks, 1, n);
    } else {
        check_vector(file, v, n);
    }
}

static void check_expert(const struct range *file, const struct expert_source *e, size_t width, size_t hidden) {
    for (int part = 0; part < PART_COUNT; part++) {
        size_t n = part == PART_DOWN ? hidden : width;
        check_matrix(file, &e->weight[part], n, part == PART_DOWN ? width : hidden);
        check_quantised(file, &e->quantised[part], n, part == PART_DOWN ? width : hidden);
        check_vector(file, &e->bias[part], n);
        INVARIANT(part == PART_GATE || !e->weight[part].data == (e->quantised[part].codes.data != NULL));
    }
}

static void check_layer(const struct range *file, const struct layer_tensors *l) {
    const struct layer_params *p = &l->params;
    check_common(file, &l->router, p->routing.num_experts, p->hidden_size);
    check_any_vector(file, &l->router_bias, p->routing.num_experts);
    check_any_vector(file, &l->selection_bias, p->routing.num_experts);
    check_common(file, &l->shared_gate, 1, p->hidden_size);
    if (p->latent_size > 0) {
        check_common(file, &l->latent_in, p->latent_size, p->hidden_size);
        check_common(file, &l->latent_out, p->hidden_size, p->latent_size);
    }
    for (uint32_t e = 0; e < p->num_experts; e++) {
        check_expert(file, &l->experts[e], p->intermediate_size, p->latent_size > 0 ? p->latent_size : p->hidden_size);
    }
    if (shared_has_expert(p->shared)) {
        check_expert(file, &l->shared, p->shared_intermediate_size, p->hidden_size);
    } else {
        check_vector(file, &l->shared.bias[PART_DOWN], p->hidden_size);
    }
}

static void fuzz_safetensors(const uint8_t *data, size_t size) {
    struct safetensors file;
    if (err_is(safetensors_parse("fuzz", data, size, &file))) {
        return;
    }
    const struct range range = {(const char *)data, (const char *)data + size};
    for (size_t i = 0; i < file.count; i++) {
        const struct expertd_tensor_view *view = &file.entries[i].view;
        check_inside(&range, view->data, view->data, view->bytes);
        INVARIANT(safetensors_find(&file, file.entries[i].name) == &file.entries[i]);
        INVARIANT(i == 0 || strcmp(file.entries[i - 1].name, file.entries[i].name) < 0);
    }
    safetensors_close(&file);
}

// The greatest b of all "data_offsets":[a,b], found by a simple text search.
static size_t claimed_bytes(const char *header, size_t size) {
    size_t greatest = 0;
    static const char KEY[] = "\"data_offsets\":[";
    for (const char *at = header; (at = memmem(at, size - (size_t)(at - header), KEY, sizeof KEY - 1)) != NULL;) {
        at += sizeof KEY - 1;
        size_t offset = 0;
        for (; at < header + size && *at != ']'; at++) {
            offset = *at >= '0' && *at <= '9' && offset < DATA_BYTES_MAX ? 10 * offset + (size_t)(*at - '0') : 0;
        }
        greatest = offset > greatest ? offset : greatest;
    }
    return greatest < DATA_BYTES_MAX ? greatest : DATA_BYTES_MAX;
}

static char *compose(const char *header, size_t header_size, size_t *size) {
    *size = 8 + header_size + claimed_bytes(header, header_size);
    char *file = calloc(1, *size);
    INVARIANT(file != NULL);
    for (int i = 0; i < 8; i++) {
        file[i] = (char)((uint64_t)header_size >> (8 * i));
    }
    memcpy(file + 8, header, header_size);
    return file;
}

static void fuzz_layers(struct checkpoint *checkpoint, const struct range *range) {
    const struct architecture *architecture;
    struct layer_tensors *layers;
    size_t count;
    if (err_is(architecture_find(checkpoint_config(checkpoint), &architecture)) ||
        err_is(layer_tensors_find(checkpoint, architecture, NULL, &layers, &count))) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        check_layer(range, &layers[i]);
        INVARIANT(i == 0 || layers[i - 1].params.layer < layers[i].params.layer);
    }
    layer_tensors_free(layers, count);
}

// As if the file began at an address of its own, so that a read before it is found too.
static void fuzz_gguf(const uint8_t *data, size_t size) {
    char *file = malloc(size + 1);
    INVARIANT(file != NULL);
    memcpy(file, data, size);
    struct checkpoint_bytes bytes = {.weights = file, .weights_length = size};
    struct checkpoint *checkpoint;
    if (!err_is(checkpoint_parse(&bytes, &checkpoint))) {
        fuzz_layers(checkpoint, &(struct range){file, file + size});
        checkpoint_close(checkpoint);
    }
    free(file);
}

static void fuzz_whole(const char *text, size_t size) {
    const char *index = memchr(text, SEPARATOR, size);
    const char *header = index ? memchr(index + 1, SEPARATOR, size - (size_t)(index + 1 - text)) : NULL;
    if (!header) {
        return;
    }
    size_t file_size;
    char *file = compose(header + 1, size - (size_t)(header + 1 - text), &file_size);
    struct checkpoint_bytes bytes = {
        .config_text = text,
        .config_length = (size_t)(index - text),
        .index_text = header > index + 1 ? index + 1 : NULL,
        .index_length = (size_t)(header - index - 1),
        .weights = file,
        .weights_length = file_size,
    };
    struct checkpoint *checkpoint;
    if (!err_is(checkpoint_parse(&bytes, &checkpoint))) {
        fuzz_layers(checkpoint, &(struct range){file, file + file_size});
        checkpoint_close(checkpoint);
    }
    free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) {
        return 0;
    }
    if (data[0] == 'S') {
        fuzz_safetensors(data + 1, size - 1);
    } else if (data[0] == 'G') {
        fuzz_gguf(data + 1, size - 1);
    } else {
        fuzz_whole((const char *)data + 1, size - 1);
    }
    return 0;
}
