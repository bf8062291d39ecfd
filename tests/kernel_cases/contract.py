"""The grouped operations in numpy: an independent definition of the numerics contract, which shares nothing with the kernels.

Sums are taken one k after another, and each fma rounds once, so that answers are exact to the last bit."""

import json
import struct

import numpy as np

SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I8": 1, "I32": 4, "I64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U8": 1}
INTEGERS = {"I8": np.int8, "I32": np.int32, "I64": np.int64}
LEAST_NORMAL = 2.0 ** -126


class Tensor:
    """A tensor of a safetensors file: dtype, shape and little-endian bytes."""

    def __init__(self, dtype, shape, codes):
        self.dtype, self.shape, self.codes = dtype, list(shape), np.ascontiguousarray(codes)
        assert self.codes.nbytes == SIZES[dtype] * int(np.prod(shape, dtype=np.int64)), (dtype, shape, self.codes.nbytes)

    def values(self):
        values = decode(self.dtype, self.codes.reshape(-1))
        return values if self.dtype == "U8" else values.reshape(self.shape)


def write_safetensors(path, metadata, tensors):
    header, at = {"__metadata__": {key: str(value) for key, value in metadata.items()}}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [at, at + tensor.codes.nbytes]}
        at += tensor.codes.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(tensor.codes.tobytes() for tensor in tensors.values()))


# ---- elements

def float8_values(exponent_bits, bias, finite_only):
    """The values of all 256 codes."""
    codes = np.arange(256)
    fraction_bits = 7 - exponent_bits
    exponent, fraction = codes >> fraction_bits & (1 << exponent_bits) - 1, codes & (1 << fraction_bits) - 1
    step = 2.0 ** -fraction_bits
    values = np.where(exponent == 0, fraction * step * 2.0 ** (1 - bias), (1 + fraction * step) * 2.0 ** (exponent - bias))
    if finite_only:  # E4M3FN: one NaN, no Inf
        values[(codes & 127) == 127] = np.nan
    else:
        top = exponent == (1 << exponent_bits) - 1
        values[top] = np.where(fraction[top] == 0, np.inf, np.nan)
    return np.where(codes & 128, -values, values).astype(np.float32)


E4M3, E5M2 = float8_values(4, 7, True), float8_values(5, 15, False)
E8M0 = np.append(2.0 ** np.arange(-127, 128), np.nan).astype(np.float32)
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def decode(dtype, codes):
    """float32 values of stored codes; integers as int64; U8 as E2M1, two codes per byte, low nibble first."""
    if dtype == "F32":
        return codes.view(np.float32)
    if dtype == "F16":
        return codes.view(np.float16).astype(np.float32)
    if dtype == "BF16":
        return (codes.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype == "U8":
        return E2M1[np.stack([codes & 15, codes >> 4], -1).reshape(-1)]
    tables = {"F8_E4M3": E4M3, "F8_E5M2": E5M2, "F8_E8M0": E8M0}
    return tables[dtype][codes.view(np.uint8)] if dtype in tables else codes.view(INTEGERS[dtype]).astype(np.int64)


def encode(dtype, values):
    """Codes of float32 values (of int64 for integers), rounded once to nearest even."""
    if dtype in INTEGERS:
        return np.asarray(values).astype(INTEGERS[dtype])
    values = np.asarray(values, np.float32)
    if dtype == "F32":
        return values
    if dtype == "F16":
        with np.errstate(over="ignore"):  # overflow gives Inf
            return values.astype(np.float16)
    assert dtype == "BF16", dtype
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), 0x7fc0, rounded).astype(np.uint16)


# ---- sums

def sum_to_odd(a, b):
    """a + b in float64, rounded to odd. A second rounding to 24 bits or fewer then gives the rounded exact sum."""
    with np.errstate(all="ignore"):
        total = np.asarray(a + b)
        back = total - a
        error = (a - (total - back)) + (b - back)
        bits = total.view(np.int64)
        nudge = np.where((error > 0) == (total > 0), 1, -1)
        inexact = np.isfinite(total) & (error != 0) & np.isfinite(error) & (bits % 2 == 0)
        return (bits + np.where(inexact, nudge, 0)).view(np.float64)


def fma(a, b, c, flush=False):
    """a * b + c in float32, rounded once. flush: subnormal operands and results that are tiny after rounding become 0."""
    with np.errstate(all="ignore"):
        a, b, c = (np.asarray(x, np.float64) for x in (a, b, c))
        if flush:
            a, b, c = (np.where(np.abs(x) < LEAST_NORMAL, 0.0, x) for x in (a, b, c))
        odd = sum_to_odd(a * b, c)  # the product has 48 bits, so it is exact
        result = odd.astype(np.float32)
        if flush:
            unbounded = (np.where(np.abs(odd) < 2.0 ** -100, odd, 0.0) * 2.0 ** 100).astype(np.float32)
            result = np.where((np.abs(odd) < 2.0 ** -100) & (np.abs(unbounded) < LEAST_NORMAL * 2.0 ** 100), np.float32(0), result)
        return result


def sum_fmas(a, b):
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        total = fma(a[:, k:k + 1], b[k:k + 1], total)
    return total


def sum_pairs(a, b):
    """bf16 by bf16: two flushed fmas per pair of k, the odd k first; an odd tail is a pair with +0."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    zero_a, zero_b = np.zeros((a.shape[0], 1), np.float32), np.zeros((1, b.shape[1]), np.float32)
    for k in range(0, a.shape[1], 2):
        odd = k + 1 < a.shape[1]
        total = fma(a[:, k + 1:k + 2] if odd else zero_a, b[k + 1:k + 2] if odd else zero_b, total, flush=True)
        total = fma(a[:, k:k + 1], b[k:k + 1], total, flush=True)
    return total


def sum_steps(a, b, step):
    """[m, k] by [k, n] in bf16 as AMX: per `step` of k, the even and the odd k are summed separately from +0; then their sum is added."""
    one = np.float32(1)
    total = zeros = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for first in range(0, a.shape[1], step):
        parts = [zeros, zeros]
        for k in range(first, min(first + step, a.shape[1])):
            parts[k % 2] = fma(a[:, k:k + 1], b[k:k + 1], parts[k % 2], flush=True)
        total = fma(total, one, fma(parts[0], one, parts[1], flush=True), flush=True)
    return total


def sum_products(a, b, dtype_a, dtype_b):
    """[m, k] by [k, n]: float32, or int64 before it wraps."""
    if dtype_a == "I8":
        return a @ b
    narrow = ("BF16", "F8_E4M3", "F8_E5M2", "U8")
    return sum_pairs(a, b) if dtype_a in narrow and dtype_b in narrow else sum_fmas(a, b)


def wrap(integers):
    return np.asarray(integers).astype(np.int64).astype(np.uint64).astype(np.uint32).view(np.int32)


def float_sums(sums, dtype):
    """Converts int32 or float64 to float32: to nearest even for F32; to odd for narrower dtypes, so that both conversions round once."""
    with np.errstate(all="ignore"):
        values = sums.astype(np.float32)
    back = values.astype(np.float64)
    if dtype == "F32":
        return values
    odd = values.view(np.uint32) % 2 == 1
    other = np.nextafter(values, np.where(back < sums, np.inf, -np.inf).astype(np.float32))
    return np.where((back == sums) | odd, values, other)


def finish(total, alpha, beta, c, dtype):
    """Codes of alpha * total + beta * c. Where beta is 0, c is not read."""
    if dtype == "I32":
        return wrap(int(alpha) * total + (int(beta) * c if beta else 0))
    if total.dtype == np.int64 and beta:
        with np.errstate(all="ignore"):
            parts = np.float64(alpha) * wrap(total), np.float64(beta) * c.astype(np.float64)
        return encode(dtype, float_sums(sum_to_odd(*parts), dtype))
    if total.dtype == np.int64:
        total = float_sums(wrap(total), dtype)
    with np.errstate(all="ignore"):
        value = np.float32(alpha) * total
        return encode(dtype, fma(np.float32(beta), c, value) if beta else value)


# ---- operations

def scatter_rows(lhs, shape, group_sizes, group_offset, out_dtype, mode, existing, sums):
    """Rows of each local group: sums(group, rows of lhs), then existing_out by its mode."""
    local, m, n = shape
    out = np.zeros((m, n), encode(out_dtype, np.zeros(0)).dtype) if existing is None else existing.codes.reshape(m, n).copy()
    starts = np.concatenate([[0], np.cumsum(group_sizes)])
    for i in range(local):
        rows = slice(starts[group_offset + i], starts[group_offset + i + 1])
        c = existing.values()[rows] if mode == "accumulate" else None
        out[rows] = finish(sums(i, lhs.values()[rows]), 1, int(mode == "accumulate"), c, out_dtype)
    return Tensor(out_dtype, [m, n], out)


def grouped_matmul(lhs, rhs, group_sizes, transpose_rhs, group_offset, out_dtype, mode, existing):
    b = rhs.values()
    shape = rhs.shape[0], lhs.shape[0], rhs.shape[1 if transpose_rhs else 2]
    return scatter_rows(lhs, shape, group_sizes, group_offset, out_dtype, mode, existing,
                        lambda i, rows: sum_products(rows, b[i].T if transpose_rhs else b[i], lhs.dtype, rhs.dtype))


class Coded:
    """The weights of a quantised_grouped_matmul."""

    def __init__(self, code, codes, scales, scale_block, zeros=None, global_scale=None, global_op=None):
        self.code, self.codes, self.scales, self.scale_block = code, codes, scales, scale_block
        self.zeros, self.global_scale, self.global_op = zeros, global_scale, global_op

    def values(self, i, k):
        """[n, k] of group i: codes minus zero points. A zero point belongs to one column and one scale group."""
        n, codes = self.codes.shape[1], self.codes.codes.reshape(self.codes.shape)[i]
        if self.code in ("E4M3", "E5M2"):
            return (E4M3 if self.code == "E4M3" else E5M2)[codes]
        if self.code != "INT8":
            codes = np.stack([codes & 15, codes >> 4], -1).reshape(n, 2 * codes.shape[1])[:, :k]
        if self.code == "E2M1":
            return E2M1[codes]
        zeros = np.int64(8 if self.code == "INT4" else 0)
        if self.zeros is not None:
            zeros = spread(self.zeros.codes.reshape(self.zeros.shape)[i].astype(np.int64), n, k, 1, self.scale_block[1] or k)
        return (codes.astype(np.int64) - zeros).astype(np.float32)

    def scales_of(self, i, k):
        """[n, k] of group i: scale combined with the global scale, rounded once to fp32."""
        n, scales = self.codes.shape[1], self.scales.values()[i]
        with np.errstate(all="ignore"):
            if self.global_op:
                factor = self.global_scale.values()[i]
                scales = scales * factor if self.global_op == "multiply" else scales / factor
        return spread(scales, n, k, self.scale_block[0] or n, self.scale_block[1] or k)


def quantised_grouped_matmul(lhs, rhs, group_sizes, group_offset, out_dtype, mode, existing, arithmetic="cpu"):
    local, n = rhs.codes.shape[:2]
    m, k = lhs.shape

    def sum_bf16(a, b):
        return sum_pairs(a, b) if arithmetic == "cpu" else sum_steps(a, b, 16 if rhs.scale_block[1] % 32 else 32)

    def sums(i, rows):
        values, scales = rhs.values(i, k), rhs.scales_of(i, k)
        total, step = np.zeros((rows.shape[0], n), np.float32), rhs.scale_block[1] or k or 1
        for at in range(0, k, step):
            part = slice(at, at + step)
            partial = (sum_bf16 if lhs.dtype == "BF16" else sum_fmas)(rows[:, part], values[:, part].T)
            total = fma(partial, scales[:, at], total)
        return total

    return scatter_rows(lhs, (local, m, n), group_sizes, group_offset, out_dtype, mode, existing, sums)


def transposed_grouped_matmul(lhs, rhs, group_sizes, group_offset, num_actual_groups, out_dtype, added=None):
    a, b = lhs.values(), rhs.values()
    starts = np.concatenate([[0], np.cumsum(group_sizes)])
    out = []
    for i in range(num_actual_groups):
        rows = slice(starts[group_offset + i], starts[group_offset + i + 1])
        c = added.values()[i] if added else None
        out.append(finish(sum_products(a[:, rows], b[rows], lhs.dtype, rhs.dtype), 1, int(c is not None), c, out_dtype))
    shape = [num_actual_groups, a.shape[0], b.shape[1]]
    return Tensor(out_dtype, shape, np.stack(out) if out else np.zeros(shape, encode(out_dtype, np.zeros(0)).dtype))


def make_group_metadata(group_sizes, m, tm, start_group, num_nonzero_groups, visit_empty_groups):
    """group_offsets and the visits as (group, tile)."""
    m_tiles, offsets, visits = -(-m // tm), [0], []
    for size in group_sizes:
        offsets.append(offsets[-1] + int(size))
    for g in range(start_group, start_group + num_nonzero_groups):
        first, end = offsets[g], offsets[g + 1]
        if first < end:
            visits += [(g, tile) for tile in range(m_tiles) if tile * tm < end and (tile + 1) * tm > first]
        elif visit_empty_groups and m_tiles:
            visits.append((g, min(first // tm, m_tiles - 1)))
    return offsets, visits


def spread(scales, first, last, block_first, block_last):
    """Expands scales to one per element of [first, last]."""
    grid = scales.reshape(-(-first // block_first) if first else 0, -(-last // block_last) if last else 0)
    return np.repeat(np.repeat(grid, block_first, 0)[:first], block_last, 1)[:, :last]


# mode -> lines and k of a block that shares a scale
BLOCKS = {"block_128x128": (128, 128), "block_1x128": (1, 128), "mxfp8_1x32": (1, 32), "mxfp4_1x32": (1, 32)}


class Operand:
    """a or b of a grouped_gemm: a flat tensor, the stored shapes of its groups, its scaling."""

    def __init__(self, tensor, shapes, k_is_last, scaling="none", scale=None):
        self.tensor, self.shapes, self.k_is_last, self.scaling, self.scale = tensor, shapes, k_is_last, scaling, scale

    def block(self):
        kept, along_k = BLOCKS[self.scaling]
        return (kept, along_k) if self.k_is_last else (along_k, kept)

    def scale_counts(self):
        if self.scaling in BLOCKS:
            first, last = self.block()
            return [-(-f // first) * -(-l // last) for f, l in self.shapes]
        return [1] * len(self.shapes)

    def groups(self):
        """Per group (values, scales or None) as [lines, K]."""
        values, counts = self.tensor.values().reshape(-1), self.scale_counts()
        scales = None if self.scale is None else self.scale.values().reshape(-1)
        at = scale_at = 0
        for (first, last), count in zip(self.shapes, counts):
            group = values[at:at + first * last].reshape(first, last)
            own = None
            if scales is not None and self.scaling == "tensor":
                own = np.full((first, last), scales[0 if len(scales) == 1 else scale_at])
            elif scales is not None:
                own = spread(scales[scale_at:scale_at + count], first, last, *self.block())
            at, scale_at = at + first * last, scale_at + count
            yield (group, own) if self.k_is_last else (group.T, None if own is None else own.T)


def scaled_sum(a, b, scale_a, scale_b, k_per_scale):
    """[m, k] by [n, k], each with scales: a partial sum of codes per block of K, then fma(partial, product of scales, sum); where that
    product is not a normal number, fma(partial * larger, smaller, sum)."""
    total = np.zeros((a.shape[0], b.shape[0]), np.float32)
    for k in range(0, a.shape[1], k_per_scale or a.shape[1] or 1):
        block = slice(k, k + (k_per_scale or a.shape[1]))
        partial = sum_pairs(a[:, block], b[:, block].T)
        with np.errstate(all="ignore"):
            one, other = scale_a[:, k:k + 1], scale_b[:, k:k + 1].T
            scale = one * other
            normal = (np.abs(scale) >= LEAST_NORMAL) & np.isfinite(scale)
            apart = ~normal & np.isfinite(one) & np.isfinite(other) & (one != 0) & (other != 0)
            less = np.abs(one) < np.abs(other)
            larger, smaller = np.where(less, other, one), np.where(less, one, other)
            total = fma(np.where(apart, partial * larger, partial), np.where(apart, smaller, scale), total)
    return total


def grouped_gemm(a, b, alpha, beta, c, out_dtype, out_elements):
    out, at = np.zeros(out_elements, encode(out_dtype, np.zeros(0)).dtype), 0
    for g, ((rows, scale_a), (columns, scale_b)) in enumerate(zip(a.groups(), b.groups())):
        m, n = rows.shape[0], columns.shape[0]
        if scale_a is None:
            total = sum_products(rows, columns.T, a.tensor.dtype, b.tensor.dtype)
        else:
            total = scaled_sum(rows, columns, scale_a, scale_b, BLOCKS.get(a.scaling, (0, 0))[1])
        factor, share = (1 if x is None else x[0 if len(x) == 1 else g] for x in (alpha, beta))
        share = 0 if beta is None else share
        factor = factor if rows.shape[1] else 1  # where k is 0, the sum is +0 for any alpha
        existing = c.values()[at:at + m * n].reshape(m, n) if share else None
        out[at:at + m * n] = finish(total, factor, share, existing, out_dtype).reshape(-1)
        at += m * n
    return Tensor(out_dtype, [out_elements], out)
