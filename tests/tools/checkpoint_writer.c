#include "tests/tools/checkpoint_writer.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/safetensors.h"
#include "expert/synthetic/synthetic_fill.h"
#include "expert/synthetic/synthetic_quantised.h"

enum { SIZE_MAX_ONE = 1 << 16, LAYERS_MAX = 1024, VOCABULARY = 48 };

enum layout {
    SPLIT,                  // a tensor per expert and matrix
    FUSED,                  // gate_up_proj [E, 2I, H], down_proj [E, H, I]
    TRANSPOSED,             // gate_up_proj [E, H, 2I], down_proj [E, I, H]: gate first
    TRANSPOSED_INTERLEAVED, // the same, gate in the even columns
};

struct family {
    const char *model_type, *architecture;
    const char *block;          // "mlp"
    const char *names[3];       // of gate, up, down in SPLIT
    const char *router;         // below the block
    const char *selection_bias; // below the block, or NULL
    const char *shared;         // below the block, or NULL
    const char *experts_key, *width_key;
    const char *more; // of config.json
    enum layout layout;
    uint32_t dense_layers;
    bool biased, shared_gated; // router and experts; the shared expert
};

#define D1                                                                                                                         \
    { "gate_proj", "up_proj", "down_proj" }
#define D2                                                                                                                         \
    { "w1", "w3", "w2" }

static const struct family FAMILIES[] = {
    {.model_type = "qwen3_moe",
     .architecture = "Qwen3MoeForCausalLM",
     .block = "mlp",
     .names = D1,
     .router = "gate",
     .experts_key = "num_experts",
     .width_key = "moe_intermediate_size",
     .more = "\"decoder_sparse_step\": 1, \"mlp_only_layers\": [], \"norm_topk_prob\": true, \"intermediate_size\": 64"},
    {.model_type = "mixtral",
     .architecture = "MixtralForCausalLM",
     .block = "block_sparse_moe",
     .names = D2,
     .router = "gate",
     .experts_key = "num_local_experts",
     .width_key = "intermediate_size",
     .more = "\"sliding_window\": null"},
    {.model_type = "qwen2_moe",
     .architecture = "Qwen2MoeForCausalLM",
     .block = "mlp",
     .names = D1,
     .router = "gate",
     .shared = "shared_expert",
     .shared_gated = true,
     .experts_key = "num_experts",
     .width_key = "moe_intermediate_size",
     .more = "\"decoder_sparse_step\": 1, \"mlp_only_layers\": [], \"norm_topk_prob\": false, \"intermediate_size\": 64"},
    {.model_type = "qwen3_5_moe",
     .architecture = "Qwen3_5MoeForCausalLM",
     .block = "mlp",
     .layout = FUSED,
     .names = D1,
     .router = "gate",
     .shared = "shared_expert",
     .shared_gated = true,
     .experts_key = "num_experts",
     .width_key = "moe_intermediate_size",
     .more = "\"mlp_only_layers\": []"},
    {.model_type = "olmoe",
     .architecture = "OlmoeForCausalLM",
     .block = "mlp",
     .names = D1,
     .router = "gate",
     .experts_key = "num_experts",
     .width_key = "intermediate_size",
     .more = "\"norm_topk_prob\": false"},
    {.model_type = "deepseek_v3",
     .architecture = "DeepseekV3ForCausalLM",
     .block = "mlp",
     .names = D1,
     .router = "gate",
     .selection_bias = "gate.e_score_correction_bias",
     .shared = "shared_experts",
     .experts_key = "n_routed_experts",
     .width_key = "moe_intermediate_size",
     .dense_layers = 1,
     .more = "\"first_k_dense_replace\": 1, \"moe_layer_freq\": 1, \"n_group\": 1, \"topk_group\": 1, \"n_shared_experts\": 1, "
             "\"norm_topk_prob\": true, \"routed_scaling_factor\": 2.5, \"scoring_func\": \"sigmoid\", "
             "\"topk_method\": \"noaux_tc\", \"intermediate_size\": 64"},
    {.model_type = "gpt_oss",
     .architecture = "GptOssForCausalLM",
     .block = "mlp",
     .layout = TRANSPOSED_INTERLEAVED,
     .names = D1,
     .router = "router",
     .biased = true,
     .experts_key = "num_local_experts",
     .width_key = "intermediate_size",
     .more = "\"swiglu_alpha\": 1.702, \"swiglu_limit\": 7.0"},
    {.model_type = "llama4_text",
     .architecture = "Llama4ForCausalLM",
     .block = "feed_forward",
     .layout = TRANSPOSED,
     .names = D1,
     .router = "router",
     .shared = "shared_expert",
     .experts_key = "num_local_experts",
     .width_key = "intermediate_size",
     .more = "\"interleave_moe_layer_step\": 1, \"intermediate_size_mlp\": 64"},
};

struct checkpoint_recipe checkpoint_recipe_default(void) {
    return (struct checkpoint_recipe){
        .architecture = "qwen3_moe", .hidden = 256, .width = 128, .experts = 16, .top_k = 4, .layers = 4};
}

const char *checkpoint_architecture(size_t i) {
    return i < sizeof FAMILIES / sizeof *FAMILIES ? FAMILIES[i].model_type : NULL;
}

// The formats of compressed-tensors and of DeepSeek whose bytes equal those of synthetic codes.
struct written_format {
    const char *name; // as reported by Describe
    const char *codes, *scales;
    enum expertd_dtype codes_dtype, scale_dtype;
    size_t codes_per_element;
    const char *config;
};

static const struct written_format WRITTEN_FORMATS[] = {
    {"fp8_block128", "weight", "weight_scale_inv", EXPERTD_DTYPE_F8_E4M3, EXPERTD_DTYPE_F32, 1,
     "\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]"},
    {"mxfp4", "weight_packed", "weight_scale", EXPERTD_DTYPE_U8, EXPERTD_DTYPE_U8, 2,
     "\"quant_method\": \"compressed-tensors\", \"format\": \"mxfp4-pack-quantized\""},
    {"int4_group32", "weight_packed", "weight_scale", EXPERTD_DTYPE_I32, EXPERTD_DTYPE_BF16, 8,
     "\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", \"config_groups\": {\"group_0\": {\"weights\": "
     "{\"num_bits\": 4, \"type\": \"int\", \"group_size\": 32}}}"},
};
enum { WRITTEN_FORMAT_COUNT = sizeof WRITTEN_FORMATS / sizeof *WRITTEN_FORMATS };

const char *checkpoint_format(size_t i) {
    return i < WRITTEN_FORMAT_COUNT ? WRITTEN_FORMATS[i].name : NULL;
}

struct writer {
    const struct written_format *format; // NULL: BF16
    const struct family *family;
    const struct checkpoint_recipe *recipe;
    struct safetensors_entry *entries; // [count]; names and data owned
    size_t count, capacity;
    uint16_t *staging; // one expert's matrix
};

static FALLIBLE grow(struct writer *w) {
    if (w->count < w->capacity) {
        return OK;
    }
    size_t capacity = w->capacity ? 2 * w->capacity : 64;
    struct safetensors_entry *entries = realloc(w->entries, capacity * sizeof *entries);
    if (!entries) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a table of %zu tensors", capacity);
    }
    w->entries = entries;
    w->capacity = capacity;
    return OK;
}

struct shape {
    uint32_t rank;
    uint64_t of[3];
};

// Adds a zeroed tensor, and returns its data.
__attribute__((format(printf, 5, 6))) static FALLIBLE add(struct writer *w, enum expertd_dtype dtype, struct shape shape,
                                                          void **out, const char *format, ...) {
    TRY(grow(w));
    struct safetensors_entry entry = {.view = {.dtype = dtype, .rank = shape.rank}};
    memcpy(entry.view.shape, shape.of, sizeof shape.of);
    TRY(expertd_tensor_bytes(dtype, shape.of, shape.rank, &entry.view.bytes));
    va_list arguments;
    char *name = NULL;
    va_start(arguments, format);
    int length = vasprintf(&name, format, arguments);
    va_end(arguments);
    void *data = calloc(1, entry.view.bytes ? entry.view.bytes : 1);
    if (length < 0 || !data) {
        free(length < 0 ? NULL : name);
        free(data);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a tensor of %" PRIu64 " bytes", entry.view.bytes);
    }
    entry.name = name;
    entry.view.data = data;
    w->entries[w->count++] = entry;
    *out = data;
    return OK;
}

struct target { // destination of W[0][0] of a matrix, and its strides in elements
    uint16_t *data;
    size_t n_stride, k_stride;
};

static void fill(const struct writer *w, uint32_t layer, uint32_t expert, enum supply_tensor tensor, size_t n, size_t k,
                 struct target to) {
    synthetic_fill(w->recipe->seed, layer, expert, tensor, n, k, w->staging);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < k; j++) {
            to.data[i * to.n_stride + j * to.k_stride] = w->staging[i * k + j];
        }
    }
}

// One matrix as codes and scales, with the bytes of the synthetic model.
static FALLIBLE add_codes(struct writer *w, const struct synthetic_tensor *matrix, const char *name) {
    const struct written_format *f = w->format;
    struct quantised_matrix m;
    void *codes, *scales;
    synthetic_describe_codes(synthetic_format_find(f->name, strlen(f->name)), matrix->n, matrix->k, &m);
    uint64_t columns = (matrix->n + m.scale_columns - 1) / m.scale_columns;
    TRY(add(w, f->codes_dtype, (struct shape){2, {matrix->n, matrix->k / f->codes_per_element}}, &codes, "%s.%s", name, f->codes));
    TRY(add(w, f->scale_dtype, (struct shape){2, {columns, m.scale_n_stride}}, &scales, "%s.%s", name, f->scales));
    void *generated = aligned_alloc(64, synthetic_codes_bytes(&m, matrix->n, matrix->k));
    if (!generated) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu x %zu codes", matrix->n, matrix->k);
    }
    synthetic_fill_codes(matrix, &m, generated);
    memcpy(codes, m.codes.data, matrix->n * matrix->k * m.codes.bits / 8);
    memcpy(scales, m.scales, columns * m.scale_n_stride * expertd_dtype_size(m.format.scale));
    free(generated);
    return OK;
}

static FALLIBLE add_split(struct writer *w, uint32_t layer, uint32_t expert, const char *prefix) {
    const struct checkpoint_recipe *r = w->recipe;
    for (int part = 0; part < 3; part++) {
        uint64_t n = part == 2 ? r->hidden : r->width, k = part == 2 ? r->width : r->hidden;
        void *data;
        const char *name = expert == SUPPLY_SHARED ? (const char *const[])D1[part] : w->family->names[part];
        if (w->format) {
            char full[192];
            struct synthetic_tensor matrix = {r->seed, layer, expert, (enum supply_tensor)(SUPPLY_GATE + part), n, k};
            snprintf(full, sizeof full, "%s.%s", prefix, name);
            TRY(add_codes(w, &matrix, full));
            continue;
        }
        TRY(add(w, EXPERTD_DTYPE_BF16, (struct shape){2, {n, k}}, &data, "%s.%s.weight", prefix, name));
        fill(w, layer, expert, (enum supply_tensor)(SUPPLY_GATE + part), n, k, (struct target){data, k, 1});
    }
    return OK;
}

// Strides and offsets of gate and up in a fused tensor of one expert.
static struct target in_fused(const struct writer *w, uint16_t *expert, int part) {
    size_t hidden = w->recipe->hidden, width = w->recipe->width, half = (size_t)(part == 1);
    switch (w->family->layout) {
    case TRANSPOSED_INTERLEAVED:
        return part == 2 ? (struct target){expert, 1, hidden} : (struct target){expert + half, 2, 2 * width};
    case TRANSPOSED:
        return part == 2 ? (struct target){expert, 1, hidden} : (struct target){expert + half * width, 1, 2 * width};
    case FUSED:
    case SPLIT:
        break;
    }
    return part == 2 ? (struct target){expert, width, 1} : (struct target){expert + half * width * hidden, hidden, 1};
}

static FALLIBLE add_fused(struct writer *w, uint32_t layer, const char *prefix) {
    const struct checkpoint_recipe *r = w->recipe;
    uint64_t h = r->hidden, i = r->width;
    bool rows = w->family->layout == FUSED;
    void *gate_up, *down;
    TRY(add(w, EXPERTD_DTYPE_BF16, (struct shape){3, {r->experts, rows ? 2 * i : h, rows ? h : 2 * i}}, &gate_up, "%s.gate_up_proj",
            prefix));
    TRY(add(w, EXPERTD_DTYPE_BF16, (struct shape){3, {r->experts, rows ? h : i, rows ? i : h}}, &down, "%s.down_proj", prefix));
    for (uint32_t e = 0; e < r->experts; e++) {
        uint16_t *pair = (uint16_t *)gate_up + 2 * h * i * e;
        fill(w, layer, e, SUPPLY_GATE, i, h, in_fused(w, pair, 0));
        fill(w, layer, e, SUPPLY_UP, i, h, in_fused(w, pair, 1));
        fill(w, layer, e, SUPPLY_DOWN, h, i, in_fused(w, (uint16_t *)down + h * i * e, 2));
    }
    if (!w->family->biased) {
        return OK;
    }
    TRY(add(w, EXPERTD_DTYPE_BF16, (struct shape){2, {r->experts, 2 * i}}, &gate_up, "%s.gate_up_proj_bias", prefix));
    TRY(add(w, EXPERTD_DTYPE_BF16, (struct shape){2, {r->experts, h}}, &down, "%s.down_proj_bias", prefix));
    for (uint32_t e = 0; e < r->experts; e++) {
        uint16_t *pair = (uint16_t *)gate_up + 2 * i * e;
        fill(w, layer, e, SUPPLY_GATE_BIAS, 1, i, (struct target){pair, 0, 2});
        fill(w, layer, e, SUPPLY_UP_BIAS, 1, i, (struct target){pair + 1, 0, 2});
        fill(w, layer, e, SUPPLY_DOWN_BIAS, 1, h, (struct target){(uint16_t *)down + h * e, 0, 1});
    }
    return OK;
}

static FALLIBLE add_router(struct writer *w, uint32_t layer, const char *block) {
    const struct checkpoint_recipe *r = w->recipe;
    void *data;
    TRY(add(w, EXPERTD_DTYPE_BF16, (struct shape){2, {r->experts, r->hidden}}, &data, "%s.%s.weight", block, w->family->router));
    fill(w, layer, SUPPLY_SHARED, SUPPLY_ROUTER, r->experts, r->hidden, (struct target){data, r->hidden, 1});
    if (w->family->biased) {
        TRY(add(w, EXPERTD_DTYPE_BF16, (struct shape){1, {r->experts}}, &data, "%s.%s.bias", block, w->family->router));
        fill(w, layer, SUPPLY_SHARED, SUPPLY_ROUTER_BIAS, 1, r->experts, (struct target){data, 0, 1});
    }
    if (w->family->selection_bias) {
        // The vendors' files have F32.
        TRY(add(w, EXPERTD_DTYPE_F32, (struct shape){1, {r->experts}}, &data, "%s.%s", block, w->family->selection_bias));
        synthetic_fill(r->seed, layer, SUPPLY_SHARED, SUPPLY_SELECTION_BIAS, 1, r->experts, w->staging);
        expertd_dtype_widen(EXPERTD_DTYPE_BF16, w->staging, r->experts, data);
    }
    return OK;
}

static FALLIBLE add_shared(struct writer *w, uint32_t layer, const char *block) {
    char prefix[160];
    void *data;
    snprintf(prefix, sizeof prefix, "%s.%s", block, w->family->shared);
    TRY(add_split(w, layer, SUPPLY_SHARED, prefix));
    if (w->family->shared_gated) {
        TRY(add(w, EXPERTD_DTYPE_BF16, (struct shape){2, {1, w->recipe->hidden}}, &data, "%s_gate.weight", prefix));
        fill(w, layer, SUPPLY_SHARED, SUPPLY_SHARED_GATE, 1, w->recipe->hidden, (struct target){data, 0, 1});
    }
    return OK;
}

static FALLIBLE add_layer(struct writer *w, uint32_t layer) {
    char block[96], prefix[128];
    void *data;
    uint64_t hidden = w->recipe->hidden;
    TRY(add(w, EXPERTD_DTYPE_BF16, (struct shape){1, {hidden}}, &data, "model.layers.%u.post_attention_layernorm.weight", layer));
    snprintf(block, sizeof block, "model.layers.%u.%s", layer, w->family->block);
    if (layer < w->family->dense_layers) {
        for (int part = 0; part < 3; part++) {
            struct shape shape = {2, {part == 2 ? hidden : 64, part == 2 ? 64 : hidden}};
            TRY(add(w, EXPERTD_DTYPE_BF16, shape, &data, "%s.%s.weight", block, w->family->names[part]));
        }
        return OK;
    }
    TRY(add_router(w, layer, block));
    if (w->family->shared) {
        TRY(add_shared(w, layer, block));
    }
    snprintf(prefix, sizeof prefix, "%s.experts", block);
    if (w->family->layout != SPLIT) {
        return add_fused(w, layer, prefix);
    }
    for (uint32_t e = 0; e < w->recipe->experts; e++) {
        snprintf(prefix, sizeof prefix, "%s.experts.%u", block, e);
        TRY(add_split(w, layer, e, prefix));
    }
    return OK;
}

static FALLIBLE write_config(const char *path, const struct writer *w) {
    const struct checkpoint_recipe *r = w->recipe;
    const struct family *f = w->family;
    FILE *file = fopen(path, "we");
    if (!file) {
        FAIL(EXPERTD_ERR_IO, "%s: %s", path, strerror(errno));
    }
    fprintf(file,
            "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n  \"torch_dtype\": \"bfloat16\",\n"
            "  \"hidden_act\": \"silu\",\n  \"hidden_size\": %u,\n  \"num_hidden_layers\": %u,\n  \"%s\": %u,\n"
            "  \"num_experts_per_tok\": %u,\n  \"%s\": %u,\n  ",
            f->architecture, f->model_type, r->hidden, r->layers + f->dense_layers, f->experts_key, r->experts, r->top_k,
            f->width_key, r->width);
    if (f->shared_gated) {
        fprintf(file, "\"shared_expert_intermediate_size\": %u, ", r->width);
    }
    if (w->format) {
        fprintf(file, "\"quantization_config\": {%s},\n  ", w->format->config);
    }
    fprintf(file, "%s,\n  \"vocab_size\": %d\n}\n", f->more, VOCABULARY);
    bool failed = ferror(file) != 0;
    failed |= fclose(file) != 0;
    if (failed) {
        FAIL(EXPERTD_ERR_IO, "%s: %s", path, strerror(errno));
    }
    return OK;
}

static FALLIBLE check_recipe(const struct checkpoint_recipe *r, const struct family **family) {
    *family = NULL;
    for (size_t i = 0; i < sizeof FAMILIES / sizeof *FAMILIES; i++) {
        *family = strcmp(FAMILIES[i].model_type, r->architecture) == 0 ? &FAMILIES[i] : *family;
    }
    if (!*family) {
        FAIL(EXPERTD_ERR_USAGE, "unknown architecture %s", r->architecture);
    }
    uint32_t sizes[] = {r->hidden, r->width, r->experts, r->top_k, r->layers};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i] == 0 || sizes[i] > SIZE_MAX_ONE) {
            FAIL(EXPERTD_ERR_USAGE, "size %u: expected 1 to %d", sizes[i], SIZE_MAX_ONE);
        }
    }
    if (r->top_k > r->experts || r->layers > LAYERS_MAX) {
        FAIL(EXPERTD_ERR_USAGE, "K %u, E %u, %u layers: expected K up to E, and at most %d layers", r->top_k, r->experts, r->layers,
             LAYERS_MAX);
    }
    return OK;
}

static FALLIBLE find_format(struct writer *w) {
    const char *name = w->recipe->format;
    for (size_t i = 0; name && i < WRITTEN_FORMAT_COUNT; i++) {
        w->format = strcmp(WRITTEN_FORMATS[i].name, name) == 0 ? &WRITTEN_FORMATS[i] : w->format;
    }
    if (name && !w->format) {
        FAIL(EXPERTD_ERR_USAGE, "unknown format %s", name);
    }
    if (w->format && (w->family->layout != SPLIT || w->recipe->hidden % 32 || w->recipe->width % 32)) {
        FAIL(EXPERTD_ERR_USAGE, "format %s requires an architecture with one tensor per matrix, and sizes that are multiples of 32",
             name);
    }
    return OK;
}

static FALLIBLE add_model(struct writer *w) {
    const struct checkpoint_recipe *r = w->recipe;
    size_t largest = (size_t)r->hidden * (r->width > r->experts ? r->width : r->experts);
    void *data;
    w->staging = malloc(largest * sizeof *w->staging);
    if (!w->staging) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a matrix of %zu elements", largest);
    }
    TRY(add(w, EXPERTD_DTYPE_BF16, (struct shape){2, {VOCABULARY, r->hidden}}, &data, "model.embed_tokens.weight"));
    for (uint32_t layer = 0; layer < r->layers + w->family->dense_layers; layer++) {
        TRY(add_layer(w, layer));
    }
    return add(w, EXPERTD_DTYPE_BF16, (struct shape){1, {r->hidden}}, &data, "model.norm.weight");
}

static void writer_deinit(struct writer *w) {
    for (size_t i = 0; i < w->count; i++) {
        free((void *)(uintptr_t)w->entries[i].name);
        free((void *)(uintptr_t)w->entries[i].view.data);
    }
    free(w->entries);
    free(w->staging);
}

FALLIBLE checkpoint_write(const char *folder, const struct checkpoint_recipe *recipe) {
    struct writer w = {.recipe = recipe};
    char path[PATH_MAX];
    err_t e;
    TRY(check_recipe(recipe, &w.family));
    TRY(find_format(&w));
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
        FAIL(EXPERTD_ERR_IO, "%s: %s", folder, strerror(errno));
    }
    TRY_OUT(e, add_model(&w));
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    TRY_OUT(e, safetensors_write(path, w.entries, w.count));
    snprintf(path, sizeof path, "%s/config.json", folder);
    e = write_config(path, &w);
out:
    writer_deinit(&w);
    return e;
}
