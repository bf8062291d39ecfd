"""tests/bench/peers: our side of the comparison, and what its command refuses. The peers themselves are not installed here."""

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
    """A file as peer-ours takes it: sizes, rows, weights [G, n, k], room for the sums."""
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
    return subprocess.run([sys.executable, RUN, "--build", BUILD, *arguments], capture_output=True, text=True, timeout=60 * SLOW)


@pytest.mark.parametrize("arguments, words", [
    (("--shape", "a51"), ("unknown shape a51", "a512")),
    (("--layers", "qwen"), ("unknown layer qwen", "qwen3")),
    (("--dtype", "f64"), ("unknown dtype f64", "bf16")),
    (("--venv", "/nonexistent"), ("/nonexistent", "--install")),
    (("--build", "/nonexistent"), ("/nonexistent/bin/peer-ours", "build it first")),
])
def test_run_refuses_with_the_mend(arguments, words):
    done = run(*arguments)
    assert done.returncode == 1
    assert all(word in done.stderr for word in words), done.stderr
