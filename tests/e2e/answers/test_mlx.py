"""Checkpoints of MLX's affine quantisation as mlx-lm writes them: stacked experts, quantised routers and shared experts, single modules in
other bits. Answers agree with weights that numpy dequantises."""

import numpy as np
import pytest

from harness import quantised as quantised_harness
from harness.daemon import run_program
from harness.quantised import (EXPERTS, FP8, QuantisedCheckpoint, Variant, fp8, mlx_affine, mlx_mx, mlx_nvfp4, plain)
from harness.tensors import error_per_token, rows_of, tensor, values_of

TOKENS = 24
BOUNDS = {"f32": 1e-5, "bf16": 1.5e-2, "bf16 widened": 2e-2}
BLOCK = "model.layers.0.mlp"


def section(bits, group, **modules):
    return {"group_size": group, "bits": bits, "mode": "affine", "model.embed_tokens": False, **modules}


class MlxCheckpoint(QuantisedCheckpoint):
    """Qwen2-MoE with stacked experts. beside: the format of router, shared expert and shared gate."""

    def __init__(self, folder, variant, beside=plain("BF16"), seed=1):
        self.beside = beside
        super().__init__(folder, variant, seed)

    def write(self):
        if "model_type" in self.config and self.config["model_type"] == "qwen3_moe":
            self.stack()
            self.add_beside()
            self.config |= {"model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"],
                            "shared_expert_intermediate_size": quantised_harness.WIDTH}
            self.config["quantization"] = self.config["quantization_config"]
        super().write()

    def stack(self):
        for part in ("gate_proj", "up_proj", "down_proj"):
            ends = [name.removeprefix(f"{BLOCK}.experts.0.{part}") for name in self.tensors if f".experts.0.{part}" in name]
            for end in ends:
                tensors = [self.tensors.pop(f"{BLOCK}.experts.{e}.{part}{end}") for e in range(EXPERTS)]
                self.tensors[f"{BLOCK}.switch_mlp.{part}{end}"] = (tensors[0][0], np.stack([array for _, array in tensors]))

    def add_beside(self):
        random, hidden, width = np.random.default_rng(5), quantised_harness.HIDDEN, quantised_harness.WIDTH
        del self.tensors[f"{BLOCK}.gate.weight"]
        shapes = {"gate": (EXPERTS, hidden), "shared_expert_gate": (1, hidden), "shared_expert.gate_proj": (width, hidden),
                  "shared_expert.up_proj": (width, hidden), "shared_expert.down_proj": (hidden, width)}
        self.meant = {}
        for name, shape in shapes.items():
            w = random.standard_normal(shape) * (1 if name == "gate" else shape[1] ** -0.5)
            stored, self.meant[name] = self.beside(w, random)
            self.tensors |= {f"{BLOCK}.{name}{suffix}": kept for suffix, kept in stored.items()}
        self.router = self.meant["gate"]

    def outputs(self, hidden):
        x, shared = hidden.astype(np.float64), {name.split(".")[-1]: w for name, w in self.meant.items()}
        gate, up = x @ shared["gate_proj"].T, x @ shared["up_proj"].T
        out = (gate / (1 + np.exp(-gate)) * up) @ shared["down_proj"].T
        return super().outputs(hidden) + out / (1 + np.exp(-(x @ shared["shared_expert_gate"].T)))


def check(checkpoint, name, start_daemon):
    hidden = checkpoint.inputs(TOKENS)
    wanted, ids, bits = checkpoint.outputs(hidden), set(), set()
    setups = {"f32": ("--compute-dtype", "f32", "--shards", 2), "bf16": ("--shards", 3), "bf16 alone": ("--shards", 1),
              "f32 widened": ("--compute-dtype", "f32", "--widen"), "bf16 widened": ("--widen",)}
    for setup, options in setups.items():
        daemon = start_daemon(*options, model=checkpoint.folder)
        with daemon.client() as client:
            (layer,) = client.describe().models[0].layers
            answer = client.forward(layer=0, hidden=tensor(hidden)).output
        daemon.stop()
        assert layer.quantisation == name
        assert error_per_token(values_of(answer), wanted).max() <= BOUNDS.get(setup, BOUNDS[setup.split()[0]]), setup
        ids.add(layer.weights_id)
        bits |= {tuple(rows_of(answer))} if setup in ("bf16", "bf16 alone") else set()
    assert len(ids) == 1 and len(bits) == 1


SIZES = ((1, 32, "F16"), (2, 32, "BF16"), (2, 64, "F16"), (3, 64, "BF16"), (3, 32, "F16"), (4, 64, "BF16"), (4, 128, "F16"), (4, 32, "F32"),
         (5, 64, "BF16"), (6, 128, "F16"), (6, 32, "BF16"), (8, 64, "BF16"), (8, 32, "F16"), (8, 32, "F32"))


@pytest.mark.parametrize("bits, group, dtype", SIZES)
def test_every_size_is_served_as_it_lies(bits, group, dtype, tmp_path, start_daemon, monkeypatch):
    monkeypatch.setattr(quantised_harness, "HIDDEN", 256)
    monkeypatch.setattr(quantised_harness, "WIDTH", 128)
    variant = Variant("", section(bits, group), mlx_affine(bits, group, dtype))
    check(MlxCheckpoint(tmp_path / "model", variant, mlx_affine(bits, group, dtype)), f"affine{bits}_group{group}", start_daemon)


EIGHT = {"group_size": 32, "bits": 8}
OTHERS = {f"{BLOCK}.gate": EIGHT, f"{BLOCK}.shared_expert_gate": EIGHT} | {
    f"{BLOCK}.shared_expert.{part}_proj": EIGHT for part in ("gate", "up", "down")}
MIXED = {
    "a_router_of_8_bits": ("affine4_group32", Variant("", section(4, 32, **OTHERS), mlx_affine(4, 32)), mlx_affine(8, 32)),
    "down_of_6_bits": ("affine3_group32+affine6_group32", Variant("", section(
        3, 32, **OTHERS, **{f"{BLOCK}.switch_mlp.down_proj": {"group_size": 32, "bits": 6, "mode": "affine"}}), mlx_affine(3, 32),
        (("down", mlx_affine(6, 32)),)), mlx_affine(8, 32)),
    "down_of_8_bits": ("affine4_group32+affine8_group32", Variant("", section(
        4, 32, **{f"{BLOCK}.switch_mlp.down_proj": EIGHT}), mlx_affine(4, 32), (("down", mlx_affine(8, 32)),)), plain("BF16")),
    "plain_up": ("affine4_group32+bf16+affine4_group32", Variant("", section(4, 32, **{f"{BLOCK}.switch_mlp.up_proj": False}),
                                                                 mlx_affine(4, 32), (("up", plain("BF16")),)), mlx_affine(4, 32)),
    "mxfp4_beside_affine_codes": ("mxfp4", Variant("", {"group_size": 32, "bits": 4, "mode": "mxfp4"} | {
        name: {"group_size": 32, "bits": 8, "mode": "affine"} for name in OTHERS}, mlx_mx(4)), mlx_affine(8, 32)),
    # A module's object that does not say its mode: mlx-lm takes affine, not the section's.
    "affine_codes_without_a_mode_beside_mxfp4": ("mxfp4", Variant("", {"group_size": 32, "bits": 4, "mode": "mxfp4"} | OTHERS,
                                                                  mlx_mx(4)), mlx_affine(8, 32)),
    "nvfp4": ("fp4_group16", Variant("", {"group_size": 16, "bits": 4, "mode": "nvfp4"}, mlx_nvfp4()), mlx_nvfp4()),
}


@pytest.mark.parametrize("name", MIXED)
def test_modules_may_have_sizes_of_their_own(name, tmp_path, start_daemon):
    described, variant, beside = MIXED[name]
    check(MlxCheckpoint(tmp_path / "model", variant, beside), described, start_daemon)


def test_devices_widen_affine_codes(tmp_path, start_daemon):
    """They have no kernels for minima. Routers are plain there and here."""
    _, variant, beside = MIXED["down_of_8_bits"]
    checkpoint = MlxCheckpoint(tmp_path / "model", variant, beside)
    hidden = checkpoint.inputs(8)
    daemon = start_daemon("--device", "sim:1", model=checkpoint.folder)
    with daemon.client() as client:
        (layer,) = client.describe().models[0].layers
        answer = client.forward(layer=0, hidden=tensor(hidden)).output
    assert layer.numerics_id == "1/bf16/sm_90+widen"
    assert error_per_token(values_of(answer), checkpoint.outputs(hidden)).max() <= BOUNDS["bf16 widened"]


def test_the_section_of_mlx_counts_for_its_tensors(tmp_path, start_daemon):
    """Older versions of mlx-lm left quantization_config as it was in the original checkpoint."""
    checkpoint = MlxCheckpoint(tmp_path / "model", Variant("", section(4, 32), mlx_affine(4, 32)))
    checkpoint.config["quantization_config"] = FP8 | {"weight_block_size": [128, 128], "bits": 8, "group_size": 128}
    checkpoint.write()
    hidden = checkpoint.inputs(8)
    daemon = start_daemon("--compute-dtype", "f32", model=checkpoint.folder)
    with daemon.client() as client:
        answer = client.forward(layer=0, hidden=tensor(hidden)).output
    assert error_per_token(values_of(answer), checkpoint.outputs(hidden)).max() <= BOUNDS["f32"]


def test_sums_that_fp32_does_not_hold_are_served_widened(tmp_path, start_daemon):
    """Of codes of 8 bits, which are held less 128, with biases that are far greater than 128 scales."""
    shifted = lambda w, random: mlx_affine(8, 32, "F32")(w * 0.01 + 1, random)
    checkpoint = MlxCheckpoint(tmp_path / "model", Variant("", section(8, 32), shifted))
    done = run_program("expertd", "--model", str(checkpoint.folder), "--listen", "127.0.0.1:0", "--http", "off", "--admin", "off")
    assert done.returncode == 65, done.stderr
    for word in ("switch_mlp.", "_proj.weight", "bias + 128 x scale", "--widen"):
        assert word in done.stderr, done.stderr
    hidden = checkpoint.inputs(8)
    daemon = start_daemon("--compute-dtype", "f32", "--widen", model=checkpoint.folder)
    with daemon.client() as client:
        answer = client.forward(layer=0, hidden=tensor(hidden)).output
    assert error_per_token(values_of(answer), checkpoint.outputs(hidden)).max() <= BOUNDS["f32"]


def test_a_router_in_fp8_is_widened(tmp_path, start_daemon):
    blocks = fp8(".weight_scale_inv", "F32", (128, 128))
    checkpoint = MlxCheckpoint(tmp_path / "model", Variant("", {"quant_method": "fp8", "weight_block_size": [128, 128]}, blocks), blocks)
    del checkpoint.config["quantization"]
    checkpoint.write()
    check(checkpoint, "fp8_block128", start_daemon)


# Words that mx.quantize of MLX 0.32.4 makes of one group of 32 weights, as bytes: the harness repeats that quantiser.
WEIGHTS = np.sin(np.arange(1, 33)).reshape(1, 32)
WORDS_OF_MLX = {
    2: "2ff4477fe00bfed1",
    3: "7f83fd16e47f487f06fb1bc8",
    4: "ff2960fd4b40fb6d20f98f11e7af03c5",
    5: "fd4b12d8fef78073bf5e81c8dfa1108e7f5a80ca",
    6: "7b5f22c155ffed033ced5f5f0152f63b580c1cfea70b30c9",
    8: "ecf4921f055cd4ffb53a003bb6ffd35b052093f5eb7f140c6fe2faa32b024cc7",
}


@pytest.mark.parametrize("bits", WORDS_OF_MLX)
def test_the_harness_packs_as_mlx_does(bits):
    stored, meant = mlx_affine(bits, 32, "F32")(WEIGHTS, None)
    assert stored[".weight"][1].tobytes().hex() == WORDS_OF_MLX[bits]
    assert np.abs(meant - WEIGHTS).max() <= 2 / ((1 << bits) - 1)
