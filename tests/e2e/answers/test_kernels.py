"""The option --kernels: what the daemon reports, refusals, and AMX, which has its own arithmetic."""

import json

import numpy as np
import pytest

from harness.daemon import Daemon, run_program
from harness.protos import pb
from harness.tensors import rows_of, tensor

AMX = {"amx_tile", "amx_int8", "amx_bf16", "avx512_vnni", "avx512_bf16"}


def cpu_flags():
    for line in open("/proc/cpuinfo"):
        if line.startswith("flags"):
            return set(line.split())
    return set()


@pytest.fixture(scope="module")
def twin(case):
    daemon = Daemon("--kernels", "scalar_amx", model=case("qwen2_moe").folder)
    yield daemon
    daemon.stop()


def outputs(daemon, golden, rows=slice(None)):
    """Outputs for rows with elements of very different magnitude, so that the order of a sum changes its bf16 rounding."""
    layer, random = golden.layers[-1], np.random.default_rng(11)
    shape = (64, golden.get(layer, "input").shape[1])
    hidden = (random.standard_normal(shape) * 2.0 ** random.integers(-10, 10, shape)).astype(np.float32)[rows]
    with daemon.client() as client:
        return rows_of(client.forward(pb.ForwardRequest(layer=layer, hidden=tensor(hidden), output_dtype=pb.F32)).output)


def test_kernels_are_named_in_the_log_the_status_and_describe(twin):
    shown = twin.events("device")[0]
    assert shown["kernels"] == "scalar_amx" and shown["arithmetic"] == "cpu_amx"
    assert json.loads(twin.get("/api/status")[1])["kernels"] == "scalar_amx"
    with twin.client() as client:
        described = client.describe()
    assert "kernels:scalar_amx" in described.features
    assert {layer.numerics_id for model in described.models for layer in model.layers} == {"1/bf16/cpu_amx"}


def test_expertd_verify_computes_in_the_daemons_arithmetic(twin, case):
    done = run_program("expertd-verify", "--address", f"unix:{twin.socket}", "--model", case("qwen2_moe").folder)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "must agree within" not in done.stderr, "verify must compare bit for bit, not within a bound"


def test_amx_has_its_twins_bits_and_not_the_others(twin, served, case):
    golden = case("qwen2_moe")
    wanted = outputs(twin, golden)
    assert outputs(twin, golden, slice(3, 4)) == wanted[3:4], "a row alone has other bits than in a batch"
    assert outputs(served, golden) != wanted, "the two arithmetics give the same bits everywhere"
    if not AMX <= cpu_flags():
        pytest.skip("no AMX on this CPU")
    for arguments in (("--threads", 1), ("--threads", 3, "--shards", 2)):
        daemon = Daemon("--kernels", "amx", *arguments, model=golden.folder)
        try:
            assert outputs(daemon, golden) == wanted
        finally:
            daemon.stop()


def test_f32_layers_do_not_depend_on_amx(case, start_daemon):
    with start_daemon("--kernels", "scalar_amx", "--compute-dtype", "f32", model=case("qwen2_moe").folder).client() as client:
        assert client.describe().models[0].layers[0].numerics_id == "1/f32/cpu"


def test_the_default_is_the_fastest_arithmetic(start_daemon, case):
    for arguments, arithmetic in ((("--device", "cpu"), "cpu_amx" if AMX <= cpu_flags() else "cpu"), (("--device", "auto", "--numerics", "portable"), "cpu")):
        daemon = start_daemon(*arguments, model=case("qwen2_moe").folder)
        shown = daemon.events("device")[0]
        assert shown["arithmetic"] == arithmetic and shown["kernels"] not in ("auto", "portable", "scalar_amx")
        with daemon.client() as client:
            assert {layer.numerics_id for layer in client.describe().models[0].layers} == {f"1/bf16/{arithmetic}"}
    assert "--numerics portable" in [event["reason"] for event in daemon.events("device_auto")][0], "--device auto must say why it uses no GPU"


def test_missing_kernels_are_refused_with_the_available_ones(case):
    if AMX <= cpu_flags():
        pytest.skip("this CPU runs all of this build's kernels")
    done = run_program("expertd", "--model", case("qwen2_moe").folder, "--kernels", "amx", "--listen", "127.0.0.1:0")
    assert done.returncode == 69 and "amx" in done.stderr and "this machine has auto, portable" in done.stderr
