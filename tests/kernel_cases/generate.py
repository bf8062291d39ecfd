#!/usr/bin/env python3
"""generate.py FOLDER [--seed N] [--count N] [--arithmetic cpu|other]: writes random golden files of every operation with the answers of
contract.py, and files with the errors that each must report.

For arithmetic cpu the answers are exact. For others (scalar_amx, a simulated GPU), sums of bf16 and narrower dtypes have tolerances."""

import argparse
import pathlib

import numpy as np

from contract import (E4M3, E5M2, Operand, Tensor, encode, grouped_gemm, grouped_matmul, make_group_metadata,
                      transposed_grouped_matmul, write_safetensors)

FLOATS = ["F32", "F16", "BF16"]
DIMS = [0, 1, 2, 3, 5, 7, 8, 15, 16, 17, 24, 31, 33, 40, 63, 64, 65, 66, 100, 127, 128, 129, 200]
TOKENS = {"F8_E4M3": E4M3, "F8_E5M2": E5M2}


class Case:
    """A file that is being made."""

    def __init__(self, random, op):
        self.random, self.op, self.metadata, self.tensors = random, op, {"format": 1, "op": op}, {}
        self.inexact = 0.0  # the greatest sum of magnitudes, which scales the tolerance of other arithmetics

    def one_of(self, *choices):
        return choices[self.random.integers(len(choices))]

    def chance(self, share):
        return self.random.random() < share

    def dim(self):
        return int(self.one_of(*DIMS))

    def expect(self, out, arithmetic, exact=True):
        self.tensors["out"] = out
        self.metadata |= {"atol": 0, "rtol": 0}
        if arithmetic != "cpu" and not exact:
            self.metadata |= {"atol": self.inexact * 2.0 ** -11, "rtol": 2.0 ** -7}

    def refuse(self, argument):
        self.metadata["error"] = f"INVALID_ARGUMENT:{argument}"


def float_values(case, shape, kind):
    random = case.random
    values = random.standard_normal(shape)
    if kind == "integers":
        values = random.integers(-8, 9, shape)
    elif kind == "spread":
        values = values * 2.0 ** random.integers(-20, 20, shape)
    elif kind == "flush":  # products about 2^-126
        values = values * 2.0 ** random.integers(-70, -56, shape)
    elif kind == "subnormal":
        values = values * 2.0 ** random.integers(-148, -120, shape)
    elif kind == "large":
        values = values * 2.0 ** random.integers(55, 68, shape)
    elif kind == "special":
        values = np.where(random.random(shape) < 0.02, random.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], shape), values)
    with np.errstate(all="ignore"):
        return values.astype(np.float32)


def tensor(case, dtype, shape, tame=False):
    """Random values. tame: without overflow and flush, for answers with tolerances."""
    random, count = case.random, int(np.prod(shape, dtype=np.int64))
    if dtype == "I8":
        low = case.one_of(-128, -128, -3)
        return Tensor(dtype, shape, random.integers(low, case.one_of(128, -127) if low == -128 else 4, count).astype(np.int8))
    if dtype == "I32":
        return Tensor(dtype, shape, random.integers(-2 ** 31, 2 ** 31, count).astype(np.int32))
    if dtype in TOKENS or dtype == "U8":
        codes = random.integers(0, 256, count).astype(np.uint8)
        finite = np.isfinite(TOKENS[dtype]) if dtype in TOKENS else np.ones(256, bool)
        if case.chance(0.7):  # else some codes are NaN
            codes = np.where(finite[codes], codes, 0x35).astype(np.uint8)
        return Tensor(dtype, shape, codes)
    kinds = ["plain", "plain", "integers", "special"] if tame else ["plain", "plain", "integers", "spread", "flush", "subnormal", "large", "special"]
    return Tensor(dtype, shape, encode(dtype, float_values(case, count, case.one_of(*kinds))))


def group_sizes(case):
    groups = case.one_of(0, 1, 2, 3, 3, 5, 8, 32)
    sizes = [0 if case.chance(0.3) else min(case.dim(), 70) for _ in range(groups)]
    if case.chance(0.1):
        sizes = [0] * groups
    return np.array(sizes, np.int32)


def sizes_tensor(sizes, dtype="I32"):
    return Tensor(dtype, [len(sizes)], np.asarray(sizes).astype(np.int32 if dtype == "I32" else np.int64))


def dtypes_of(case):
    """lhs, rhs, out."""
    if case.chance(0.15):
        return "I8", "I8", case.one_of("I32", "I32", *FLOATS)
    pair = case.one_of(("BF16", "BF16"), ("BF16", "BF16"), ("F32", "F32"), (case.one_of(*FLOATS), case.one_of(*FLOATS)))
    return *pair, case.one_of(*FLOATS)


def exact_in_any_arithmetic(*dtypes):
    return not any(dtype in ("BF16", "F8_E4M3", "F8_E5M2", "U8") for dtype in dtypes)


def greatest(values):
    """The greatest sum of finite magnitudes; NaN and Inf have no tolerance."""
    return np.abs(values[np.isfinite(values)]).max(initial=0).astype(np.float64)


def note_magnitude(case, a, b, k):
    if a.codes.size and b.codes.size and a.dtype != "I8":
        case.inexact = float(greatest(a.values()) * greatest(b.values()) * max(k, 1))


def set_tiling(case):
    if case.chance(0.5):
        case.metadata["tiling"] = ",".join(str(case.one_of(1, 2, 7, 16, 48, 128, 100000)) for _ in range(3))


# ---- one of each operation

def gmm(case, arithmetic):
    sizes = group_sizes(case)
    m, k, n = int(sizes.sum()) + case.one_of(0, 0, 1, 13), case.dim(), case.dim()
    offset = int(case.random.integers(len(sizes) + 1)) if case.chance(0.5) else 0
    local = int(case.random.integers(len(sizes) - offset + 1)) if case.chance(0.5) else len(sizes) - offset
    transpose = case.chance(0.5)
    lhs_dtype, rhs_dtype, out_dtype = dtypes_of(case)
    exact = exact_in_any_arithmetic(lhs_dtype, rhs_dtype)
    tame = arithmetic != "cpu" and not exact
    lhs = tensor(case, lhs_dtype, [m, k], tame)
    rhs = tensor(case, rhs_dtype, [local, n, k] if transpose else [local, k, n], tame)
    case.tensors |= {"lhs": lhs, "rhs": rhs, "group_sizes": sizes_tensor(sizes)}
    case.metadata |= {"transpose_rhs": str(transpose).lower(), "preferred_element_type": out_dtype}
    if offset or case.chance(0.5):
        case.metadata["group_offset"] = offset
    mode, existing = case.one_of(None, None, "overwrite", "accumulate"), None
    if mode:
        existing = case.tensors["existing_out"] = tensor(case, out_dtype, [m, n], tame)
        case.metadata["existing_out_mode"] = mode
    set_tiling(case)
    note_magnitude(case, lhs, rhs, k)
    case.expect(grouped_matmul(lhs, rhs, sizes, transpose, offset, out_dtype, mode, existing), arithmetic, exact)


def tgmm(case, arithmetic):
    sizes = group_sizes(case)
    m, k, n = int(sizes.sum()) + case.one_of(0, 0, 1, 13), case.dim(), case.dim()
    offset = int(case.random.integers(len(sizes) + 1)) if case.chance(0.5) else 0
    local = len(sizes) - offset
    case.metadata |= {"group_offset": offset} if offset or case.chance(0.5) else {}
    if offset or case.chance(0.5):
        local = int(case.random.integers(local + 1))
        case.metadata["num_actual_groups"] = local
    lhs_dtype, rhs_dtype, out_dtype = dtypes_of(case)
    exact = exact_in_any_arithmetic(lhs_dtype, rhs_dtype)
    tame = arithmetic != "cpu" and not exact
    lhs, rhs = tensor(case, lhs_dtype, [k, m], tame), tensor(case, rhs_dtype, [m, n], tame)
    case.tensors |= {"lhs": lhs, "rhs": rhs, "group_sizes": sizes_tensor(sizes)}
    case.metadata["preferred_element_type"] = out_dtype
    mode, existing = case.one_of(None, None, "overwrite", "accumulate"), None
    if mode:
        existing = case.tensors["existing_out"] = tensor(case, out_dtype, [local, k, n], tame)
        case.metadata["existing_out_mode"] = mode
    set_tiling(case)
    note_magnitude(case, lhs, rhs, m)
    added = existing if mode == "accumulate" else None
    case.expect(transposed_grouped_matmul(lhs, rhs, sizes, offset, local, out_dtype, added), arithmetic, exact)


def metadata(case, _arithmetic):
    sizes = group_sizes(case)
    m, tm = int(sizes.sum()) + case.one_of(0, 0, 1, 200), case.one_of(1, 2, 3, 16, 128, 100000, 2 ** 31 - 1, 2 ** 40)
    start = int(case.random.integers(len(sizes) + 1)) if case.chance(0.5) else 0
    count = int(case.random.integers(len(sizes) - start + 1)) if case.chance(0.5) else len(sizes) - start
    empty = case.chance(0.5)
    offsets, visits = make_group_metadata(sizes, m, tm, start, count, empty)
    room = max(0, -(-m // tm) + len(sizes) - 1)
    ids, tiles = (np.array([visit[i] for visit in visits] + [-1] * (room - len(visits)), np.int32) for i in (0, 1))
    case.metadata |= {"m": m, "tm": tm, "start_group": start, "num_nonzero_groups": count,
                      "visit_empty_groups": str(empty).lower(), "atol": 0, "rtol": 0}
    case.tensors |= {"group_sizes": sizes_tensor(sizes), "group_offsets": sizes_tensor(offsets), "group_ids": sizes_tensor(ids),
                     "m_tile_ids": sizes_tensor(tiles), "num_tiles": sizes_tensor([len(visits)])}


class Dim:
    """M, N or K of every group: equal or ragged. The two matrices that have the dimension may state it in different ways."""

    def __init__(self, case, groups, even=False):
        self.ragged = case.chance(0.5)
        values = [case.dim() if self.ragged else 0 for _ in range(groups)] if self.ragged else [case.dim()] * groups
        self.values = [v - v % 2 if even else v for v in values]
        self.same = self.values[0] if groups and not self.ragged else 0

    def write(self, case, name):
        if self.ragged or case.chance(0.15):
            case.tensors[name + "_dims"] = sizes_tensor(self.values, case.one_of("I32", "I64"))
        else:
            case.metadata[name] = self.same


SCALINGS = ["none", "none", "none", "tensor", "block_128x128", "block_1x128", "mxfp8_1x32", "mxfp4_1x32", "deepseek"]


def scaled_dtypes(case, scaling):
    if scaling == "none":
        return dtypes_of(case)
    codes = {"mxfp4_1x32": ["U8"], "tensor": list(TOKENS), "mxfp8_1x32": list(TOKENS)}.get(scaling, ["F8_E4M3"])
    return case.one_of(*codes), case.one_of(*codes), case.one_of(*FLOATS)


def scale_tensor(case, operand, groups):
    if operand.scaling == "none":
        return None
    count = sum(operand.scale_counts())
    if operand.scaling == "tensor" and case.chance(0.5) and groups:
        count = 1
    if operand.scaling.startswith("mx"):
        codes = case.random.integers(*case.one_of((120, 134), (120, 134), (0, 256)), count).astype(np.uint8)
        return Tensor("F8_E8M0", [count], codes)
    special = case.chance(0.1)
    return Tensor("F32", [count], float_values(case, count, "special" if special else case.one_of("plain", "spread")))


def make_operand(case, name, dtype, shapes, k_is_last, scaling, tame):
    elements = sum(f * l for f, l in shapes)
    pad = case.one_of(0, 0, 0, 3)
    count = elements // 2 + pad if dtype == "U8" else elements + pad
    operand = Operand(tensor(case, dtype, [count], tame), shapes, k_is_last, scaling)
    operand.scale = scale_tensor(case, operand, len(shapes))
    case.tensors[name] = operand.tensor
    if operand.scale is not None:
        case.tensors[name + "_scale"] = operand.scale
    if scaling != "none" or case.chance(0.3):
        case.metadata["scaling_" + name] = scaling
    return operand


def factor(case, groups, name, out_dtype):
    if case.chance(0.5):
        return None
    some = [0.0, 1.0, 1.0, -1.0, 3.0, 2.0 ** 24, -2.0 ** 31] if out_dtype == "I32" else [0.0, 1.0, -1.0, 0.5, 2.0, 1.7]
    values = case.random.choice(some, groups if case.chance(0.5) else 1).astype(np.float32)
    case.tensors[name] = Tensor("F32", [len(values)], values)
    return values


def gemm(case, arithmetic):
    groups = case.one_of(0, 1, 2, 3, 4, 5)
    scaling = case.one_of(*SCALINGS)
    scaling_a, scaling_b = ("block_1x128", "block_128x128")[::case.one_of(1, -1)] if scaling == "deepseek" else (scaling, scaling)
    trans_a, trans_b = case.chance(0.5) and scaling != "mxfp4_1x32", case.chance(0.5) or scaling == "mxfp4_1x32"
    m, n, k = (Dim(case, groups), Dim(case, groups), Dim(case, groups, even=scaling == "mxfp4_1x32"))
    dtype_a, dtype_b, out_dtype = scaled_dtypes(case, scaling_a if scaling != "deepseek" else scaling)
    exact = exact_in_any_arithmetic(dtype_a, dtype_b)
    tame = arithmetic != "cpu" and not exact
    a_dims, b_dims = (k, m) if trans_a else (m, k), (n, k) if trans_b else (k, n)
    for name, (first, last) in {"a": a_dims, "b": b_dims, "out": (m, n)}.items():
        first.write(case, name + "_first")
        last.write(case, name + "_last")
    a = make_operand(case, "a", dtype_a, list(zip(a_dims[0].values, a_dims[1].values)), not trans_a, scaling_a, tame)
    b = make_operand(case, "b", dtype_b, list(zip(b_dims[0].values, b_dims[1].values)), trans_b, scaling_b, tame)
    case.metadata |= {"num_groups": groups, "trans_a": str(trans_a).lower(), "trans_b": str(trans_b).lower(),
                      "preferred_element_type": out_dtype}
    elements = sum(x * y for x, y in zip(m.values, n.values))
    alpha, beta, c = factor(case, groups, "alpha", out_dtype), factor(case, groups, "beta", out_dtype), None
    if beta is not None and (np.any(beta) or case.chance(0.5)):
        c = tensor(case, out_dtype, [elements + case.one_of(0, 0, 2)], tame)
        case.tensors["c"] = c
    set_tiling(case)
    note_magnitude(case, a.tensor, b.tensor, max(k.values, default=0))
    if tame:
        scales = [max(1.0, greatest(o.scale.values())) if o.scale is not None else 1.0 for o in (a, b)]
        case.inexact *= min(scales[0] * scales[1], 1e30) * (2 if alpha is not None else 1)
    case.expect(grouped_gemm(a, b, alpha, beta, c, out_dtype, elements + case.one_of(0, 0, 5)), arithmetic, exact)


OPERATIONS = {"grouped_matmul": gmm, "transposed_grouped_matmul": tgmm, "make_group_metadata": metadata, "grouped_gemm": gemm}


def write_cases(folder, seed, count, arithmetic="cpu"):
    for i in range(count):
        op = list(OPERATIONS)[i % 7 % 4] if i % 7 != 2 else "grouped_gemm"
        case = Case(np.random.default_rng([seed, i]), op)
        OPERATIONS[op](case, arithmetic)
        write_safetensors(pathlib.Path(folder) / f"{i:05}-{op}.safetensors", case.metadata, case.tensors)


def empty(dtype, *shape):
    return Tensor(dtype, shape, np.zeros(0, np.uint8))


def write_edges(folder):
    """Cases that random choices seldom reach: sizes of 2^40 and 2^62 together with a size of 0, empty sums with an infinite scale or alpha, and
    int8 sums above 2^24 in float outputs. Returns the number of cases."""
    gemms = [dict(zip(("a_first", "a_last", "b_first", "b_last", "out_first", "out_last"), (m, k, k, n, m, n)))
             for size in (2 ** 40, 2 ** 62) for m, k, n in ((0, size, 0), (size, 0, 0), (0, 0, size))]
    cases = [({"op": "grouped_gemm", "num_groups": 3, "trans_a": "false", "trans_b": "false"} | sizes,
              {"a": empty(dtype, 0), "b": empty(dtype, 0), "out": empty(out, 0)})
             for sizes in gemms for dtype, out in (("F32", "F32"), ("BF16", "F32"), ("I8", "I32"))]
    for value in (np.nan, np.inf, -np.inf):
        scale = Tensor("F32", [1], np.array([value], np.float32))
        cases.append(({"op": "grouped_gemm", "num_groups": 1, "trans_a": "false", "trans_b": "true", "scaling_a": "tensor", "scaling_b":
                       "tensor", "a_first": 2, "a_last": 0, "b_first": 3, "b_last": 0, "out_first": 2, "out_last": 3},
                      {"a": empty("F8_E4M3", 0), "b": empty("F8_E5M2", 0), "a_scale": scale, "b_scale": scale,
                       "out": Tensor("F32", [6], np.zeros(6, np.float32))}))
        for beta in (0, 2):  # alpha times an empty sum is 0
            c, factors = Tensor("F32", [6], np.arange(6, dtype=np.float32)), [np.array([x], np.float32) for x in (value, beta)]
            a, b = (Operand(empty("F32", 0), [(lines, 0)], True) for lines in (2, 3))
            cases.append(({"op": "grouped_gemm", "num_groups": 1, "trans_a": "false", "trans_b": "true", "a_first": 2, "a_last": 0,
                           "b_first": 3, "b_last": 0, "out_first": 2, "out_last": 3},
                          {"a": a.tensor, "b": b.tensor, "alpha": Tensor("F32", [1], factors[0]), "c": c,
                           "beta": Tensor("F32", [1], factors[1]), "out": grouped_gemm(a, b, *factors, c, "F32", 6)}))
    for lhs, rhs, out in (([0, 2 ** 40], [2, 2 ** 40, 0], [0, 0]), ([0, 0], [2, 0, 2 ** 40], [0, 2 ** 40])):
        cases.append(({"op": "grouped_matmul"}, {"lhs": empty("F32", *lhs), "rhs": empty("F32", *rhs), "out": empty("F32", *out),
                                                 "group_sizes": sizes_tensor([0, 0])}))
    for lhs, rhs, out in (([2 ** 40, 0], [0, 0], [2, 2 ** 40, 0]), ([0, 0], [0, 2 ** 40], [2, 0, 2 ** 40])):
        cases.append(({"op": "transposed_grouped_matmul"}, {"lhs": empty("F32", *lhs), "rhs": empty("F32", *rhs),
                                                            "out": empty("F32", *out), "group_sizes": sizes_tensor([0, 0])}))
    random, sizes, depth = np.random.default_rng(3), np.array([5, 9], np.int32), 5003
    lhs = Tensor("I8", [14, depth], random.integers(60, 128, 14 * depth).astype(np.int8))
    rhs = Tensor("I8", [2, 17, depth], random.integers(-128, 20, 34 * depth).astype(np.int8))
    for dtype in FLOATS:
        existing = Tensor(dtype, [14, 17], encode(dtype, random.standard_normal(14 * 17).astype(np.float32)))
        for mode in (None, "accumulate"):
            given = {} if mode is None else {"existing_out": existing}
            cases.append(({"op": "grouped_matmul", "transpose_rhs": "true", "preferred_element_type": dtype}
                          | ({} if mode is None else {"existing_out_mode": mode}),
                          {"lhs": lhs, "rhs": rhs, "group_sizes": sizes_tensor(sizes),
                           "out": grouped_matmul(lhs, rhs, sizes, True, 0, dtype, mode, given.get("existing_out"))} | given))
    for i, (attributes, tensors) in enumerate(cases):
        write_safetensors(pathlib.Path(folder) / f"edge-{i:02}.safetensors", {"format": 1, "atol": 0, "rtol": 0} | attributes, tensors)
    return len(cases)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--arithmetic", choices=["cpu", "other"], default="cpu")
    arguments = parser.parse_args()
    pathlib.Path(arguments.folder).mkdir(parents=True, exist_ok=True)
    write_cases(arguments.folder, arguments.seed, arguments.count, arguments.arithmetic)
