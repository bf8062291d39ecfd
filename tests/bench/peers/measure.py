"""Measures one product or layer with all peers, for tests/bench/peers/run: a separate process in the peers' environment.

The argument is the job as JSON. The output is lines of JSON: the environment, the peer that is started, and each row. If a peer ends the
process, `run` starts another one, whose `done` lists the rows to skip.
"""

import json
import pathlib
import statistics
import struct
import sys
import tempfile
import time

import torch

import libraries
from layers import LAYERS
from operands import WEIGHTS
from ours import Ours
from shared_file import SharedFile
from shapes import ROTATE_BYTES, SHAPES, TOKENS

PAIRS_MIN, PAIRS_MAX = 5, 400
PATIENCE_SECONDS = 30  # a peer that takes seconds per repetition gets fewer pairs
TOLERANCE = 0.02  # relative to the largest absolute value: bf16 outputs of bf16 sums
JOB = json.loads(sys.argv[1])  # kind, name, dtype, peers, done, seconds, threads, program, folder


def send(**line):
    print(json.dumps(line), flush=True)


def rows_of(name):
    sizes = SHAPES[name][2]
    if sizes:
        return sizes
    generator = torch.Generator().manual_seed(1)
    counts = torch.zeros(128, dtype=torch.int64)
    for _ in range(TOKENS[name]):
        counts[torch.randperm(128, generator=generator)[:8]] += 1
    return [size for size in counts.tolist() if size]


def pairs(ours, theirs):
    """The times of both sides, alternately, until the row's time is over; the first pair does not count."""
    ours(0), theirs(0)
    mine, its = [], []
    end = time.monotonic() + JOB["seconds"]
    while len(mine) < PAIRS_MAX and (time.monotonic() < end or not mine
                                     or len(mine) < PAIRS_MIN and time.monotonic() < end + PATIENCE_SECONDS):
        mine.append(ours(len(mine) + 1))
        its.append(theirs(len(its) + 1))
    return mine, its


def error_of(output, ours):
    output, ours = output.float(), ours.float()
    return float((output - ours).abs().max() / ours.abs().max())


def row_of(name, dtype, peer, mine, its, error):
    ratios = [b / a for a, b in zip(mine, its)]
    row = {"shape": name, "dtype": dtype, "peer": peer, "threads": JOB["threads"], "repetitions": len(mine),
           "ours_seconds": statistics.median(mine), "peer_seconds": statistics.median(its),
           "ratio": statistics.median(ratios), "error": error}
    if not error <= TOLERANCE:
        row["wrong"] = f"differs from ours by {error:.2g} of the largest value"
    return row


def guarded(name, dtype, peer, measure):
    """Sends a row in any case: if the peer is missing or raises an error, the row has the reason."""
    if [name, peer] in JOB["done"] or (JOB["peers"] and not any(part in peer for part in JOB["peers"])):
        return
    row = {"shape": name, "dtype": dtype, "peer": peer}
    send(begin=row)
    try:
        row = measure()
    except libraries.Missing as missing:
        row["missing"] = str(missing)
    except Exception as fault:  # a library may raise anything
        row["missing"] = f"{type(fault).__name__}: {str(fault).splitlines()[0][:160]}"
    send(row=row)


def measure_product(name, peer, make, job, ours, out):
    its = make(job)
    try:
        mine, its_times = pairs(ours.seconds, its.seconds)
        return row_of(name, job.dtype, peer, mine, its_times, error_of(its.output(its.run(0)), out))
    finally:
        its.close()


def product(name, dtype, folder):
    k, n, _ = SHAPES[name]
    sizes, kind = rows_of(name), WEIGHTS[dtype]
    groups, rows = len(sizes), sum(sizes)
    count = 1 if name == "tiny" else -(-ROTATE_BYTES // kind.bytes(groups, n, k))
    file = SharedFile(pathlib.Path(folder) / "product", [(groups, torch.int32), (rows * k, kind.rows), *kind.parts(groups, n, k),
                                                         (rows * n, kind.sums)])
    torch.manual_seed(1)
    file.tensors[0].copy_(torch.tensor(sizes, dtype=torch.int32))
    kind.draw_rows(file.tensors[1])
    weights = file.tensors[2:-1]
    kind.fill(weights, groups, n, k)
    ours = Ours(JOB["program"], "product", dtype, groups, rows, k, n, count, JOB["threads"], file.path)
    sets = [weights] * count if kind.coded else [weights[0].view(groups, n, k).clone() for _ in range(count)]
    job = libraries.Job(x=file.tensors[1].view(-1, k), sets=sets, columns=n, sizes=sizes, threads=JOB["threads"], dtype=dtype,
                        path=file.path, folder=folder)
    for peer, make in libraries.PRODUCTS.items():
        if dtype in make.dtypes:
            guarded(name, dtype, peer, lambda: measure_product(name, peer, make, job, ours, file.tensors[-1].view(-1, n)))
    ours.close()
    del weights, sets, job
    file.close()


def write_checkpoint(folder, name, gate_up, down, router):
    """Writes a checkpoint of one decoder layer in Qwen3-MoE's format."""
    hidden, width, experts, top_k, _ = LAYERS[name]
    config = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": hidden, "hidden_act": "silu",
              "moe_intermediate_size": width, "intermediate_size": width, "num_experts": experts, "num_experts_per_tok": top_k,
              "num_hidden_layers": 1, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {"model.layers.0.mlp.gate.weight": router}
    for expert in range(experts):
        prefix = f"model.layers.0.mlp.experts.{expert}"
        tensors[f"{prefix}.gate_proj.weight"] = gate_up[expert, :width]
        tensors[f"{prefix}.up_proj.weight"] = gate_up[expert, width:]
        tensors[f"{prefix}.down_proj.weight"] = down[expert]
    header, at = {}, 0
    for key, tensor in tensors.items():
        header[key] = {"dtype": "F32" if tensor.dtype == torch.float32 else "BF16", "shape": list(tensor.shape),
                       "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.contiguous().view(torch.uint8).numpy().data)


def measure_layer(name, peer, tokens, its, file, ours, hidden):
    result = []

    def mine(_):
        return ours.seconds(tokens)

    def theirs(number):
        begin = time.perf_counter()
        result[:] = [its.run(file.tensors[0].view(-1, hidden)[:tokens])]
        spent = time.perf_counter() - begin
        draw_tokens(file, tokens * hidden, number)
        return spent

    draw_tokens(file, tokens * hidden, 0)
    ours.seconds(tokens)
    error = error_of(its.run(file.tensors[0].view(-1, hidden)[:tokens]), file.tensors[1].view(-1, hidden)[:tokens])
    row = row_of(f"{name} T={tokens}", "bf16", peer, *pairs(mine, theirs), error)
    row["ours_tokens_per_s"] = tokens / row["ours_seconds"]
    row["peer_tokens_per_s"] = tokens / row["peer_seconds"]
    return row


def draw_tokens(file, count, seed):
    """Draws new tokens, which go to other experts, so that few weights are in a cache."""
    generator = torch.Generator().manual_seed(seed)
    file.tensors[0][:count].copy_(torch.randn(count, generator=generator))


def layer(name, folder):
    hidden, width, experts, top_k, tokens = LAYERS[name]
    torch.manual_seed(1)
    gate_up = torch.empty(experts, 2 * width, hidden, dtype=torch.bfloat16)
    down = torch.empty(experts, hidden, width, dtype=torch.bfloat16)
    for expert in range(experts):
        gate_up[expert].copy_(torch.randn(2 * width, hidden) / hidden ** 0.5)
        down[expert].copy_(torch.randn(hidden, width) / width ** 0.5)
    router = torch.randn(experts, hidden) / hidden ** 0.5
    most = max(tokens)
    file = SharedFile(pathlib.Path(folder) / "tokens", [(most * hidden, torch.bfloat16)] * 2)
    with tempfile.TemporaryDirectory(prefix="expertd-peers-") as checkpoint:
        write_checkpoint(pathlib.Path(checkpoint), name, gate_up, down, router)
        ours = Ours(JOB["program"], "layer", checkpoint, most, JOB["threads"], file.path)
    for peer, make in libraries.LAYERS.items():
        its = None
        for count in tokens:
            def measure():
                nonlocal its
                its = its or make(gate_up, down, router, top_k)
                return measure_layer(name, peer, count, its, file, ours, hidden)
            guarded(f"{name} T={count}", "bf16", peer, measure)
    ours.close()
    file.close()


def main():
    torch.set_num_threads(JOB["threads"])
    torch.set_grad_enabled(False)
    send(torch=torch.__version__, capability=torch.backends.cpu.get_cpu_capability())
    if JOB["kind"] == "product":
        product(JOB["name"], JOB["dtype"], JOB["folder"])
    else:
        layer(JOB["name"], JOB["folder"])
    send(finished=True)  # if a library ends the process after this, no row is lost


main()
