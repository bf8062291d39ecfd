#!/usr/bin/env python3
"""Times other libraries' grouped products on this GPU and prints them beside ours from the same run, for the same group sizes, prefill and
decode, bf16 and FP8: torch._grouped_mm, DeepGEMM, Triton, and cuBLAS on one dense product. Missing libraries are reported and skipped.

    tests/gpu/peers.py --ours FILE [--only-ours]     FILE: output of expertd-bench kernels --device cuda --json
"""

import argparse
import json
import statistics
import sys
import time
from typing import NamedTuple

REPEATS, WARM, PEERS_SECONDS, BLOCK = 7, 2, 27, 128


class Shape(NamedTuple):
    sizes: tuple  # rows of each group
    k: int
    n: int

    @property
    def rows(self):
        return sum(self.sizes)

    @property
    def even(self):
        """The rows of each group if all groups have the same multiple of BLOCK, else 0."""
        return self.sizes[0] if len(set(self.sizes)) == 1 and self.sizes[0] % BLOCK == 0 else 0


def shape_of(row):
    return Shape(tuple(row["group_sizes"]), row["k"], row["n"]) if "group_sizes" in row else None


def padded(sizes, tile):
    """The rows of each group rounded up to full tiles, for libraries without ragged groups; empty groups stay empty."""
    return [(size + tile - 1) // tile * tile for size in sizes]


def milliseconds(torch, call):
    """The median of single calls, timed by CUDA events."""
    for _ in range(WARM):
        call()
    times = []
    for _ in range(REPEATS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def values(torch, *size):
    return torch.randn(size, device="cuda", dtype=torch.bfloat16)


def codes(torch, *size):
    """E4M3 codes with their scales of 1 x 128 or, for weights, 128 x 128."""
    blocks = [(width + BLOCK - 1) // BLOCK for width in size[-2 if len(size) == 3 else -1 :]]
    scales = torch.rand((*size[: len(size) - len(blocks)], *blocks), device="cuda", dtype=torch.float32)
    return values(torch, *size).to(torch.float8_e4m3fn), scales


def ends_of(torch, sizes):
    return torch.tensor(sizes, device="cuda", dtype=torch.int32).cumsum(0, dtype=torch.int32)


def index_of(torch, sizes):
    """The group of each row."""
    numbers = torch.arange(len(sizes), device="cuda", dtype=torch.int32)
    return numbers.repeat_interleave(torch.tensor(sizes, device="cuda"))


# Each returns prepare(shape), which returns the call to time. It raises an exception if the library is missing.


def torch_grouped_mm(torch):
    product = torch._grouped_mm

    def prepare(shape):
        a, b = values(torch, shape.rows, shape.k), values(torch, len(shape.sizes), shape.n, shape.k).transpose(-2, -1)
        ends = ends_of(torch, shape.sizes)
        return lambda: product(a, b, offs=ends)

    return prepare


def deep_gemm_bf16(torch):
    import deep_gemm as library

    product = getattr(library, "m_grouped_bf16_gemm_nt_contiguous", None)
    if product is None:
        raise ImportError("this DeepGEMM has no grouped product in bf16")

    def prepare(shape):
        sizes = padded(shape.sizes, BLOCK)  # its groups are full tiles, so it multiplies the padding too
        a, b = values(torch, sum(sizes), shape.k), values(torch, len(sizes), shape.n, shape.k)
        index, out = index_of(torch, sizes), torch.empty(sum(sizes), shape.n, device="cuda", dtype=torch.bfloat16)
        return lambda: product(a, b, out, index)

    return prepare


def deep_gemm_fp8(torch):
    import deep_gemm as library

    product = getattr(library, "m_grouped_fp8_gemm_nt_contiguous", None)
    if product is None:
        raise ImportError("this DeepGEMM has no grouped product in FP8")

    def prepare(shape):
        sizes = padded(shape.sizes, BLOCK)
        a, b = codes(torch, sum(sizes), shape.k), codes(torch, len(sizes), shape.n, shape.k)
        index, out = index_of(torch, sizes), torch.empty(sum(sizes), shape.n, device="cuda", dtype=torch.bfloat16)
        return lambda: product(a, b, out, index)

    return prepare


def triton_grouped(torch):
    import triton
    import triton.language as tl

    @triton.jit
    def kernel(a, b, out, ends, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
        group = tl.program_id(2)
        end = tl.load(ends + group)
        begin = tl.load(ends + group - 1, mask=group > 0, other=0)
        row, column = begin + tl.program_id(1) * BM, tl.program_id(0) * BN
        if row >= end:
            return
        i, j, kk = row + tl.arange(0, BM), column + tl.arange(0, BN), tl.arange(0, BK)
        a_at = a + i[:, None].to(tl.int64) * k + kk[None, :]
        b_at = b + (group * n + j[None, :]).to(tl.int64) * k + kk[:, None]
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for at in range(0, k, BK):
            total = tl.dot(tl.load(a_at + at, mask=i[:, None] < end, other=0.0), tl.load(b_at + at), total)
        tl.store(out + i[:, None].to(tl.int64) * n + j[None, :], total.to(tl.bfloat16), mask=i[:, None] < end)

    def prepare(shape):
        if shape.n % 128 or shape.k % 64:
            raise ValueError("n or k is no multiple of the tile")
        a, b = values(torch, shape.rows, shape.k), values(torch, len(shape.sizes), shape.n, shape.k)
        out, ends = torch.empty(shape.rows, shape.n, device="cuda", dtype=torch.bfloat16), ends_of(torch, shape.sizes)
        tile = 128 if max(shape.sizes) >= 128 else 16
        grid = (shape.n // 128, (max(shape.sizes) + tile - 1) // tile, len(shape.sizes))
        return lambda: kernel[grid](a, b, out, ends, shape.n, shape.k, BM=tile, BN=128, BK=64, num_warps=8 if tile == 128 else 4,
                                    num_stages=3)

    return prepare


def dense(torch):
    """One weight matrix for all rows: the speed of cuBLAS for the same number of multiplications, if groups are large."""

    def prepare(shape):
        if not shape.even:
            raise ValueError("groups are small or uneven")
        a, b = values(torch, shape.rows, shape.k), values(torch, shape.n, shape.k)
        return lambda: a @ b.T

    return prepare


def dense_fp8(torch):
    """The same in FP8 with a scale for each row and column, since torch has no block scales there."""
    product = torch._scaled_mm

    def prepare(shape):
        if not shape.even:
            raise ValueError("groups are small or uneven")
        a, b = codes(torch, shape.rows, shape.k)[0], codes(torch, shape.n, shape.k)[0]
        of_a, of_b = torch.ones(shape.rows, 1, device="cuda"), torch.ones(1, shape.n, device="cuda")
        return lambda: product(a, b.T, scale_a=of_a, scale_b=of_b, out_dtype=torch.bfloat16)

    return prepare


PEERS = {
    "bf16": {"torch._grouped_mm": torch_grouped_mm, "DeepGEMM": deep_gemm_bf16, "Triton": triton_grouped, "dense cuBLAS": dense},
    "e4m3-by-e4m3": {"DeepGEMM FP8": deep_gemm_fp8, "dense cuBLAS FP8": dense_fp8},
}


def first_line(error):
    return (str(error).splitlines() or [""])[0][:60]


def find_peers(torch):
    found = {}
    for dtype, peers in PEERS.items():
        found[dtype] = {}
        for name, make in peers.items():
            try:
                found[dtype][name] = make(torch)
                print(f"{name}: found")
            except Exception as error:  # an import may raise anything
                print(f"{name}: missing ({type(error).__name__}: {first_line(error)})")
    return found


def print_ours(rows):
    print(f"{'shape, variant':32} {'dtype':>14} {'us':>10} {'TFLOP/s':>9} {'of peak':>8} {'TB/s':>7} {'of read':>8} {'of roof':>8}")
    for row in rows:
        print(f"{row['shape']:32} {row['dtype']:>14} {row['seconds'] * 1e6:10.1f} {row['gflops'] / 1e3:9.1f} {row['ratio_to_peak']:8.3f}"
              f" {row['gbytes_per_s'] / 1e3:7.2f} {row['ratio_to_read']:8.3f} {row['ratio_to_roof']:8.3f}")


def compare_row(torch, row, peers, deadline):
    """A line with our time, each peer's time, and our speed over the peer's. Stops adding peers at the deadline."""
    shape, name = shape_of(row), row["shape"].split()[0]
    line = f"{name:22} {row['dtype']:13} ours {row['seconds'] * 1e6:9.1f} us"
    for peer, prepare in peers.items():
        if time.monotonic() > deadline:
            return line + "; no time left"
        try:
            spent_us = milliseconds(torch, prepare(shape)) * 1e3
            line += f"; {peer} {spent_us:9.1f} us, ours {spent_us / (row['seconds'] * 1e6):.2f} of its speed"
        except Exception as error:  # a failing peer must not end the comparison
            line += "" if isinstance(error, ValueError) else f"; {peer} failed ({first_line(error)})"  # ValueError: the peer does not support the shape
        torch.cuda.empty_cache()
    return line


def compare(torch, rows):
    """Compares the rows in order of size, so that decode, which is fast, comes first."""
    peers, deadline = find_peers(torch), time.monotonic() + PEERS_SECONDS
    known = [row for row in rows if shape_of(row) and row["dtype"] in peers]
    for row in sorted(known, key=lambda row: shape_of(row).rows):
        print(compare_row(torch, row, peers[row["dtype"]], deadline), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", required=True)
    parser.add_argument("--only-ours", action="store_true")
    options = parser.parse_args()
    try:
        answer = json.load(open(options.ours))
    except (OSError, ValueError) as error:
        print(f"cannot read our figures: {error}")
        return 0
    if options.only_ours:
        print(answer["machine"]["backend"])
        print_ours(answer["rows"])
        return 0
    try:
        import torch
    except ImportError as error:
        print(f"torch is missing ({error}): nothing to compare with")
        return 0
    if not torch.cuda.is_available():
        print(f"torch {torch.__version__} finds no GPU: nothing to compare with")
        return 0
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    compare(torch, answer["rows"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
