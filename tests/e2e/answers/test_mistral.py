"""Checkpoints in Mistral's own form: params.json and consolidated*.safetensors, of Mixtral and of Mistral Large 3. The formulas in numpy
are those of vLLM's code for this form."""

import json
import struct

import numpy as np
import pytest

from harness.checkpoints import Case, copy_case, read_header, write_safetensors
from harness.daemon import run_program
from harness.quantised import SIZES, compressed, fp4, fp8, plain
from harness.tensors import bf16_bits, bf16_values, error_per_token, tensor, values_of

HIDDEN, WIDTH, EXPERTS, TOP_K, LAYER, TOKENS = 192, 160, 6, 2, 2, 24
BOUNDS = {"f32": 1e-5, "bf16": 1.5e-2}
BF16 = plain("BF16")


def rename(file, change):
    """The bytes of a safetensors file with other names."""
    header, start = read_header(file)
    text = json.dumps({name if name == "__metadata__" else change(name): entry for name, entry in header.items()}).encode()
    return struct.pack("<Q", len(text)) + text + file.read_bytes()[start:]


def swiglu(x, parts):
    gate, up = x @ parts["w1"].T, x @ parts["w3"].T
    return (gate / (1 + np.exp(-gate)) * up) @ parts["w2"].T


class MistralCheckpoint:
    """Layer 2 of three has experts. large: as Mistral Large 3, else as Mixtral. quantise: the format of experts and shared expert."""

    def __init__(self, folder, large, quantise=BF16, scale=1.0):
        self.folder, self.large, self.scale, self.tensors = folder, large, scale, {}
        folder.mkdir()
        random, block = np.random.default_rng(1), f"layers.{LAYER}" if large else f"layers.{LAYER}.feed_forward"
        self.router = bf16_values(bf16_bits(random.standard_normal((EXPERTS, HIDDEN)).astype(np.float32))).astype(np.float64)
        self.tensors[f"{block}.gate.weight"] = ("BF16", bf16_bits(self.router.astype(np.float32)))
        self.experts = [self.add(f"{block}.experts.{e}", random, quantise) for e in range(EXPERTS)]
        self.shared = self.add(f"{block}.shared_experts", random, quantise) if large else None
        for name in ("layers.0.attention.wq.weight", "norm.weight", "vision_encoder.ln_pre.weight"):
            self.tensors[name] = ("BF16", np.zeros((4, 4), np.uint16))
        self.params = {"dim": HIDDEN, "n_layers": LAYER + 1, "head_dim": 32, "hidden_dim": WIDTH, "n_heads": 4, "norm_eps": 1e-5,
                       "vocab_size": 8, "moe": {"num_experts": EXPERTS, "num_experts_per_tok": TOP_K}}
        if large:
            self.params["hidden_dim"] = 4 * WIDTH
            self.params["moe"] |= {"expert_parallel": 1, "expert_model_parallel": 1, "route_every_n": 1, "first_k_dense_replace": LAYER,
                                   "num_expert_groups": 1, "num_expert_groups_per_tok": 1, "routed_scale": scale,
                                   "expert_hidden_dim": WIDTH, "num_shared_experts": 1}
            self.tensors["layers.0.feed_forward.w1.weight"] = ("BF16", np.zeros((4, 4), np.uint16))
        for layer in range(0 if large else LAYER):  # all layers of Mixtral have experts
            self.tensors |= {name.replace(f"layers.{LAYER}.", f"layers.{layer}."): kept for name, kept in self.tensors.items()
                             if name.startswith(block)}
        self.write()

    def add(self, name, random, quantise):
        meant = {}
        for part, shape in (("w1", (WIDTH, HIDDEN)), ("w2", (HIDDEN, WIDTH)), ("w3", (WIDTH, HIDDEN))):
            stored, meant[part] = quantise(random.standard_normal(shape) * shape[1] ** -0.5, random)
            self.tensors |= {f"{name}.{part}{suffix}": kept for suffix, kept in stored.items()}
        return meant

    def save(self, file, names):
        encoded = {name: (dtype, np.shape(array), np.ascontiguousarray(array).astype(SIZES[dtype]).tobytes())
                   for name, (dtype, array) in self.tensors.items() if name in names}
        write_safetensors(self.folder / file, encoded)

    def write(self):
        (self.folder / "params.json").write_text(json.dumps(self.params))
        self.save("consolidated.safetensors", self.tensors)

    def split(self, pattern, first, indexed):
        """Two files instead of one, with an index or without it."""
        (self.folder / "consolidated.safetensors").unlink()
        names = sorted(self.tensors)
        parts = {pattern.format(first): names[::2], pattern.format(first + 1): names[1::2]}
        for file, part in parts.items():
            self.save(file, part)
        if indexed:
            (self.folder / "consolidated.safetensors.index.json").write_text(json.dumps(
                {"metadata": {}, "weight_map": {name: file for file, part in parts.items() for name in part}}))

    def inputs(self):
        return bf16_values(bf16_bits(np.random.default_rng(2).standard_normal((TOKENS, HIDDEN)).astype(np.float32)))

    def outputs(self, hidden):
        x = hidden.astype(np.float64)
        scores = np.exp(x @ self.router.T)
        scores /= scores.sum(1, keepdims=True)
        out = swiglu(x, self.shared) if self.shared else np.zeros(x.shape)
        for row in range(TOKENS):
            chosen = np.argsort(-scores[row], kind="stable")[:TOP_K]
            weights = scores[row, chosen] / scores[row, chosen].sum() * self.scale
            out[row] += sum(w * swiglu(x[row], self.experts[e]) for e, w in zip(chosen, weights))
        return out


def check(checkpoint, name, start_daemon):
    hidden = checkpoint.inputs()
    wanted = checkpoint.outputs(hidden)
    for dtype in BOUNDS:
        daemon = start_daemon("--compute-dtype", dtype, "--shards", 2, model=checkpoint.folder)
        with daemon.client() as client:
            layer = client.describe().models[0].layers[-1]
            answer = values_of(client.forward(layer=LAYER, hidden=tensor(hidden)).output)
        daemon.stop()
        assert layer.layer == LAYER and layer.quantisation == name
        assert error_per_token(answer, wanted).max() <= BOUNDS[dtype], dtype
    return daemon


def qscales(quantise):
    """Mistral's names of FP8's scales, and one for the activations."""

    def renamed(w, random):
        tensors, meant = quantise(w, random)
        return {".weight": tensors[".weight"], ".qscale_weight": tensors[".weight_scale"], ".qscale_act": ("F32", np.array(0.7))}, meant

    return renamed


FP8 = qscales(fp8(".weight_scale", "F32", None, shape=()))
NVFP4 = fp4(".weight_packed", ".weight_scale", "F8_E4M3", 16, (".weight_global_scale", True))
MODELS = {
    "mixtral": ("", False, BF16, None, None),
    "mixtral_in_fp8": ("fp8_tensor", False, FP8, "quantization", {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}),
    "large": ("", True, BF16, None, None),
    "large_in_fp8": ("fp8_tensor", True, FP8, "quantization", {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}),
    "large_in_blocks": ("fp8_block128", True, fp8(".weight_scale", "F32", (128, 128)), "quantization_config", compressed(
        "float-quantized", num_bits=8, type="float", strategy="block", block_structure=[128, 128])),
    "large_in_nvfp4": ("nvfp4", True, NVFP4, "quantization", compressed(
        "nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16)),
}


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_the_formula(name, tmp_path, start_daemon):
    described, large, quantise, key, section = MODELS[name]
    checkpoint = MistralCheckpoint(tmp_path / "model", large, quantise, 2.5 if large else 1.0)
    if key:
        checkpoint.params[key] = section
        checkpoint.write()
    check(checkpoint, described, start_daemon)


@pytest.mark.parametrize("pattern, first, indexed", (("consolidated-{:05}-of-00002.safetensors", 1, True),
                                                     ("consolidated-{:05}-of-00002.safetensors", 1, False),
                                                     ("consolidated.{:02}.safetensors", 0, False)))
def test_the_weights_may_lie_in_several_files(pattern, first, indexed, tmp_path, start_daemon):
    checkpoint = MistralCheckpoint(tmp_path / "model", True)
    checkpoint.split(pattern, first, indexed)
    check(checkpoint, "", start_daemon)
    (checkpoint.folder / pattern.format(first)).unlink()
    done = run_program("expertd", "--model", str(checkpoint.folder), "--verify")
    assert done.returncode == 65 and ("is missing" in done.stderr or "1 of 2 shards are missing" in done.stderr), done.stderr


def test_of_both_forms_that_of_transformers_is_served(tmp_path, start_daemon):
    other = copy_case("mixtral", tmp_path)
    alone = start_daemon(model=other)
    ids = [layer.weights_id for layer in alone.client().describe().models[0].layers]
    alone.stop()
    checkpoint = MistralCheckpoint(tmp_path / "model", True)
    for file in ("params.json", "consolidated.safetensors"):
        (other / file).write_bytes((checkpoint.folder / file).read_bytes())
    both = start_daemon(model=other)
    with both.client() as client:
        assert [layer.weights_id for layer in client.describe().models[0].layers] == ids


def test_mixtral_has_one_weights_id_in_both_forms(tmp_path, start_daemon):
    case, renamed = Case("mixtral"), tmp_path / "renamed"
    renamed.mkdir()
    config = json.loads((case.folder / "config.json").read_text())
    keys = {"dim": "hidden_size", "hidden_dim": "intermediate_size", "n_layers": "num_hidden_layers"}
    (renamed / "params.json").write_text(json.dumps({own: config[key] for own, key in keys.items()} | {"moe": {
        "num_experts": config["num_local_experts"], "num_experts_per_tok": config["num_experts_per_tok"]}}))
    rewritten = rename(case.folder / "model.safetensors", lambda name: name.removeprefix("model.").replace("block_sparse_moe", "feed_forward"))
    (renamed / "consolidated.safetensors").write_bytes(rewritten)
    ids = []
    for folder in (case.folder, renamed):
        daemon = start_daemon(model=folder)
        with daemon.client() as client:
            ids.append([layer.weights_id for layer in client.describe().models[0].layers])
        daemon.stop()
    assert ids[0] == ids[1]


def test_a_folder_above_is_told_which_to_name(tmp_path):
    MistralCheckpoint(tmp_path / "model", True)
    done = run_program("expertd", "--model", str(tmp_path), "--verify")
    assert done.returncode == 65 and f"name {tmp_path / 'model'}" in done.stderr, done.stderr


def test_without_the_weights_of_transformers_mistrals_are_served_with_a_note(tmp_path, start_daemon):
    checkpoint = MistralCheckpoint(tmp_path / "model", True)
    (checkpoint.folder / "config.json").write_text("{}")
    daemon = check(checkpoint, "", start_daemon)
    [event] = daemon.events("checkpoint_note")
    assert event["kind"] == "weight_files" and "params.json" in event["message"] and "config.json" in event["message"]


REFUSED = {
    "no_experts": (lambda p: p.pop("moe"), ["there is no object moe", "has no experts"]),
    "another_model": (lambda p: p.update(model_type="mamba"), ["model_type is mamba", "expected transformer"]),
    "groups": (lambda p: p["moe"].update(num_expert_groups=2), ["moe.num_expert_groups is 2", "expected 1"]),
    "another_normalisation": (lambda p: p["moe"].update(renorm_strategy="LOGITS"), ["moe.renorm_strategy is LOGITS", "expected WEIGHTS"]),
    "a_selection_bias": (lambda p: p["moe"].update(use_load_balancing_bias=True), ["moe.use_load_balancing_bias is true"]),
    "an_unknown_key": (lambda p: p["moe"].update(router_temperature=2), ["params.json: moe.router_temperature", "not known",
                                                                         "form of transformers"]),
    "no_width": (lambda p: p["moe"].pop("expert_hidden_dim"), ["moe.expert_hidden_dim is missing", "own params.json?"]),
    "no_shared": (lambda p: p["moe"].pop("num_shared_experts"), ["moe.num_shared_experts is missing", "moe.expert_hidden_dim belongs to"]),
    "shared_below_0": (lambda p: p["moe"].update(num_shared_experts=-1), ["moe.num_shared_experts is -1", "expected an integer from 0"]),
    "experts_in_a_list": (lambda p: p.update(moe=[8, 2]), ["moe is [8, 2]: expected an object"]),
    "a_list_of_groups": (lambda p: p["moe"].update(num_expert_groups=[]), ["moe.num_expert_groups is [],"]),
    "a_word_for_the_section": (lambda p: p.update(quantization="fp8"), ["quantization is fp8: expected an object"]),
    "another_width": (lambda p: p["moe"].update(expert_hidden_dim=WIDTH + 32), ["moe.expert_hidden_dim 192", "[160, 192]",
                                                                               "params.json requires"]),
    "too_few_experts": (lambda p: p["moe"].update(num_experts=EXPERTS - 1), ["layers.2.gate.weight is [6, 192]", "params.json requires [5, 192]",
                                                                            "moe.num_experts 5"]),
    "another_format": (lambda p: p.update(quantization={"qformat_weight": "int8"}), ["quantization.qformat_weight is int8",
                                                                                     "expected fp8_e4m3"]),
    "an_unknown_section": (lambda p: p.update(quantization={"bits": 4}), ["quantization has neither qformat_weight nor quant_method"]),
    "two_sections": (lambda p: p.update(quantization={"qformat_weight": "fp8_e4m3"}, quantization_config={"quant_method": "fp8"}),
                     ["quantization and quantization_config differ"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused_with_the_key(name, tmp_path):
    change, words = REFUSED[name]
    checkpoint = MistralCheckpoint(tmp_path / "model", True)
    change(checkpoint.params)
    checkpoint.write()
    done = run_program("expertd", "--model", str(checkpoint.folder), "--verify")
    assert done.returncode == 65, done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
