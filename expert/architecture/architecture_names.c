#include "expert/architecture/architecture_names.h"

const struct tensor_names NAMES_MLP = {
    .router = {"mlp.gate.weight"},
    .selection_bias = {"mlp.gate.e_score_correction_bias"},
    .experts = {"mlp.experts"},
    .shared = {"mlp.shared_experts"},
    .output_norm = {"post_mlp_layernorm.weight", "mlp.post_mlp_layernorm.weight"},
};

const struct tensor_names NAMES_MLP_GATED_SHARED = {
    .router = {"mlp.gate.weight"},
    .experts = {"mlp.experts"},
    .shared = {"mlp.shared_expert"},
    .shared_gate = "mlp.shared_expert_gate.weight",
};

const struct tensor_names NAMES_BLOCK_SPARSE_MOE = {
    .router = {"block_sparse_moe.gate.weight"},
    .selection_bias = {"block_sparse_moe.e_score_correction_bias"},
    .experts = {"block_sparse_moe.experts"},
    .shared = {"block_sparse_moe.shared_experts"},
};

const struct tensor_names NAMES_GRANITE = {
    .router = {"block_sparse_moe.router.layer.weight"},
    .experts = {"block_sparse_moe"},
};

const struct tensor_names NAMES_GPT_OSS = {
    .router = {"mlp.router.weight"},
    .router_bias = "mlp.router.bias",
    .experts = {"mlp.experts"},
};

const struct tensor_names NAMES_FEED_FORWARD_ROUTER = {
    .router = {"feed_forward.router.weight"},
    .experts = {"feed_forward.experts"},
    .shared = {"feed_forward.shared_expert"},
};

const struct tensor_names NAMES_LFM2 = {
    .router = {"feed_forward.gate.weight"},
    .selection_bias = {"feed_forward.expert_bias"},
    .experts = {"feed_forward.experts"},
};

const struct tensor_names NAMES_HUNYUAN = {
    .router = {"mlp.gate.wg.weight"},
    .experts = {"mlp.experts"},
    .shared = {"mlp.shared_mlp"},
};

const struct tensor_names NAMES_DBRX = {
    .layers = "blocks",
    .router = {"ffn.router.layer.weight"},
    .experts = {"ffn.experts.mlp"},
};

const struct tensor_names NAMES_ERNIE = {
    .router = {"mlp.gate.weight"},
    .selection_bias = {"mlp.moe_statics.e_score_correction_bias"},
    .experts = {"mlp.experts"},
    .shared = {"mlp.shared_experts"},
};

const struct tensor_names NAMES_LONGCAT = {
    .router = {"mlp.router.classifier.weight"},
    .selection_bias = {"mlp.router.e_score_correction_bias"},
    .experts = {"mlp.experts"},
};

const struct tensor_names NAMES_EXAONE = {
    .router = {"mlp.gate.weight"},
    .selection_bias = {"mlp.e_score_correction_bias"},
    .experts = {"mlp.experts"},
    .shared = {"mlp.shared_experts"},
};

const struct tensor_names NAMES_NEMOTRON = {
    .router = {"mixer.gate.weight"},
    .selection_bias = {"mixer.gate.e_score_correction_bias"},
    .experts = {"mixer.experts"},
    .shared = {"mixer.shared_experts"},
    .latent_in = "mixer.fc1_latent_proj.weight",
    .latent_out = "mixer.fc2_latent_proj.weight",
};

const struct tensor_names NAMES_BAILING = {
    .router = {"mlp.gate.weight"},
    .selection_bias = {"mlp.gate.expert_bias"},
    .experts = {"mlp.experts"},
    .shared = {"mlp.shared_experts"},
};

const struct tensor_names NAMES_AFMOE = {
    .router = {"mlp.router.gate.weight"},
    .selection_bias = {"mlp.expert_bias"},
    .experts = {"mlp.experts"},
    .shared = {"mlp.shared_experts"},
};

const struct tensor_names NAMES_HY_V3 = {
    .router = {"mlp.router.gate.weight"},
    .selection_bias = {"mlp.expert_bias"},
    .experts = {"mlp.experts"},
    .shared = {"mlp.shared_mlp"},
};

const struct tensor_names NAMES_STEP = {
    .router = {"moe.gate.weight"},
    .selection_bias = {"moe.router_bias"},
    .experts = {"moe"},
    .shared = {"share_expert"},
};

const struct tensor_names NAMES_MISTRAL_LARGE = {
    .router = {"gate.weight"},
    .experts = {"experts"},
    .shared = {"shared_experts"},
};

const struct tensor_names NAMES_KIMI_LINEAR = {
    .router = {"block_sparse_moe.gate.weight"},
    .selection_bias = {"block_sparse_moe.gate.e_score_correction_bias"},
    .experts = {"block_sparse_moe.experts"},
    .shared = {"block_sparse_moe.shared_experts"},
};

const struct tensor_names NAMES_LAGUNA = {
    .router = {"mlp.gate.weight"},
    .selection_bias = {"mlp.experts.e_score_correction_bias"},
    .experts = {"mlp.experts"},
    .shared = {"mlp.shared_expert"},
};

// Checkpoints of the hub have the bias in a module of its own; transformers saves it with the router.
const struct tensor_names NAMES_KOLIBRI = {
    .router = {"mlp.gate.weight"},
    .selection_bias = {"moe.router.expert_bias", "mlp.gate.e_score_correction_bias"},
    .experts = {"mlp.experts"},
    .shared = {"mlp.shared_experts"},
};

const struct tensor_names NAMES_JETMOE = {
    .router = {"mlp.router.layer.weight"},
    .experts = {"mlp"},
    .output_bias = "mlp.bias",
};

const struct tensor_names NAMES_ARIA = {
    .router = {"mlp.router.weight"},
    .experts = {"mlp.experts"},
    .shared = {"mlp.shared_experts"},
};

const struct tensor_names NAMES_DEEPSEEK_V4 = {
    .router = {"ffn.gate.weight"},
    .selection_bias = {"ffn.gate.bias"},
    .token_experts = "ffn.gate.tid2eid",
    .experts = {"ffn.experts"},
    .shared = {"ffn.shared_experts"},
};

const struct tensor_names NAMES_GEMMA4 = {
    .router = {"router.proj.weight"},
    .router_norm = "router.scale",
    .expert_scale = "router.per_expert_scale",
    .experts = {"experts"},
};

// Those of a perceptron that is parallel to the block and no part of it are left out.
#define GGUF_BLOCK_NAMES                                                                                                           \
    "ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps", "ffn_down_exps", "ffn_gate_inp", "exp_probs_b", "ffn_exp_probs_b",         \
        "ffn_gate_tid2eid", "ffn_latent_down", "ffn_latent_up"
static const char *const GGUF_BLOCK[] = {GGUF_BLOCK_NAMES, NULL};
static const char *const GGUF_ALL[] = {GGUF_BLOCK_NAMES, "ffn_gate_shexp",     "ffn_up_shexp",
                                       "ffn_down_shexp", "ffn_gate_inp_shexp", NULL};

static const char *const GGUF_BESIDE[] = {"ffn_norm", "ffn_post_norm", "ffn_sub_norm", NULL};
static const char *const GGUF_BESIDE_PARALLEL_MLP[] = {
    "ffn_norm", "ffn_norm_exps",  "ffn_post_norm", "ffn_sub_norm",   "ffn_gate", "ffn_up",
    "ffn_down", "ffn_gate_shexp", "ffn_up_shexp",  "ffn_down_shexp", NULL};

// llama.cpp writes the first name, of HY-V3 the second; other tools the rest.
#define GGUF_SELECTION_BIAS                                                                                                        \
    { "exp_probs_b.bias", "exp_probs_b", "exp_probs_b.weight", "ffn_exp_probs_b.bias", "ffn_exp_probs_b", "ffn_exp_probs_b.weight" }

#define GGUF_NAMES                                                                                                                 \
    .layers = "blk", .router = {"ffn_gate_inp.weight"}, .router_bias = "ffn_gate_inp.bias", .selection_bias = GGUF_SELECTION_BIAS, \
    .token_experts = "ffn_gate_tid2eid.weight", .experts = {"ffn_down_exps"}, .router_norm = "ffn_gate_inp.scale",                 \
    .expert_scale = "ffn_down_exps.scale", .latent_in = "ffn_latent_down.weight", .latent_out = "ffn_latent_up.weight"

const struct tensor_names NAMES_GGUF = {
    GGUF_NAMES, .shared = {"ffn_down_shexp"}, .shared_gate = "ffn_gate_inp_shexp.weight", .flat = GGUF_ALL, .beside = GGUF_BESIDE,
};

const struct tensor_names NAMES_GGUF_PARALLEL_MLP = {
    GGUF_NAMES,
    .flat = GGUF_BLOCK,
    .beside = GGUF_BESIDE_PARALLEL_MLP,
};
