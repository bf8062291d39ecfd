"""Layers on devices. Simulated GPUs give the golden answers, with the same bits on any number of devices. On a machine without a usable
GPU, --device cuda fails with an error that names the missing part, and --device auto uses the CPU."""

import ctypes
import json
import os
import shutil
import subprocess
import threading

import numpy as np
import pytest

from harness.admin import admin_of, placement_of, random_placement
from harness.daemon import Daemon, run_program
from harness.errors import raises
from harness.paths import BUILD, DEVICE, SANITIZER, SERVED_CASES, SLOW
from harness.protos import pb
from harness.quantised import MIXED_GATES, QuantisedCheckpoint
from harness.regions import Layout, Region
from harness.tensors import error_per_token, rows_of, tensor, values_of
from test_latent import Model as Latent

QUANTISED = ("deepseek_v3_fp8", "gpt_oss_mxfp4", "kimi_k2_int4", "mixtral_awq")
REAL = DEVICE == "cuda"
# Simulated kernels are ten times slower under a sanitizer, where the unit test expert_test_device_layer runs each of them too.
DEVICES = ("cuda",) if REAL else ("sim", "sim:2", "sim:3") if not SANITIZER else ("sim:2",)
VARIANTS = ("mma_16", "mma_32", "mma_64", "wgmma_8", "wgmma_16", "wgmma_32", "wgmma_64", "wgmma_128")


def answers(golden, *arguments, env=None, program="expertd"):
    """({layer: (output with the model's router, BF16 output with the golden's routes)}, numerics ids)."""
    daemon = Daemon(*arguments, model=golden.folder, env=env, program=program)
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


@pytest.mark.parametrize("name", SERVED_CASES if not SANITIZER else SERVED_CASES[:1])
def test_a_device_gives_the_block_of_the_model(case, name):
    golden = case(name)
    for dtype, number in (("bf16", "1/bf16/sm_90"), ("f32", "1/f32/cpu")):
        found, ids = answers(golden, "--device", DEVICE, "--compute-dtype", dtype)
        assert ids == {number}
        for layer, (own, _) in found.items():
            assert error_per_token(values_of(own), golden.get(layer, "output")).max() <= golden.bound(dtype)


def bytes_of(found):
    return {layer: [output.data for output in outputs] for layer, outputs in found.items()}


@pytest.mark.parametrize("name", ("qwen2_moe", "llama4", "deepseek_v3", *QUANTISED) if not SANITIZER else ("qwen2_moe",))
def test_bits_are_those_of_the_cpu_with_that_arithmetic_on_any_number_of_devices(case, name):
    golden = case(name)
    cpu, ids = answers(golden, "--compute-dtype", "bf16", "--kernels", "scalar_sm90")
    for device in DEVICES:
        found, same = answers(golden, "--compute-dtype", "bf16", env={"EXPERTD_DEVICE": device})
        assert same == ids and bytes_of(found) == bytes_of(cpu), device
    cpu, ids = answers(golden, "--compute-dtype", "f32")
    found, same = answers(golden, "--compute-dtype", "f32", "--device", DEVICE, "--shards", 3)
    assert same == ids and bytes_of(found) == bytes_of(cpu)


@pytest.mark.parametrize("name", ("qwen2_moe", "gpt_oss") if not SANITIZER else ("qwen2_moe",))
def test_bits_do_not_depend_on_the_kernel_variant(case, name):
    golden = case(name)
    cpu, ids = answers(golden, "--compute-dtype", "bf16", "--kernels", "scalar_sm90")
    for variant in VARIANTS if not SANITIZER else VARIANTS[-1:]:
        found, same = answers(golden, "--compute-dtype", "bf16", env={"EXPERTD_DEVICE": f"{'cuda' if REAL else 'sim:2'}/{variant}"})
        assert same == ids and bytes_of(found) == bytes_of(cpu), variant


@pytest.mark.skipif(bool(SANITIZER), reason="takes minutes and makes the same calls as the tests above")
def test_verify_agrees_with_a_simulated_gpu(case):
    folder = case("qwen2_moe").folder
    daemon = Daemon("--device", "sim", "--compute-dtype", "bf16", model=folder)
    done = run_program("expertd-verify", "--address", f"unix:{daemon.socket}", "--model", folder)
    shown = [event for event in daemon.events("device") if event["kind"] == "sim"]
    status = daemon.get("/api/status")[1]
    daemon.stop()
    assert done.returncode == 0, done.stdout + done.stderr
    assert shown[0]["arithmetic"] == "sm_90" and shown[0]["count"] == "1" and '"sim"' in status


def test_status_shows_weights_kernels_and_the_memory_of_devices(case):
    daemon = Daemon("--device", "sim:2", "--compute-dtype", "bf16", model=case("gpt_oss_mxfp4").folder)
    status, page = json.loads(daemon.get("/api/status")[1]), daemon.get("/")[1]
    reserved = daemon.events("engine")[0]["device_bytes"]
    shown = run_program("expertctl", "--address", f"unix:{daemon.socket}", "status")
    daemon.stop()
    device = status["device"]
    assert (device["kind"], device["count"], device["arithmetic"]) == ("sim", 2, "sm_90")
    assert device["reserved_bytes"] == int(reserved) > 0 and device["memory_bytes"] >= device["reserved_bytes"]
    for layer in status["layers"]:
        assert layer["weights"] == "mxfp4" and "mma_" in layer["device_kernels"]
        assert "<td>mxfp4<td>" in page and layer["device_kernels"] in page
    assert f"{reserved} bytes of device memory" in page
    assert f"device:sim:2:{device['name']}" in shown.stdout and f"device_memory:{reserved}/{2 * device['memory_bytes']}" in shown.stdout
    assert "mxfp4" in shown.stdout and "1/bf16/sm_90" in shown.stdout


def test_quantised_weights_may_be_widened_on_a_device_too(case):
    golden = case("mixtral_awq")
    found, ids = answers(golden, "--device", "sim", "--widen")
    assert ids == {"1/bf16/sm_90+widen"}
    for layer, (own, _) in found.items():
        assert error_per_token(values_of(own), golden.get(layer, "output")).max() <= golden.bound("bf16")


def test_the_next_batch_is_copied_to_the_device_while_one_is_computed(case):
    """With pieces of two tokens. Each answer is the same as alone."""
    golden = case("qwen2_moe")
    layer = golden.layers[-1]
    fields = {"layer": layer, "hidden": tensor(golden.get(layer, "input")[:12])}
    for device, overlaps in (("sim:2", True), ("cpu", False)):
        daemon = Daemon("--device", device, "--max-batch-tokens", "4", "--max-piece-tokens", "2", model=golden.folder)
        try:
            with daemon.client() as client:
                alone = client.forward(**fields).output.data
                calls = [client.stub.Forward.future(pb.ForwardRequest(**fields), timeout=30 * SLOW) for _ in range(6)]
                assert {call.result().output.data for call in calls} == {alone}
            assert (daemon.metric("expertd_batches_ahead_total") > 5) == overlaps
        finally:
            daemon.stop()


@pytest.mark.threads
def test_large_messages_are_sent_to_the_device_without_a_copy_on_the_host(case):
    """Messages with 32 KiB of rows and more are sent to the device without a copy on the host. Rows of small calls and of regions are copied
    first. The bits are the same."""
    golden, rows = case("qwen2_moe"), 256
    layer = golden.layers[-1]
    seen = golden.get(layer, "input")[:1]
    ids, weights = np.full((rows, 1), -1), np.zeros((rows, 1))
    ids[-1], weights[-1] = 1, 0.5  # a single row for an expert, since simulation is slow
    routes = pb.Routes(ids=tensor(ids, "I32"), weights=tensor(weights, "F32"))
    daemon = Daemon("--device", "sim", "--max-queue-bytes", "256KiB", "--max-message-bytes", "128KiB", "--max-batch-tokens", "512",
                    model=golden.folder)
    try:
        with daemon.client() as client:
            one_row = pb.Routes(ids=tensor(ids[-1:], "I32"), weights=tensor(weights[-1:], "F32"))
            for dtype in ("BF16", "F32"):
                alone = client.forward(layer=layer, hidden=tensor(seen, dtype), routes=one_row, output_dtype=pb.F32).output.data
                before = daemon.metric("expertd_rows_direct_total")
                fields = {"layer": layer, "hidden": tensor(np.repeat(seen, rows, 0), dtype), "routes": routes, "output_dtype": pb.BF16}
                one = client.forward(**fields).output
                assert daemon.metric("expertd_rows_direct_total") == before + rows
                assert error_per_token(values_of(one)[-1:], np.frombuffer(alone, np.float32)[None]).max() < 1e-2
                assert not any(b"".join(rows_of(one)[:-1]))
                calls = [client.stub.Forward.future(pb.ForwardRequest(**fields), timeout=30 * SLOW) for _ in range(6)]
                answers = [call.result().output.data for call in calls if not call.exception()]
                assert len(answers) > 0 and set(answers) == {one.data}  # the other calls did not fit into the queue
            with Region(client, 1 << 18) as region:
                before = daemon.metric("expertd_rows_direct_total")
                fields["hidden"] = Layout(region).put(fields["hidden"])
                assert client.forward(**fields).output.data == one.data
                assert daemon.metric("expertd_rows_direct_total") == before
    finally:
        daemon.stop()


@pytest.mark.parametrize("name", ("qwen2_moe", "mixtral_awq"))
def test_experts_move_between_devices_and_no_bit_changes(case, name, random):
    """Random placements with replicas. Calls during the moves get the same answers as before."""
    golden = case(name)
    layer = golden.layers[-1]
    fields = {"layer": layer, "hidden": tensor(golden.get(layer, "input")[:2])}
    daemon = Daemon("--device", "sim:3", model=golden.folder)
    try:
        with admin_of(daemon) as admin, daemon.client() as client:
            before = client.forward(**fields)
            epochs = [before.placement_epoch]
            for _ in range(3):
                stop, answers = threading.Event(), []

                def call():
                    while not stop.is_set():
                        answers.append(client.forward(**fields))

                caller = threading.Thread(target=call)
                caller.start()
                end = admin.apply(random_placement(random, admin.show(layer)[0]))[-1]
                stop.set()
                caller.join()
                answers.append(client.forward(**fields))
                epochs.append(answers[-1].placement_epoch)
                assert epochs[-1] == end.epoch > epochs[-2]
                assert {answer.output.data for answer in answers} == {before.output.data}
    finally:
        daemon.stop()


def test_a_move_beyond_the_reserved_device_slots_is_refused(case):
    golden = case("qwen2_moe")
    daemon = Daemon("--device", "sim:2", "--move-bytes-max", "1", model=golden.folder)
    try:
        with admin_of(daemon) as admin:
            shown = admin.show(1)[0]
            with raises("RESOURCE_EXHAUSTED") as raised:
                admin.apply(placement_of(1, shown.epoch, 2, [[0]] * (len(shown.copies) - 1) + [[1]]))
            assert "its device has slots for" in raised.failure.message and "move_bytes_max" in raised.failure.message
            assert admin.show(1)[0].epoch == shown.epoch
    finally:
        daemon.stop()


def test_the_host_frees_weights_that_are_on_devices():
    """The peak memory holds the weights once, in the simulated device's memory, and one expert per loading thread on the host."""
    model = "synthetic:tiny,layers=4,experts=64"
    sizes = {}
    for device in ("cpu", "sim"):
        daemon = Daemon("--device", device, "--threads", "1", "--max-batch-tokens", "16", model=model)
        sizes[device] = (daemon.memory()["peak"], daemon.metric("expertd_weights_bytes"))
        daemon.stop()
    weights = sizes["cpu"][1]
    assert weights > 40 << 20
    assert SANITIZER or sizes["sim"][0] < sizes["cpu"][0] + weights // 2, sizes


def test_a_model_that_does_not_fit_on_a_device_is_refused_with_figures():
    """Before any weight is read or copied."""
    done = run_program("expertd", "--model", "synthetic:mixtral-8x7b", "--device", "sim", "--max-batch-tokens", 512, "--listen",
                       "127.0.0.1:0", "--http", "off")
    assert done.returncode == 69, done.stderr
    assert "its weights take" in done.stderr and "batches of 512 tokens" in done.stderr and "64.0 GiB available" in done.stderr


def test_more_devices_than_shards_is_a_configuration_error(case):
    done = run_program("expertd", "--model", case("qwen2_moe").folder, "--device", "sim:3", "--shards", "2", "--listen", "127.0.0.1:0",
                       "--http", "off")
    assert done.returncode == 78 and "shards is 2" in done.stderr and "3 devices" in done.stderr


# ---- GPU detection, without CUDA: an installation with a stand-in for the CUDA module (the simulation, or a module that finds no usable
# GPU), and with or without a stand-in for the driver's library

MODULES = {"none": None, "some": BUILD / "lib/expertd/libexpertd_sim.so",
           **{name: BUILD / f"tests/{name}/libexpertd_cuda.so" for name in ("no_gpu", "failing_gpu", "busy_gpu_0", "busy_gpu_1")}}


def driver_here():
    try:
        return bool(ctypes.CDLL("libcuda.so.1"))
    except OSError:
        return False


@pytest.fixture
def installed(tmp_path):
    """installed(module, driver) makes an installation. Returns its expertd, and the environment that finds the driver, if there is one."""
    def install(module, driver):
        if not driver and driver_here():
            pytest.skip("this machine has NVIDIA's driver")
        for folder in ("bin", "lib/expertd", "driver"):
            (tmp_path / folder).mkdir(parents=True)
        shutil.copy(BUILD / "bin/expertd", tmp_path / "bin")
        if MODULES[module]:
            shutil.copy(MODULES[module], tmp_path / "lib/expertd/libexpertd_cuda.so")
        if driver:
            shutil.copy(MODULES["no_gpu"], tmp_path / "driver/libcuda.so.1")
        return tmp_path / "bin/expertd", {"LD_LIBRARY_PATH": str(tmp_path / "driver")}
    return install


MISSING = {  # (module, driver): words of the message
    ("none", True): ("no module", "libexpertd_cuda.so", "deploy/install-deps --cuda", "-DEXPERTD_CUDA=ON"),
    ("some", False): ("no driver", "libcuda.so.1", "install NVIDIA's driver"),
    ("no_gpu", True): ("no cuda device", "the driver finds no GPU", "nvidia-smi"),
}


@pytest.mark.parametrize("module,driver", MISSING)
def test_the_error_names_what_a_gpu_lacks(case, installed, module, driver):
    program, env = installed(module, driver)
    done = run_program(program, "--model", case("qwen2_moe").folder, "--device", "cuda", "--listen", "127.0.0.1:0", "--http", "off", env=env)
    assert done.returncode == 69, done.stderr
    assert all(words in done.stderr for words in MISSING[module, driver]), done.stderr


@pytest.mark.parametrize("module,driver", MISSING)
def test_auto_uses_the_cpu_and_logs_what_a_gpu_lacks(case, installed, module, driver):
    program, env = installed(module, driver)
    golden = case("qwen2_moe")
    daemon = Daemon("--device", "auto", model=golden.folder, env=env, program=program)
    reasons = [event["reason"] for event in daemon.events("device_auto")]
    daemon.stop()
    assert len(reasons) == 1 and all(words in reasons[0] for words in MISSING[module, driver])
    found, ids = answers(golden, "--device", "auto", "--compute-dtype", "f32", env=env, program=program)
    assert ids == {"1/f32/cpu"} and found


@pytest.mark.parametrize("proven,opened,reason", ((0, False, "2 cuda devices are there, but no such device has run these kernels yet"),
                                                   (1, True, "all CUDA-capable devices are busy")))
def test_auto_uses_the_cpu_where_other_processes_use_the_gpus(case, installed, proven, opened, reason):
    """A GPU that auto would not use is not opened: an opened GPU keeps a context until the process ends."""
    program, env = installed(f"busy_gpu_{proven}", driver=True)
    daemon = Daemon("--device", "auto", model=case("qwen2_moe").folder, env=env, program=program)
    reasons = [event["reason"] for event in daemon.events("device_auto")]
    daemon.stop()
    assert len(reasons) == 1 and reason in reasons[0]
    assert ("was opened" in daemon.log) == opened


def test_auto_takes_one_gpu_and_says_that_there_are_more(case, installed):
    program, env = installed("some", driver=True)
    golden = case("qwen2_moe")
    daemon = Daemon("--device", "auto", "--compute-dtype", "bf16", model=golden.folder, env=env, program=program)
    devices = [event for event in daemon.events("device") if event["kind"] != "cpu"]
    auto = daemon.events("device_auto")
    daemon.stop()
    assert len(devices) == 1 and devices[0]["count"] == "1"
    assert len(auto) == 1 and int(auto[0]["left"]) > 0 and "uses all" in auto[0]["reason"]
    found, ids = answers(golden, "--device", "auto", "--compute-dtype", "bf16", env=env, program=program)
    cpu, same = answers(golden, "--compute-dtype", "bf16", "--kernels", "scalar_sm90")
    assert ids == same and bytes_of(found) == bytes_of(cpu)


def test_auto_uses_the_cpu_with_the_option_kernels(case, installed):
    """--kernels selects an arithmetic of the CPU; a GPU would give other bits."""
    program, env = installed("some", driver=True)
    daemon = Daemon("--device", "auto", "--kernels", "scalar", "--compute-dtype", "bf16", model=case("qwen2_moe").folder, env=env, program=program)
    reasons = [event["reason"] for event in daemon.events("device_auto")]
    with daemon.client() as client:
        ids = {layer.numerics_id for layer in client.describe().models[0].layers}
    daemon.stop()
    assert ids == {"1/bf16/cpu"} and len(reasons) == 1 and "--kernels scalar" in reasons[0]


def test_auto_uses_the_cpu_if_the_gpu_fails_while_loading(case, installed):
    """With --device cuda, the same failure ends the daemon."""
    program, env = installed("failing_gpu", driver=True)
    daemon = Daemon("--device", "auto", model=case("qwen2_moe").folder, env=env, program=program)
    reasons = [event["reason"] for event in daemon.events("device_auto")]
    daemon.stop()
    assert len(reasons) == 1 and "an unspecified failure" in reasons[0]
    done = run_program(program, "--model", case("qwen2_moe").folder, "--device", "cuda", "--listen", "127.0.0.1:0", "--http", "off", env=env)
    assert done.returncode != 0 and "an unspecified failure" in done.stderr, done.stderr


def test_auto_uses_the_cpu_for_layers_that_gpus_do_not_compute(installed, tmp_path):
    """The CPU serves the model with the given number of shards, and the log names the reason."""
    program, env = installed("some", driver=True)
    daemon = Daemon("--device", "auto", model=Latent(tmp_path / "model").folder, env=env, program=program)
    reasons = [event["reason"] for event in daemon.events("device_auto") if event["kind"] == "cpu"]
    with daemon.client() as client:
        layers = client.describe().models[0].layers
    status = json.loads(daemon.get("/api/status")[1])
    daemon.stop()
    assert len(reasons) == 1 and "latent experts" in reasons[0]
    assert {layer.numerics_id for layer in layers} == {"1/f32/cpu"} and "device" not in status


def test_auto_uses_a_gpu_for_formats_that_it_widens(installed, tmp_path):
    program, env = installed("some", driver=True)
    checkpoint = QuantisedCheckpoint(tmp_path / "model", MIXED_GATES["mxfp4_and_plain"])
    daemon = Daemon("--device", "auto", model=checkpoint.folder, env=env, program=program)
    status, widened = json.loads(daemon.get("/api/status")[1]), daemon.events("widened")
    daemon.stop()
    assert status["device"]["count"] == 1 and [line["format"] for line in widened] == ["mxfp4"]


def test_auto_tries_the_cpu_with_a_model_too_large_for_a_gpu(installed):
    """Here the model does not fit into the host's memory either, so the error is the CPU's."""
    program, env = installed("some", driver=True)
    done = run_program(program, "--model", "synthetic:deepseek-v3", "--device", "auto", "--max-batch-tokens", 512, "--listen",
                       "127.0.0.1:0", "--http", "off", env=env)
    auto = next(line for line in done.stderr.splitlines() if "event=device_auto kind=cpu" in line)
    failed = next(line for line in done.stderr.splitlines() if "event=load_failed" in line)
    assert done.returncode == 69 and "its weights take" in auto and "of memory" in failed, done.stderr


def test_a_gpu_that_is_not_there_is_named(case, installed):
    program, env = installed("some", driver=True)
    done = run_program(program, "--model", case("qwen2_moe").folder, "--device", "cuda:0,99", "--listen", "127.0.0.1:0", "--http", "off",
                       env=env)
    assert done.returncode == 69 and "device 99" in done.stderr and "numbered from 0" in done.stderr, done.stderr


@pytest.mark.release
def test_an_installation_has_the_modules_where_its_programs_look(case, tmp_path):
    subprocess.run(["cmake", "--install", str(BUILD), "--prefix", str(tmp_path / "first")], check=True, stdout=subprocess.DEVNULL)
    (tmp_path / "first").rename(tmp_path / "moved")  # programs find modules relative to their own path
    folder = tmp_path / "moved"
    assert (folder / "lib/expertd/libexpertd_cuda.so").exists() == (BUILD / "lib/expertd/libexpertd_cuda.so").exists()
    found, ids = answers(case("qwen2_moe"), "--device", "sim", "--compute-dtype", "bf16", program=folder / "bin/expertd")
    assert ids == {"1/bf16/sm_90"} and found
    done = subprocess.run([folder / "bin/expertd-bench", "kernels", "--device", "sim", "--seconds", "0.01"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_expertd_itself_links_nothing_of_cuda():
    needed = subprocess.run(["ldd", str(BUILD / "bin/expertd")], capture_output=True, text=True, check=True).stdout
    assert "libgrpc" in needed and "cuda" not in needed and "nccl" not in needed
