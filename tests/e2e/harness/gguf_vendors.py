"""The models of gguf_models.py as their authors publish them: safetensors with the vendor's names, layouts and keys of config.json.

Written from the vendors' own code and files. llama.cpp's converter turns such a checkpoint into the tensors and metadata of the GGUF file:
it stacks experts, separates gate from up, de-interleaves, transposes and renames.
"""

import dataclasses
import json

import numpy as np

from .checkpoints import write_safetensors
from .gguf_models import TOP_K

PARTS = ("gate", "up", "down")


def separate(names):
    """One tensor for each expert and matrix; `names` has a place for the expert's number and one for the part's name."""
    pattern, parts = names

    def write(parts_of):
        return {pattern.format(e, name): parts_of[part][e] for part, name in zip(PARTS, parts) if part in parts_of
                for e in range(len(parts_of["down"]))}
    return write


D1 = separate(("experts.{}.{}.weight", ("gate_proj", "up_proj", "down_proj")))
D2 = separate(("experts.{}.{}.weight", ("w1", "w3", "w2")))


def both(parts):
    return np.concatenate([parts["gate"], parts["up"]], 1)


def fused(gate_up="experts.gate_up_proj", down="experts.down_proj"):
    """[E, 2I, H] and [E, H, I]."""
    return lambda parts: {gate_up: both(parts), down: parts["down"]}


def transposed(parts):
    """[E, H, 2I] and [E, I, H]."""
    return {"experts.gate_up_proj": both(parts).swapaxes(1, 2), "experts.down_proj": parts["down"].swapaxes(1, 2)}


def interleaved(parts):
    """[E, H, 2I] with gate in the even columns, [E, I, H]."""
    rows = np.stack([parts["gate"], parts["up"]], 2).reshape(len(parts["gate"]), -1, parts["gate"].shape[2])
    return {"experts.gate_up_proj": rows.swapaxes(1, 2), "experts.down_proj": parts["down"].swapaxes(1, 2)}


def stacked(parts):
    return {f"{part}_proj.weight": parts[part] for part in PARTS}


def dbrx(parts):
    """[E * I, H] each, down not transposed."""
    def rows(matrices):
        return matrices.reshape(-1, matrices.shape[-1])
    return {"experts.mlp.w1": rows(parts["gate"]), "experts.mlp.v1": rows(parts["up"]),
            "experts.mlp.w2": rows(parts["down"].swapaxes(1, 2))}


@dataclasses.dataclass(frozen=True)
class Vendor:
    config: object  # of the specification: the keys besides those of the sizes
    block: str = "mlp"
    prefix: str = "model.layers"
    experts: object = D1
    router: str = "gate.weight"
    bias: str = "gate.e_score_correction_bias"
    shared: str = "mlp.shared_experts"
    width_key: str = "moe_intermediate_size"
    experts_key: str = "num_experts"
    top_k_key: str = "num_experts_per_tok"


def constant(**keys):
    return lambda s: keys


def deepseek(count="n_shared_experts", scale="routed_scaling_factor", groups=True, dense="first_k_dense_replace", norm="norm_topk_prob",
             **keys):
    def config(s):
        return ({count: s.shared // s.width, scale: s.scale, norm: s.norm, dense: s.layer} |
                ({"n_group": s.groups, "topk_group": s.top_groups} if groups else {}) | keys)
    return config


def shared_width(key, **keys):
    return lambda s: {key: s.shared} | keys


def routed(**more):
    return dict(experts_key="n_routed_experts") | more


V3 = Vendor(deepseek(topk_method="noaux_tc", scoring_func="sigmoid"), **routed())
MIXTRAL = Vendor(constant(), "block_sparse_moe", experts=D2, width_key="intermediate_size", experts_key="num_local_experts")
GATED = dict(shared="mlp.shared_expert")
VENDORS = {
    "mixtral": MIXTRAL, "minimax_text_01": MIXTRAL,
    "phimoe": dataclasses.replace(MIXTRAL, config=constant(router_jitter_noise=0.01)),
    "minimax_m2": dataclasses.replace(MIXTRAL, bias="e_score_correction_bias"),
    "minimax_m3": dataclasses.replace(
        MIXTRAL, bias="e_score_correction_bias", shared="block_sparse_moe.shared_experts",
        config=lambda s: {"shared_intermediate_size": s.shared, "routed_scaling_factor": s.scale, "swiglu_limit": 7.0}),
    "qwen2_moe": Vendor(shared_width("shared_expert_intermediate_size", norm_topk_prob=False), **GATED),
    "qwen3_moe": Vendor(constant(norm_topk_prob=True)),
    "mellum": Vendor(constant(norm_topk_prob=True)),
    "qwen3_vl_moe": Vendor(constant(), experts=transposed),
    "qwen3_next": Vendor(shared_width("shared_expert_intermediate_size", norm_topk_prob=True), **GATED),
    "qwen4_exp": Vendor(shared_width("shared_expert_intermediate_size", norm_topk_prob=True), experts=fused(), **GATED),
    "qwen3_5_moe": Vendor(shared_width("shared_expert_intermediate_size"), experts=fused(), **GATED),
    "olmoe": Vendor(constant(norm_topk_prob=False), width_key="intermediate_size"),
    "deepseek_v2": Vendor(lambda s: deepseek()(s) | {
        "norm_topk_prob": False, "topk_method": "group_limited_greedy" if s.groups > 1 else "greedy"}, **routed()),
    "deepseek_v3": V3, "deepseek_v32": V3, "glm_moe_dsa": V3, "glm4_moe": V3, "dots1": V3,
    "dots3_note": dataclasses.replace(V3, config=lambda s: V3.config(s) | {"shared_experts_intermediate_size": s.width}),
    "glm5_next": dataclasses.replace(V3, config=lambda s: V3.config(s) | {"swiglu_limit": s.limit}),
    "hy_v4": dataclasses.replace(V3, experts=fused(), config=lambda s: V3.config(s) | {"swiglu_limit": s.limit}),
    "mistral4": dataclasses.replace(V3, experts=fused(), config=deepseek()),
    "mimo_v2_flash": dataclasses.replace(V3, config=lambda s: V3.config(s) | {"n_shared_experts": None, "routed_scaling_factor": None}),
    "exaone_moe": Vendor(deepseek("num_shared_experts"), bias="e_score_correction_bias"),
    "kimi_linear": Vendor(deepseek("num_shared_experts", norm="moe_renormalize"), "block_sparse_moe", experts=D2,
                          shared="block_sparse_moe.shared_experts", top_k_key="num_experts_per_token"),
    "hy_v3": Vendor(lambda s: {"num_shared_experts": s.shared // s.width, "router_scaling_factor": s.scale}, router="router.gate.weight",
                    bias="expert_bias", shared="mlp.shared_mlp"),
    "cohere2_moe": Vendor(lambda s: {
        "num_shared_experts": s.shared // s.width, "norm_topk_prob": s.norm, "first_k_dense_replace": s.layer,
        "expert_selection_fn": "sigmoid" if s.score.startswith("sigmoid") else "softmax"}, width_key="intermediate_size"),
    "bailing_moe": Vendor(lambda s: {"num_shared_experts": s.shared // s.width, "norm_topk_prob": s.norm,
                                     "first_k_dense_replace": s.layer}),
    "bailing_moe_v2": Vendor(deepseek("num_shared_experts"), bias="gate.expert_bias"),
    "bailing_moe_v3": Vendor(lambda s: deepseek("num_shared_experts")(s) | {
        "expert_swiglu_limit_list": [0, s.limit], "share_expert_swiglu_limit_list": [0, s.shared_limit]}, bias="gate.expert_bias"),
    "afmoe": Vendor(lambda s: {"num_shared_experts": s.shared // s.width, "route_scale": s.scale, "num_dense_layers": s.layer},
                    router="router.gate.weight", bias="expert_bias"),
    "lfm2_moe": Vendor(lambda s: {"norm_topk_prob": True, "routed_scaling_factor": s.scale, "num_dense_layers": s.layer,
                                  "use_expert_bias": True}, "feed_forward", experts=D2, bias="expert_bias"),
    "hunyuan_v1_moe": Vendor(lambda s: {"num_shared_expert": s.shared // s.width}, router="gate.wg.weight", shared="mlp.shared_mlp",
                             width_key="intermediate_size", top_k_key="moe_topk"),
    "ernie4_5_moe": Vendor(lambda s: {"moe_num_shared_experts": s.shared // s.width, "moe_layer_start_index": s.layer,
                                      "moe_layer_interval": 1}, bias="moe_statics.e_score_correction_bias",
                           experts_key="moe_num_experts", top_k_key="moe_k"),
    "granitemoe": Vendor(constant(), "block_sparse_moe", experts=fused("input_linear.weight", "output_linear.weight"),
                         router="router.layer.weight", width_key="intermediate_size", experts_key="num_local_experts"),
    "dbrx": Vendor(constant(), "ffn", "transformer.blocks", dbrx, "router.layer.weight", width_key="ffn_config.ffn_hidden_size",
                   experts_key="ffn_config.moe_num_experts", top_k_key="ffn_config.moe_top_k"),
    "jamba": Vendor(lambda s: {"expert_layer_period": 2, "expert_layer_offset": s.layer}, "feed_forward", router="router.weight",
                    width_key="intermediate_size"),
    "gpt_oss": Vendor(constant(swiglu_limit=7.0), experts=interleaved, router="router.weight", width_key="intermediate_size",
                      experts_key="num_local_experts"),
    "llama4": Vendor(constant(interleave_moe_layer_step=2), "feed_forward", experts=transposed, router="router.weight",
                     shared="feed_forward.shared_expert", width_key="intermediate_size", experts_key="num_local_experts"),
    "nemotron_h": Vendor(lambda s: deepseek()(s) | {
        "n_shared_experts": 1, "moe_shared_expert_intermediate_size": s.shared, "moe_latent_size": s.latent, "mlp_hidden_act": "relu2",
        "hybrid_override_pattern": "E"}, "mixer", "backbone.layers", shared="mixer.shared_experts", **routed()),
    "laguna": Vendor(lambda s: {"moe_routed_scaling_factor": s.scale, "shared_expert_intermediate_size": s.shared,
                                "moe_router_logit_softcapping": s.softcap}, bias="experts.e_score_correction_bias", **GATED),
    "step3p5": Vendor(lambda s: {"moe_router_scaling_factor": s.scale, "share_expert_dim": s.shared, "swiglu_limits": [s.limit],
                                 "swiglu_limits_shared": [s.shared_limit]}, "moe", experts=stacked, bias="router_bias",
                      shared="share_expert", experts_key="moe_num_experts", top_k_key="moe_top_k"),
    "gemma4": Vendor(constant(enable_moe_block=True, rms_norm_eps=1e-6, hidden_activation="gelu_pytorch_tanh"), "", experts=fused(),
                     router="router.proj.weight", top_k_key="top_k_experts"),
    "deepseek_v4": Vendor(lambda s: {"n_shared_experts": 1, "routed_scaling_factor": s.scale, "swiglu_limit": s.limit,
                                     "num_hash_layers": 1}, "ffn", experts=D2, shared="ffn.shared_experts", **routed()),
}
VENDORS["granitemoehybrid"] = VENDORS["granitemoe"]


def config_of(model, vendor):
    s, config = model.spec, {}
    sizes = {"model_type": s.model_type, "hidden_size": s.hidden, "num_hidden_layers": s.blocks, vendor.width_key: s.width,
             vendor.experts_key: s.experts, vendor.top_k_key: TOP_K}
    if s.model_type == "dbrx":
        sizes |= {"d_model": s.hidden, "n_layers": s.blocks, "ffn_config.moe_normalize_expert_weights": 1.0}
    for key, value in (sizes | vendor.config(s)).items():
        *objects, name = key.split(".")
        place = config
        for part in objects:
            place = place.setdefault(part, {})
        place[name] = value
    return config


def tensors_of(model, vendor):
    """{name below the layer: array}."""
    s, v = model.spec, model.values
    block = f"{vendor.block}." if vendor.block else ""
    tensors = {f"{block}{name}": array for name, array in vendor.experts(model.parts).items()}
    tensors[f"{block}{vendor.router}"] = v["ffn_gate_inp.weight"]
    for part, name in zip(PARTS, ("w1", "w3", "w2") if vendor.experts is D2 and s.model_type == "deepseek_v4" else
                          ("gate_proj", "up_proj", "down_proj")):
        if f"ffn_{part}_shexp.weight" in v and not s.parallel:
            tensors[f"{vendor.shared}.{name}.weight"] = v[f"ffn_{part}_shexp.weight"]
    optional = {"mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight", f"{block}{vendor.bias}": s.bias_name,
                "mixer.fc1_latent_proj.weight": "ffn_latent_down.weight", "mixer.fc2_latent_proj.weight": "ffn_latent_up.weight",
                "router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale",
                "mlp.router.bias": "ffn_gate_inp.bias", "mlp.experts.down_proj_bias": "ffn_down_exps.bias"}
    tensors |= {name: v[own] for name, own in optional.items() if own in v}
    if s.shared_gate:
        tensors["mlp.shared_expert_gate.weight"] = v["ffn_gate_inp_shexp.weight"][None]
    if s.expert_bias:
        biases = np.stack([v["ffn_gate_exps.bias"], v["ffn_up_exps.bias"]], 2)
        tensors["mlp.experts.gate_up_proj_bias"] = biases.reshape(len(biases), -1)
    return tensors


def write_vendor(model, folder):
    """Writes a model whose tensors are all F32; returns the folder."""
    vendor = VENDORS[model.spec.model_type]
    layer = f"{vendor.prefix}.{model.spec.layer}."
    tensors = {layer + name: ("F32", array.shape, np.ascontiguousarray(array, np.float32).tobytes())
               for name, array in tensors_of(model, vendor).items()}
    if "ffn_gate_tid2eid.weight" in model.values:
        table = model.values["ffn_gate_tid2eid.weight"]
        tensors[f"{layer}ffn.gate.tid2eid"] = ("I32", table.shape, table.astype(np.int32).tobytes())
    folder.mkdir(parents=True)
    write_safetensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(config_of(model, vendor)))
    return folder
