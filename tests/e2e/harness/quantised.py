"""Writes small checkpoints in the formats of common quantisers. Quantises and dequantises in numpy, independently of the daemon's code.

A format is a function of a weight W [N, K] and a random generator. It returns the tensors that replace W ({suffix: (dtype, array)}) and
the dequantised weight in float64. The conventions are those of each quantiser's own code.
"""

import dataclasses
import json

import numpy as np

from .checkpoints import write_safetensors
from .tensors import F8_VALUES, bf16_bits, bf16_values

HIDDEN, WIDTH, EXPERTS, TOP_K, LAYER = 192, 160, 5, 2, 0
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6])
SIZES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1", "F4": "u1",
         "U8": "u1", "I8": "i1", "I16": "<i2", "I32": "<i4", "U32": "<u4", "I64": "<i8"}


# ---- elements


def nearest(values, table):
    """The index of the entry of `table` nearest to each value."""
    order = np.argsort(np.where(np.isnan(table), np.inf, table), kind="stable")
    order = order[np.isfinite(table[order])]
    sorted_table = table[order]
    at = np.clip(np.searchsorted(sorted_table, values), 1, len(sorted_table) - 1)
    left = values - sorted_table[at - 1] < sorted_table[at] - values
    return order[at - left]


def rounded(values, dtype):
    """Scales rounded to a dtype: (stored, their values in float64)."""
    if dtype == "BF16":
        bits = bf16_bits(values.astype(np.float32))
        return bits, bf16_values(bits).astype(np.float64)
    if dtype in ("F8_E4M3", "F8_E5M2"):
        codes = nearest(values, F8_VALUES[dtype]).astype(np.uint8)
        return codes, F8_VALUES[dtype][codes].astype(np.float64)
    if dtype in ("F8_E8M0", "U8"):
        codes = np.clip(np.ceil(np.log2(np.maximum(values, 1e-30))) + 127, 1, 254).astype(np.uint8)
        return codes, 2.0 ** (codes.astype(np.float64) - 127)
    stored = values.astype({"F32": np.float32, "F16": np.float16}[dtype])
    return stored, stored.astype(np.float64)


def spread(scales, block_n, block_k, shape):
    """Expands block scales to the weight's shape. The last blocks may be short."""
    return np.repeat(np.repeat(scales, block_n, 0), block_k, 1)[:shape[0], :shape[1]]


def greatest(w, block_n, block_k):
    """The greatest magnitude of each block."""
    rows, columns = -(-w.shape[0] // block_n), -(-w.shape[1] // block_k)
    return np.array([[np.abs(w[r * block_n:(r + 1) * block_n, c * block_k:(c + 1) * block_k]).max() for c in range(columns)]
                     for r in range(rows)])


def words(codes, bits):
    """Packs codes along the last axis into 32-bit words, the first code in the lowest bits. The last word may be partly filled."""
    per_word = 32 // bits
    padding = -codes.shape[-1] % per_word
    codes = np.concatenate([codes, np.zeros(codes.shape[:-1] + (padding,), codes.dtype)], -1).astype(np.uint64)
    codes = codes.reshape(codes.shape[:-1] + (-1, per_word))
    return (codes << (np.arange(per_word, dtype=np.uint64) * np.uint64(bits))).sum(-1).astype(np.uint32).view(np.int32)


def pairs(codes):
    return (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)


# ---- formats


def plain(dtype):
    """Not quantised."""

    def quantise(w, random):
        stored, meant = rounded(w, dtype)
        return {".weight": (dtype, stored)}, meant

    return quantise


def fp8(scale, scale_dtype, block=None, dtype="F8_E4M3", shape=None, extras=()):
    """block: (n, k) of a scale; (1, None): a scale per row; None: one scale. shape: the shape of the stored scales."""

    def quantise(w, random):
        block_n, block_k = (w.shape if block is None else (block[0], block[1] or w.shape[1]))
        stored, meant = rounded(greatest(w, block_n, block_k) / 448, scale_dtype)
        expanded = spread(meant, block_n, block_k, w.shape)
        codes = nearest(w / expanded, F8_VALUES[dtype]).astype(np.uint8)
        tensors = {".weight": (dtype, codes), scale: (scale_dtype, stored if shape is None else stored.reshape(shape))}
        tensors.update({name: ("F32", np.array(1.5, np.float32)) for name in extras})
        return tensors, F8_VALUES[dtype][codes] * expanded

    return quantise


def fp4(codes_name, scale, scale_dtype, block_k, global_scale=None, codes_dtype="U8", extras=()):
    """global_scale: (name, divide) of a global scale that multiplies, or divides, the block scales."""

    def quantise(w, random):
        wanted, factor, tensors = greatest(w, 1, block_k) / 6, 1.0, {}
        if global_scale:
            name, divide = global_scale
            number = np.float32(448 / wanted.max() if divide else wanted.max() / 448)
            tensors[name] = ("F32", number.reshape(1) if divide else number)
            factor = 1 / float(number) if divide else float(number)
        stored, meant = rounded(wanted / factor, scale_dtype)
        expanded = spread(meant * factor, 1, block_k, w.shape)
        codes = nearest(w / np.where(expanded == 0, 1, expanded), E2M1).astype(np.uint8)
        tensors.update({codes_name: (codes_dtype, pairs(codes).view(np.int8 if codes_dtype == "I8" else np.uint8)),
                        scale: (scale_dtype, stored)})
        tensors.update({name: ("F32", np.array(1.5, np.float32)) for name in extras})
        return tensors, E2M1[codes] * expanded

    return quantise


def integers(w, bits, block_k, zero_points, scale_dtype):
    """Returns (q, z, stored scales, expanded scales): q and z from 0 to 2^bits - 1, W = (q - z) * scale."""
    groups = -(-w.shape[1] // block_k)
    pieces = [w[:, g * block_k:(g + 1) * block_k] for g in range(groups)]
    low = np.minimum(np.stack([p.min(1) for p in pieces], 1), 0)
    high = np.maximum(np.stack([p.max(1) for p in pieces], 1), 0)
    top = (1 << bits) - 1
    if zero_points:
        stored, meant = rounded((high - low) / top, scale_dtype)
        zeros = np.clip(np.rint(-low / meant), 1, top).astype(np.int64)
    else:
        stored, meant = rounded(np.maximum(high, -low) / (top // 2), scale_dtype)
        zeros = np.full(low.shape, (top + 1) // 2)
    expanded = spread(meant, 1, block_k, w.shape)
    codes = np.clip(np.rint(w / expanded) + spread(zeros, 1, block_k, w.shape), 0, top).astype(np.int64)
    return codes, zeros, stored, expanded


def dequantise(codes, zeros, expanded, block_k):
    return (codes - spread(zeros, 1, block_k, codes.shape)) * expanded


def pack_quantized(bits, group, zero_points=False, scale_dtype="BF16", ordered=False, shape_dtype="I64"):
    """compressed-tensors. group None: a scale per row. ordered: g_idx maps each k to its scale."""

    def quantise(w, random):
        block_k = group or w.shape[1]
        order = random.permutation(w.shape[1]) if ordered else np.arange(w.shape[1])
        codes, zeros, scales, expanded = integers(w[:, order], bits, block_k, zero_points, scale_dtype)
        meant, inverse = dequantise(codes, zeros, expanded, block_k), np.argsort(order)
        tensors = {".weight_packed": ("I32", words(codes[:, inverse], bits)), ".weight_scale": (scale_dtype, scales),
                   ".weight_shape": (shape_dtype, np.array(w.shape))}
        if zero_points:
            tensors[".weight_zero_point"] = ("I32", words(zeros.T, bits).T)
        if ordered:
            tensors[".weight_g_idx"] = ("I32", (inverse // block_k).astype(np.int32))
        return tensors, meant[:, inverse]

    return quantise


def int_quantized(group=None, zero_points=False):
    def quantise(w, random):
        block_k = group or w.shape[1]
        codes, zeros, scales, expanded = integers(w, 8, block_k, zero_points, "F32")
        tensors = {".weight": ("I8", (codes - 128).astype(np.int8)), ".weight_scale": ("F32", scales)}
        if zero_points:
            tensors[".weight_zero_point"] = ("I8", (zeros - 128).astype(np.int8))
        return tensors, dequantise(codes, zeros, expanded, block_k)

    return quantise


def quark(group, signed=False, reorder=True):
    """INT4 of Quark: words along n in AWQ's order or in order; codes and zero points are signed or from 0."""

    def quantise(w, random):
        codes, zeros, scales, expanded = integers(w, 4, group, not signed, "F16")
        column = np.argsort([0, 4, 1, 5, 2, 6, 3, 7]) if reorder else np.arange(8)
        stored = lambda a: words(((a ^ 8) if signed else a).T.reshape(a.shape[1], -1, 8)[:, :, column].reshape(a.shape[1], -1), 4)
        return ({".weight": ("I32", stored(codes)), ".weight_zero_point": ("I32", stored(zeros)), ".weight_scale": ("F16", scales.T)},
                dequantise(codes, zeros, expanded, group))

    return quantise


def mlx_mx(bits):
    """MLX's modes mxfp4 and mxfp8: words of consecutive k, an E8M0 scale per 32 k."""

    def quantise(w, random):
        tensors, meant = (fp4(".weight", ".scales", "U8", 32) if bits == 4 else fp8(".scales", "U8", (1, 32)))(w, random)
        _, codes = tensors[".weight"]
        return tensors | {".weight": ("U32", np.ascontiguousarray(codes).view(np.uint32))}, meant

    return quantise


def mlx_nvfp4():
    """MLX's mode nvfp4: words of consecutive k, an E4M3 scale per 16 k, no global scale."""

    def quantise(w, random):
        tensors, meant = fp4(".weight", ".scales", "F8_E4M3", 16)(w, random)
        return {".weight": ("U32", tensors[".weight"][1].view(np.uint32)), ".scales": ("U8", tensors[".scales"][1])}, meant

    return quantise


def stream(codes, bits):
    """MLX's words: each row is a stream of bits, the first code in the lowest bits of the first word."""
    set_bits = (codes[..., None] >> np.arange(bits)) & 1
    return np.packbits(set_bits.reshape(codes.shape[0], -1).astype(np.uint8), axis=1, bitorder="little").view("<u4")


def mlx_affine(bits, group, dtype="BF16"):
    """MLX's mode affine, W = code * scale + bias. The scale's sign is such that code 0 is the edge of the greater magnitude."""

    def quantise(w, random):
        groups = w.reshape(w.shape[0], -1, group)
        low, high, top = groups.min(2), groups.max(2), (1 << bits) - 1
        below = np.abs(low) > np.abs(high)
        scale, edge = np.where(below, 1, -1) * np.maximum((high - low) / top, 1e-7), np.where(below, low, high)
        steps = np.rint(edge / scale)
        scale = np.where(steps == 0, scale, edge / np.where(steps == 0, 1, steps))
        (scales, wide), (biases, wide_bias) = rounded(scale, dtype), rounded(np.where(steps == 0, 0, edge), dtype)
        codes = np.clip(np.rint((groups - wide_bias[..., None]) / wide[..., None]), 0, top).astype(np.int64)
        return ({".weight": ("U32", stream(codes.reshape(w.shape), bits)), ".scales": (dtype, scales), ".biases": (dtype, biases)},
                (codes * wide[..., None] + wide_bias[..., None]).reshape(w.shape))

    return quantise


def awq(group):
    def quantise(w, random):
        block_k = group if group > 0 else w.shape[1]
        codes, zeros, scales, expanded = integers(w, 4, block_k, True, "F16")
        nibble_columns = np.argsort([0, 4, 1, 5, 2, 6, 3, 7])  # the column, of 8, that each nibble of a word holds
        shuffled = lambda a: words(a.T.reshape(a.shape[1], -1, 8)[:, :, nibble_columns].reshape(a.shape[1], -1), 4)
        return ({".qweight": ("I32", shuffled(codes)), ".qzeros": ("I32", shuffled(zeros)), ".scales": ("F16", scales.T)},
                dequantise(codes, zeros, expanded, block_k))

    return quantise


def gptq(bits, group, ordered=False, in_full=False, zero_points=True, bias=False):
    def quantise(w, random):
        block_k = group if group > 0 else w.shape[1]
        order = random.permutation(w.shape[1]) if ordered else np.arange(w.shape[1])
        codes, zeros, scales, expanded = integers(w[:, order], bits, block_k, zero_points, "F16")
        meant, inverse = dequantise(codes, zeros, expanded, block_k), np.argsort(order)
        tensors = {".qweight": ("I32", words(codes[:, inverse], bits).T), ".scales": ("F16", scales.T),
                   ".qzeros": ("I32", words((zeros if in_full else zeros - 1).T, bits)),
                   ".g_idx": ("I32", (inverse // block_k).astype(np.int32))}
        if bias:
            tensors[".bias"] = ("F16", np.zeros(w.shape[0], np.float16))
        return tensors, meant[:, inverse]

    return quantise


def compressed(style, **weights):
    """A quantization_config of compressed-tensors."""
    return {"quant_method": "compressed-tensors", "format": style, "ignore": ["lm_head", "re:.*self_attn.*", "re:.*mlp.gate$"],
            "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": None, "weights": weights}}}


MODELOPT = {"quant_method": "modelopt", "ignore": ["lm_head", "model.layers.*.mlp.gate"]}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"]}
BLOCKS = FP8 | {"weight_block_size": [128, 128]}
AWQ = {"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemm", "modules_to_not_convert": ["gate"]}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
UNSAID = {"quant_method": "gptq", "bits": 4, "group_size": 32}  # neither the order of k nor the symmetry


@dataclasses.dataclass(frozen=True)
class Variant:
    """name: the format's name in Describe. config: quantization_config. quantise: the format's function."""
    name: str
    config: dict
    quantise: object
    of_parts: tuple = ()  # ("down", quantise): parts with another format
    of_experts: tuple = ()  # (2, "down", quantise): parts of single experts with another format; "all": all parts of the expert


VARIANTS = {
    "fp8_blocks": Variant("fp8_block128", BLOCKS, fp8(".weight_scale_inv", "F32", (128, 128))),
    "fp8_blocks_bf16_scales": Variant("fp8_block128", BLOCKS, fp8(".weight_scale_inv", "BF16", (128, 128))),
    "fp8_blocks_ue8m0": Variant("fp8_block128", BLOCKS | {"scale_fmt": "ue8m0"},
                                fp8(".weight_scale_inv", "F8_E8M0", (128, 128))),
    "fp8_blocks_of_32_64": Variant("fp8_block64", FP8 | {"weight_block_size": [32, 64]},
                                   fp8(".weight_scale_inv", "F32", (32, 64))),
    "fp8_e5m2_blocks": Variant("fp8_e5m2_block128", BLOCKS | {"fmt": "e5m2"},
                               fp8(".weight_scale_inv", "F32", (128, 128), "F8_E5M2")),
    "fp8_static_per_tensor": Variant("fp8_tensor", FP8 | {"activation_scheme": "static"},
                                     fp8(".weight_scale", "F32", None, shape=(), extras=[".input_scale"])),
    "fbgemm_per_row": Variant("fp8_channel", {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
                              fp8(".weight_scale", "F32", (1, None), extras=[".input_scale_ub"])),
    "compressed_fp8_per_tensor": Variant("fp8_tensor", compressed("float-quantized", num_bits=8, type="float", strategy="tensor"),
                                         fp8(".weight_scale", "BF16", None, shape=(1,))),
    "compressed_fp8_per_row": Variant("fp8_channel", compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
                                      fp8(".weight_scale", "BF16", (1, None))),
    "compressed_fp8_blocks": Variant("fp8_block128", compressed("float-quantized", num_bits=8, type="float", strategy="block",
                                                                block_structure=[128, 128]),
                                     fp8(".weight_scale", "BF16", (128, 128))),
    "compressed_mxfp8": Variant("mxfp8", compressed("mxfp8-quantized", num_bits=8, type="float", strategy="group", group_size=32),
                                fp8(".weight_scale", "U8", (1, 32))),
    "mxfp8": Variant("mxfp8", {"quant_method": "mxfp8", "weight_block_size": [1, 32]}, fp8(".weight_scale_inv", "U8", (1, 32))),
    "modelopt_fp8": Variant("fp8_tensor", MODELOPT | {"quant_algo": "FP8"},
                            fp8(".weight_scale", "F32", None, shape=(), extras=[".input_scale"])),
    "modelopt_nvfp4": Variant("nvfp4", MODELOPT | {"quant_algo": "NVFP4", "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}}}},
        fp4(".weight", ".weight_scale", "F8_E4M3", 16, (".weight_scale_2", False), extras=[".input_scale"])),
    "modelopt_mxfp4": Variant("mxfp4", MODELOPT | {"quant_algo": "MXFP4"}, fp4(".weight", ".weight_scale", "U8", 32)),
    "quark_mxfp4": Variant("mxfp4", {"quant_method": "quark"}, fp4(".weight", ".weight_scale", "U8", 32)),
    "fp4_beside_scale": Variant("mxfp4", FP8, fp4(".weight", ".scale", "F8_E8M0", 32, codes_dtype="I8")),
    "compressed_nvfp4": Variant("nvfp4", compressed("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group",
                                                    group_size=16),
                                fp4(".weight_packed", ".weight_scale", "F8_E4M3", 16, (".weight_global_scale", True),
                                    extras=[".input_global_scale"])),
    "compressed_mxfp4": Variant("mxfp4", compressed("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group",
                                                    group_size=32),
                                fp4(".weight_packed", ".weight_scale", "U8", 32)),
    "compressed_int4": Variant("int4_group32", compressed("pack-quantized", num_bits=4, type="int", strategy="group",
                                                          group_size=32, symmetric=True),
                               pack_quantized(4, 32, shape_dtype="I32")),
    "compressed_int4_asymmetric": Variant("int4_group32_zero", compressed("pack-quantized", num_bits=4, type="int",
                                                                          strategy="group", group_size=32, symmetric=False),
                                          pack_quantized(4, 32, zero_points=True)),
    "compressed_int4_per_row": Variant("int4_channel", compressed("pack-quantized", num_bits=4, type="int", strategy="channel",
                                                                  group_size=None), pack_quantized(4, None, scale_dtype="F16")),
    "compressed_int4_ordered": Variant("int4_group32_ordered", compressed("pack-quantized", num_bits=4, type="int",
                                                                          strategy="group", group_size=32, actorder="group"),
                                       pack_quantized(4, 32, ordered=True)),
    "compressed_int8": Variant("int8_group32", compressed("pack-quantized", num_bits=8, type="int", strategy="group",
                                                          group_size=32), pack_quantized(8, 32)),
    "compressed_int8_asymmetric": Variant("int8_group32_zero", compressed("pack-quantized", num_bits=8, type="int",
                                                                          strategy="group", group_size=32, symmetric=False),
                                          pack_quantized(8, 32, zero_points=True)),
    "compressed_w8a8": Variant("int8_channel", compressed("int-quantized", num_bits=8, type="int", strategy="channel"),
                               int_quantized()),
    "compressed_int8_elements_asymmetric": Variant("int8_group32_zero", compressed(
        "int-quantized", num_bits=8, type="int", strategy="group", group_size=32, symmetric=False),
        int_quantized(32, zero_points=True)),
    "awq": Variant("int4_group32_zero", AWQ | {"group_size": 32}, awq(32)),
    "awq_whole_k": Variant("int4_channel_zero", AWQ | {"group_size": -1, "version": "GEMM"}, awq(-1)),
    "gptq": Variant("int4_group32_zero", GPTQ, gptq(4, 32)),
    "gptq_symmetric_with_bias": Variant("int4_group32", GPTQ | {"sym": True}, gptq(4, 32, zero_points=False, bias=True)),
    "gptq_whole_k": Variant("int4_channel_zero", GPTQ | {"group_size": -1, "desc_act": True}, gptq(4, -1, ordered=False)),
    "gptq_ordered": Variant("int4_group32_zero_ordered", GPTQ | {"desc_act": True}, gptq(4, 32, ordered=True)),
    "gptq_ordered_unsaid": Variant("int4_group32_zero_ordered", UNSAID, gptq(4, 32, ordered=True)),
    "gptq_short_last_group": Variant("int4_group128_zero", GPTQ | {"group_size": 128}, gptq(4, 128)),
    "gptq_v2": Variant("int4_group32_zero", GPTQ | {"checkpoint_format": "gptq_v2"}, gptq(4, 32, in_full=True)),
    "gptq_8_bits": Variant("int8_group32_zero", GPTQ | {"bits": 8}, gptq(8, 32)),
    "gptq_8_bits_ordered": Variant("int8_group32_zero_ordered", GPTQ | {"bits": 8, "desc_act": True}, gptq(8, 32, ordered=True)),
}

# The down projection has another format than gate and up.
E4M3, E5M2 = (fp8(".weight_scale_inv", "F32", (128, 128), dtype) for dtype in ("F8_E4M3", "F8_E5M2"))
TWO_FORMATS = {
    "e4m3_then_e5m2": Variant("fp8_block128+fp8_e5m2_block128", BLOCKS, E4M3, (("down", E5M2),)),
    "e5m2_then_e4m3": Variant("fp8_e5m2_block128+fp8_block128", BLOCKS, E5M2, (("down", E4M3),)),
    "blocks_then_rows": Variant("fp8_block128+fp8_channel", FP8, E4M3, (("down", fp8(".weight_scale_inv", "BF16", (1, None))),)),
    "mxfp4_then_fp8": Variant("mxfp4+fp8_block128", BLOCKS, fp4(".weight", ".scale", "F8_E8M0", 32, codes_dtype="I8"),
                              (("down", E4M3),)),
}

# Experts of one layer have different formats. Names list all of them, the most frequent first.
PLAIN = {dtype: plain(dtype) for dtype in ("F32", "F16", "BF16")}
ROWS, MX = fp8(".weight_scale_inv", "F32", (1, None)), fp4(".weight", ".scale", "F8_E8M0", 32, codes_dtype="I8")
MIXED_EXPERTS = {
    "gptq_and_a_plain_expert": Variant("int4_group32_zero, f16", GPTQ, gptq(4, 32), of_experts=((2, "all", PLAIN["F16"]),)),
    "a_plain_expert_and_ordered_gptq": Variant("int4_group32_zero_ordered, bf16", GPTQ | {"desc_act": True},
                                               gptq(4, 32, ordered=True),
                                               of_experts=((0, "all", PLAIN["BF16"]), (4, "all", PLAIN["BF16"]))),
    "fp8_and_gptq_whose_order_is_not_said": Variant("int4_group32_zero_ordered, fp8_channel", UNSAID, gptq(4, 32, ordered=True),
                                                    of_experts=((0, "all", ROWS),)),
    "a_plain_down": Variant("nvfp4, nvfp4+bf16", VARIANTS["modelopt_nvfp4"].config, VARIANTS["modelopt_nvfp4"].quantise,
                            of_experts=((3, "down", PLAIN["BF16"]),)),
    "two_quantised": Variant("mxfp4, fp8_block128", BLOCKS, MX, of_experts=((1, "all", E4M3),)),
    "tensors_and_rows": Variant("fp8_tensor, fp8_channel", VARIANTS["modelopt_fp8"].config, VARIANTS["modelopt_fp8"].quantise,
                                of_experts=((4, "all", VARIANTS["fbgemm_per_row"].quantise),)),
    "alternating": Variant("fp8_block128, mxfp4, f16", BLOCKS, E4M3, of_experts=((1, "all", MX), (3, "all", MX), (4, "all", PLAIN["F16"]))),
    "each_another": Variant("fp8_block128, mxfp4+fp8_channel, f32, fp8_channel+mxfp4, bf16+fp8_e5m2_block128", FP8, E4M3, of_experts=(
        (1, "all", MX), (1, "down", ROWS), (2, "all", PLAIN["F32"]), (3, "all", ROWS), (3, "down", MX), (4, "all", PLAIN["BF16"]),
        (4, "down", E5M2))),
    "all_plain_down": Variant("mxfp4+bf16", BLOCKS, MX, of_parts=(("down", PLAIN["BF16"]),)),
    "gptq_asymmetric_in_one_expert": Variant(
        "int4_group32, int4_group32_zero", GPTQ | {"sym": True, "dynamic": {"+:.*experts\\.3\\..*": {"sym": False}}},
        gptq(4, 32, zero_points=False), of_experts=((3, "all", gptq(4, 32)),)),
    "gptq_symmetric_in_one_down": Variant(
        "int4_group32_zero, int4_group32_zero+int4_group32", GPTQ | {"dynamic": {".*experts\\.0\\.down_proj": {"sym": True}}},
        gptq(4, 32), of_experts=((0, "down", gptq(4, 32, zero_points=False)),)),
    "gptq_of_8_bits_in_one_expert": Variant(
        "int4_group32, int8_group32_zero, int8_group32", GPTQ | {"sym": True, "dynamic": {
            "+:.*experts\\.1\\..*": {"bits": 8, "sym": False}, "+:.*experts\\.4\\..*": {"bits": 8}}},
        gptq(4, 32, zero_points=False), of_experts=((1, "all", gptq(8, 32)), (4, "all", gptq(8, 32, zero_points=False)))),
    "auto_round_of_8_bits_in_down": Variant(
        "int4_group32_zero+int8_group32_zero", {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": False,
                                                "packing_format": "auto_round:auto_gptq", "extra_config": {".*down_proj.*": {"bits": 8}}},
        gptq(4, 32), of_parts=(("down", gptq(8, 32)),)),
    "plain_dtypes": Variant("bf16, f32, f16", None, PLAIN["BF16"], of_experts=((1, "all", PLAIN["F32"]), (3, "all", PLAIN["F16"]))),
}
# Gate has another format than up, in all experts or in one of them.
MIXED_GATES = {
    "e4m3_and_e5m2": Variant("fp8_block128+fp8_e5m2_block128+fp8_block128", BLOCKS, E4M3, of_parts=(("up", E5M2),)),
    "blocks_and_rows": Variant("fp8_block128+fp8_channel+fp8_block128", FP8, E4M3, of_parts=(("up", ROWS),)),
    "blocks_of_two_scale_dtypes": Variant("fp8_block128", FP8, E4M3,
                                          of_parts=(("up", fp8(".weight_scale_inv", "BF16", (128, 128))),)),
    "gptq_asymmetric_in_one_up": Variant(
        "int4_group32, int4_group32+int4_group32_zero+int4_group32", GPTQ | {"sym": True, "dynamic": {
            "+:.*experts\\.2\\.up_proj": {"sym": False}}}, gptq(4, 32, zero_points=False), of_experts=((2, "up", gptq(4, 32)),)),
    "rows_and_mxfp4": Variant("fp8_channel, mxfp4+fp8_channel+fp8_channel", FP8, ROWS, of_experts=((2, "gate", MX),)),
    "mxfp4_and_plain": Variant("mxfp4, mxfp4+bf16+mxfp4, f16+mxfp4+mxfp4", FP8, MX,
                               of_experts=((2, "up", PLAIN["BF16"]), (3, "gate", PLAIN["F16"]))),
}


# ---- a checkpoint


class QuantisedCheckpoint:
    """A checkpoint with one MoE layer of Qwen3-MoE whose experts have a variant's format, and the layer's outputs in float64."""

    def __init__(self, folder, variant, seed=1):
        random = np.random.default_rng(seed)
        self.folder, self.variant = folder, variant
        folder.mkdir(parents=True, exist_ok=True)
        module = f"model.layers.{LAYER}.mlp"
        self.router = random.standard_normal((EXPERTS, HIDDEN)).astype(np.float32)
        tensors = {f"{module}.gate.weight": ("F32", self.router),
                   "model.embed_tokens.weight": ("F32", np.zeros((8, HIDDEN), np.float32))}
        self.experts = []
        for expert in range(EXPERTS):
            parts = {}
            # A quantiser that orders k by the activations orders gate and up alike: both read the same activations.
            orders = int(random.integers(1 << 30))
            for part, shape in (("gate", (WIDTH, HIDDEN)), ("up", (WIDTH, HIDDEN)), ("down", (HIDDEN, WIDTH))):
                w = random.standard_normal(shape) * shape[1] ** -0.5 * 2.0 ** random.integers(-2, 3, (shape[0], 1))
                quantise = dict(variant.of_parts).get(part, variant.quantise)
                for number, which, another in variant.of_experts:
                    quantise = another if number == expert and which in (part, "all") else quantise
                stored, parts[part] = quantise(w, np.random.default_rng(orders + (part == "down")))
                for suffix, tensor in stored.items():
                    tensors[f"{module}.experts.{expert}.{part}_proj{suffix}"] = tensor
            self.experts.append(parts)
        self.tensors = tensors
        self.config = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_act": "silu",
                       "hidden_size": HIDDEN, "moe_intermediate_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": 1,
                       "num_experts": EXPERTS, "num_experts_per_tok": TOP_K, "norm_topk_prob": True, "decoder_sparse_step": 1,
                       "mlp_only_layers": [], "vocab_size": 8}
        if variant.config:
            self.config["quantization_config"] = variant.config
        self.write()

    def write(self):
        (self.folder / "config.json").write_text(json.dumps(self.config))
        shape = lambda dtype, array: np.shape(array)[:-1] + (2 * np.shape(array)[-1],) if dtype == "F4" else np.shape(array)
        written = {name: (dtype, shape(dtype, array), np.ascontiguousarray(array).astype(SIZES[dtype]).tobytes())
                   for name, (dtype, array) in self.tensors.items()}
        write_safetensors(self.folder / "model.safetensors", written)

    def module(self, part="gate_proj", expert=0):
        return f"model.layers.{LAYER}.mlp.experts.{expert}.{part}"

    def inputs(self, tokens, seed=2):
        """Random rows, exactly representable in bf16."""
        return bf16_values(bf16_bits(np.random.default_rng(seed).standard_normal((tokens, HIDDEN)).astype(np.float32)))

    def outputs(self, hidden):
        out = np.zeros(hidden.shape)
        for row, x in enumerate(hidden.astype(np.float64)):
            logits = self.router.astype(np.float64) @ x
            chosen = np.argsort(-logits, kind="stable")[:TOP_K]
            weights = np.exp(logits[chosen] - logits.max())
            for expert, weight in zip(chosen, weights / weights.sum()):
                parts = self.experts[expert]
                gate, up = parts["gate"] @ x, parts["up"] @ x
                out[row] += weight * (parts["down"] @ (gate / (1 + np.exp(-gate)) * up))
        return out
