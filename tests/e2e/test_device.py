"""Layers on devices: simulated GPUs give the answers of the model's authors' code over gRPC, with the same bits on one and on several;
what is missing for real ones is said."""

import os
import subprocess

import pytest

from harness.admin import admin_of
from harness.daemon import Daemon, run_program
from harness.errors import raises
from harness.paths import BUILD, SANITIZER, SERVED_CASES
from harness.protos import pb
from harness.tensors import error_per_token, tensor, values_of

QUANTISED = ("deepseek_v3_fp8", "gpt_oss_mxfp4", "kimi_k2_int4", "mixtral_awq")
CASES = [name for name in SERVED_CASES if name not in QUANTISED]
DEVICES = ("sim", "sim:2", "sim:3")


def answers(golden, *arguments, env=None):
    """Of every layer: its own router's answer, and that to the golden's routes in BF16."""
    daemon = Daemon(*arguments, model=golden.folder, env=env)
    try:
        with daemon.client() as client:
            found = {}
            for layer in golden.layers:
                hidden = tensor(golden.get(layer, "input"))
                given = pb.Routes(ids=tensor(golden.get(layer, "topk_ids"), "I32"),
                                  weights=tensor(golden.get(layer, "topk_weights"), "F32"))
                found[layer] = (client.forward(layer=layer, hidden=hidden).output,
                                client.forward(layer=layer, hidden=hidden, routes=given, output_dtype=pb.BF16).output)
            ids = {layer.numerics_id for model in client.describe().models for layer in model.layers}
    finally:
        daemon.stop()
    return found, ids


@pytest.mark.parametrize("name", CASES if not SANITIZER else CASES[:2])
def test_a_simulated_gpu_gives_the_block_of_the_model(case, name):
    golden = case(name)
    for dtype, number in (("bf16", "1/bf16/sim_90"), ("f32", "1/f32/cpu")):
        found, ids = answers(golden, "--device", "sim", "--compute-dtype", dtype)
        assert ids == {number}
        for layer, (own, _) in found.items():
            assert error_per_token(values_of(own), golden.get(layer, "output")).max() <= golden.bound(dtype)


def bytes_of(found):
    return {layer: [output.data for output in outputs] for layer, outputs in found.items()}


@pytest.mark.parametrize("name", ("qwen2_moe", "llama4", "deepseek_v3") if not SANITIZER else ("qwen2_moe",))
def test_bits_are_those_of_the_cpu_with_that_arithmetic_on_any_number_of_devices(case, name):
    golden = case(name)
    cpu, ids = answers(golden, "--compute-dtype", "bf16", "--kernels", "scalar_sim90")
    for device in DEVICES:
        found, same = answers(golden, "--compute-dtype", "bf16", env={"EXPERTD_DEVICE": device})
        assert same == ids and bytes_of(found) == bytes_of(cpu), device
    cpu, ids = answers(golden, "--compute-dtype", "f32")
    found, same = answers(golden, "--compute-dtype", "f32", "--device", "sim", "--shards", 3)
    assert same == ids and bytes_of(found) == bytes_of(cpu)


def test_verify_agrees_with_a_simulated_gpu(case):
    folder = case("qwen2_moe").folder
    daemon = Daemon("--device", "sim", "--compute-dtype", "bf16", model=folder)
    done = run_program("expertd-verify", "--address", f"unix:{daemon.socket}", "--model", folder)
    shown = [event for event in daemon.events("device") if event["kind"] == "sim"]
    status = daemon.get("/api/status")[1]
    daemon.stop()
    assert done.returncode == 0, done.stdout + done.stderr
    assert shown[0]["arithmetic"] == "sim_90" and shown[0]["count"] == "1" and '"sim"' in status


def test_quantised_weights_are_refused_there_and_served_widened(case):
    golden = case("mixtral_awq")
    refused = run_program("expertd", "--model", golden.folder, "--device", "sim", "--listen", "127.0.0.1:0", "--http", "off")
    assert refused.returncode == 69 and "--widen" in refused.stderr and "layer 0" in refused.stderr
    found, ids = answers(golden, "--device", "sim", "--widen")
    assert ids == {"1/bf16/sim_90+widen"}
    for layer, (own, _) in found.items():
        assert error_per_token(values_of(own), golden.get(layer, "output")).max() <= golden.bound("bf16")


def test_experts_on_devices_stay_where_they_are(case):
    daemon = Daemon("--device", "sim:2", model=case("qwen2_moe").folder)
    try:
        with admin_of(daemon) as admin:
            rows = [1000, 1000] + [10] * (len(admin.show(1)[0].copies) - 2)
            plan = admin.plan(1, policy="POLICY_BALANCED", replicas=1, counts=[{"layer": 1, "rows": rows}])[0].planned
            with raises("UNAVAILABLE") as raised:
                admin.apply(plan)
            assert "experts on devices do not move yet" in raised.failure.message
            assert admin.show(1)[0].epoch == plan.epoch
    finally:
        daemon.stop()


def test_more_devices_than_shards_is_a_configuration_error(case):
    done = run_program("expertd", "--model", case("qwen2_moe").folder, "--device", "sim:3", "--shards", "2", "--listen", "127.0.0.1:0",
                       "--http", "off")
    assert done.returncode == 78 and "shards is 2" in done.stderr and "3 devices" in done.stderr


def test_what_is_missing_for_a_gpu_is_said(case):
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("this machine has a GPU")
    done = run_program("expertd", "--model", case("qwen2_moe").folder, "--device", "cuda", "--listen", "127.0.0.1:0", "--http", "off")
    assert done.returncode == 69, done.stderr
    built = (BUILD / "lib/expertd/libexpertd_cuda.so").exists()
    assert ("no cuda device" if built else "libexpertd_cuda.so") in done.stderr


def test_expertd_itself_links_nothing_of_cuda():
    needed = subprocess.run(["ldd", str(BUILD / "bin/expertd")], capture_output=True, text=True, check=True).stdout
    assert "libgrpc" in needed and "cuda" not in needed and "nccl" not in needed
