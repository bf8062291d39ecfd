"""Routers with a separate input (Gemma 4): the router reads the residual, the experts its norm. Answers are compared with numpy. Requests
with missing or unfitting rows are refused without an effect on others."""

import json

import numpy as np
import pytest

from harness.checkpoints import write_safetensors
from harness.daemon import run_program
from harness.errors import refused_alone_and_in_a_stream
from harness.protos import pb
from harness.regions import Region
from harness.tensors import error_per_token, rows_of, tensor, values_of

H, I, E, K, TOKENS, EPSILON = 96, 64, 8, 3, 40, 1e-5
LAYERS, LAYER = 2, 1


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def gelu_tanh(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


class Model:
    """Two layers with the tensor names of Google's files, vision tower included."""

    def __init__(self, folder, drop=(), **config):
        random = np.random.default_rng(17)
        shapes = {"router.proj.weight": (E, H), "router.scale": (H,), "router.per_expert_scale": (E,),
                  "experts.gate_up_proj": (E, 2 * I, H), "experts.down_proj": (E, H, I)}
        self.folder, self.weights = folder, {}
        for layer in range(LAYERS):
            for name, shape in shapes.items():
                vector = len(shape) == 1
                values = random.uniform(0.5, 1.5, shape) if vector else random.standard_normal(shape) / np.sqrt(shape[-1])
                self.weights[layer, name] = values.astype(np.float32)
        tensors = {f"model.language_model.layers.{layer}.{name}": ("F32", value.shape, value.tobytes())
                   for (layer, name), value in self.weights.items() if name not in drop}
        tower = np.zeros((4, 4), np.float32)
        tensors["model.vision_tower.encoder.layers.0.mlp.up_proj.weight"] = ("F32", tower.shape, tower.tobytes())
        folder.mkdir()
        write_safetensors(folder / "model.safetensors", tensors)
        text = {"model_type": "gemma4_text", "hidden_size": H, "num_hidden_layers": LAYERS, "enable_moe_block": True, "num_experts": E,
                "top_k_experts": K, "moe_intermediate_size": I, "intermediate_size": 2 * I, "rms_norm_eps": EPSILON,
                "hidden_activation": "gelu_pytorch_tanh", **config}
        (folder / "config.json").write_text(json.dumps({
            "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "text_config": text}))

    def logits(self, router_rows, layer=LAYER):
        x = router_rows.astype(np.float64)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * self.weights[layer, "router.scale"] / np.sqrt(H)
        return x @ self.weights[layer, "router.proj.weight"].T

    def block(self, rows, router_rows, layer=LAYER):
        scores = softmax(self.logits(router_rows, layer))
        ids = np.argsort(-scores, -1)[:, :K]
        out = np.zeros(rows.shape)
        for token, x in enumerate(rows.astype(np.float64)):
            weights = scores[token, ids[token]] / scores[token, ids[token]].sum()
            for weight, expert in zip(weights * self.weights[layer, "router.per_expert_scale"][ids[token]], ids[token]):
                gate, up = np.split(self.weights[layer, "experts.gate_up_proj"][expert] @ x, 2)
                out[token] += weight * (self.weights[layer, "experts.down_proj"][expert] @ (gelu_tanh(gate) * up))
        return out


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return Model(tmp_path_factory.mktemp("gemma4") / "model")


@pytest.fixture
def rows():
    return np.random.default_rng(3).standard_normal((TOKENS, H)).astype(np.float32)


@pytest.fixture
def residual():
    return (np.random.default_rng(4).standard_normal((TOKENS, H)) * 5).astype(np.float32)


def request_for(rows, residual, dtype="F32", **more):
    return pb.ForwardRequest(layer=LAYER, hidden=tensor(rows), router_input=tensor(residual, dtype), output_dtype=pb.F32, **more)


@pytest.mark.threads
def test_the_router_reads_its_own_rows(model, rows, residual, start_daemon):
    daemon = start_daemon(model=model.folder)
    wanted = model.block(rows, residual)
    with daemon.client() as client:
        assert all(layer.needs_router_input for layer in client.describe().models[0].layers)
        assert error_per_token(values_of(client.forward(request_for(rows, residual)).output), wanted).max() < 2e-6
        other = client.forward(request_for(rows, residual[::-1])).output
        assert error_per_token(values_of(other), model.block(rows, residual[::-1])).max() < 2e-6
        logits = tensor(model.logits(residual).astype(np.float32))
        by_logits = pb.ForwardRequest(layer=LAYER, hidden=tensor(rows), router_logits=logits, output_dtype=pb.F32)
        assert error_per_token(values_of(client.forward(by_logits).output), wanted).max() < 2e-6
        for dtype in ("BF16", "F16"):  # router rows are not rounded to the compute dtype
            rounded = values_of(tensor(residual, dtype))
            assert error_per_token(values_of(client.forward(request_for(rows, residual, dtype)).output), model.block(rows, rounded)).max() < 2e-6


def test_bits_are_those_of_a_token_alone(model, rows, residual, start_daemon):
    """In pieces, one by one, on several shards, from a region, in a batch with calls that bring routes, and in bf16."""
    daemon = start_daemon("--shards", 3, "--max-piece-tokens", 7, "--compute-dtype", "bf16", model=model.folder)
    with daemon.client() as client:
        all_rows = rows_of(client.forward(request_for(rows, residual)).output)
        for token in range(0, TOKENS, 5):
            one = slice(token, token + 1)
            assert rows_of(client.forward(request_for(rows[one], residual[one])).output) == [all_rows[token]]
        with Region(client, 1 << 16) as region:
            request = request_for(rows, residual)
            request.router_input.CopyFrom(region.tensor(64, residual))
            assert rows_of(client.forward(request).output) == all_rows
        routes = pb.Routes(ids=tensor(np.zeros((TOKENS, 1)), "I32"), weights=tensor(np.ones((TOKENS, 1))))
        mixed = [request_for(rows, residual, id=1), pb.ForwardRequest(layer=LAYER, hidden=tensor(rows), routes=routes, id=2),
                 request_for(rows, residual, id=3)]
        answers = {answer.id: answer for answer in client.stream(mixed)}
        assert rows_of(answers[1].output) == all_rows == rows_of(answers[3].output)


def test_devices_give_the_bits_of_the_cpu_with_their_arithmetic(model, rows, residual, start_daemon):
    answers = []
    for options in (("--device", "sim:2"), ("--kernels", "scalar_sm90")):
        daemon = start_daemon("--compute-dtype", "bf16", *options, model=model.folder)
        with daemon.client() as client:
            answers.append(rows_of(client.forward(request_for(rows[:9], residual[:9], "BF16")).output))
        daemon.stop()
    assert answers[0] == answers[1]


WRONG = {
    "missing": (lambda r: r.ClearField("router_input"), "SHAPE_MISMATCH", "router_input"),
    "one row too few": (lambda r: r.router_input.CopyFrom(tensor(np.zeros((TOKENS - 1, H)))), "SHAPE_MISMATCH", "router_input"),
    "too narrow": (lambda r: r.router_input.CopyFrom(tensor(np.zeros((TOKENS, H - 1)))), "SHAPE_MISMATCH", "router_input"),
    "integers": (lambda r: r.router_input.CopyFrom(tensor(np.zeros((TOKENS, H)), "I32")), "DTYPE_UNSUPPORTED", "router_input.dtype"),
    "cut short": (lambda r: setattr(r.router_input, "data", r.router_input.data[:-4]), "TENSOR_BYTES", "router_input"),
}


def test_wrong_rows_are_refused_without_an_effect_on_others(model, rows, residual, start_daemon):
    daemon = start_daemon(model=model.folder)
    with daemon.client() as client:
        refused_alone_and_in_a_stream(client, lambda **fields: request_for(rows, residual, **fields), WRONG.values())


@pytest.mark.parametrize("name, drop, config, words", [
    ("scale", ("router.scale",), {}, "layers.0.router.scale is missing"),
    ("expert scale", ("router.per_expert_scale",), {}, "layers.0.router.per_expert_scale is missing"),
    ("dense", (), {"enable_moe_block": False}, "enable_moe_block is false"),
])
def test_unsupported_checkpoints_are_refused_by_name(name, drop, config, words, tmp_path):
    model = Model(tmp_path / "model", drop, **config)
    done = run_program("expertd", "--model", model.folder, "--listen", f"unix:{tmp_path}/s", "--http", "off")
    assert done.returncode == 65 and words in done.stderr, done.stderr


def test_verify_agrees_and_expertctl_sends_them(model, rows, residual, tmp_path, start_daemon):
    daemon = start_daemon("--shards", 2, model=model.folder)
    done = run_program("expertd-verify", "--address", f"unix:{daemon.socket}", "--model", model.folder, "--tokens", "1,7,40")
    assert done.returncode == 0 and "equal bits" in done.stdout, done.stdout + done.stderr
    for name, values in {"rows": rows, "residual": residual}.items():
        np.save(tmp_path / name, values)
    forward = ("expertctl", "--address", f"unix:{daemon.socket}", "forward", "--layer", LAYER, "--hidden", tmp_path / "rows.npy")
    done = run_program(*forward, "--router-input", tmp_path / "residual.npy", "--split", 16, "--output", tmp_path / "out.npy")
    assert done.returncode == 0, done.stderr
    with daemon.client() as client:
        assert np.load(tmp_path / "out.npy").tobytes() == client.forward(request_for(rows, residual)).output.data
    done = run_program(*forward)
    assert done.returncode != 0 and "router_input" in done.stderr
