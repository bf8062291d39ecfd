"""Layers whose experts have different formats: an expert that the quantiser left plain, one part in another format, gate and up in two.
Each matrix is computed as it is stored, or all are widened. An expert's bits do not depend on the formats of the others."""

import json
import subprocess

import numpy as np
import pytest

from harness.admin import admin_of, experts_of, moved, placement_of
from harness.daemon import run_program
from harness.paths import BIN, SANITIZER
from harness.protos import pb
from harness.quantised import (E4M3, EXPERTS, GPTQ, HIDDEN, MIXED_EXPERTS, MIXED_GATES, PLAIN, WIDTH, QuantisedCheckpoint, Variant,
                               gptq)
from harness.tensors import error_per_token, rows_of, tensor, values_of
from test_quantised import BOUNDS

TOKENS = 40
ALL = MIXED_EXPERTS | MIXED_GATES


def has_codes(variant):
    return variant.config is not None


def served(start_daemon, checkpoint, hidden, *options):
    """(rows, their values, the layer in Describe, the daemon)"""
    daemon = start_daemon(*options, model=checkpoint.folder)
    with daemon.client() as client:
        answer = client.forward(layer=0, hidden=tensor(hidden)).output
        (layer,) = client.describe().models[0].layers
    return rows_of(answer), values_of(answer), layer, daemon


@pytest.mark.parametrize("name", ALL if not SANITIZER else list(ALL)[::3])
def test_answers_are_those_of_the_dequantised_weights(name, tmp_path, start_daemon):
    checkpoint = QuantisedCheckpoint(tmp_path / name, ALL[name])
    hidden, bits, ids = checkpoint.inputs(TOKENS), {}, set()
    wanted = checkpoint.outputs(hidden)
    setups = {"f32": ("--compute-dtype", "f32", "--shards", 1), "f32 on 3 shards": ("--compute-dtype", "f32", "--shards", 3),
              "bf16": ("--compute-dtype", "bf16", "--shards", 1), "bf16 on 3 shards": ("--compute-dtype", "bf16", "--shards", 3),
              "f32 widened": ("--compute-dtype", "f32", "--widen"), "bf16 widened": ("--compute-dtype", "bf16", "--widen")}
    for setup, options in setups.items():
        bits[setup], values, layer, daemon = served(start_daemon, checkpoint, hidden, *options)
        daemon.stop()
        assert error_per_token(values, wanted).max() <= (BOUNDS["f32"] if setup.startswith("f32") else BOUNDS["bf16 widened"]), setup
        widened = "+widen" if "widened" in setup and has_codes(ALL[name]) else ""
        assert layer.quantisation == ALL[name].name and layer.numerics_id == f"1/{setup.split()[0]}/cpu{widened}"
        ids.add(layer.weights_id)
    assert len(ids) == 1
    assert bits["f32"] == bits["f32 on 3 shards"] and bits["bf16"] == bits["bf16 on 3 shards"]


@pytest.mark.parametrize("name", ("alternating", "mxfp4_and_plain"))
def test_few_tokens_have_the_bits_of_many(name, tmp_path, start_daemon):
    """Few rows and many rows use different kernels. The scalar kernels give the same bits."""
    checkpoint = QuantisedCheckpoint(tmp_path / name, ALL[name])
    hidden = checkpoint.inputs(TOKENS)
    for dtype in ("bf16", "f32"):
        scalar, _, _, daemon = served(start_daemon, checkpoint, hidden, "--compute-dtype", dtype, "--kernels", "scalar")
        daemon.stop()
        rows, _, _, daemon = served(start_daemon, checkpoint, hidden, "--compute-dtype", dtype)
        assert rows == scalar
        with daemon.client() as client:
            for first, tokens in ((0, 1), (1, 2), (3, 3), (6, 4), (10, 7)):
                few = client.forward(layer=0, hidden=tensor(hidden[first:first + tokens])).output
                assert rows_of(few) == rows[first:first + tokens], (dtype, tokens)
        daemon.stop()


@pytest.mark.parametrize("device", ("cpu", "sim"))
def test_an_experts_bits_do_not_depend_on_the_other_experts(device, tmp_path, start_daemon):
    """Expert 3 is the same in three checkpoints. Its answers have equal bits, though the others' formats differ."""
    formats = {"uniform": (), "one": ((2, "all", PLAIN["F16"]),),
               "most": tuple((e, "all", PLAIN["BF16"]) for e in range(EXPERTS) if e != 3)}
    found = {}
    for name, of_experts in formats.items():
        checkpoint = QuantisedCheckpoint(tmp_path / name, Variant("", GPTQ, gptq(4, 32), of_experts=of_experts))
        hidden = checkpoint.inputs(TOKENS)
        ids = np.full((TOKENS, 1), 3)
        routes = pb.Routes(ids=tensor(ids, "I32"), weights=tensor(np.ones((TOKENS, 1), np.float32)))
        daemon = start_daemon("--device", device, model=checkpoint.folder)
        with daemon.client() as client:
            found[name] = rows_of(client.forward(layer=0, hidden=tensor(hidden), routes=routes).output)
        daemon.stop()
    assert found["one"] == found["uniform"] and found["most"] == found["uniform"]


@pytest.mark.parametrize("name", MIXED_EXPERTS if not SANITIZER else ("alternating",))
def test_a_device_gives_the_bits_of_its_arithmetic(name, tmp_path, start_daemon):
    checkpoint = QuantisedCheckpoint(tmp_path / name, ALL[name])
    hidden = checkpoint.inputs(TOKENS)
    want, _, _, daemon = served(start_daemon, checkpoint, hidden, "--compute-dtype", "bf16", "--kernels", "scalar_sm90")
    daemon.stop()
    for device, shards in (("sim", 1), ("sim", 3), ("sim:2", 2)):
        got, _, layer, daemon = served(start_daemon, checkpoint, hidden, "--compute-dtype", "bf16", "--device", device, "--shards", shards)
        daemon.stop()
        assert got == want and layer.quantisation == ALL[name].name, (device, shards)


GATE_AND_UP = {  # the matrices that a device holds widened, of each format
    "e4m3_and_e5m2": {"fp8_block128": EXPERTS, "fp8_e5m2_block128": EXPERTS},
    "blocks_and_rows": {"fp8_block128": EXPERTS, "fp8_channel": EXPERTS},
    "blocks_of_two_scale_dtypes": {"fp8_block128": 2 * EXPERTS},
    "gptq_asymmetric_in_one_up": {"int4_group32": 1, "int4_group32_zero": 1},
    "rows_and_mxfp4": {"fp8_channel": 1, "mxfp4": 1},
    "mxfp4_and_plain": {"mxfp4": 2},
}


@pytest.mark.parametrize("name", MIXED_GATES)
def test_a_device_widens_gate_and_up_in_two_formats(name, tmp_path, start_daemon):
    """Of the experts that have them so; all else stays as it is. The bits are those of the device's arithmetic."""
    checkpoint = QuantisedCheckpoint(tmp_path / name, ALL[name])
    hidden = checkpoint.inputs(8)
    _, values, layer, daemon = served(start_daemon, checkpoint, hidden, "--compute-dtype", "bf16", "--device", "sim:2")
    assert error_per_token(values, checkpoint.outputs(hidden)).max() <= BOUNDS["bf16 widened"]
    assert layer.quantisation == ALL[name].name and layer.numerics_id == "1/bf16/sm_90+widen_gpu"
    lines = daemon.events("widened")
    assert {line["format"]: int(line["matrices"]) for line in lines} == GATE_AND_UP[name]
    assert all("gate and up of an expert" in line["message"] for line in lines)
    done = run_program("expertd-verify", "--address", f"unix:{daemon.socket}", "--model", checkpoint.folder, "--tokens", "7")
    assert done.returncode == 0 and "equal bits" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("device", ("cpu", "sim"))
def test_experts_of_any_format_move_between_shards(device, tmp_path, start_daemon):
    checkpoint = QuantisedCheckpoint(tmp_path / "moves", MIXED_EXPERTS["alternating"])
    hidden, random = checkpoint.inputs(TOKENS), np.random.default_rng(11)
    rows, _, _, daemon = served(start_daemon, checkpoint, hidden, "--shards", 3, "--device", device, "--move-bytes-max", "16MiB")
    with admin_of(daemon) as admin, daemon.client() as client:
        for _ in range(6):
            wanted = moved(random, admin.show(0)[0])
            last = admin.apply(wanted)[-1]
            assert last.done and last.moved_experts == last.all_experts and last.moved_bytes == last.all_bytes
            assert experts_of(admin.show(0)[0]) == experts_of(wanted)
            assert rows_of(client.forward(layer=0, hidden=tensor(hidden)).output) == rows
    daemon.stop()


def test_a_plan_counts_the_bytes_of_each_experts_format(tmp_path, start_daemon):
    checkpoint = QuantisedCheckpoint(tmp_path / "plan", MIXED_EXPERTS["gptq_and_a_plain_expert"])
    daemon = start_daemon("--shards", 2, model=checkpoint.folder)
    with admin_of(daemon) as admin:
        bytes_of = {}
        for expert in (2, 3):  # plain, and 4 bits
            shown = admin.show(0)[0]
            holders = experts_of(shown)
            holders[expert] = [0, 1]
            last = admin.apply(placement_of(0, shown.epoch, 2, holders))[-1]
            assert last.moved_experts == 1 and last.moved_bytes == last.all_bytes
            bytes_of[expert] = last.moved_bytes
        assert 2.5 * bytes_of[3] < bytes_of[2] < 4 * bytes_of[3]
        plan = admin.plan(0, policy="POLICY_CONTIGUOUS")[0]
        assert plan.copies == 0 and plan.copy_bytes == 0
    daemon.stop()


@pytest.mark.parametrize("options", ((), ("--widen",)))
def test_expertd_verify_agrees(options, tmp_path, start_daemon):
    checkpoint = QuantisedCheckpoint(tmp_path / "verify", MIXED_EXPERTS["a_plain_expert_and_ordered_gptq"])
    daemon = start_daemon(*options, model=checkpoint.folder)
    done = subprocess.run([str(BIN / "expertd-verify"), "--address", f"unix:{daemon.socket}", "--model", str(checkpoint.folder),
                           "--tokens", "1,7,64"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "equal bits" in done.stdout, done.stdout + done.stderr


def test_log_status_and_tools_show_all_formats(tmp_path, start_daemon):
    variant = MIXED_EXPERTS["gptq_and_a_plain_expert"]
    daemon = start_daemon(model=QuantisedCheckpoint(tmp_path / "shown", variant).folder)
    assert json.loads(daemon.get("/api/status")[1])["layers"][0]["weights"] == variant.name
    assert f"<td>{variant.name}<td>" in daemon.get("/")[1]
    assert daemon.events("loaded")[0]["quantisation"] == variant.name
    for command in ("models", "status"):
        assert variant.name in run_program("expertctl", "--address", f"unix:{daemon.socket}", command).stdout
    daemon.stop()


class SharedCheckpoint(QuantisedCheckpoint):
    """With a shared expert whose gate, up and down have three formats."""

    def write(self):
        random, module = np.random.default_rng(5), "model.layers.0.mlp"
        self.shared, self.config["model_type"] = {}, "qwen2_moe"
        self.config |= {"architectures": ["Qwen2MoeForCausalLM"], "shared_expert_intermediate_size": WIDTH}
        formats = {"gate": MIXED_EXPERTS["two_quantised"].quantise, "up": PLAIN["F16"], "down": E4M3}
        for part, shape in (("gate", (WIDTH, HIDDEN)), ("up", (WIDTH, HIDDEN)), ("down", (HIDDEN, WIDTH))):
            stored, self.shared[part] = formats[part](random.standard_normal(shape) * shape[1] ** -0.5, random)
            for suffix, (dtype, array) in stored.items():
                self.tensors[f"{module}.shared_expert.{part}_proj{suffix}"] = (dtype, array)
        self.shared_gate = random.standard_normal((1, HIDDEN)).astype(np.float32)
        self.tensors[f"{module}.shared_expert_gate.weight"] = ("F32", self.shared_gate)
        super().write()

    def outputs(self, hidden):
        x = hidden.astype(np.float64)
        gate, up = x @ self.shared["gate"].T, x @ self.shared["up"].T
        shared = (gate / (1 + np.exp(-gate)) * up) @ self.shared["down"].T
        return super().outputs(hidden) + shared / (1 + np.exp(-(x @ self.shared_gate.T.astype(np.float64))))


def test_a_shared_expert_may_have_a_format_for_each_matrix(tmp_path, start_daemon):
    checkpoint = SharedCheckpoint(tmp_path / "shared", MIXED_EXPERTS["two_quantised"])
    hidden = checkpoint.inputs(TOKENS)
    for options in ((), ("--widen",)):
        _, values, _, daemon = served(start_daemon, checkpoint, hidden, "--compute-dtype", "f32", *options)
        daemon.stop()
        assert error_per_token(values, checkpoint.outputs(hidden)).max() <= BOUNDS["f32"]


def test_a_plain_gate_beside_an_ordered_up_is_served_widened(tmp_path, start_daemon):
    """Gate and up read one row, so one of them would need its own order of k."""
    variant = Variant("", GPTQ | {"desc_act": True}, gptq(4, 32, ordered=True), of_experts=((1, "gate", PLAIN["BF16"]),))
    checkpoint = QuantisedCheckpoint(tmp_path / "order", variant)
    done = run_program("expertd", "--model", str(checkpoint.folder), "--listen", "127.0.0.1:0", "--http", "off", "--admin", "off")
    assert done.returncode == 65, done.stderr
    for word in ("layer 0", "expert 1", "bf16+int4_group32_zero_ordered+int4_group32_zero_ordered", "g_idx", "--widen"):
        assert word in done.stderr, done.stderr
    hidden = checkpoint.inputs(8)
    _, values, _, _ = served(start_daemon, checkpoint, hidden, "--compute-dtype", "f32", "--widen")
    assert error_per_token(values, checkpoint.outputs(hidden)).max() <= BOUNDS["f32"]
