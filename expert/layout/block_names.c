#include "expert/layout/block_names.h"

#include <string.h>

#include "expert/layout/expert_names.h"

// The last is the layer itself.
static const char *const BLOCKS[] = {"mlp", "block_sparse_moe", "feed_forward", "ffn", "mixer", "moe", "mlp.moe", ""};
// Below the block: DBRX's experts.mlp, MLX's switch_mlp and switch_glu, experts.experts of LLM Compressor; the last is the block
// itself.
static const char *const MODULES[] = {
    "experts", "experts.mlp", "experts.experts", "experts.switch_mlp", "experts.switch_glu", "switch_mlp", "switch_glu", ""};

enum { KNOWN_NAMES = 16 };

// Names below the block, for all architectures.
static const char *const KNOWN[BLOCK_PARTS][KNOWN_NAMES] = {
    [BLOCK_ROUTER] = {"gate.weight", "router.weight", "router.layer.weight", "router.gate.weight", "router.classifier.weight",
                      "router.proj.weight", "router.linear.weight", "gate.wg.weight", "gate.gate_proj.weight", "gate.gate.weight",
                      "gate.proj.weight", "gate_weight"},
    [BLOCK_ROUTER_BIAS] = {"router.bias", "router.linear.bias", "router.layer.bias", "gate.bias"},
    // gate.bias is not among them: in other models it is added to the logits.
    [BLOCK_SELECTION_BIAS] = {"gate.e_score_correction_bias", "e_score_correction_bias", "router.e_score_correction_bias",
                              "experts.e_score_correction_bias", "moe_statics.e_score_correction_bias",
                              "gate.moe_statics.e_score_correction_bias", "gate.expert_bias", "expert_bias", "router.expert_bias",
                              "router_bias", "gate.router_bias"},
    [BLOCK_EXPERT_SCALE] = {"router.per_expert_scale", "per_expert_scale"},
    [BLOCK_SHARED] = {"shared_experts", "shared_expert", "shared_mlp", "share_expert"},
    [BLOCK_SHARED_GATE] = {"shared_expert_gate.weight", "shared_experts_gate.weight"},
};

static bool is_component(const char *text, const char *name, size_t length) {
    return strncmp(text, name, length) == 0 && text[length] == '.';
}

// ---- the experts' module ----

static size_t first_component(const char *name) {
    return strcspn(name, ".");
}

// The length of the row's block within its names: 3 of "mlp.experts", 0 of "experts", 3 of "moe" (a block that holds experts
// itself).
static size_t row_block_length(const struct tensor_names *names) {
    const char *experts = names->experts[0];
    size_t length = names->flat ? 0 : first_component(experts);
    return experts[length] == '\0' && strcmp(experts, "experts") == 0 ? 0 : length;
}

static bool match_below(const char *rest, size_t block, const struct expertd_tensor_view *view, size_t *module) {
    const char *below = rest + block + (block > 0);
    for (size_t i = 0; i < sizeof MODULES / sizeof *MODULES; i++) {
        size_t length = strlen(MODULES[i]);
        bool bare = length == 0;
        if ((bare && block == 0) || (!bare && !is_component(below, MODULES[i], length))) {
            continue;
        }
        if (expert_names_match(below + length + !bare, view, bare)) {
            *module = bare ? block : (size_t)(below - rest) + length;
            return true;
        }
    }
    return false;
}

// Only for names of a row that are not in the tables above.
static bool match_row(const struct tensor_names *names, const char *rest, const struct expertd_tensor_view *view, size_t *block,
                      size_t *module) {
    for (const char *const *own = names->experts; *own; own++) {
        size_t length = strlen(*own), of_block = row_block_length(names);
        bool bare = of_block == length;
        if (is_component(rest, *own, length) && expert_names_match(rest + length + 1, view, bare)) {
            *block = of_block;
            *module = length;
            return true;
        }
    }
    return false;
}

static bool match(const struct tensor_names *names, const char *rest, const struct expertd_tensor_view *view, size_t *block,
                  size_t *module) {
    if (names->flat) {
        *block = *module = 0;
        return expert_names_match_flat(rest);
    }
    if (match_row(names, rest, view, block, module)) {
        return true;
    }
    for (size_t i = 0; i < sizeof BLOCKS / sizeof *BLOCKS; i++) {
        *block = strlen(BLOCKS[i]);
        if ((*block == 0 || is_component(rest, BLOCKS[i], *block)) && match_below(rest, *block, view, module)) {
            return true;
        }
    }
    return false;
}

bool block_names_place(const struct tensor_names *names, const struct safetensors_entry *entry, struct experts_place *place) {
    size_t block, module, start = place->layer + 1;
    if (!match(names, entry->name + start, &entry->view, &block, &module)) {
        return false;
    }
    place->name = entry->name;
    place->block = block ? start + block : place->layer;
    place->module = module ? start + module : place->layer;
    return true;
}

// ---- the other parts ----

// A name of the row, or its list of names.
static const char *const *row_names(const struct tensor_names *names, enum block_part part) {
    switch (part) {
    case BLOCK_ROUTER:
        return names->router;
    case BLOCK_SELECTION_BIAS:
        return names->selection_bias;
    case BLOCK_SHARED:
        return names->shared;
    case BLOCK_OUTPUT_NORM:
        return names->output_norm;
    case BLOCK_ROUTER_BIAS:
        return &names->router_bias;
    case BLOCK_TOKEN_EXPERTS:
        return &names->token_experts;
    case BLOCK_ROUTER_NORM:
        return &names->router_norm;
    case BLOCK_EXPERT_SCALE:
        return &names->expert_scale;
    case BLOCK_SHARED_GATE:
        return &names->shared_gate;
    case BLOCK_OUTPUT_BIAS:
        return &names->output_bias;
    case BLOCK_LATENT_IN:
        return &names->latent_in;
    default:
        return &names->latent_out;
    }
}

static size_t row_name_count(enum block_part part) {
    bool list = part == BLOCK_ROUTER || part == BLOCK_SELECTION_BIAS || part == BLOCK_SHARED || part == BLOCK_OUTPUT_NORM;
    return list ? TENSOR_NAME_ALTERNATIVES : 1;
}

struct candidates {
    const struct block_search *search;
    enum block_part part;
    char *found; // [TENSOR_NAME_MAX], "" until one exists
};

static FALLIBLE try_name(struct candidates *c, const char *module, const char *name) {
    const struct tensor_finder *finder = c->search->finder;
    char full[TENSOR_NAME_MAX], below[TENSOR_NAME_MAX];
    TRY(tensor_name(full, "%s.%s", module, name));
    TRY(tensor_name(below, "%s.", full));
    bool exists = c->part == BLOCK_SHARED ? tensor_first_below(finder, below) != NULL : tensor_exists(finder, full);
    if (!exists || strcmp(full, c->found) == 0) {
        return OK;
    }
    if (c->found[0]) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: both %s and %s exist: cannot tell which of them counts",
             checkpoint_path(finder->checkpoint), c->found, full);
    }
    return tensor_name(c->found, "%s", full);
}

// The row's name without its block ("gate.weight" of "mlp.gate.weight"); NULL: the name is outside the row's block.
static const char *name_in_block(const struct tensor_names *names, const char *own) {
    size_t block = row_block_length(names);
    if (block == 0) {
        return own;
    }
    return is_component(own, names->experts[0], block) ? own + block + 1 : NULL;
}

static FALLIBLE try_row_names(struct candidates *c) {
    const struct block_search *s = c->search;
    const char *const *own = row_names(s->names, c->part);
    for (size_t i = 0; i < row_name_count(c->part) && own[i]; i++) {
        const char *below = name_in_block(s->names, own[i]);
        TRY(try_name(c, s->layer, own[i]));
        if (below) {
            TRY(try_name(c, s->block, below));
        }
    }
    return OK;
}

static FALLIBLE try_known_names(struct candidates *c, const char *module) {
    for (const char *const *name = KNOWN[c->part]; *name; name++) {
        TRY(try_name(c, module, *name));
    }
    return OK;
}

// The name by which a missing tensor is reported.
static FALLIBLE expected_name(const struct block_search *s, enum block_part part, char out[TENSOR_NAME_MAX]) {
    const char *own = row_names(s->names, part)[0];
    INVARIANT(own != NULL);
    const char *below = name_in_block(s->names, own);
    return below ? tensor_name(out, "%s.%s", s->block, below) : tensor_name(out, "%s.%s", s->layer, own);
}

FALLIBLE block_names_find(const struct block_search *search, enum block_part part, char out[TENSOR_NAME_MAX], bool *exists) {
    struct candidates c = {.search = search, .part = part, .found = out};
    out[0] = '\0';
    TRY(try_row_names(&c));
    TRY(try_known_names(&c, search->block));
    if (part == BLOCK_SHARED && !out[0]) {
        TRY(try_known_names(&c, search->layer));
    }
    *exists = out[0] != '\0';
    return *exists ? OK : expected_name(search, part, out);
}

// ---- modules without unused tensors ----

static size_t add_module(struct block_module *out, size_t count, const char *name, size_t length) {
    INVARIANT(count < BLOCK_MODULES_MAX);
    out[count] = (struct block_module){name, length};
    return count + (length > 0);
}

static size_t add_first_components(struct block_module *out, size_t count, const char *const *names, size_t names_count) {
    for (size_t i = 0; i < names_count && names[i]; i++) {
        count = add_module(out, count, names[i], first_component(names[i]));
    }
    return count;
}

size_t block_names_modules(const struct block_search *search, const struct layer_params *params,
                           struct block_module out[BLOCK_MODULES_MAX]) {
    if (search->names->flat) {
        return add_first_components(out, 0, search->names->flat, BLOCK_MODULES_MAX);
    }
    const char *block = search->block + strlen(search->layer);
    size_t count = add_module(out, 0, block + (*block == '.'), strlen(block + (*block == '.')));
    count = add_first_components(out, count, search->names->experts, TENSOR_NAME_ALTERNATIVES);
    for (int part = 0; part < BLOCK_PARTS; part++) {
        // In other models a norm of that name is not part of the block.
        if (part != BLOCK_OUTPUT_NORM || params->has_output_norm) {
            enum block_part which = (enum block_part)part;
            count = add_first_components(out, count, row_names(search->names, which), row_name_count(which));
        }
    }
    if (*block == '\0') {
        count = add_first_components(out, count, MODULES, sizeof MODULES / sizeof *MODULES - 1);
        count = add_first_components(out, count, KNOWN[BLOCK_ROUTER], KNOWN_NAMES);
    }
    if (*block == '\0' || !search->parallel_mlp) {
        count = add_first_components(out, count, KNOWN[BLOCK_SHARED], KNOWN_NAMES);
    }
    return count;
}
