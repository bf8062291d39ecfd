"""More shards than a layer has experts, so that some shards hold none. No bit changes with any placement."""

import json

import numpy as np
import pytest

from harness.admin import admin_of, experts_of, placement_of
from harness.checkpoints import write_safetensors
from harness.protos import pb
from harness.tensors import error_per_token, rows_of, tensor, values_of

H, I, TOKENS = 64, 48, 20


class Model:
    """One Mixtral layer with one expert per token, so that the routing weight is 1."""

    def __init__(self, folder, experts):
        random = np.random.default_rng(experts)
        self.folder, self.experts = folder, experts
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({
            "model_type": "mixtral", "hidden_size": H, "intermediate_size": I, "num_local_experts": experts,
            "num_experts_per_tok": 1, "num_hidden_layers": 1}))
        block, shapes = "model.layers.0.block_sparse_moe", {"w1": (I, H), "w2": (H, I), "w3": (I, H)}
        self.weights = {f"{block}.experts.{e}.{part}.weight": random.standard_normal(shape) / 8
                        for e in range(experts) for part, shape in shapes.items()}
        self.weights[f"{block}.gate.weight"] = random.standard_normal((experts, H))
        self.weights = {name: array.astype(np.float32) for name, array in self.weights.items()}
        write_safetensors(folder / "model.safetensors",
                          {name: ("F32", array.shape, array.tobytes()) for name, array in self.weights.items()})

    def block(self, rows):
        of = lambda name: self.weights[f"model.layers.0.block_sparse_moe.{name}.weight"].astype(np.float64)
        out = np.zeros(rows.shape)
        for token, expert in enumerate((rows @ of("gate").T).argmax(1)):
            w1, w2, w3 = (of(f"experts.{expert}.{part}") for part in ("w1", "w2", "w3"))
            gate = w1 @ rows[token]
            out[token] = w2 @ (gate / (1 + np.exp(-gate)) * (w3 @ rows[token]))
        return out


@pytest.fixture(scope="module", params=(1, 2), ids=("one", "two"))
def model(request, tmp_path_factory):
    return Model(tmp_path_factory.mktemp("models") / "model", request.param)


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(3).standard_normal((TOKENS, H)).astype(np.float32)


def answers_of(client, rows, experts):
    """Answers with the model's router, for one token, with routes that drop some slots, and with routes that drop all."""
    ids = np.random.default_rng(4).integers(-1, experts, (len(rows), 3))
    requests = [{"hidden": tensor(rows)}, {"hidden": tensor(rows[:1])}]
    for chosen in (ids, np.full(ids.shape, -1)):
        routes = pb.Routes(ids=tensor(chosen, "I32"), weights=tensor(np.full(chosen.shape, 0.5)))
        requests.append({"hidden": tensor(rows), "routes": routes})
    return [rows_of(client.forward(layer=0, output_dtype=pb.F32, **fields).output) for fields in requests]


OPTIONS = [("--shards", 3), ("--shards", 7, "--threads", 2), ("--shards", 3, "--threads", 1), ("--compute-dtype", "bf16", "--shards", 3)]


def test_shards_without_experts_change_no_bit(model, rows, start_daemon):
    alone, weights = {}, {}
    for options in [("--shards", 1), ("--shards", 1, "--compute-dtype", "bf16"), *OPTIONS]:
        daemon, dtype = start_daemon(*options, model=model.folder), "bf16" if "bf16" in options else "f32"
        with daemon.client() as client:
            got = answers_of(client, rows, model.experts)
            output = values_of(client.forward(layer=0, hidden=tensor(rows), output_dtype=pb.F32).output)
        (loaded,) = daemon.events("loaded")
        daemon.stop()
        assert got == alone.setdefault(dtype, got), options
        assert loaded["weights_bytes"] == weights.setdefault(dtype, loaded["weights_bytes"]), "empty shards take no memory"
        assert error_per_token(output, model.block(rows.astype(np.float64))).max() < (2e-6 if dtype == "f32" else 3e-2)


def test_replicas_and_moves_to_and_from_empty_shards_change_no_bit(model, rows, tmp_path, start_daemon):
    counts = tmp_path / "counts.json"
    counts.write_text(json.dumps({"layers": {"0": [5] * model.experts}}))
    balanced = ("--shards", 3, "--placement", "balanced", "--placement-counts", counts)
    answers = []
    for replicas in (0, 1, 2 * model.experts):
        daemon = start_daemon(*balanced, "--replicas", replicas, model=model.folder)
        with daemon.client() as client, admin_of(daemon) as admin:
            answers.append(answers_of(client, rows, model.experts))
            shown = admin.show(0)[0]
            assert len(shown.copies) == model.experts and sum(shown.copies) == model.experts + replicas
            for holder in (0, 2, 1):  # all experts on one shard; two shards are empty
                shown = admin.show(0)[0]
                wanted = placement_of(0, shown.epoch, 3, [[holder]] * model.experts)
                assert admin.apply(wanted)[-1].done
                assert experts_of(admin.show(0)[0]) == experts_of(wanted)
                answers.append(answers_of(client, rows, model.experts))
            planned = admin.plan(0, policy="POLICY_CONTIGUOUS")[0].planned
            assert admin.apply(planned)[-1].done
            answers.append(answers_of(client, rows, model.experts))
        daemon.stop()
    assert all(answer == answers[0] for answer in answers)


def test_devices_without_experts_change_no_bit(model, rows, start_daemon):
    answers = []
    for options in (("--kernels", "scalar_sm90"), ("--device", "sim:3"), ("--device", "sim:2", "--shards", 5)):
        daemon = start_daemon("--compute-dtype", "bf16", *options, model=model.folder)
        with daemon.client() as client:
            answers.append(answers_of(client, rows[:9], model.experts))
        daemon.stop()
    assert answers[0] == answers[1] == answers[2]
