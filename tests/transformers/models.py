"""Small random models of transformers' MoE architectures, in F32: complete models, attention included."""

import re

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY = 64
EXPERTS = 8
LAYERS = 3  # some models have dense first layers
# Settings for every configuration that has the key. All widths differ, so that a swapped tensor cannot fit by chance.
COMMON = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": LAYERS, "num_layers": LAYERS, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "moe_intermediate_size": 48, "expert_ffn_hidden_size": 48,
    "ffn_hidden_size": 96, "shared_expert_intermediate_size": 80, "moe_shared_expert_intermediate_size": 80,
    "shared_intermediate_size": 80, "num_experts": EXPERTS, "num_local_experts": EXPERTS, "n_routed_experts": EXPERTS, "moe_num_experts": EXPERTS,
    "num_experts_per_tok": 3, "num_experts_per_token": 3, "moe_topk": 3, "moe_k": 3, "moe_top_k": 3,
    "n_group": 4, "topk_group": 2, "num_expert_group": 4, "first_k_dense_replace": 1, "num_dense_layers": 1,
    "max_position_embeddings": 128, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16,
    "v_head_dim": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "mlp_only_layers": [], "mlp_layer_types": None,
    "layer_types": None,
}
VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "depth": 1, "num_heads": 2, "num_attention_heads": 2,
          "out_hidden_size": 64, "deepstack_visual_indexes": [0]}
# Settings of each model type on top of COMMON; None: none. "type/variant": the same type with other settings.
MODELS = {
    **dict.fromkeys((
        "mixtral", "minimax", "qwen2_moe", "qwen3_moe", "mellum", "qwen3_next", "qwen4_exp", "qwen3_vl_moe", "qwen3_5_moe", "olmoe",
        "flex_olmo", "jamba", "hunyuan_v1_moe", "ernie4_5_moe", "mistral4", "mistral_large4", "gpt_oss", "granitemoe",
        "granitemoeshared", "granitemoehybrid", "deepseek_v3", "deepseek_v32", "kimi_linear", "glm4_moe", "glm4v_moe",
        "glm4_moe_lite", "glm_moe_dsa", "solar_open", "exaone_moe", "mimo_v2_flash", "bailing_hybrid", "afmoe", "minimax_m2",
        "minimax_m3_vl", "hy_v3", "flint", "laguna")),
    "glm5_next": {"swiglu_limit": 0.7, "num_key_value_heads": 4, "qk_rope_head_dim": 0,
                   "mlp_layer_types": ["dense", "sparse", "sparse"]},
    "hy_v4": {"swiglu_limit": 0.7, "num_key_value_heads": 4},
    "dots3_note": {"num_key_value_heads": 4, "layer_types": ["indexed_attention"] * LAYERS, "shared_experts_intermediate_size": 40, "n_shared_experts": 2},
    "axk1": {},
    "axk2": {"topk_group": 3},  # SELECTION_BIAS_SHIFT makes all scores negative except the masked group's zeros, so that no tie decides
    "axk2/ungrouped": {"n_group": None, "topk_group": None},
    "kolibri1": {},
    "kolibri1/normalised": {"norm_topk_prob": True},
    "jetmoe": {},
    "qwen3_omni_moe_thinker": {},
    "aria": {},
    "cohere2_moe": {"num_shared_experts": 2},
    "cohere2_moe/sum": {"num_shared_experts": 1, "expert_selection_fn": "sigmoid", "shared_expert_combination_strategy": "sum"},
    "bailing_hybrid/one": {"num_experts_per_tok": 1},
    "beam": {"mlp_layer_types": ["dense", "sparse", "sparse"]},
    "deepseek_v4": {"mlp_layer_types": ["hash_moe", "hash_moe", "moe"], "swiglu_limit": 1.5},
    "deepseek_v2": {"topk_method": "group_limited_greedy"},
    "laguna/capped": {"moe_router_logit_softcapping": 0.8},
    "gemma4": {"enable_moe_block": True, "top_k_experts": 3},
    "lfm2_moe": {"layer_types": ["full_attention"] * LAYERS},
    "llama4": {"num_experts_per_tok": 1, "interleave_moe_layer_step": 1, "intermediate_size_mlp": 96},
    "longcat_flash": {"zero_expert_num": 4},
    "nemotron_h": {"layer_types": ["full_attention", "moe", "moe"], "layers_block_type": ["full_attention", "moe", "moe"]},
    "nemotron_h/latent": {"layer_types": ["full_attention", "moe", "moe"], "layers_block_type": ["full_attention", "moe", "moe"],
                          "moe_latent_size": 40},
    "phimoe": {"num_experts_per_tok": 2},
    "step3p7": {"mlp_layer_types": ["dense", "sparse", "sparse"], "share_expert_dim": 80, "swiglu_limits": [0, 0, 1.5],
                "swiglu_limits_shared": [0, 2.5, 0]},
}
# Further settings that the configuration of an image or audio tower needs to be valid.
TOWERS = {
    "qwen3_omni_moe_thinker": {"audio_config": {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2,
                                                "encoder_ffn_dim": 32, "output_dim": 64, "downsample_hidden_size": 8}},
    "dots3_note": {
        "vision_config": {"mlp_layer_types": ["sparse"], "num_local_experts": 4, "moe_intermediate_size": 24, "adapter_in_dim": 32,
                          "adapter_out_dim": 64},
        "audio_config": {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                         "adapter_input_size": 32, "adapter_out_dim": 64}},
}
PER_LAYER = ("layer_types", "mlp_layer_types", "per_layer_config")
SELECTION_BIAS_SHIFT = {"axk2": -1.5}
BLOCK = re.compile(r"layers\.(\d+)\.(mlp|feed_forward|block_sparse_moe|mixer|moe)$")
LAYER = re.compile(r"layers\.(\d+)$")  # Gemma 4: router and experts belong to the layer, and read different rows


def settings(config, own):
    known = set(config.to_dict()) | set(getattr(config, "attribute_map", {}))
    return {**{key: value for key, value in COMMON.items() if key in known}, **own}


def configuration(name):
    own = MODELS[name] or {}
    config_class = CONFIG_MAPPING[name.split("/")[0]]
    default = config_class()
    text = default.get_text_config()
    if text is default:
        return config_class(**settings(default, own))
    text_key = next(key for key, value in vars(default).items() if value is text)
    parts = {text_key: type(text)(**settings(text, own)).to_dict()}
    if getattr(default, "vision_config", None) is not None:
        vision = {key: value for key, value in default.vision_config.to_dict().items() if key not in PER_LAYER}
        parts["vision_config"] = {**vision, **{key: value for key, value in VISION.items() if key in vision}}
    for tower, own_of_tower in TOWERS.get(name, {}).items():
        parts[tower] = {**parts.get(tower, {}), **own_of_tower}
    return config_class(**parts)


def make(name):
    """A model with random weights that keep activations near 1. The weights depend on the name only."""
    config = configuration(name)
    try:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except ValueError:
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    with torch.no_grad():
        for key, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if key.endswith("tid2eid"):  # different experts for each token
                tensor.copy_(torch.rand((len(tensor), EXPERTS), generator=generator).argsort()[:, :tensor.shape[1]])
            if not tensor.is_floating_point() or "inv_freq" in key:
                continue
            if tensor.dim() >= 2:
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * tensor.shape[-1] ** -0.5)
            elif "bias" in key:
                tensor.copy_(torch.rand(tensor.shape, generator=generator) * 0.2 + SELECTION_BIAS_SHIFT.get(name, 0))
            elif key.endswith(("router.scale", "per_expert_scale", "mlp.post_mlp_layernorm.weight")):
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return model.eval()


def blocks(model):
    """{layer number: its MoE block}"""
    named = [(BLOCK.search(name) or LAYER.search(name), module) for name, module in model.named_modules()
             if hasattr(module, "experts") or hasattr(module, "output_linear")]
    return {int(found[1]): module for found, module in named if found}


def answer(block, rows, token_ids, router_rows):
    """The block's output. For a layer whose router has a separate input (Gemma 4): the output of its experts."""
    if hasattr(block, "self_attn"):
        with torch.no_grad():
            _, weights, ids = block.router(torch.from_numpy(router_rows))
            return block.experts(torch.from_numpy(rows), ids, weights).numpy()
    hashes = (torch.from_numpy(token_ids)[None],) if getattr(block, "is_hash", False) else ()
    with torch.no_grad():
        out = block(torch.from_numpy(rows)[None], *hashes)
    return (out[0] if isinstance(out, tuple) else out).reshape(rows.shape).numpy()
