"""A format is recognised by the names, dtypes and shapes of its tensors, whatever quant_method is called and however the experts lie.
Answers are compared with weights that numpy dequantises."""

import numpy as np
import pytest

from harness import fused as fused_harness
from harness import quantised as quantised_harness
from harness.fused import Fused, FusedCheckpoint, bare, underscored
from harness.quantised import (AWQ, BLOCKS, EXPERTS, FP8, GPTQ, HIDDEN, MODELOPT, VARIANTS, QuantisedCheckpoint, Variant, awq, compressed,
                               fp4, fp8, gptq, int_quantized, mlx_mx, pack_quantized, plain, quark)
from harness.tensors import error_per_token, tensor, values_of

TOKENS = 24
BOUNDS = {"f32": 1e-5, "bf16": 1.5e-2}
AUTO_ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "data_type": "int", "autoround_version": "0.9"}
NVFP4 = fp4(".weight", ".weight_scale", "F8_E4M3", 16, (".weight_scale_2", False))
PACKED_NVFP4 = fp4(".weight_packed", ".weight_scale", "F8_E4M3", 16, (".weight_global_scale", True))


def check(checkpoint, name, start_daemon):
    hidden = checkpoint.inputs(TOKENS)
    wanted = checkpoint.outputs(hidden)
    for dtype, shards in (("f32", 2), ("bf16", 3)):
        daemon = start_daemon("--compute-dtype", dtype, "--shards", shards, model=checkpoint.folder)
        with daemon.client() as client:
            assert client.describe().models[0].layers[0].quantisation == name
            answer = values_of(client.forward(layer=0, hidden=tensor(hidden)).output)
        daemon.stop()
        assert error_per_token(answer, wanted).max() <= BOUNDS[dtype], dtype


def without(suffix, quantise):
    """The same tensors but one."""

    def less(w, random):
        tensors, meant = quantise(w, random)
        return {name: stored for name, stored in tensors.items() if name != suffix}, meant

    return less


def unsigned(quantise):
    """The same words, called U32."""

    def renamed(w, random):
        tensors, meant = quantise(w, random)
        words = {name: ("U32", stored.view(np.uint32)) for name, (dtype, stored) in tensors.items() if name in (".qweight", ".qzeros")}
        return tensors | words, meant

    return renamed


def elements(quantise):
    """The same bytes, of the type F4 with a dimension of K codes."""

    def renamed(w, random):
        tensors, meant = quantise(w, random)
        return tensors | {".weight": ("F4", tensors[".weight"][1])}, meant

    return renamed


def of_one_scale(shape, zero):
    """INT8 with one scale and one zero point, in a shape that quantisers write."""

    def quantise(w, random):
        scale = np.float32(np.abs(w).max() / 100)
        codes = np.clip(np.rint(w / scale) + zero, -128, 127)
        return {".weight": ("I8", codes.astype(np.int8)), ".weight_scale": ("F32", np.full(shape, scale)),
                ".weight_zero_point": ("I8", np.full(shape, zero, np.int8))}, (codes - zero) * float(scale)

    return quantise


def with_vectors(quantise):
    """Scales and zero points of rows as [N] instead of [N, 1]."""

    def flat(w, random):
        tensors, meant = quantise(w, random)
        return {name: (dtype, stored if name == ".weight" else stored[:, 0]) for name, (dtype, stored) in tensors.items()}, meant

    return flat


def int8(strategy, symmetric):
    return compressed("int-quantized", num_bits=8, type="int", strategy=strategy, symmetric=symmetric)


QUARK = {"quant_method": "quark", "global_quant_config": {
    "weight": {"dtype": "uint4", "qscheme": "per_group", "group_size": 32, "symmetric": False}}}


def quark_blocks(size):
    return {"quant_method": "quark", "export": {"pack_method": "order"}, "global_quant_config": {
        "weight": {"dtype": "fp8_e4m3", "qscheme": "per_block", "block_size": [size, size], "group_size": None}}}


METHODS = {
    "auto_round_as_gptq": Variant("int4_group32_zero", AUTO_ROUND | {"sym": False, "packing_format": "auto_round:auto_gptq"},
                                  without(".g_idx", gptq(4, 32))),
    "auto_round_as_gptq_of_8_bits": Variant("int8_group32_zero",
                                            AUTO_ROUND | {"bits": 8, "sym": False, "packing_format": "auto_round:gptq"},
                                            gptq(8, 32)),
    "auto_round_with_zero_points_in_full": Variant("int4_group32_zero", AUTO_ROUND | {"sym": False, "backend": "auto_round:exllamav2"},
                                                   gptq(4, 32, in_full=True)),
    "auto_round_as_awq": Variant("int4_group32_zero", AUTO_ROUND | {"sym": False, "packing_format": "auto_round:auto_awq"}, awq(32)),
    "auto_round_mxfp8": Variant("mxfp8", AUTO_ROUND | {"bits": 8, "data_type": "mx_fp", "packing_format": "auto_round:llm_compressor"},
                                fp8(".weight_scale", "U8", (1, 32))),
    "awq_without_a_method": Variant("int4_group32_zero", {"group_size": 32}, awq(32)),
    "gptq_without_a_method": Variant("int4_group32_zero", {"group_size": 32, "sym": False}, gptq(4, 32)),
    "fp8_of_an_unknown_method": Variant("fp8_block128", {"quant_method": "of-our-own"}, fp8(".weight_scale_inv", "F32", (128, 128))),
    "nvfp4_under_fp8": Variant("nvfp4", FP8, NVFP4),
    "nvfp4_under_quark": Variant("nvfp4", {"quant_method": "quark"}, NVFP4),
    "packed_nvfp4_under_modelopt": Variant("nvfp4", MODELOPT | {"quant_algo": "MIXED_PRECISION"}, PACKED_NVFP4),
    "fp8_blocks_under_modelopt": Variant("fp8_block128", MODELOPT | {"quant_algo": "MIXED_PRECISION"},
                                         fp8(".weight_scale_inv", "F32", (128, 128))),
    "fp8_beside_scale": Variant("fp8_block128", MODELOPT, fp8(".scale", "F8_E8M0", (128, 128))),
    "int8_under_fp8": Variant("int8_channel", FP8, int_quantized()),
    "int8_of_one_scale": Variant("int8_tensor_zero", int8("tensor", False), of_one_scale((1,), 5)),
    "int8_of_a_scalar": Variant("int8_tensor_zero", int8("tensor", False), of_one_scale((), -7)),
    "int8_of_a_matrix_of_one": Variant("int8_tensor_zero", int8("tensor", False), of_one_scale((1, 1), 127)),
    "int8_of_one_scale_symmetric": Variant("int8_tensor", int8("tensor", True), of_one_scale((1,), 0)),
    "int8_of_rows_as_vectors": Variant("int8_channel_zero", int8("channel", False), with_vectors(int_quantized(None, True))),
    "quark_fp8_blocks_of_96": Variant("fp8_block96", quark_blocks(96), fp8(".weight_scale", "F32", (96, 96))),
    "quark_fp8_blocks_of_64": Variant("fp8_block64", quark_blocks(64), fp8(".weight_scale", "F32", (64, 64))),
    "quark_sizes_of_a_class": Variant("fp8_block96", quark_blocks(64) | {"layer_type_quant_config": {
        "<class 'torch.nn.modules.linear.Linear'>": quark_blocks(96)["global_quant_config"]}}, fp8(".weight_scale", "F32", (96, 96))),
    "quark_uint4": Variant("int4_group32_zero", QUARK | {"export": {"pack_method": "reorder"}}, quark(32)),
    "quark_int4_in_order": Variant("int4_group32_zero", {
        "quant_method": "quark", "export": {"pack_method": "order"}, "global_quant_config": {
            "weight": {"dtype": "int4", "qscheme": "per_group", "group_size": 32, "symmetric": True}}}, quark(32, True, False)),
    "quark_int4_without_zero_points": Variant("int4_group32", {
        "quant_method": "quark", "export": {"pack_method": "reorder"}, "global_quant_config": {
            "weight": {"dtype": "int4", "qscheme": "per_group", "group_size": 32, "symmetric": True}}},
        without(".weight_zero_point", quark(32, True))),
    "mxfp4_of_mlx": Variant("mxfp4", {"group_size": 32, "bits": 4, "mode": "mxfp4"}, mlx_mx(4)),
    "mxfp8_of_mlx": Variant("mxfp8", {"group_size": 32, "bits": 8, "mode": "mxfp8"}, mlx_mx(8)),
    "gptq_of_unsigned_words": Variant("int4_group32_zero", GPTQ, unsigned(gptq(4, 32))),
    "nvfp4_of_elements": Variant("nvfp4", MODELOPT, elements(NVFP4)),
    "three_methods_in_one_expert": Variant("fp8_block128+nvfp4", {"quant_method": "fp8", "moe_quant_algo": "NVFP4"},
                                           fp8(".scale", "F32", (128, 128)), (("down", NVFP4),)),
}


@pytest.mark.share(3)
@pytest.mark.parametrize("name", METHODS)
def test_quant_method_does_not_gate_what_the_tensors_say(name, tmp_path, start_daemon):
    check(QuantisedCheckpoint(tmp_path / name, METHODS[name]), METHODS[name].name, start_daemon)


def constant_global(quantise, number=np.float32(0.002)):
    """NVFP4 whose global scale is the same in each matrix."""

    def with_one_number(w, random):
        tensors, meant = quantise(w * 0.1, random)  # codes and block scales of some matrix, under another global scale
        (name, (dtype, found)), = [(n, t) for n, t in tensors.items() if n.endswith("_2")]
        return tensors | {name: (dtype, number)}, meant / float(found) * float(number)

    return with_one_number


def one_scale(quantise, number=np.float32(0.01)):
    """FP8 whose scale is the same number in each matrix."""

    def with_one_number(w, random):
        tensors, meant = quantise(w, random)
        (name, (dtype, found)), = [(n, t) for n, t in tensors.items() if "scale" in n]
        return tensors | {name: (dtype, np.full_like(found, number))}, meant / float(found.reshape(-1)[0]) * float(number)

    return with_one_number


INT4 = compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=32, symmetric=False)
TENSOR = fp8(".weight_scale_inv", "F32", None, shape=())
ROWS = fp8(".weight_scale", "F32", (1, None))
FUSED = {
    "fp8_blocks_bare": Fused("fp8_block128", BLOCKS, fp8(".weight_scale_inv", "F32", (128, 128)), bare),
    "fp8_blocks_dotted": Fused("fp8_block128", BLOCKS, fp8(".weight_scale_inv", "BF16", (128, 128))),
    "fp8_blocks_of_gate_and_of_up": Fused("fp8_block128", BLOCKS, fp8(".weight_scale_inv", "F32", (128, 128)), bare, each=True),
    "fp8_blocks_of_32": Fused("fp8_block64", FP8 | {"weight_block_size": [32, 64]}, fp8(".weight_scale_inv", "F32", (32, 64)), bare),
    "fp8_blocks_transposed": Fused("fp8_block128", BLOCKS, fp8(".weight_scale_inv", "F32", (128, 128)), bare, transposed=True),
    "fp8_blocks_stacked": Fused("fp8_block128", BLOCKS, fp8(".weight_scale_inv", "F32", (128, 128)), stacked=True),
    "fp8_number_of_each_expert": Fused("fp8_tensor", FP8, TENSOR, bare, ignored=("_activation_scale",)),
    "fp8_number_of_each_expert_in_three_dimensions": Fused("fp8_tensor", FP8, TENSOR, bare, numbers=(EXPERTS, 1, 1)),
    "fp8_one_number_for_all": Fused("fp8_tensor", FP8, one_scale(TENSOR), bare, numbers=()),
    "fp8_one_number_in_a_list": Fused("fp8_tensor", FP8, one_scale(TENSOR), bare, numbers=()),
    "fp8_a_number_for_gate_and_one_for_up": Fused("fp8_tensor", FP8, TENSOR, bare, each=True),
    "fp8_rows": Fused("fp8_channel", {"quant_method": "fbgemm_fp8"}, ROWS, bare),
    "fp8_rows_transposed": Fused("fp8_channel", {"quant_method": "fbgemm_fp8"}, ROWS, bare, transposed=True),
    "mxfp8_transposed": Fused("mxfp8", {"quant_method": "mxfp8"}, fp8(".weight_scale", "U8", (1, 32)), underscored, transposed=True),
    "nvfp4_transposed": Fused("nvfp4", MODELOPT | {"quant_algo": "NVFP4"}, constant_global(NVFP4), underscored, transposed=True, numbers=(),
                              ignored=("_input_scale",)),
    "nvfp4_number_of_each_expert": Fused("nvfp4", MODELOPT, NVFP4, underscored),
    "nvfp4_a_number_for_gate_and_one_for_up": Fused("nvfp4", MODELOPT, NVFP4, each=True),
    "nvfp4_packed": Fused("nvfp4", compressed("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16),
                          PACKED_NVFP4),
    "nvfp4_stacked": Fused("nvfp4", MODELOPT, NVFP4, stacked=True),
    "mxfp4_packed": Fused("mxfp4", compressed("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32),
                          fp4(".weight_packed", ".weight_scale", "U8", 32), bare),
    "int4_with_zero_points": Fused("int4_group32_zero", INT4, pack_quantized(4, 32, zero_points=True)),
    "int4_bare": Fused("int4_group32", compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=32),
                       pack_quantized(4, 32), bare),
    "int4_transposed": Fused("int4_group32", compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=32),
                             without(".weight_shape", pack_quantized(4, 32)), bare, transposed=True),
    "int4_transposed_with_zero_points": Fused("int4_group32_zero", INT4, without(".weight_shape", pack_quantized(4, 32, zero_points=True)),
                                              transposed=True, stacked=True),
    "int8_elements": Fused("int8_channel", compressed("int-quantized", num_bits=8, type="int", strategy="channel"), int_quantized()),
    "awq": Fused("int4_group32_zero", AWQ | {"group_size": 32}, awq(32)),
    "gptq_ordered": Fused("int4_group32_zero_ordered", GPTQ | {"desc_act": True}, gptq(4, 32, ordered=True)),
}


@pytest.mark.share(3)
@pytest.mark.parametrize("name", FUSED)
def test_all_experts_in_one_tensor(name, tmp_path, start_daemon):
    checkpoint = FusedCheckpoint(tmp_path / name, FUSED[name])
    if name.endswith("in_a_list"):
        scales = [n for n in checkpoint.tensors if n.endswith("_scale_inv")]
        checkpoint.tensors.update({n: (checkpoint.tensors[n][0], checkpoint.tensors[n][1].reshape(1)) for n in scales})
        checkpoint.write()
    check(checkpoint, FUSED[name].name, start_daemon)


def of_square(square, other):
    """One format for the square matrix of a fused pair, another for the other matrix."""
    return lambda w, random: (square if w.shape[0] == w.shape[1] else other)(w, random)


BF16 = plain("BF16")
SQUARE = {  # the width of the experts decides which matrix is square
    "codes_of_gate_and_up": (HIDDEN // 2, "fp8_channel+bf16", of_square(ROWS, BF16)),
    "plain_gate_and_up": (HIDDEN // 2, "bf16+fp8_channel", of_square(BF16, ROWS)),
    "codes_of_down": (HIDDEN, "bf16+fp8_channel", of_square(ROWS, BF16)),
    "plain_down": (HIDDEN, "fp8_channel+bf16", of_square(BF16, ROWS)),
}


@pytest.mark.share(4)
@pytest.mark.parametrize("names", (fused_harness.DOTTED, bare), ids=("dotted", "bare"))
@pytest.mark.parametrize("transposed", (False, True), ids=("rows", "transposed"))
@pytest.mark.parametrize("name", SQUARE)
def test_the_other_half_tells_how_a_square_one_lies(name, transposed, names, tmp_path, start_daemon, monkeypatch):
    width, described, quantise = SQUARE[name]
    for module in (fused_harness, quantised_harness):
        monkeypatch.setattr(module, "WIDTH", width)
    fused = Fused(described, {"quant_method": "fbgemm_fp8"}, quantise, names, transposed=transposed)
    check(FusedCheckpoint(tmp_path / name, fused), described, start_daemon)


@pytest.mark.parametrize("transposed", (False, True), ids=("rows", "transposed"))
def test_down_tells_how_square_words_of_gate_and_up_lie(transposed, tmp_path, start_daemon, monkeypatch):
    monkeypatch.setattr(fused_harness, "WIDTH", 32)
    monkeypatch.setattr(quantised_harness, "WIDTH", 32)
    monkeypatch.setattr(quantised_harness, "HIDDEN", 256)
    words = Fused("int4_channel", compressed("pack-quantized", num_bits=4, type="int", strategy="channel"),
                  without(".weight_shape", pack_quantized(4, None)), transposed=transposed, stacked=True)
    check(FusedCheckpoint(tmp_path / "words", words), "int4_channel", start_daemon)


SHORT = {
    "auto_round_mxfp8": METHODS["auto_round_mxfp8"],
    "fp4_beside_scale": VARIANTS["fp4_beside_scale"],
    "awq": VARIANTS["awq"],
    "quark_uint4": METHODS["quark_uint4"],
    "fp8_groups": Variant("fp8_group32", compressed("float-quantized", num_bits=8, type="float", strategy="group", group_size=32),
                          fp8(".weight_scale", "F32", (1, 32))),
    "mxfp8_transposed": FUSED["mxfp8_transposed"],
}


@pytest.mark.parametrize("name", SHORT)
def test_the_last_group_along_k_may_be_short(name, tmp_path, start_daemon, monkeypatch):
    """Down has 208 k: six groups of 32 and one of 16."""
    for module in (fused_harness, quantised_harness):
        monkeypatch.setattr(module, "WIDTH", 208)
    kind = FusedCheckpoint if isinstance(SHORT[name], Fused) else QuantisedCheckpoint
    check(kind(tmp_path / name, SHORT[name]), SHORT[name].name, start_daemon)


def test_rows_of_down_may_have_their_scales_along_n(tmp_path, start_daemon):
    """As transformers saves Llama 4: gate_up_proj_scale [E, 1, N], but down_proj_scale [E, N, 1]."""
    checkpoint = FusedCheckpoint(tmp_path / "rows", FUSED["fp8_rows_transposed"])
    name = "model.layers.0.mlp.experts.down_proj_scale"
    dtype, array = checkpoint.tensors[name]
    checkpoint.tensors[name] = (dtype, array.reshape(EXPERTS, HIDDEN, 1))
    checkpoint.write()
    check(checkpoint, "fp8_channel", start_daemon)
