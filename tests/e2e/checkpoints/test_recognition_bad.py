"""Codes of quantisers that are not served, tensors that change the meaning of codes, and tensors that contradict quant_method: each is
refused with the tensor, what it is, and the remedy."""

import copy

import numpy as np
import pytest

from harness import fused as fused_harness
from harness import quantised as quantised_harness
from harness.daemon import run_program
from harness.fused import Fused, FusedCheckpoint, bare
from harness.quantised import (AWQ, BLOCKS, EXPERTS, FP8, GPTQ, VARIANTS, QuantisedCheckpoint, Variant, awq, compressed, fp8, gptq,
                               mlx_affine, mlx_mx, mlx_nvfp4, pack_quantized, quark)

MODULE = "model.layers.0.mlp.experts"
GATE = f"{MODULE}.0.gate_proj"


def refused(checkpoint, *words):
    checkpoint.write()
    done = run_program("expertd", "--model", str(checkpoint.folder), "--listen", "127.0.0.1:0", "--http", "off", "--admin", "off")
    assert done.returncode == 65, done.stderr
    for word in words:
        assert word in done.stderr, f"{word!r} is not in: {done.stderr[-900:]}"


def stored(tensors):
    """A format of these tensors, {suffix: (dtype, shape)}. Shape None: the weight's."""
    ones = lambda w: {suffix: (dtype, np.ones(w.shape if shape is None else shape)) for suffix, (dtype, shape) in tensors.items()}
    return lambda w, random: (ones(w), w)


# The tensors of each quantiser's matrix, with shapes that its own code gives.
FOREIGN = {
    "bitsandbytes_nf4": ({".weight": ("U8", (64, 1)), ".weight.absmax": ("U8", (2,)), ".weight.quant_map": ("F32", (16,))},
                         ["bitsandbytes"]),
    "bitsandbytes_int8": ({".weight": ("I8", None), ".SCB": ("F32", (4,)), ".weight_format": ("U8", ())}, ["bitsandbytes"]),
    "aqlm": ({".codes": ("I8", (4, 4, 2)), ".codebooks": ("F16", (2, 4, 1, 8)), ".scales": ("F16", (4, 1, 1, 1))}, ["AQLM"]),
    "hqq": ({".W_q": ("U8", (8, 8)), ".scale": ("F16", (8, 1)), ".zero": ("F16", (8, 1))}, ["HQQ"]),
    "eetq": ({".weight": ("I8", None), ".weight_scales": ("F16", (4,))}, ["EETQ"]),
    "quip": ({".Qidxs": ("I16", (8, 8)), ".SU": ("F16", (8,)), ".SV": ("F16", (8,))}, ["QuIP#"]),
    "vptq": ({".indices": ("I32", (1, 8, 8)), ".centroids": ("F16", (1, 64)), ".weight_scale": ("F16", (8,))}, ["VPTQ"]),
    "exl2": ({".q_weight": ("I32", (8, 8)), ".q_scale": ("I32", (1, 8)), ".q_scale_max": ("F16", (1,))}, ["EXL2"]),
    "exl3": ({".trellis": ("I16", (2, 2, 16)), ".suh": ("F16", (8,)), ".svh": ("F16", (8,))}, ["EXL3"]),
    "marlin": ({".B": ("I32", (8, 8)), ".s": ("F16", (1, 8))}, ["Marlin"]),
    "quanto": ({".weight._data": ("I8", None), ".weight._scale": ("F16", (4, 1))}, ["quanto"]),
}


@pytest.mark.share(3)
@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("said", (True, False))
def test_other_quantisers_are_named(name, said, tmp_path):
    tensors, words = FOREIGN[name]
    config = {"quant_method": name} if said else {}
    refused(QuantisedCheckpoint(tmp_path / name, Variant(name, config, stored(tensors))), MODULE, "not supported: take",
            *words)


def changed(quantise, more_tensors):
    """The same tensors and some more."""

    def more(w, random):
        tensors, meant = quantise(w, random)
        return tensors | more_tensors, meant

    return more


BLOCKS_OF_128 = fp8(".weight_scale_inv", "F32", (128, 128))
MODIFIERS = {
    ".pre_quant_scale": "factor of the matrix's input",
    ".smooth_scale": "factor of the matrix's input",
    ".had_K": "rotates the matrix's input",
    ".forward_hadamard_matrix": "rotates the matrix's input",
}


@pytest.mark.parametrize("suffix", MODIFIERS)
def test_tensors_that_change_the_meaning_of_codes_are_named(suffix, tmp_path):
    quantise = changed(BLOCKS_OF_128, {suffix: ("F32", np.ones(4))})
    refused(QuantisedCheckpoint(tmp_path / "model", Variant("", BLOCKS, quantise)), f"{GATE}{suffix}", MODIFIERS[suffix],
            "take a checkpoint")


@pytest.mark.parametrize("suffix", (".input_scale", ".activation_scale", ".input_scale_ub"))
def test_a_vector_of_the_inputs_beside_fp8_is_refused(suffix, tmp_path):
    """One number of that name scales activations that are quantised; test_quantised.py serves it."""

    def quantise(w, random):
        tensors, meant = BLOCKS_OF_128(w, random)
        return tensors | {suffix: ("F32", np.full(w.shape[1], 2.0))}, meant

    refused(QuantisedCheckpoint(tmp_path / "model", Variant("", BLOCKS, quantise)), f"{MODULE}.0.down_proj{suffix}",
            "may hold a factor of each input", "take a checkpoint")


def reshaped(quantise, shape):
    """.qweight in another shape, which depends on n and k."""

    def other(w, random):
        tensors, meant = quantise(w, random)
        return tensors | {".qweight": ("I32", np.ones(shape(*w.shape), np.int32))}, meant

    return other


AUTO_ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 32}
REFUSED = {
    "gptq_said_to_be_awq": (AWQ | {"group_size": 32}, gptq(4, 32), [f"{GATE}.qweight", "is GPTQ", '\\"awq\\"', "means AWQ"]),
    "awq_said_to_be_gptq": (GPTQ, awq(32), [f"{GATE}.qweight", "is AWQ", '\\"gptq\\"', "means GPTQ"]),
    "gptq_packed_as_awq": (AUTO_ROUND | {"packing_format": "auto_round:auto_awq"}, gptq(4, 32),
                           [f"{GATE}.qweight", "packing_format", "auto_round:auto_awq", "means AWQ"]),
    "gptq_of_3_bits": (GPTQ | {"bits": 3}, reshaped(gptq(4, 32), lambda n, k: (k * 3 // 32, n)), [f"{GATE}.qweight", "GPTQ with 3 bits"]),
    "gptq_of_2_bits": (AUTO_ROUND | {"bits": 2}, reshaped(gptq(4, 32), lambda n, k: (k * 2 // 32, n)),
                       [f"{GATE}.qweight", "GPTQ with 2 bits"]),
    "gptq_for_marlin": (GPTQ, reshaped(gptq(4, 32), lambda n, k: (k // 16, n * 2)), [f"{GATE}.qweight", "repacked for Marlin"]),
    "awq_gemv": (AWQ | {"group_size": 32}, reshaped(awq(32), lambda n, k: (n, k // 8)), [f"{GATE}.qweight", "GEMV"]),
    "awq_of_another_kernel": (AWQ | {"group_size": 32, "format": "gemv_fast"}, awq(32),
                              ["quantization_config.format", "gemv_fast", "gemm"]),
    "fp8_of_a_method_with_other_codes": (FP8 | {"quant_method": "torchao"}, BLOCKS_OF_128, [f"{GATE}.weight", "FP8", "torchao"]),
    "quark_without_its_config": ({"quant_method": "quark"}, quark(32),
                                 [f"{GATE}.weight", "global_quant_config.weight.dtype", "uint4 or int4"]),
    "quark_in_another_order": ({"quant_method": "quark", "export": {"pack_method": "sorted"}, "global_quant_config": {
        "weight": {"dtype": "uint4", "group_size": 32}}}, quark(32), ["export.pack_method", "sorted"]),
    "quark_with_two_signs": ({"quant_method": "quark", "export": {"pack_method": "reorder"}, "global_quant_config": {
        "weight": {"dtype": "uint4", "group_size": 32}}, "layer_quant_config": {"*down_proj": {"weight": {"dtype": "int4"}}}}, quark(32),
                             ["layer_quant_config", "int4"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_tensors_that_contradict_config_json_are_refused_with_both(name, tmp_path):
    config, quantise, words = REFUSED[name]
    refused(QuantisedCheckpoint(tmp_path / name, Variant("", config, quantise)), *words)


def test_zero_points_that_one_expert_lacks_for_no_reason_are_refused(tmp_path):
    """Quark's section says nothing about single modules."""
    config = {"quant_method": "quark", "export": {"pack_method": "reorder"}, "global_quant_config": {
        "weight": {"dtype": "int4", "group_size": 32}}}
    checkpoint = QuantisedCheckpoint(tmp_path / "model", Variant("", config, quark(32, signed=True)))
    for part in ("gate", "up", "down"):
        del checkpoint.tensors[f"{MODULE}.2.{part}_proj.weight_zero_point"]
    refused(checkpoint, "expert 2's gate is int4_group32,", "expert 0's gate is int4_group32_zero", "is a tensor missing?")


def test_a_fused_pair_of_two_orientations_is_refused(tmp_path):
    checkpoint = FusedCheckpoint(tmp_path / "pair", Fused("", BLOCKS, BLOCKS_OF_128, bare))
    for name in (f"{MODULE}.down_proj", f"{MODULE}.down_proj_scale_inv"):
        dtype, array = checkpoint.tensors[name]
        checkpoint.tensors[name] = (dtype, array.transpose(0, 2, 1))
    refused(checkpoint, f"{MODULE}.gate_up_proj", f"{MODULE}.down_proj", "different orientations")


def test_a_global_scale_of_another_number_of_experts_is_refused(tmp_path):
    nvfp4 = VARIANTS["modelopt_nvfp4"]
    fused = FusedCheckpoint(tmp_path / "fused", Fused("", copy.deepcopy(nvfp4.config), nvfp4.quantise))
    fused.tensors[f"{MODULE}.gate_up_proj.weight_scale_2"] = ("F32", np.ones(EXPERTS + 1))
    refused(fused, f"{MODULE}.gate_up_proj.weight_scale_2", f"[{EXPERTS + 1}]", "one number per expert")


def test_blocks_that_may_begin_anew_at_up_are_refused(tmp_path, monkeypatch):
    """With 208 rows each, blocks of 128 rows are four in both readings."""
    for module in (fused_harness, quantised_harness):
        monkeypatch.setattr(module, "WIDTH", 208)
    for each in (False, True):
        checkpoint = FusedCheckpoint(tmp_path / str(each), Fused("", BLOCKS, BLOCKS_OF_128, bare, each=each))
        refused(checkpoint, f"{MODULE}.gate_up_proj_scale_inv", f"[{EXPERTS}, 4, 2]", "begin anew at up", "store gate and up separately")


def of_sizes(monkeypatch, hidden, width):
    monkeypatch.setattr(quantised_harness, "HIDDEN", hidden)
    for module in (fused_harness, quantised_harness):
        monkeypatch.setattr(module, "WIDTH", width)


@pytest.mark.parametrize("hidden, width, shape", ((128, 96, "2, 1"), (160, 64, "1, 2")))
def test_blocks_that_may_be_one_scale_of_gate_and_one_of_up_are_refused(hidden, width, shape, tmp_path, monkeypatch):
    of_sizes(monkeypatch, hidden, width)
    checkpoint = FusedCheckpoint(tmp_path / "blocks", Fused("", {"quant_method": "fp8"}, BLOCKS_OF_128, bare))
    refused(checkpoint, f"{MODULE}.gate_up_proj_scale_inv", f"[{EXPERTS}, {shape}]", "one scale for gate and one for up",
            "weight_block_size")


def test_zero_points_that_may_be_transposed_are_refused(tmp_path, monkeypatch):
    """64 rows are 8 words of zero points, and 256 k are 8 groups."""
    of_sizes(monkeypatch, 256, 64)
    quantise = pack_quantized(4, 32, zero_points=True)
    whole = lambda w, random: ({k: v for k, v in quantise(w, random)[0].items() if k != ".weight_shape"}, w)
    section = compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=32, symmetric=False)
    checkpoint = FusedCheckpoint(tmp_path / "words", Fused("", section, whole, transposed=True, stacked=True))
    refused(checkpoint, f"{MODULE}.gate_proj.weight_zero_point", f"[{EXPERTS}, 8, 8]", "may be transposed")


def mlx(config=None, quantise=mlx_affine(4, 32), change=lambda tensors: None):
    """MLX's affine codes of 4 bits in groups of 32; change: of the tensors of the first expert's gate."""

    def write(folder):
        checkpoint = QuantisedCheckpoint(folder, Variant("", {}, quantise))
        checkpoint.config["quantization"] = {"group_size": 32, "bits": 4, "mode": "affine"} | (config or {})
        change(checkpoint.tensors)
        return checkpoint

    return write


def put(suffix, dtype=None, shape=None, keep=lambda array: array):
    """Another dtype or shape for a tensor of the first expert's gate; shape None: the elements that `keep` keeps."""

    def change(tensors):
        old, array = tensors[GATE + suffix]
        tensors[GATE + suffix] = (dtype or old, keep(array) if shape is None else np.ones(shape))

    return change


AFFINE_REFUSED = {
    "biases_missing": (mlx(change=lambda tensors: tensors.pop(f"{GATE}.biases")), [f"{GATE}.biases is missing", f"{GATE}.scales"]),
    "scales_missing": (mlx(change=lambda tensors: tensors.pop(f"{GATE}.scales")), [f"{GATE}.weight is U32", "scales are missing",
                                                                                  f"{GATE}.scales"]),
    "scales_of_fewer_groups": (mlx(change=put(".scales", keep=lambda a: a[:, :-1])),
                               [f"{GATE}.scales", "[160, 5]", "[160, 192]", "groups of 32 k (quantization.group_size)"]),
    "biases_of_fewer_groups": (mlx(change=put(".biases", keep=lambda a: a[:, :-1])),
                               [f"{GATE}.biases", "[160, 5]", f"{GATE}.scales", "[160, 6]"]),
    "biases_of_another_dtype": (mlx(change=put(".biases", "F32")), [f"{GATE}.biases is F32", f"{GATE}.scales is BF16"]),
    "other_bits": (mlx({"bits": 8}), [f"{GATE}.weight", "4 bits", "quantization.bits is 8"]),
    "other_bits_of_a_module": (mlx({GATE: {"bits": 6, "group_size": 32}}), [f"{GATE}.weight", "4 bits", f"quantization.{GATE}.bits is 6"]),
    "another_group": (mlx({"group_size": 64}), [f"{GATE}.scales", "groups of 64 k (quantization.group_size)"]),
    "another_group_of_a_module": (mlx({GATE: {"bits": 4, "group_size": 64}}), [f"{GATE}.scales", f"(quantization.{GATE}.group_size)"]),
    "codes_of_7_bits": (mlx(change=put(".weight", shape=(160, 42))), [f"{GATE}.weight is [160, 42]", "affine codes of MLX"]),
    "scales_of_integers": (mlx(change=put(".scales", "I32")), [f"{GATE}.scales is I32", "not supported"]),
    "affine_said_of_mxfp4": (mlx(quantise=mlx_mx(4)), [f"{GATE}.weight is U32", "MXFP4 of MLX", "quantization.mode is affine"]),
    "mxfp4_said_of_affine_codes": (mlx({"mode": "mxfp4"}), [f"{GATE}.weight", "affine codes of MLX", "quantization.mode is mxfp4"]),
    "mxfp8_said_of_mxfp4": (mlx({"mode": "mxfp8"}, mlx_mx(4)), [f"{GATE}.weight", "MXFP4 of MLX", "quantization.mode is mxfp8"]),
    "nvfp4_said_of_mxfp4": (mlx({"mode": "nvfp4"}, mlx_mx(4)), [f"{GATE}.weight", "MXFP4 of MLX", "quantization.mode is nvfp4"]),
    "mxfp4_said_of_nvfp4": (mlx({"mode": "mxfp4", "group_size": 16}, mlx_nvfp4()), [f"{GATE}.weight", "NVFP4 of MLX",
                                                                                    "quantization.mode is mxfp4"]),
    "another_mode_of_a_module": (mlx({GATE: {"mode": "mxfp4"}}), [f"{GATE}.weight", f"quantization.{GATE}.mode is mxfp4"]),
    "biases_beside_mxfp4": (mlx({"mode": "mxfp4"}, quantise=changed(mlx_mx(4), {".biases": ("F16", np.ones((4, 4)))})), [".biases", "is in the MoE block"]),
}


@pytest.mark.parametrize("name", AFFINE_REFUSED)
def test_affine_codes_that_contradict_each_other_or_the_section_are_refused(name, tmp_path):
    write, words = AFFINE_REFUSED[name]
    refused(write(tmp_path / name), *words)


@pytest.mark.parametrize("key, value", (("packing_format", "auto_round:gptqmodel:exllamav2"), ("backend", "auto_round:marlin")))
def test_a_packing_that_does_not_tell_the_form_of_zero_points_is_refused(key, value, tmp_path):
    config = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": False, key: value}
    refused(QuantisedCheckpoint(tmp_path / "packing", Variant("", config, gptq(4, 32, in_full=True))), f"{key} is {value}",
            f"{GATE}.qzeros", "minus one")


@pytest.mark.parametrize("key, of", (("layer_quant_config", "*down_proj"),
                                     ("layer_type_quant_config", "<class 'torch.nn.modules.linear.Linear'>")))
def test_quark_codes_of_two_signs_are_refused(key, of, tmp_path):
    weight = {"qscheme": "per_group", "group_size": 32}
    config = {"quant_method": "quark", "export": {"pack_method": "reorder"}, "global_quant_config": {"weight": weight | {"dtype": "int4"}},
              key: {of: {"weight": weight | {"dtype": "uint4"}}}}
    refused(QuantisedCheckpoint(tmp_path / "signs", Variant("", config, quark(32))), key, "uint4", "global_quant_config.weight.dtype is int4")
