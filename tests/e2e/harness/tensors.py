"""Converts numpy arrays to and from expertd.v1.Tensor. In numpy, bfloat16 is uint16 bit patterns and F8 is uint8 codes."""

import numpy as np

from .protos import pb

BYTES = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I32": 4, "I64": 8}


def bf16_bits(values):
    """Rounds float32 to bfloat16, to nearest even. A NaN stays a NaN."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    bits = values.view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded).astype(np.uint16)


def bf16_values(bits):
    return (np.ascontiguousarray(bits, dtype=np.uint16).astype(np.uint32) << 16).view(np.float32)


def f8_table(exponent_bits, mantissa_bits):
    """The 256 values of an F8 format. E4M3 is the FN variant: no infinity, one NaN per sign."""
    bias = (1 << (exponent_bits - 1)) - 1
    table = np.zeros(256, np.float32)
    for code in range(256):
        exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
        mantissa = code & ((1 << mantissa_bits) - 1)
        if exponent == 0:
            value = mantissa * 2.0 ** (1 - bias - mantissa_bits)
        else:
            value = (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)
        if exponent_bits == 4 and code & 0x7F == 0x7F:
            value = np.nan
        if exponent_bits == 5 and exponent == 31:
            value = np.nan if mantissa else np.inf
        table[code] = -value if code & 0x80 else value
    return table


F8_VALUES = {"F8_E4M3": f8_table(4, 3), "F8_E5M2": f8_table(5, 2)}


def encode(values, dtype):
    """The bytes of `values` in a dtype, rounded if it is narrower. For F8, `values` are codes."""
    if dtype == "BF16":
        array = values if np.asarray(values).dtype == np.uint16 else bf16_bits(values)
    else:
        kinds = {"F32": np.float32, "F16": np.float16, "I32": np.int32, "I64": np.int64, "F8_E4M3": np.uint8,
                 "F8_E5M2": np.uint8}
        array = np.asarray(values).astype(kinds[dtype])
    return np.ascontiguousarray(array).tobytes()


def tensor(values, dtype="F32", shape=None):
    values = np.asarray(values)
    return pb.Tensor(dtype=pb.DType.Value(dtype), shape=list(values.shape if shape is None else shape),
                     data=encode(values, dtype))


def values_of(message):
    """A Tensor's values. Floating-point values are widened to float32."""
    dtype, shape = pb.DType.Name(message.dtype), tuple(message.shape)
    assert len(message.data) == int(np.prod(shape, dtype=np.int64)) * BYTES[dtype], "the length of data does not match the shape"
    if dtype == "BF16":
        return bf16_values(np.frombuffer(message.data, np.uint16)).reshape(shape)
    kind = {"F32": np.float32, "F16": np.float16, "I32": np.int32, "I64": np.int64}[dtype]
    array = np.frombuffer(message.data, kind).reshape(shape)
    return array.astype(np.float32) if dtype == "F16" else array


def rows_of(message):
    """The output as a list of each row's bytes, for bitwise comparison."""
    tokens, hidden = message.shape
    width = hidden * BYTES[pb.DType.Name(message.dtype)]
    assert len(message.data) == tokens * width
    return [message.data[i * width:(i + 1) * width] for i in range(tokens)]


def error_per_token(got, wanted):
    """max|y - y*| / max|y*| for each token."""
    scale = np.abs(wanted).max(axis=1)
    return np.abs(got.astype(np.float64) - wanted).max(axis=1) / np.where(scale == 0, 1, scale)
