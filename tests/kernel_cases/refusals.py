"""Golden files of errors: each has one fault, and the argument that the error must name."""

import pathlib

import numpy as np

from contract import Tensor, encode, write_safetensors

MATMUL = {"op": "grouped_matmul", "preferred_element_type": "F32", "transpose_rhs": "false"}
TRANSPOSED = {"op": "transposed_grouped_matmul", "preferred_element_type": "F32"}
METADATA = {"op": "make_group_metadata", "m": 8, "tm": 4, "start_group": 0, "num_nonzero_groups": 3, "visit_empty_groups": "false"}
GEMM = {"op": "grouped_gemm", "num_groups": 2, "trans_a": "false", "trans_b": "true", "preferred_element_type": "F32",
        "a_last": 64, "b_first": 6, "b_last": 64, "out_last": 6}


def floats(*shape, dtype="F32", value=1):
    return Tensor(dtype, shape, encode(dtype, np.full(shape, value, np.float32)))


def integers(*values, dtype="I32"):
    return Tensor(dtype, [len(values)], encode(dtype, np.array(values)))


def codes(dtype, *shape):
    count = int(np.prod(shape))
    return Tensor(dtype, shape, np.full(count, 0x30, np.uint8))


def matmul_parts():
    return {"lhs": floats(8, 4), "rhs": floats(3, 4, 2), "group_sizes": integers(3, 0, 4)}


def transposed_parts():
    return {"lhs": floats(4, 8), "rhs": floats(8, 3), "group_sizes": integers(3, 0, 4)}


def gemm_parts():
    return {"a": floats(5 * 64), "b": floats(2 * 6 * 64), "a_first_dims": integers(2, 3), "out_first_dims": integers(2, 3)}


# (argument at fault, changed attributes, changed tensors; None: missing)
MATMUL_FAULTS = [
    ("lhs", {}, {"lhs": None}),
    ("lhs", {}, {"lhs": floats(8, 4, 1)}),
    ("lhs", {}, {"lhs": integers(1, 2, 3)}),
    ("lhs", {}, {"lhs": codes("F8_E4M3", 8, 4)}),
    ("rhs", {}, {"rhs": None}),
    ("rhs", {}, {"rhs": floats(12, 2)}),
    ("rhs", {}, {"rhs": floats(3, 5, 2)}),
    ("rhs", {"transpose_rhs": "true"}, {}),
    ("rhs", {}, {"rhs": codes("I8", 3, 4, 2)}),
    ("rhs", {}, {"rhs": codes("F8_E5M2", 3, 4, 2)}),
    ("rhs", {"preferred_element_type": "I32"}, {"lhs": codes("I8", 8, 4)}),
    ("group_sizes", {}, {"group_sizes": None}),
    ("group_sizes", {}, {"group_sizes": integers(3, 0, 4, dtype="I64")}),
    ("group_sizes", {}, {"group_sizes": floats(3)}),
    ("group_sizes", {}, {"group_sizes": integers(3, -1, 4)}),
    ("group_sizes", {}, {"group_sizes": integers(9, -1, 0)}),
    ("group_sizes", {}, {"group_sizes": integers(3, 2, 4)}),
    ("group_sizes", {}, {"group_sizes": integers(2 ** 31 - 1, 2 ** 31 - 1, 2 ** 31 - 1)}),
    ("group_sizes", {}, {"group_sizes": integers(-2 ** 31, 2 ** 31 - 1, 1)}),
    ("group_sizes", {}, {"rhs": floats(4, 4, 2)}),  # more groups than sizes, for any offset
    ("group_offset", {"group_offset": 1}, {}),
    ("group_offset", {"group_offset": 4}, {"rhs": floats(0, 4, 2)}),
    ("group_offset", {"group_offset": -1}, {}),
    ("group_offset", {"group_offset": 2 ** 63 - 1}, {}),
    ("group_offset", {"group_offset": "9" * 30}, {}),
    ("group_offset", {"group_offset": "one"}, {}),
    ("existing_out", {"existing_out_mode": "overwrite"}, {}),
    ("existing_out", {"existing_out_mode": "accumulate"}, {"existing_out": floats(8, 3)}),
    ("existing_out", {"existing_out_mode": "accumulate"}, {"existing_out": floats(7, 2)}),
    ("existing_out", {"existing_out_mode": "accumulate"}, {"existing_out": floats(16)}),
    ("existing_out", {"existing_out_mode": "accumulate"}, {"existing_out": floats(8, 2, dtype="BF16")}),
    ("existing_out", {}, {"existing_out": floats(8, 2)}),
    ("existing_out_mode", {"existing_out_mode": "add"}, {"existing_out": floats(8, 2)}),
    ("preferred_element_type", {"preferred_element_type": "I32"}, {}),
    ("preferred_element_type", {"preferred_element_type": "F8_E4M3"}, {}),
    ("preferred_element_type", {"preferred_element_type": "FLOAT"}, {}),
    ("preferred_element_type", {"preferred_element_type": "I64"}, {"lhs": codes("I8", 8, 4), "rhs": codes("I8", 3, 4, 2)}),
    ("preferred_element_type", {"preferred_element_type": "I8"}, {"lhs": codes("I8", 8, 4), "rhs": codes("I8", 3, 4, 2)}),
    ("transpose_rhs", {"transpose_rhs": "yes"}, {}),
    ("tiling", {"tiling": "16,16"}, {}),
    ("tiling", {"tiling": "16,0,16"}, {}),
    ("tiling", {"tiling": "16,nan,16"}, {}),
    ("tiling", {"tiling": "16,16,16,16"}, {}),
]

TRANSPOSED_FAULTS = [
    ("lhs", {}, {"lhs": floats(32)}),
    ("rhs", {}, {"rhs": floats(7, 3)}),
    ("rhs", {}, {"rhs": floats(3, 8, 1)}),
    ("rhs", {}, {"rhs": codes("I8", 8, 3)}),
    ("group_sizes", {}, {"group_sizes": integers(3, -4, 4)}),
    ("group_sizes", {}, {"group_sizes": integers(3, 4, 4)}),
    ("group_sizes", {}, {"group_sizes": integers(3, 0, 4, dtype="I64")}),
    ("group_offset", {"group_offset": 4}, {}),
    ("group_offset", {"group_offset": -1, "num_actual_groups": 2}, {}),
    ("num_actual_groups", {"group_offset": 2, "num_actual_groups": 2}, {}),
    ("num_actual_groups", {"num_actual_groups": 4}, {}),
    ("num_actual_groups", {"num_actual_groups": -1}, {}),
    ("num_actual_groups", {"num_actual_groups": 2 ** 63 - 1, "group_offset": 1}, {}),
    ("existing_out", {"existing_out_mode": "accumulate"}, {"existing_out": floats(3, 4, 4)}),
    ("existing_out", {"existing_out_mode": "accumulate"}, {"existing_out": floats(12, 3)}),
    ("preferred_element_type", {"preferred_element_type": "I32"}, {}),
]

METADATA_FAULTS = [
    ("group_sizes", {}, {"group_sizes": None}),
    ("group_sizes", {}, {"group_sizes": integers(3, -1, 1)}),
    ("group_sizes", {}, {"group_sizes": integers(3, 2, 4)}),
    ("group_sizes", {}, {"group_sizes": integers(2 ** 31 - 1, 2 ** 31 - 1, 2 ** 31 - 1)}),
    ("group_sizes", {}, {"group_sizes": integers(3, 0, 4, dtype="I64")}),
    ("m", {"m": -1}, {}),
    ("m", {"m": "8.5"}, {}),
    ("m", {"m": 2 ** 40}, {}),
    ("tm", {"tm": 0}, {}),
    ("tm", {"tm": -4}, {}),
    ("start_group", {"start_group": -1}, {}),
    ("start_group", {"start_group": 4, "num_nonzero_groups": 0}, {}),
    ("num_nonzero_groups", {"num_nonzero_groups": 4}, {}),
    ("num_nonzero_groups", {"start_group": 2, "num_nonzero_groups": 2}, {}),
    ("num_nonzero_groups", {"num_nonzero_groups": -1}, {}),
    ("visit_empty_groups", {"visit_empty_groups": "1"}, {}),
]

INTEGERS = {"a": codes("I8", 5 * 64), "b": codes("I8", 2 * 6 * 64)}

GEMM_FAULTS = [
    ("a", {}, {"a": None}),
    ("a", {}, {"a": integers(*range(5 * 64))}),
    ("a", {}, {"a": integers(*range(5 * 64), dtype="I64")}),
    ("a", {}, {"a": codes("U8", 5 * 64)}),
    ("a", {}, {"a": codes("F8_E8M0", 5 * 64)}),
    ("a", {"scaling_a": "tensor", "scaling_b": "tensor"}, {"a": integers(*range(5 * 64)), "a_scale": floats(1), "b_scale": floats(1)}),
    ("b", {}, {"b": integers(*range(2 * 6 * 64))}),
    ("b", {}, {"b": codes("U8", 2 * 6 * 64)}),
    ("b", {}, {"a": codes("I8", 5 * 64), "b": integers(*range(2 * 6 * 64))}),
    ("b", {"b_last": 65}, {"b": floats(2 * 6 * 65)}),
    ("b", {"b_first": 7}, {"b": floats(2 * 6 * 64)}),
    ("b", {}, {"b": floats(2 * 6 * 64 - 1)}),
    ("b", {"b_first": -6}, {}),
    ("b", {"b_first": 2 ** 62, "b_last": 64}, {}),
    ("b", {}, {"b": codes("I8", 2 * 6 * 64)}),
    ("out", {"out_last": 7}, {}),
    ("trans_a", {"trans_a": "T"}, {}),
    ("num_groups", {"num_groups": -1}, {}),
    ("a_first_dims", {}, {"a_first_dims": integers(2, 3, 0)}),
    ("a_first_dims", {}, {"a_first_dims": integers(2)}),
    ("a_first_dims", {}, {"a_first_dims": integers(-2, 3)}),
    ("a_first_dims", {}, {"a_first_dims": integers(2, -2 ** 63, dtype="I64")}),
    ("a_first_dims", {}, {"a_first_dims": integers(2 ** 58, 3, dtype="I64")}),
    ("a_first_dims", {}, {"a_first_dims": integers(2 ** 62, 2 ** 62, dtype="I64")}),
    ("a_first_dims", {}, {"a_first_dims": floats(2)}),
    ("a_first_dims", {"a_first": 2}, {}),
    ("a_first_dims", {}, {"a_first_dims": integers(3, 3)}),  # exceeds the buffer of a
    ("out_first_dims", {}, {"out_first_dims": integers(3, 2)}),
    ("out_first_dims", {}, {"out_first_dims": integers(-1, 3)}),
    ("out_first_dims", {}, {"out_first_dims": integers(2, 3, 1)}),
    ("scaling_a", {"scaling_a": "per_tensor"}, {}),
    ("scaling_a", {"scaling_a": "tensor", "scaling_b": "tensor"}, {}),
    ("scaling_a", {}, {"a": codes("F8_E4M3", 5 * 64)}),
    ("scaling_b", {"scaling_a": "none", "scaling_b": "mxfp4_1x32"}, {"a": codes("U8", 5 * 64), "b": codes("U8", 6 * 64)}),
    ("a_scale", {}, {"a_scale": floats(1)}),
    ("alpha", {}, {"alpha": floats(3)}),
    ("alpha", {}, {"alpha": floats(0)}),
    ("alpha", {}, {"alpha": floats(2, dtype="BF16")}),
    ("beta", {}, {"beta": floats(3), "c": floats(30)}),
    ("c", {}, {"beta": floats(2)}),
    ("c", {}, {"beta": floats(1), "c": floats(29)}),
    ("c", {}, {"beta": floats(1), "c": floats(30, dtype="F16")}),
    ("preferred_element_type", {"preferred_element_type": "I32"}, {}),
    ("alpha", {"preferred_element_type": "I32"}, INTEGERS | {"alpha": floats(1, value=1.5)}),
    ("alpha", {"preferred_element_type": "I32"}, INTEGERS | {"alpha": floats(2, value=2 ** 31)}),
    ("alpha", {"preferred_element_type": "I32"}, INTEGERS | {"alpha": floats(1, value=np.nan)}),
    ("beta", {"preferred_element_type": "I32"}, INTEGERS | {"beta": floats(2, value=.5), "c": integers(*range(30))}),
    ("beta", {"preferred_element_type": "I32"}, INTEGERS | {"beta": floats(1, value=-np.inf), "c": integers(*range(30))}),
]

# scaling -> the dtype of its elements, that of its scales, how many scales a and b have
SCALINGS = {"none": ("BF16", None, 0, 0), "tensor": ("F8_E4M3", "F32", 2, 2), "block_128x128": ("F8_E4M3", "F32", 2, 2),
            "block_1x128": ("F8_E4M3", "F32", 5, 12), "mxfp8_1x32": ("F8_E4M3", "F8_E8M0", 10, 24),
            "mxfp4_1x32": ("U8", "F8_E8M0", 10, 24)}
PAIR = {"block_1x128", "block_128x128"}


def scaled(scaling_a, scaling_b):
    """Attributes and tensors of two scalings, each valid alone."""
    tensors = {}
    for name, scaling, elements, index in (("a", scaling_a, 5 * 64, 2), ("b", scaling_b, 12 * 64, 3)):
        dtype, scale_dtype = SCALINGS[scaling][:2]
        tensors[name] = floats(elements, dtype=dtype) if dtype == "BF16" else codes(dtype, elements // (1 + (dtype == "U8")))
        if scale_dtype:
            count = SCALINGS[scaling][index]
            tensors[name + "_scale"] = floats(count) if scale_dtype == "F32" else codes(scale_dtype, count)
    return {"scaling_a": scaling_a, "scaling_b": scaling_b}, tensors


def scaling_faults():
    for a in SCALINGS:
        for b in SCALINGS:
            attributes, tensors = scaled(a, b)
            if a != b and {a, b} != PAIR:
                yield "scaling_b", attributes, tensors
                continue
            for name in ("a", "b"):
                scale = tensors.get(name + "_scale")
                if scale is None:
                    continue
                other = codes("F8_E8M0", *scale.shape) if scale.dtype == "F32" else floats(*scale.shape)
                yield name + "_scale", attributes, tensors | {name + "_scale": None}
                yield name + "_scale", attributes, tensors | {name + "_scale": other}
                longer = scale.shape[0] + 1
                yield name + "_scale", attributes, tensors | {
                    name + "_scale": floats(longer) if scale.dtype == "F32" else codes("F8_E8M0", longer)}
    for a in SCALINGS:
        if a not in ("none", "tensor", "mxfp8_1x32"):  # these support E5M2, or are tested with it below
            attributes, tensors = scaled(a, a)
            yield "scaling_a", attributes, tensors | {"a": codes("F8_E5M2", 5 * 64)}
            yield "scaling_b", attributes, tensors | {"b": codes("F8_E5M2", 12 * 64)}
    attributes, tensors = scaled("mxfp4_1x32", "mxfp4_1x32")
    yield "scaling_b", attributes | {"trans_b": "false", "b_first": 64, "b_last": 6}, tensors
    yield "scaling_a", attributes | {"trans_a": "true", "a_first": 64, "a_last": 2, "out_first": 2}, tensors | {
        "a_first_dims": None, "out_first_dims": None, "a_last": None}
    odd = {"a_last": 63, "b_last": 63}
    yield "scaling_a", attributes | odd, tensors


QUANTISED = {"op": "quantised_grouped_matmul", "rhs_code": "INT4", "scale_block": "1,16", "preferred_element_type": "BF16"}


def quantised_parts():
    return {"lhs": floats(8, 33, dtype="BF16"), "rhs": codes("U8", 3, 2, 17), "rhs_scale": floats(3, 2, 3), "rhs_zero": zeros(3, 2, 3),
            "group_sizes": integers(3, 0, 4)}


def zeros(*shape, dtype="U8", value=16):
    return Tensor(dtype, shape, np.full(shape, value, np.uint8))


NVFP4 = {"rhs_code": "E2M1", "rhs_global_op": "multiply"}

QUANTISED_FAULTS = [
    ("lhs", {}, {"lhs": None}),
    ("lhs", {}, {"lhs": floats(8, 33, dtype="F16")}),
    ("lhs", {}, {"lhs": floats(8 * 33, dtype="BF16")}),
    ("rhs", {}, {"rhs": None}),
    ("rhs", {}, {"rhs": codes("U8", 3, 2, 16)}),
    ("rhs", {}, {"rhs": codes("U8", 6, 17)}),
    ("rhs", {"rhs_code": "INT8"}, {"rhs_zero": None}),
    ("rhs", {"rhs_code": "E4M3"}, {"rhs": codes("F8_E5M2", 3, 2, 33), "rhs_zero": None}),
    ("rhs_code", {"rhs_code": "FP4"}, {}),
    ("scale_block", {"scale_block": "16"}, {}),
    ("scale_block", {"scale_block": "1,17"}, {}),
    ("scale_block", {"scale_block": "1,-16"}, {}),
    ("scale_block", {"scale_block": "1,16,1"}, {}),
    ("rhs_scale", {}, {"rhs_scale": None}),
    ("rhs_scale", {}, {"rhs_scale": floats(3, 2, 2)}),
    ("rhs_scale", {"scale_block": "2,16"}, {}),
    ("rhs_scale", {}, {"rhs_scale": codes("F8_E5M2", 3, 2, 3)}),
    ("rhs_zero", {}, {"rhs_zero": zeros(3, 2, 2)}),
    ("rhs_zero", {}, {"rhs_zero": zeros(3, 2, 3, dtype="I8")}),
    ("rhs_zero", {}, {"rhs_zero": zeros(3, 2, 3, value=17)}),
    ("rhs_zero", {"rhs_code": "E2M1"}, {}),
    ("rhs_global", NVFP4, {"rhs_scale": codes("F8_E4M3", 3, 2, 3), "rhs_zero": None}),
    ("rhs_global", NVFP4, {"rhs_scale": codes("F8_E4M3", 3, 2, 3), "rhs_zero": None, "rhs_global": floats(1)}),
    ("rhs_global", NVFP4, {"rhs_zero": None, "rhs_global": floats(3)}),
    ("rhs_global_op", {"rhs_code": "E2M1"}, {"rhs_scale": codes("F8_E4M3", 3, 2, 3), "rhs_zero": None, "rhs_global": floats(3)}),
    ("group_sizes", {}, {"group_sizes": integers(3, 2, 4)}),
    ("group_sizes", {}, {"group_sizes": integers(3, 4)}),
    ("group_offset", {"group_offset": 1}, {}),
    ("existing_out", {"existing_out_mode": "accumulate"}, {"existing_out": floats(8, 2)}),
    ("preferred_element_type", {"preferred_element_type": "I32"}, {}),
]


def write_refusals(folder):
    parts = [(MATMUL, matmul_parts(), MATMUL_FAULTS), (TRANSPOSED, transposed_parts(), TRANSPOSED_FAULTS),
             (METADATA, {"group_sizes": integers(3, 0, 4)}, METADATA_FAULTS), (GEMM, gemm_parts(), GEMM_FAULTS),
             (GEMM, gemm_parts(), scaling_faults()), (QUANTISED, quantised_parts(), QUANTISED_FAULTS)]
    count = 0
    for attributes, tensors, faults in parts:
        for argument, changed, replaced in faults:
            metadata = {"format": 1} | attributes | changed | {"error": f"INVALID_ARGUMENT:{argument}"}
            kept = {name: tensor for name, tensor in (tensors | replaced).items() if tensor is not None}
            write_safetensors(pathlib.Path(folder) / f"refused-{count:03}-{attributes['op']}-{argument}.safetensors", metadata, kept)
            count += 1
    return count
