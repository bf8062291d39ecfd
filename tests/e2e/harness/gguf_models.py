"""Writes small models in llama.cpp's format with the package `gguf`, and computes their MoE layers in float64.

The weights are random blocks, so that every code and scale of a type occurs; `gguf.quants` dequantises them, independently of the
daemon's code. A specification says what an architecture's metadata mean; the formulas are those of the models' own code.
"""

import dataclasses

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from .daemon import run_program
from .tensors import bf16_bits, bf16_values

HIDDEN, WIDTH, EXPERTS, TOP_K = 256, 256, 8, 2
# Where a block has its scales of F16.
F16_AT = {Type.Q8_0: (0,), Type.Q4_0: (0,), Type.Q4_1: (0, 2), Type.Q5_0: (0,), Type.Q5_1: (0, 2), Type.Q2_K: (80, 82),
          Type.Q3_K: (108,), Type.Q4_K: (0, 2), Type.Q5_K: (0, 2), Type.Q6_K: (208,), Type.IQ4_NL: (0,), Type.IQ4_XS: (0,)}
# The size of a code times its scale in the block.
REACH = {Type.Q8_0: 127, Type.Q4_0: 8, Type.Q4_1: 15, Type.Q5_0: 16, Type.Q5_1: 31, Type.Q2_K: 3 * 15, Type.Q3_K: 4 * 32,
         Type.Q4_K: 15 * 63, Type.Q5_K: 31 * 63, Type.Q6_K: 32 * 128, Type.IQ4_NL: 127, Type.IQ4_XS: 127 * 32}
PLAIN = (Type.F32, Type.F16, Type.BF16)
BLOCKS = (*F16_AT, Type.MXFP4, Type.NVFP4)


def random_blocks(random, shape, kind, size):
    """Random bytes whose weights have a size of some `size`."""
    elements, block = gguf.GGML_QUANT_SIZES[kind]
    raw = random.integers(0, 256, (*shape[:-1], shape[-1] // elements, block), dtype=np.uint8)
    if kind == Type.MXFP4:
        raw[..., 0] = random.integers(124, 128, raw.shape[:-1]) + int(np.round(np.log2(size / 4)))
    elif kind == Type.NVFP4:
        raw[..., :4] = random.integers(0x28, 0x50, (*raw.shape[:-1], 4))  # 0.25 to 8 with half the values
    else:
        for at in F16_AT[kind]:
            scale = size / REACH[kind] * random.uniform(0.5, 4, raw.shape[:-1]) * random.choice([-1, 1], raw.shape[:-1])
            raw[..., at:at + 2] = scale.astype(np.float16)[..., None].view(np.uint8)
    return raw.reshape(*shape[:-1], -1)


def stored(random, shape, kind, size):
    """(the array to write, its values in float64)."""
    if kind in PLAIN:
        values = (random.standard_normal(shape) * size).astype(np.float32)
        raw = gguf.quants.quantize(values, kind)
    else:
        raw = random_blocks(random, shape, kind, size)
    return raw, gguf.quants.dequantize(raw, kind).astype(np.float64)


@dataclasses.dataclass(frozen=True)
class Spec:
    """keys: metadata below the architecture's name, besides the sizes."""
    arch: str
    keys: dict = dataclasses.field(default_factory=dict)
    width_key: str = "expert_feed_forward_length"
    score: str = "softmax"  # softmax, sigmoid, or of the chosen logits: softmax of chosen, sigmoid of chosen
    select_bias: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    norm: bool = False
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    group_score: str = "top2"
    shared: int = 0  # the width of a shared expert
    shared_gate: bool = False
    parallel: bool = False  # the shared expert is not part of the block
    average: bool = False  # the block is the mean of the routed and the shared sum
    activation: str = "silu"
    clamp: str = ""  # of silu's input and up, before or after the activation
    limit: float = 0.0
    shared_limit: float = 0.0
    softcap: float = 0.0
    on_input: bool = False
    fused: bool = False
    separate: bool = False
    experts: int = EXPERTS
    own_router_input: bool = False
    latent: int = 0
    model_type: str = ""
    layer: int = 0
    blocks: int = 1
    hidden: int = HIDDEN
    width: int = WIDTH
    bias_name: str = "exp_probs_b.bias"
    beside: tuple = ()  # further tensors of the layer, which are no part of the block


QWEN = Spec("qwen3moe", norm=True, model_type="qwen3_moe")


def refused(path, *words, options=()):
    done = run_program("expertd", "--model", str(path), "--listen", "127.0.0.1:0", "--http", "off", *options)
    assert done.returncode == 65, done.stderr[-900:]
    for word in words:
        assert word in done.stderr, f"{word!r} is not in: {done.stderr[-900:]}"


def silu(x):
    return x / (1 + np.exp(-x))


def activate(kind, gate, up, clamp="", limit=0.0):
    if limit and clamp == "before":
        return silu(np.minimum(gate, limit)) * np.clip(up, -limit, limit)
    if limit and clamp == "after":
        return np.minimum(silu(gate), limit) * np.clip(up, -limit, limit)
    if kind == "relu2":
        return np.maximum(up, 0) ** 2
    if kind == "gelu":
        return 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate ** 3))) * up
    if kind == "oai":
        gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
        return (up + 1) * gate / (1 + np.exp(-1.702 * gate))
    return silu(gate) * up


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Model:
    """A model with one MoE layer, in one file or `parts` files."""

    def __init__(self, folder, spec, kinds=Type.F32, seed=1, parts=0, change=None, scales=False, name="model"):
        """kinds: the type of all experts' matrices, or of gate, up and down. change: {key: value or None} over the metadata."""
        self.spec, self.random = spec, np.random.default_rng(seed)
        kinds = kinds if isinstance(kinds, (tuple, list)) else (kinds,) * 3
        self.tensors, self.values = {}, {}
        self.make_experts(kinds, scales)
        self.make_router()
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{name}.gguf"
        self.metadata = self.all_keys() | (change or {})
        self.write(parts)

    # ---- tensors

    def add(self, name, shape, kind=Type.F32, size=1.0):
        raw, values = stored(self.random, shape, kind, size)
        self.tensors[f"blk.{self.spec.layer}.{name}"] = (raw, kind)
        self.values[name] = values
        return values

    def store_as(self, name, kind, size=1.0):
        """Replaces a tensor by one of another type."""
        shape = self.values[name].shape
        self.add(name, shape, kind, size * shape[-1] ** -0.5)

    def make_experts(self, kinds, scales):
        s, e = self.spec, self.spec.experts
        row = s.latent or s.hidden
        shapes = {"gate": (s.width, row), "up": (s.width, row), "down": (row, s.width)}
        self.parts = {}
        for (part, (n, k)), kind in zip(shapes.items(), kinds):
            if part == "gate" and s.activation == "relu2":
                continue
            if s.separate:
                self.parts[part] = np.stack([self.add(f"ffn_{part}.{i}.weight", (n, k), kind, k ** -0.5) for i in range(e)])
            elif s.fused and part == "gate":
                both = self.add("ffn_gate_up_exps.weight", (e, 2 * n, k), kind, k ** -0.5)
                self.parts["gate"], self.parts["up"] = both[:, :n], both[:, n:]
            elif not (s.fused and part == "up"):
                self.parts[part] = self.add(f"ffn_{part}_exps.weight", (e, n, k), kind, k ** -0.5)
            if scales and not (s.fused and part == "up"):
                stack, scaled = (("gate_up", ("gate", "up")) if s.fused and part == "gate" else (part, (part,)))
                factor = self.add(f"ffn_{stack}_exps.scale", (e,))[:, None, None]
                self.parts.update({name: self.parts[name] * factor for name in scaled})
                self.add(f"ffn_{stack}_exps.input_scale", (e,))
            if s.expert_bias:
                self.add(f"ffn_{part}_exps.bias", (e, n))
            if s.shared:
                n, k = (s.shared, s.hidden) if part != "down" else (s.hidden, s.shared)
                self.add(f"ffn_{part}_shexp.weight", (n, k), kind, k ** -0.5)
        if s.shared_gate:
            self.add("ffn_gate_inp_shexp.weight", (s.hidden,), size=s.hidden ** -0.5)
        if s.latent:
            self.add("ffn_latent_down.weight", (s.latent, s.hidden), size=s.hidden ** -0.5)
            self.add("ffn_latent_up.weight", (s.hidden, s.latent), size=s.latent ** -0.5)

    def make_router(self):
        s = self.spec
        self.add("ffn_gate_inp.weight", (s.experts, s.hidden), size=s.hidden ** -0.5)
        if s.router_bias:
            self.add("ffn_gate_inp.bias", (s.experts,))
        if s.select_bias:
            self.add(s.bias_name, (s.experts,), size=0.3)
        if s.own_router_input:
            self.add("ffn_gate_inp.scale", (s.hidden,))
            self.add("ffn_down_exps.scale", (s.experts,))
        for name in ("ffn_norm", *s.beside):
            self.add(f"{name}.weight", (s.hidden,))
        self.add("attn_q.weight", (s.hidden, s.hidden), Type.Q4_0, 1.0)

    # ---- the file

    def all_keys(self):
        s = self.spec
        sizes = {"block_count": s.blocks, "embedding_length": s.hidden, "expert_count": s.experts, "expert_used_count": TOP_K,
                 "feed_forward_length": 5 * s.width, s.width_key: s.width, "context_length": 4096, "attention.head_count": 4}
        return {f"{s.arch}.{key}": value for key, value in (sizes | s.keys).items()}

    def repeat(self, layers):
        """Gives `layers` layers the tensors of the first, in llama-quantize's order: by layer, then by name."""
        own, self.tensors = self.tensors, {}
        for layer in range(layers):
            for name in sorted(own):
                self.tensors[name.replace(f"blk.{self.spec.layer}.", f"blk.{layer}.")] = own[name]
        self.metadata[f"{self.spec.arch}.block_count"] = layers

    def write(self, parts, of_part=None):
        """of_part: tensors of each part, of which the first has one more, the embeddings."""
        of_part = of_part or (-(-(len(self.tensors) + 1) // parts) if parts else None)
        options = {"split_max_tensors": of_part} if of_part else {}
        writer = gguf.GGUFWriter(self.path, self.spec.arch, **options)
        writer.add_name("a small model")
        writer.add_token_list(["<s>", "</s>", "a"])
        writer.add_array("tokenizer.ggml.scores", [0.0, -1.0, 2.5])
        for key, value in self.metadata.items():
            if value is not None:
                self.add_key(writer, key, value)
        writer.add_tensor("token_embd.weight", np.zeros((8, self.spec.hidden), np.float32))
        for name, (raw, kind) in self.tensors.items():
            writer.add_tensor(name, raw, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        if of_part:
            self.path = sorted(self.path.parent.glob("*-00001-of-*.gguf"))[0]

    @staticmethod
    def add_key(writer, key, value):
        """value: (type, value) for another type than usual."""
        if isinstance(value, tuple):
            getattr(writer, f"add_{value[0]}")(key, value[1])
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_uint32(key, value)

    # ---- the reference

    def inputs(self, tokens, seed=7):
        """Exact in bf16, so that the router's logits are those of the reference and no choice between experts is near."""
        return bf16_values(bf16_bits(np.random.default_rng(seed).standard_normal((tokens, self.spec.hidden)).astype(np.float32)))

    def logits(self, x):
        logits, cap = x.astype(np.float64) @ self.values["ffn_gate_inp.weight"].T, self.spec.softcap
        logits = cap * np.tanh(logits / cap) if cap else logits
        return logits + self.values["ffn_gate_inp.bias"] if self.spec.router_bias else logits

    def route(self, x):
        """(ids, weights) [tokens, K]."""
        s, logits = self.spec, self.logits(x)
        chosen = s.score.endswith("of chosen")
        scores = logits if chosen else softmax(logits) if s.score == "softmax" else 1 / (1 + np.exp(-logits))
        selection = scores + self.values[s.bias_name] if s.select_bias else scores
        if s.groups > 1:
            grouped = selection.reshape(len(x), s.groups, -1)
            best = np.sort(grouped, -1)[..., -2:].sum(-1) if s.group_score == "top2" else grouped.max(-1)
            keep = np.argsort(-best, -1, kind="stable")[:, :s.top_groups]
            mask = np.full((len(x), s.groups), -np.inf)
            np.put_along_axis(mask, keep, 0, -1)
            selection = selection + np.repeat(mask, s.experts // s.groups, -1)
        ids = np.argsort(-selection, -1, kind="stable")[:, :TOP_K]
        weights = np.take_along_axis(scores, ids, -1)
        if chosen:
            weights = softmax(weights) if s.score.startswith("softmax") else 1 / (1 + np.exp(-weights))
        if s.norm:
            weights = weights / weights.sum(-1, keepdims=True)
        if s.own_router_input:
            weights = weights * self.values["ffn_down_exps.scale"][ids]
        return ids, weights * s.scale

    def expert(self, e, x, weight):
        s, biases = self.spec, self.values
        row = x * weight if s.on_input else x
        gate, up = (row @ self.parts[part][e].T if part in self.parts else None for part in ("gate", "up"))
        if s.expert_bias:
            gate, up = gate + biases["ffn_gate_exps.bias"][e], up + biases["ffn_up_exps.bias"][e]
        out = activate(s.activation, gate, up, s.clamp, s.limit) @ self.parts["down"][e].T
        out = out + biases["ffn_down_exps.bias"][e] if s.expert_bias else out
        return out if s.on_input else out * weight

    def shared(self, x):
        v, s = self.values, self.spec
        gate = x @ v["ffn_gate_shexp.weight"].T if "ffn_gate_shexp.weight" in v else None
        out = activate(s.activation, gate, x @ v["ffn_up_shexp.weight"].T, s.clamp, s.shared_limit) @ v["ffn_down_shexp.weight"].T
        return out / (1 + np.exp(-(x @ v["ffn_gate_inp_shexp.weight"])))[:, None] if s.shared_gate else out

    def outputs(self, x, router_input=None):
        """The block's output in float64."""
        s = self.spec
        if s.own_router_input:
            rows = router_input.astype(np.float64)
            rows = rows / np.sqrt((rows ** 2).mean(-1, keepdims=True) + 1e-6) * s.hidden ** -0.5
            ids, weights = self.route(rows * self.values["ffn_gate_inp.scale"])
        else:
            ids, weights = self.route(x)
        x = x.astype(np.float64)
        rows = x @ self.values["ffn_latent_down.weight"].T if s.latent else x
        out = np.zeros_like(rows)
        for slot in range(TOP_K):
            for e in range(s.experts):
                at = ids[:, slot] == e
                out[at] += self.expert(e, rows[at], weights[at, slot][:, None])
        out = out @ self.values["ffn_latent_up.weight"].T if s.latent else out
        out = out + self.shared(x) if s.shared and not s.parallel else out
        return out / 2 if s.average else out
