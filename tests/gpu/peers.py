#!/usr/bin/env python3
"""Other people's grouped products on the GPU at hand, beside ours from the same run: torch._grouped_mm, DeepGEMM, Triton, and cuBLAS on
one dense product. What this machine lacks is said, and its column stays empty.

    tests/gpu/peers.py --ours FILE [--only-ours]     FILE: expertd-bench kernels --device cuda --json
"""

import argparse
import json
import re
import statistics
import sys
import time

SHAPE = re.compile(r"g(\d+)-(\d+)-(\d+)x(\d+)$")
REPEATS, WARM, PEERS_SECONDS = 7, 2, 18


def shape_of(name):
    """(groups, rows of each, k, n) of one of our prefill rows; decode's rows fall unevenly and have no peer here."""
    match = SHAPE.match(name.split()[0])
    return tuple(map(int, match.groups())) if match else None


def milliseconds(torch, call):
    """Median of single calls, by the GPU's own clock."""
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


def operands(torch, shape):
    groups, rows, k, n = shape
    make = lambda *size: torch.randn(size, device="cuda", dtype=torch.bfloat16)
    return make(groups * rows, k), make(groups, n, k), torch.arange(1, groups + 1, device="cuda", dtype=torch.int32) * rows


# Each gives a function of (a [m, k], b [groups, n, k], ends [groups]) that computes, or raises where it is not there.


def torch_grouped_mm(torch):
    product = torch._grouped_mm
    return lambda a, b, ends: product(a, b.transpose(-2, -1), offs=ends)


def deep_gemm(torch):
    import deep_gemm as library

    product = getattr(library, "m_grouped_bf16_gemm_nt_contiguous", None)
    if product is None:
        raise ImportError("this DeepGEMM has no grouped product in bf16")

    def call(a, b, ends):
        rows = a.shape[0] // b.shape[0]
        index = torch.arange(b.shape[0], device="cuda", dtype=torch.int32).repeat_interleave(rows)
        out = torch.empty(a.shape[0], b.shape[1], device="cuda", dtype=torch.bfloat16)
        return lambda: product(a, b, out, index)

    call.prepares = True
    return call


def triton_grouped(torch):
    import triton
    import triton.language as tl

    @triton.jit
    def kernel(a, b, out, rows, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
        group, row, column = tl.program_id(2), tl.program_id(1) * BM, tl.program_id(0) * BN
        i, j, kk = row + tl.arange(0, BM), column + tl.arange(0, BN), tl.arange(0, BK)
        a_at = a + (group * rows + i[:, None]).to(tl.int64) * k + kk[None, :]
        b_at = b + (group * n + j[None, :]).to(tl.int64) * k + kk[:, None]
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for at in range(0, k, BK):
            total = tl.dot(tl.load(a_at + at), tl.load(b_at + at), total)
        tl.store(out + (group * rows + i[:, None]).to(tl.int64) * n + j[None, :], total.to(tl.bfloat16))

    def call(a, b, ends):
        groups, n, k = b.shape
        rows = a.shape[0] // groups
        out = torch.empty(a.shape[0], n, device="cuda", dtype=torch.bfloat16)
        grid = (n // 128, rows // 128, groups)
        return lambda: kernel[grid](a, b, out, rows, n, k, BM=128, BN=128, BK=64, num_warps=8, num_stages=3)

    call.prepares = True
    return call


def dense(torch):
    return lambda a, b, ends: a @ b[0].T  # one weight for all rows: what cuBLAS makes of as many multiplications


PEERS = {"torch._grouped_mm": torch_grouped_mm, "DeepGEMM": deep_gemm, "Triton": triton_grouped, "dense cuBLAS": dense}


def find_peers(torch):
    found = {}
    for name, make in PEERS.items():
        try:
            found[name] = make(torch)
            print(f"{name}: there")
        except Exception as error:  # whatever a library says when it is imported
            print(f"{name}: not here ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})")
    return found


def time_of(torch, peer, shape):
    a, b, ends = operands(torch, shape)
    call = peer(a, b, ends) if getattr(peer, "prepares", False) else lambda: peer(a, b, ends)
    return milliseconds(torch, call)


def print_ours(rows):
    print(f"{'shape, variant':32} {'dtype':>6} {'us':>10} {'TFLOP/s':>9} {'of peak':>8} {'TB/s':>7} {'of read':>8} {'of roof':>8}")
    for row in rows:
        print(f"{row['shape']:32} {row['dtype']:>6} {row['seconds'] * 1e6:10.1f} {row['gflops'] / 1e3:9.1f} {row['ratio_to_peak']:8.3f}"
              f" {row['gbytes_per_s'] / 1e3:7.2f} {row['ratio_to_read']:8.3f} {row['ratio_to_roof']:8.3f}")


def compare(torch, rows):
    peers, deadline = find_peers(torch), time.monotonic() + PEERS_SECONDS
    for row in rows:
        shape = shape_of(row["shape"])
        if not shape or row["dtype"] != "bf16":
            continue
        line = f"{row['shape'].split()[0]:22} ours {row['gflops'] / 1e3:7.1f} TFLOP/s"
        for name, peer in peers.items():
            if time.monotonic() > deadline:
                print(f"{row['shape'].split()[0]}: no time left for the rest")
                return
            try:
                spent_ms = time_of(torch, peer, shape)
                rate = 2 * shape[0] * shape[1] * shape[2] * shape[3] / spent_ms * 1e-9
                line += f"; {name} {rate:7.1f}, ours {row['gflops'] / 1e3 / rate:.2f} of it"
            except Exception as error:  # one peer that fails leaves the others their rows
                line += f"; {name} failed ({str(error).splitlines()[0][:60]})"
        print(line, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", required=True)
    parser.add_argument("--only-ours", action="store_true")
    options = parser.parse_args()
    try:
        answer = json.load(open(options.ours))
    except (OSError, ValueError) as error:
        print(f"no figures of ours: {error}")
        return 0
    if options.only_ours:
        print(answer["machine"]["backend"])
        print_ours(answer["rows"])
        return 0
    try:
        import torch
    except ImportError as error:
        print(f"torch: not here ({error}), so there is nothing to stand beside ours")
        return 0
    if not torch.cuda.is_available():
        print(f"torch {torch.__version__}: finds no GPU, so there is nothing to stand beside ours")
        return 0
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    compare(torch, answer["rows"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
