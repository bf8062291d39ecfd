"""The grouped operations compared with tests/kernel_cases/contract.py, their definition in numpy: random cases on each instruction set of
this machine, in the scalar twin and on a simulated GPU, and the invalid calls that must be refused."""

import json
import re
import struct
import subprocess
import sys

import pytest

from harness import paths

sys.path.insert(0, str(paths.ROOT / "tests/kernel_cases"))
from generate import write_cases, write_edges  # noqa: E402
from quantised import write_quantised  # noqa: E402
from refusals import write_refusals  # noqa: E402

PROGRAM = paths.BIN / "kernel_cases"
COUNT, SEED = 210 if not paths.SANITIZER else 42, 20  # sanitizer builds look for other faults than wrong bits
DAMAGED = COUNT // 3
OTHERS = ("amx", "scalar_amx", "scalar_sm90")  # these sum bf16 products in another order


def run_cases(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=600)


def instruction_sets():
    """The instruction sets of this machine, from the error message of kernel_cases."""
    said = run_cases("--kernels", "none-such", "x").stderr
    names = re.search(r"this machine has (.*)", said).group(1).split(", ")
    return [name for name in names if name != "auto"]


def must_hold(count, *arguments):
    done = run_cases(*arguments)
    assert done.stdout.endswith(f"{count} passed, 0 failed\n"), done.stdout[-2000:] + done.stderr
    assert done.returncode == 0


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """{arithmetic: folder of case files}. "cpu" expects exact bits; "other", for other arithmetics, has error bounds."""
    folders = {arithmetic: tmp_path_factory.mktemp(arithmetic) for arithmetic in ("cpu", "other")}
    for arithmetic, folder in folders.items():
        write_cases(folder, SEED, COUNT, arithmetic)
    return folders


def test_every_instruction_set_gives_the_contracts_bits(cases):
    names = instruction_sets()
    assert "scalar" in names
    for name in names:
        must_hold(COUNT, "--kernels", name, cases["other" if name in OTHERS else "cpu"])


def test_the_scalar_twin_gives_the_contracts_bits(cases):
    must_hold(COUNT, "--interpret", cases["cpu"])


def test_quantised_weights_give_the_contracts_bits(tmp_path):
    counts = {"cpu": COUNT, "cpu_amx": COUNT // 3}
    for arithmetic, count in counts.items():
        (tmp_path / arithmetic).mkdir()
        write_quantised(tmp_path / arithmetic, SEED, count, arithmetic)
    for name in instruction_sets():
        if name != "scalar_sm90":  # it sums in another order
            arithmetic = "cpu_amx" if name in ("amx", "scalar_amx") else "cpu"
            must_hold(counts[arithmetic], "--kernels", name, tmp_path / arithmetic)
    must_hold(COUNT, "--interpret", tmp_path / "cpu")


def test_a_device_stays_within_its_bounds(cases):
    must_hold(COUNT, "--device", "sim", cases["other"])


@pytest.mark.parametrize("how", [("--kernels", "scalar"), (), ("--interpret",), ("--device", "sim")])
def test_sizes_with_a_zero_dimension(tmp_path, how):
    must_hold(write_edges(tmp_path), *how, tmp_path)


def test_invalid_calls_are_refused_with_the_arguments_name(tmp_path):
    must_hold(write_refusals(tmp_path), tmp_path)


def test_an_expectation_of_another_shape_fails(cases, tmp_path):
    """The expected tensor gets one more dimension with the same elements, in files of each operation."""
    reshaped = 0
    for path in sorted(cases["cpu"].iterdir())[:DAMAGED]:
        data = path.read_bytes()
        length, = struct.unpack_from("<Q", data)
        header = json.loads(data[8:8 + length])
        answer = header["out" if "out" in header else "num_tiles"]
        answer["shape"].append(1)
        text = json.dumps(header).encode()
        (tmp_path / path.name).write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length:])
        reshaped += 1
    done = run_cases(tmp_path)
    assert reshaped == DAMAGED and done.stdout.endswith(f"\n0 passed, {reshaped} failed\n"), done.stdout[-2000:]
    assert done.returncode == 1


def test_a_wrong_expectation_fails_wherever_it_is(cases, tmp_path):
    """Damages the first and the last element of out in each file that has elements."""
    damaged = 0
    for path in sorted(cases["cpu"].iterdir())[:DAMAGED]:
        data = bytearray(path.read_bytes())
        length, = struct.unpack_from("<Q", data)
        out = json.loads(data[8:8 + length]).get("out")
        if not out or out["data_offsets"][0] == out["data_offsets"][1]:
            continue
        size = {"F32": 4, "I32": 4}.get(out["dtype"], 2)
        for at in (out["data_offsets"][0], out["data_offsets"][1] - size):
            copy = bytearray(data)
            last = 8 + length + at + size - 1
            copy[last] ^= 0x41  # flips the sign and a bit of the exponent, which changes a zero too
            (tmp_path / f"{damaged}.safetensors").write_bytes(copy)
            damaged += 1
    done = run_cases(tmp_path)
    assert damaged > DAMAGED and done.stdout.endswith(f"\n0 passed, {damaged} failed\n"), done.stdout[-2000:]
