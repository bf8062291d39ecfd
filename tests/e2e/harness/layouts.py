"""Small checkpoints whose layers hold the same weights under different names: one layer for each layout of the experts that tools write.

A family is a model's configuration and the names of its own files. A layout is a function of the family's weights; it returns the tensors
of the experts below the layer. Elements are float32, so that no layout rounds, or FP8 codes with a scale per row.
"""

import json

import numpy as np

from .checkpoints import write_safetensors
from .quantised import nearest
from .tensors import F8_VALUES

H, I, E, K = 64, 48, 4, 2
KINDS = {"<f4": "F32", "|u1": "F8_E4M3", "<u4": "U32"}


def family(model_type, block="mlp", router="gate.weight", prefix="model.layers", gated=True, width="moe_intermediate_size",
           experts="num_experts", own="experts", shared=None, shared_gate=None, selection=None, router_bias=None, biased=False,
           alternate=False, **config):
    return dict(model_type=model_type, block=block, router=router, prefix=prefix, gated=gated, width=width, experts=experts, own=own,
                shared=shared, shared_gate=shared_gate, selection=selection, router_bias=router_bias, biased=biased,
                alternate=alternate, config=config)


DEEPSEEK = dict(n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5, topk_method="noaux_tc",
                first_k_dense_replace=0)
FAMILIES = {
    "qwen3_moe": family("qwen3_moe", norm_topk_prob=True),
    "mixtral": family("mixtral", "block_sparse_moe", width="intermediate_size", experts="num_local_experts"),
    "qwen2_moe": family("qwen2_moe", shared="shared_expert", shared_gate="shared_expert_gate.weight",
                        shared_expert_intermediate_size=I),
    "deepseek_v3": family("deepseek_v3", experts="n_routed_experts", shared="shared_experts",
                          selection="gate.e_score_correction_bias", n_shared_experts=1, **DEEPSEEK),
    "granitemoe": family("granitemoe", "block_sparse_moe", "router.layer.weight", width="intermediate_size",
                         experts="num_local_experts", own=""),
    "gpt_oss": family("gpt_oss", router="router.weight", width="intermediate_size", experts="num_local_experts",
                      router_bias="router.bias", biased=True, alternate=True, swiglu_limit=7.0),
    "llama4_text": family("llama4_text", "feed_forward", "router.weight", width="intermediate_size", experts="num_local_experts",
                          shared="shared_expert", interleave_moe_layer_step=1),
    "nemotron_h": family("nemotron_h", "mixer", prefix="backbone.layers", gated=False, experts="n_routed_experts",
                         shared="shared_experts", selection="gate.e_score_correction_bias", n_shared_experts=1,
                         moe_shared_expert_intermediate_size=I, mlp_hidden_act="relu2", **DEEPSEEK),
    "hunyuan_v1_moe": family("hunyuan_v1_moe", router="gate.wg.weight", width="intermediate_size", shared="shared_mlp",
                             moe_topk=K, num_shared_expert=1),
    "lfm2_moe": family("lfm2_moe", "feed_forward", selection="expert_bias", norm_topk_prob=True, use_expert_bias=True,
                       num_dense_layers=0, routed_scaling_factor=1.0),
    "step3p5": family("step3p5", "moe", experts="moe_num_experts", own="", shared="share_expert", selection="router_bias",
                      moe_top_k=K, share_expert_dim=I, moe_router_scaling_factor=3.0),
}


class Weights:
    """One MoE block."""

    def __init__(self, family, hidden=H, width=I, seed=3):
        random = np.random.default_rng(seed)

        def matrix(n, k):
            return (random.standard_normal((n, k)) / np.sqrt(k)).astype(np.float32)

        self.family = family
        self.router, self.router_bias = matrix(E, hidden) * 4, matrix(1, E)[0]
        self.selection, self.shared_gate = matrix(1, E)[0], matrix(1, hidden)
        self.gate, self.up, self.down = (np.stack([matrix(*shape) for _ in range(E)])
                                         for shape in ((width, hidden), (width, hidden), (hidden, width)))
        self.gate_bias, self.up_bias, self.down_bias = matrix(E, width), matrix(E, width), matrix(E, hidden)
        self.shared = [matrix(width, hidden), matrix(width, hidden), matrix(hidden, width)]

    def fused(self):
        """gate and up as [E, 2I, H], and their biases [E, 2I]. Rows alternate if the family's fused files have them so."""
        axis = 2 if self.family["alternate"] else 1
        join = np.stack if self.family["alternate"] else np.concatenate
        return (join([self.gate, self.up], axis=axis).reshape(E, -1, self.gate.shape[2]),
                join([self.gate_bias, self.up_bias], axis=axis).reshape(E, -1))


# ---- layouts


def parts_of(weights, names):
    """(name, matrices, biases) of the matrices that the family has."""
    parts = [(names[1], weights.up, weights.up_bias), (names[2], weights.down, weights.down_bias)]
    return ([(names[0], weights.gate, weights.gate_bias)] if weights.family["gated"] else []) + parts


def put(out, module, matrix, bias, suffix, biased):
    out[module + suffix] = matrix
    if biased:
        out[module + ("_bias" if suffix == "" else ".bias")] = bias


def by_expert(names=("gate_proj", "up_proj", "down_proj"), suffix=".weight", number="{}", module="{block}.experts"):
    def layout(weights):
        out = {}
        for name, matrices, biases in parts_of(weights, names):
            for e in range(E):
                put(out, f"{module}.{number.format(e)}.{name}", matrices[e], biases[e], suffix, weights.family["biased"])
        return out

    return layout


def by_part(names=("gate_proj", "up_proj", "down_proj"), suffix=".weight", module="{block}.experts"):
    def layout(weights):
        out = {}
        for name, matrices, biases in parts_of(weights, names):
            for e in range(E):
                put(out, f"{module}.{name}.{e}", matrices[e], biases[e], suffix, weights.family["biased"])
        return out

    return layout


def stacked(names=("gate_proj", "up_proj", "down_proj"), suffix=".weight", module="{block}.experts", transposed=False):
    def layout(weights):
        out = {}
        for name, matrices, biases in parts_of(weights, names):
            put(out, f"{module}.{name}", matrices.transpose(0, 2, 1) if transposed else matrices, biases, suffix,
                weights.family["biased"])
        return out

    return layout


def fused(names=("gate_up_proj", "down_proj"), suffix="", module="{block}.experts", transposed=False, split=None):
    """split: "expert" or "part", one tensor per expert, with the number before or after the matrix's name."""

    def layout(weights):
        out, (gate_up, gate_up_bias) = {}, weights.fused()
        biased = weights.family["biased"]
        for name, matrices, biases in ((names[0], gate_up, gate_up_bias), (names[1], weights.down, weights.down_bias)):
            matrices = matrices.transpose(0, 2, 1) if transposed else matrices
            if not split:
                put(out, f"{module}.{name}", matrices, biases, suffix, biased)
                continue
            for e in range(E):
                full = f"{module}.{e}.{name}" if split == "expert" else f"{module}.{name}.{e}"
                put(out, full, matrices[e], biases[e], suffix, biased)
        return out

    return layout


def rows_of_all(weights):
    """DBRX: [E * I, H], down not transposed."""
    return {"{block}.experts.mlp." + name: matrices.reshape(-1, matrices.shape[2])
            for name, matrices in (("w1", weights.gate), ("v1", weights.up), ("w2", weights.down.transpose(0, 2, 1)))}


W = ("w1", "w3", "w2")
SPLIT = {
    "one tensor per matrix": by_expert(),
    "one tensor per matrix without .weight": by_expert(suffix=""),
    "X_weight": by_expert(suffix="_weight"),
    "a name before the number": by_expert(number="expert_{}"),
    "the number last": by_part(),
    "in a module of the block": by_expert(module="{block}.experts.experts"),
    "stacked": stacked(suffix=""),
    "stacked, transposed": stacked(suffix="", transposed=True),
    "MLX": stacked(module="{block}.switch_mlp"),
    "MLX's names of Gemma 4": stacked(module="{block}.experts.switch_glu"),
    "under mlp": by_expert(module="mlp.experts"),
    "under block_sparse_moe": by_expert(module="block_sparse_moe.experts"),
    "under moe": by_expert(module="moe.experts"),
    "of the layer": by_expert(module="experts"),
    "stacked in the block": stacked(module="{block}"),
}
GATED = {
    "w1 w3 w2": by_expert(W),
    "w1 w3 w2 stacked": stacked(W),
    "w1 v1 w2 per expert": by_expert(("w1", "v1", "w2")),
    "fused": fused(),
    "fused .weight": fused(suffix=".weight"),
    "fused, transposed": fused(transposed=True),
    "fused per expert": fused(suffix=".weight", split="expert"),
    "fused, the number last": fused(suffix=".weight", split="part"),
    "Unsloth": fused(("gate_up_projs", "down_projs"), ".weight", split="part"),
    "GPTQModel": fused(("gate_up", "down"), ".weight", split="part"),
    "fused in the block": fused(suffix=".weight", module="{block}"),
}
IN_ORDER = {  # names under which alternating rows are not known
    "input_linear": fused(("input_linear", "output_linear"), ".weight", "{block}"),
    "fc1": fused(("fc1", "fc2"), ".weight", transposed=True),
}
DBRX = {"rows of all experts": rows_of_all}
UNGATED = {"MLX, no gate": stacked((None, "fc1", "fc2"), module="{block}.switch_mlp")}


def layouts_of(family):
    if not family["gated"]:
        return {**SPLIT, **UNGATED}
    return {**SPLIT, **GATED, **({} if family["alternate"] else IN_ORDER), **({} if family["biased"] else DBRX)}


# ---- quantised experts


def in_fp8(layout):
    """The layout with its .weight tensors as F8_E4M3 and a scale per row, .weight_scale: the same codes in every layout."""

    def quantised(weights):
        out = {}
        for name, array in layout(weights).items():
            if not name.endswith(".weight"):
                out[name] = array
                continue
            scale = (np.abs(array).max(-1, keepdims=True) / 448).astype(np.float32)
            out[name] = nearest(array / scale, F8_VALUES["F8_E4M3"]).astype(np.uint8)
            out[name + "_scale"] = scale
        return out

    return quantised


IN_FP8 = ("one tensor per matrix", "a name before the number", "the number last", "MLX", "w1 w3 w2", "w1 w3 w2 stacked",
          "w1 v1 w2 per expert", "fused .weight", "fused per expert", "fused, the number last", "Unsloth", "GPTQModel", "input_linear")


def fp8_layouts_of(family):
    return {name: in_fp8(layout) for name, layout in layouts_of(family).items() if name in IN_FP8}


# ---- checkpoints

ROUTERS = ("gate.weight", "router.weight", "router.layer.weight", "router.gate.weight", "router.classifier.weight", "router.linear.weight",
           "gate.wg.weight", "gate.gate_proj.weight")
SELECTIONS = ("gate.e_score_correction_bias", "e_score_correction_bias", "expert_bias", "gate.expert_bias", "router_bias",
              "moe_statics.e_score_correction_bias", "gate.moe_statics.e_score_correction_bias")
SHARED = ("shared_experts", "shared_expert", "shared_mlp", "share_expert")


def shared_tensors(weights, module, number):
    """Of gated experts as gate_proj, up_proj; or w1, w3; or gate_up_proj."""
    gate, up, down = weights.shared
    if not weights.family["gated"]:
        named = {"up_proj": up, "down_proj": down}
    else:
        named = ({"gate_proj": gate, "up_proj": up, "down_proj": down}, {"w1": gate, "w3": up, "w2": down},
                 {"gate_up_proj": np.concatenate([gate, up]), "down_proj": down})[number % 3]
    return {f"{module}.{name}.weight": matrix for name, matrix in named.items()}


def layer_tensors(weights, layout, number=0):
    """The tensors of one layer, below it. The names of router, selection bias and shared expert go round with the layer's number."""
    family = weights.family
    tensors = layout(weights)
    block = family["block"]
    first = next(iter(tensors))
    place = block + "." if "{block}" in first else "" if first.startswith("experts.") else first.split(".")[0] + "."
    out = {name.format(block=block): array for name, array in tensors.items()}
    router = family["router"] if number == 0 else ROUTERS[number % len(ROUTERS)]
    if family["router_bias"]:
        router = ("router.weight", "router.linear.weight")[number % 2]
        out[place + router.replace("weight", "bias")] = weights.router_bias
    out[place + router] = weights.router
    if family["selection"]:
        out[place + (family["selection"] if number == 0 else SELECTIONS[number % len(SELECTIONS)])] = weights.selection
    if family["shared"]:
        shared = place + (family["shared"] if number == 0 else SHARED[number % len(SHARED)])
        out.update(shared_tensors(weights, shared, number))
    if family["shared_gate"]:
        out[place + family["shared_gate"]] = weights.shared_gate
    return out


def config_of(family, layers, hidden=H, width=I):
    config = {"model_type": family["model_type"], "hidden_size": hidden, family["width"]: width, family["experts"]: E,
              "num_experts_per_tok": K, "num_hidden_layers": layers, **family["config"]}
    if family["model_type"] == "nemotron_h":
        config["hybrid_override_pattern"] = "E" * layers
    return config


def write_layers(folder, family, layers, hidden=H, width=I, prefix=None, others=()):
    """layers: the tensors of each layer, below it. others: further pairs of a prefix and layers."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config_of(family, len(layers), hidden, width)))
    write_safetensors(folder / "model.safetensors", {
        f"{before}.{number}.{name}": (KINDS[array.dtype.str], array.shape, np.ascontiguousarray(array).tobytes())
        for before, all_of_them in ((prefix or family["prefix"], layers), *others)
        for number, tensors in enumerate(all_of_them) for name, array in tensors.items()})
    return folder
