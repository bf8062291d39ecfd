"""tests/bench/peers: the expertd side of the comparison, and the errors of its command. The peer libraries need not be installed."""

import ast
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from harness.paths import BIN, BUILD, ROOT, SLOW

RUN = ROOT / "tests" / "bench" / "peers" / "run"
PAGE = 4096


def padded(array):
    data = array.tobytes()
    return data + bytes(-len(data) % PAGE)


def product(folder, sizes, k, n):
    """An input file of peer-ours: group sizes, rows, weights [G, n, k], and space for the results."""
    random = np.random.default_rng(1)
    rows = random.integers(-4, 5, (sum(sizes), k)).astype(np.float32)
    weights = random.integers(-4, 5, (len(sizes), n, k)).astype(np.float32)
    sums = np.full((sum(sizes), n), np.nan, np.float32)
    path = folder / "product"
    path.write_bytes(b"".join(map(padded, (np.array(sizes, np.int32), rows, weights, sums))))
    start = sum(len(padded(part)) for part in (np.array(sizes, np.int32), rows, weights))
    return path, rows, weights, start


def test_ours_computes_the_product_once_for_each_line(tmp_path):
    sizes, k, n = [3, 1, 2], 8, 70
    path, rows, weights, start = product(tmp_path, sizes, k, n)
    done = subprocess.run([BIN / "peer-ours", "product", "f32", "3", "6", str(k), str(n), "2", "2", path], input="0\n1\n5\n",
                          capture_output=True, text=True, timeout=60 * SLOW)
    assert done.returncode == 0, done.stderr
    ready, *times = done.stdout.splitlines()
    assert ready == "ready" and len(times) == 3 and all(int(time) > 0 for time in times)
    sums = np.frombuffer(path.read_bytes()[start:], np.float32)[:6 * n].reshape(6, n)
    group_of_row = np.repeat(np.arange(3), sizes)
    assert np.array_equal(sums, np.einsum("rk,rnk->rn", rows, weights[group_of_row]))


def test_ours_refuses_a_file_that_is_too_short(tmp_path):
    path, *_ = product(tmp_path, [1], 8, 64)
    done = subprocess.run([BIN / "peer-ours", "product", "f32", "1", "1", "80000", "64", "1", "1", path], input="", text=True,
                          capture_output=True, timeout=60 * SLOW)
    assert done.returncode != 0 and "too few for the shape" in done.stderr


def run(*arguments):
    return subprocess.run([sys.executable, RUN, "--build", BUILD, *map(str, arguments)], capture_output=True, text=True, timeout=60 * SLOW)


@pytest.mark.parametrize("arguments, words", [
    (("--shape", "a51"), ("unknown shape a51", "a512")),
    (("--layers", "qwen"), ("unknown layer qwen", "qwen3")),
    (("--dtype", "f64"), ("unknown dtype f64", "bf16")),
    (("--venv", "/nonexistent"), ("/nonexistent", "--install")),
    (("--build", "/nonexistent"), ("/nonexistent/bin/peer-ours", "build it first")),
])
def test_run_names_the_cause_and_the_remedy(arguments, words):
    done = run(*arguments)
    assert done.returncode == 1
    assert all(word in done.stderr for word in words), done.stderr


FAULTY = """
import json, os, signal, sys
job = json.loads(sys.argv[2])
print(json.dumps({"torch": "none", "capability": "no CPU"}), flush=True)
print("a library's own line", flush=True)
for peer in ("good", "broken", "last"):
    row = {"shape": job["name"], "dtype": job["dtype"], "peer": peer}
    if [job["name"], peer] in job["done"]:
        continue
    print(json.dumps({"begin": row}), flush=True)
    if peer == "broken":
        os.kill(os.getpid(), signal.SIGILL)
    print(json.dumps({"row": dict(row, missing=f"would be measured in {job['folder']}")}), flush=True)
print(json.dumps({"finished": True}), flush=True)
os.kill(os.getpid(), signal.SIGSEGV)  # some libraries crash at exit
"""


def test_a_peer_that_ends_its_process_is_a_row_and_the_others_go_on(tmp_path):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f"#!{sys.executable}\n{FAULTY}")
    python.chmod(0o755)
    done = run("--venv", tmp_path, "--shape", "tiny", "--layers", "", "--dtype", "bf16", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["peer"] for row in rows] == ["good", "broken", "last"]
    assert rows[1]["missing"] == "ended its process: SIGILL"
    folders = {row["missing"].split()[-1] for row in rows if row["peer"] != "broken"}
    assert len(folders) == 2 and not any(pathlib.Path(folder).exists() for folder in folders)


def test_a_broken_environment_is_reported(tmp_path):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho no torch here >&2\nexit 1\n")
    python.chmod(0o755)
    done = run("--venv", tmp_path, "--shape", "tiny", "--layers", "", "--dtype", "bf16")
    assert done.returncode == 1
    assert "no torch here" in done.stderr and "ended with status 1: see above" in done.stderr


def names_of(module):
    """The names that a module defines or imports at top level."""
    names = set()
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names}
        else:
            names |= {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
    return names


def test_the_modules_define_the_names_they_import_from_each_other():
    """A static check: without torch none of the modules can be imported."""
    modules = {path.stem: path for folder in (RUN.parent, RUN.parent.parent) for path in folder.glob("*.py")}
    looked_at = 0
    for user in (RUN, *modules.values()):
        for node in ast.walk(ast.parse(user.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in modules:
                missing = {alias.name for alias in node.names} - names_of(modules[node.module])
                assert not missing, f"{user}: {node.module} has no {missing}"
                looked_at += 1
    assert looked_at >= 6
