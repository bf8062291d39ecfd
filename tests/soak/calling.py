"""What the soak tests share: the expected answers, and processes of callers (caller.py)."""

import collections
import dataclasses
import json
import pathlib
import subprocess
import sys

import numpy as np

from harness.protos import pb
from harness.tensors import rows_of, tensor

CALLER = pathlib.Path(__file__).parent / "caller.py"


def ask_alone(client, case, path):
    """Writes the expected answers for caller.py: each row of each layer computed alone."""
    random, arrays = np.random.default_rng(3), {}
    for layer in case.layers:
        hidden = case.get(layer, "input")
        ids = random.integers(-1, case.router_logits(layer).shape[1], (len(hidden), 3)).astype(np.int32)
        weights = random.standard_normal(ids.shape).astype(np.float32)
        own, given = [], []
        for row in range(len(hidden)):
            one = slice(row, row + 1)
            routes = pb.Routes(ids=tensor(ids[one], "I32"), weights=tensor(weights[one]))
            own += rows_of(client.forward(layer=layer, hidden=tensor(hidden[one])).output)
            given += rows_of(client.forward(layer=layer, hidden=tensor(hidden[one]), routes=routes).output)
        for name, value in (("hidden", hidden), ("ids", ids), ("weights", weights), ("own", own), ("given", given)):
            value = np.array([np.frombuffer(row, np.uint8) for row in value]) if name in ("own", "given") else value
            arrays[f"{layer}.{name}"] = value
    np.savez(path, **arrays)


@dataclasses.dataclass
class Result:
    done: collections.Counter = dataclasses.field(default_factory=collections.Counter)  # calls by kind and outcome
    faults: list = dataclasses.field(default_factory=list)  # the first ones
    failed: int = 0  # all of them
    wrong: int = 0
    lost: int = 0
    longest: float = 0.0  # seconds of the longest call


class Processes:
    """Processes of callers, which call until end(). seconds: the deadline of their calls."""

    def __init__(self, path, processes, threads, seconds, addresses, seed=0):
        self.processes = [subprocess.Popen([sys.executable, str(CALLER), str(path), str(seed + i), str(threads), str(seconds), *addresses],
                                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for i in range(processes)]

    def run(self):
        """Are all processes running?"""
        return all(process.poll() is None for process in self.processes)

    def move(self, *addresses, only=None):
        """The callers, or those of one process, use other addresses. Returns when no call uses the earlier ones."""
        moving = self.processes if only is None else [self.processes[only]]
        for process in moving:
            process.stdin.write(" ".join(addresses) + "\n")
            process.stdin.flush()
        for process in moving:
            assert process.stdout.readline() == "moved\n", "a process of callers ended"

    def end(self):
        """Ends the callers. Returns the sum of their results."""
        result = Result()
        for process in self.processes:
            output, _ = process.communicate()
            if process.returncode != 0:
                result.faults.append(f"a process of callers exited with status {process.returncode}")
                continue
            one = json.loads(output.splitlines()[-1])
            result.done.update(one["done"])
            result.faults += one["faults"]
            result.failed += one["failed"]
            result.wrong, result.lost = result.wrong + one["wrong"], result.lost + one["lost"]
            result.longest = max(result.longest, one["longest"])
        return result
