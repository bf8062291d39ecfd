#!/usr/bin/env python3
"""quantised.py FOLDER [--seed N] [--count N] [--arithmetic cpu|cpu_amx]: writes random golden files of quantised_grouped_matmul (tensors and
attributes: README.md), with the answers of contract.py, which are exact in either arithmetic."""

import argparse
import pathlib

import numpy as np

from contract import Coded, Tensor, encode, quantised_grouped_matmul, write_safetensors
from generate import FLOATS, Case, float_values, group_sizes, set_tiling, sizes_tensor, tensor

ELEMENTS = {"E4M3": "F8_E4M3", "E5M2": "F8_E5M2", "E2M1": "U8", "INT4": "U8", "INT8": "I8"}
# code, dtype of the scales, columns and k of a scale (0: all), zero points, global scale: formats of checkpoints, and others
FORMATS = [
    ("E4M3", "F32", (128, 128), False, None), ("E4M3", "BF16", (1, 0), False, None), ("E4M3", "F32", (0, 0), False, None),
    ("E4M3", "F8_E8M0", (1, 32), False, None), ("E5M2", "F8_E8M0", (1, 32), False, None), ("E5M2", "F16", (64, 128), False, None),
    ("E5M2", "F32", (1, 0), False, None), ("E2M1", "F8_E8M0", (1, 32), False, None), ("E2M1", "F8_E4M3", (1, 16), False, "multiply"),
    ("E2M1", "F8_E4M3", (1, 16), False, "divide"), ("E2M1", "F8_E4M3", (1, 16), False, None), ("INT4", "BF16", (1, 32), False, None),
    ("INT4", "F16", (1, 128), True, None), ("INT4", "F32", (1, 64), True, None), ("INT4", "F32", (0, 0), True, None),
    ("INT4", "F16", (1, 0), False, None), ("INT8", "F32", (1, 0), False, None), ("INT8", "BF16", (1, 128), False, None),
    ("INT8", "F16", (1, 32), True, None), ("INT8", "F32", (128, 128), True, None), ("INT8", "F32", (7, 48), True, None),
    ("E4M3", "F8_E4M3", (3, 80), False, "multiply"),
]
DEPTHS = [0, 1, 2, 15, 16, 17, 31, 32, 33, 64, 100, 128, 129, 160, 257, 300]
COLUMNS = [0, 1, 2, 16, 17, 63, 64, 65, 100, 128, 129, 200]


def blocks(length, block):
    return -(-length // (block or length)) if length else 0


def code_tensor(case, code, shape):
    codes = case.random.integers(0, 256, int(np.prod(shape))).astype(np.uint8)
    if code == "E4M3" and case.chance(0.9):  # else some are NaN
        codes = np.where(codes & 127 == 127, 0x30, codes).astype(np.uint8)
    if code == "E5M2" and case.chance(0.9):  # else some are NaN or Inf
        codes = np.where(codes & 127 >= 124, 0x30, codes).astype(np.uint8)
    return Tensor(ELEMENTS[code], shape, codes.view(np.int8) if code == "INT8" else codes)


def scale_tensor(case, dtype, shape):
    count, special = int(np.prod(shape)), case.chance(0.1)
    if dtype in ("F8_E8M0", "F8_E4M3"):
        plain = (120, 134) if dtype == "F8_E8M0" else (0, 127)
        return Tensor(dtype, shape, case.random.integers(*((0, 256) if special else plain), count).astype(np.uint8))
    return tensor(case, dtype, shape) if special else Tensor(dtype, shape, encode(dtype, float_values(case, count, "plain")))


def any_weights(case, local, n, k):
    code, scale, block, zero_points, global_op = case.one_of(*FORMATS)
    width = -(-k // 2) if ELEMENTS[code] == "U8" else k
    codes = case.tensors["rhs"] = code_tensor(case, code, [local, n, width])
    scales = case.tensors["rhs_scale"] = scale_tensor(case, scale, [local, blocks(n, block[0]), blocks(k, block[1])])
    zeros = global_scale = None
    if zero_points:
        shape = [local, n, blocks(k, block[1])]
        values = case.random.integers(0, 17 if code == "INT4" else 256, int(np.prod(shape))).astype(np.uint8)
        zeros = case.tensors["rhs_zero"] = Tensor(*(("U8", shape, values) if code == "INT4" else ("I8", shape, values.view(np.int8))))
    if global_op:
        values = np.abs(float_values(case, local, "plain")) + np.float32(0.01)
        global_scale = case.tensors["rhs_global"] = Tensor("F32", [local], values)
        case.metadata["rhs_global_op"] = global_op
    case.metadata |= {"rhs_code": code, "scale_block": f"{block[0]},{block[1]}"}
    return Coded(code, codes, scales, block, zeros, global_scale, global_op)


def any_case(case, arithmetic):
    sizes = group_sizes(case)
    m, k, n = int(sizes.sum()) + case.one_of(0, 0, 5), int(case.one_of(*DEPTHS)), int(case.one_of(*COLUMNS))
    offset = int(case.random.integers(len(sizes) + 1)) if case.chance(0.5) else 0
    local = int(case.random.integers(len(sizes) - offset + 1)) if case.chance(0.5) else len(sizes) - offset
    lhs = case.tensors["lhs"] = tensor(case, case.one_of("BF16", "BF16", "F32"), [m, k])
    rhs = any_weights(case, local, n, k)
    out_dtype = case.one_of(*FLOATS)
    case.tensors["group_sizes"] = sizes_tensor(sizes)
    case.metadata |= {"preferred_element_type": out_dtype, "group_offset": offset}
    mode, existing = case.one_of(None, None, "overwrite", "accumulate"), None
    if mode:
        existing = case.tensors["existing_out"] = tensor(case, out_dtype, [m, n])
        case.metadata["existing_out_mode"] = mode
    set_tiling(case)
    case.expect(quantised_grouped_matmul(lhs, rhs, sizes, offset, out_dtype, mode, existing, arithmetic), arithmetic)


def write_quantised(folder, seed, count, arithmetic="cpu"):
    for i in range(count):
        case = Case(np.random.default_rng([seed, i]), "quantised_grouped_matmul")
        any_case(case, arithmetic)
        write_safetensors(pathlib.Path(folder) / f"quantised-{i:05}.safetensors", case.metadata, case.tensors)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--arithmetic", choices=["cpu", "cpu_amx"], default="cpu")
    arguments = parser.parse_args()
    pathlib.Path(arguments.folder).mkdir(parents=True, exist_ok=True)
    write_quantised(arguments.folder, arguments.seed, arguments.count, arguments.arithmetic)
