"""Hash routers (the first layers of DeepSeek-V4): the token id selects the experts, the scores give their weights. Answers are compared with
numpy. Requests with missing or unknown ids are refused without an effect on others."""

import json

import numpy as np
import pytest

from harness.checkpoints import write_safetensors
from harness.daemon import run_program
from harness.errors import raises, refused_alone_and_in_a_stream
from harness.protos import pb
from harness.quantised import SIZES, VARIANTS
from harness.regions import Region
from harness.tensors import error_per_token, rows_of, tensor, values_of

H, I, E, K, TOKENS, VOCABULARY, LIMIT, SCALE = 96, 64, 8, 3, 40, 50, 1.5, 2.5
HASH_LAYER, SCORE_LAYER = 0, 1


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Model:
    """Two layers in DeepSeek's format: the first selects experts by token id, the second by score."""

    def __init__(self, folder, table=None, table_dtype="I64", quantise=None, **config):
        random = np.random.default_rng(11)
        matrix = lambda n, k: (random.standard_normal((n, k)) / np.sqrt(k)).astype(np.float32)
        self.folder, self.weights = folder, {}
        self.table = np.stack([random.permutation(E)[:K] for _ in range(VOCABULARY)]) if table is None else table
        for layer in (HASH_LAYER, SCORE_LAYER):
            at = f"layers.{layer}.ffn."
            self.weights[at + "gate.weight"] = matrix(E, H)
            for expert in [f"experts.{e}" for e in range(E)] + ["shared_experts"]:
                for part, shape in {"w1": (I, H), "w2": (H, I), "w3": (I, H)}.items():
                    self.weights[f"{at}{expert}.{part}.weight"] = matrix(*shape)
        self.weights["layers.1.ffn.gate.bias"] = random.uniform(0, 0.2, E).astype(np.float32)
        folder.mkdir()
        tensors = {name: ("F32", value.shape, value.tobytes()) for name, value in self.weights.items()}
        for name in [name for name in tensors if quantise and ".experts." in name]:
            parts, self.weights[name] = quantise(self.weights[name], random)
            del tensors[name]
            for suffix, (dtype, array) in parts.items():
                data = np.ascontiguousarray(array).astype(SIZES[dtype])
                tensors[name.removesuffix(".weight") + suffix] = (dtype, data.shape, data.tobytes())
        kind = {"I32": np.int32, "I64": np.int64}[table_dtype]
        tensors["layers.0.ffn.gate.tid2eid"] = (table_dtype, self.table.shape, self.table.astype(kind).tobytes())
        write_safetensors(folder / "model.safetensors", tensors)
        (folder / "config.json").write_text(json.dumps({
            "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "hidden_size": H, "num_hidden_layers": 2,
            "moe_intermediate_size": I, "n_routed_experts": E, "num_experts_per_tok": K, "n_shared_experts": 1,
            "num_hash_layers": 1, "scoring_func": "sqrtsoftplus", "norm_topk_prob": True, "topk_method": "noaux_tc",
            "routed_scaling_factor": SCALE, "swiglu_limit": LIMIT, "hidden_act": "silu", **config}))

    def expert(self, layer, name, x):
        w1, w2, w3 = (self.weights[f"layers.{layer}.ffn.{name}.{part}.weight"].astype(np.float64) for part in ("w1", "w2", "w3"))
        gate = np.minimum(x @ w1.T, LIMIT)
        return (gate * sigmoid(gate) * np.clip(x @ w3.T, -LIMIT, LIMIT)) @ w2.T

    def block(self, x, token_ids):
        """The hash layer's output: weights from the scores of x, experts from the ids."""
        scores = np.sqrt(np.log1p(np.exp(x @ self.weights["layers.0.ffn.gate.weight"].T.astype(np.float64))))
        out = self.expert(HASH_LAYER, "shared_experts", x)
        for token, chosen in enumerate(self.table[token_ids]):
            weights = scores[token, chosen] / (scores[token, chosen].sum() + 1e-20) * SCALE
            for weight, expert in zip(weights, chosen):
                out[token] += weight * self.expert(HASH_LAYER, f"experts.{expert}", x[token])
        return out


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return Model(tmp_path_factory.mktemp("v4") / "model")


@pytest.fixture
def rows():
    return np.random.default_rng(3).standard_normal((TOKENS, H)).astype(np.float32)


@pytest.fixture
def ids():
    return np.random.default_rng(4).integers(0, VOCABULARY, TOKENS)


def request_for(rows, ids, dtype="I64", **more):
    return pb.ForwardRequest(layer=HASH_LAYER, hidden=tensor(rows), token_ids=tensor(ids, dtype), output_dtype=pb.F32, **more)


@pytest.mark.threads
def test_token_ids_choose_the_experts(model, rows, ids, start_daemon):
    daemon = start_daemon(model=model.folder)
    wanted = model.block(rows.astype(np.float64), ids)
    with daemon.client() as client:
        layers = {layer.layer: layer for layer in client.describe().models[0].layers}
        assert layers[HASH_LAYER].needs_token_ids and not layers[SCORE_LAYER].needs_token_ids
        answers = [client.forward(request_for(rows, ids, dtype)).output for dtype in ("I32", "I64")]
        assert error_per_token(values_of(answers[0]), wanted).max() < 2e-6
        assert answers[0].data == answers[1].data
        other = client.forward(request_for(rows, (ids + 1) % VOCABULARY)).output
        assert other.data != answers[0].data
        logits = rows @ model.weights["layers.0.ffn.gate.weight"].T
        given = client.forward(request_for(rows, ids, router_logits=tensor(logits.astype(np.float32)))).output
        assert error_per_token(values_of(given), wanted).max() < 2e-6
        alone = client.forward(layer=SCORE_LAYER, hidden=tensor(rows)).output  # this layer needs no ids
        assert client.forward(layer=SCORE_LAYER, hidden=tensor(rows), token_ids=tensor(np.full(TOKENS, -1), "I32")).output == alone
        routes = pb.Routes(ids=tensor(np.zeros((TOKENS, 1)), "I32"), weights=tensor(np.ones((TOKENS, 1))))
        for layer, more in ((SCORE_LAYER, {}), (HASH_LAYER, {"routes": routes})):
            with raises("INVALID_ARGUMENT", "SHAPE_MISMATCH", "token_ids.shape"):
                client.forward(layer=layer, hidden=tensor(rows), token_ids=tensor(np.zeros(TOKENS + 1), "I32"), **more)


def test_bits_are_those_of_a_token_alone(model, rows, ids, start_daemon):
    """In pieces, one by one, on several shards, from a region, and in bf16."""
    daemon = start_daemon("--shards", 3, "--max-piece-tokens", 7, "--compute-dtype", "bf16", model=model.folder)
    with daemon.client() as client:
        all_rows = rows_of(client.forward(request_for(rows, ids)).output)
        for token in range(0, TOKENS, 5):
            one = slice(token, token + 1)
            assert rows_of(client.forward(request_for(rows[one], ids[one])).output) == [all_rows[token]]
        with Region(client, 1 << 16) as region:
            request = request_for(rows, ids)
            request.token_ids.CopyFrom(region.tensor(64, ids, "I64"))
            assert rows_of(client.forward(request).output) == all_rows


@pytest.mark.parametrize("table_dtype", ["I32", "I64"])
def test_devices_give_the_bits_of_the_cpu_with_their_arithmetic(table_dtype, rows, ids, tmp_path, start_daemon):
    model, answers = Model(tmp_path / "model", table_dtype=table_dtype), []
    for options in (("--device", "sim:2"), ("--kernels", "scalar_sm90")):
        daemon = start_daemon("--compute-dtype", "bf16", *options, model=model.folder)
        with daemon.client() as client:
            answers.append(rows_of(client.forward(request_for(rows[:9], ids[:9])).output))
        daemon.stop()
    assert answers[0] == answers[1]


WRONG = {
    "missing": (lambda r: r.ClearField("token_ids"), "SHAPE_MISMATCH", "token_ids"),
    "one too few": (lambda r: r.token_ids.CopyFrom(tensor(np.zeros(TOKENS - 1), "I32")), "SHAPE_MISMATCH", "token_ids.shape"),
    "a matrix": (lambda r: r.token_ids.CopyFrom(tensor(np.zeros((TOKENS, 1)), "I32")), "SHAPE_MISMATCH", "token_ids.shape"),
    "floats": (lambda r: r.token_ids.CopyFrom(tensor(np.zeros(TOKENS), "F32")), "DTYPE_UNSUPPORTED", "token_ids.dtype"),
    "past the table": (lambda r: r.token_ids.CopyFrom(tensor(np.full(TOKENS, VOCABULARY), "I64")), "EXPERT_OUT_OF_RANGE", "token_ids"),
    "negative": (lambda r: r.token_ids.CopyFrom(tensor(np.full(TOKENS, -1), "I32")), "EXPERT_OUT_OF_RANGE", "token_ids"),
    "past 32 bits": (lambda r: r.token_ids.CopyFrom(tensor(np.full(TOKENS, 1 << 32), "I64")), "EXPERT_OUT_OF_RANGE", "token_ids"),
}


def test_wrong_ids_are_refused_without_an_effect_on_others(model, rows, ids, start_daemon):
    daemon = start_daemon(model=model.folder)
    with daemon.client() as client:
        refused_alone_and_in_a_stream(client, lambda **fields: request_for(rows, ids, **fields), WRONG.values())


@pytest.mark.parametrize("name, table, dtype, config, words", [
    ("expert", np.full((VOCABULARY, K), E), "I32", {}, "assigns token 0 to expert 8"),
    ("negative", np.full((VOCABULARY, K), -1), "I64", {}, "assigns token 0 to expert -1"),
    ("columns", np.zeros((VOCABULARY, K + 1)), "I32", {}, "expected I32 or I64 of [tokens, 3]"),
    ("unsaid", None, "I32", {"num_hash_layers": None}, "num_hash_layers"),
    ("other layers", None, "I32", {"num_hash_layers": 2}, "layers.1.ffn.gate.tid2eid is missing"),
])
def test_invalid_tables_are_refused_by_name(name, table, dtype, config, words, tmp_path):
    model = Model(tmp_path / name, table, dtype, **config)
    done = run_program("expertd", "--model", model.folder, "--listen", f"unix:{tmp_path}/s", "--http", "off")
    assert done.returncode == 65 and words in done.stderr, done.stderr


def test_experts_of_4_bits_as_the_vendor_writes_them(rows, ids, tmp_path, start_daemon):
    """Codes packed in I8 with an E8M0 `.scale`, although quantization_config names FP8."""
    variant = VARIANTS["fp4_beside_scale"]
    model = Model(tmp_path / "model", quantise=variant.quantise, quantization_config=variant.config, expert_dtype="fp4")
    daemon = start_daemon("--compute-dtype", "f32", model=model.folder)
    with daemon.client() as client:
        assert {layer.quantisation for layer in client.describe().models[0].layers} == {"mxfp4"}
        got = values_of(client.forward(request_for(rows, ids)).output)
    assert error_per_token(got, model.block(rows.astype(np.float64), ids)).max() < 2e-6


def test_verify_agrees(model, start_daemon):
    daemon = start_daemon("--shards", 2, model=model.folder)
    done = run_program("expertd-verify", "--address", f"unix:{daemon.socket}", "--model", model.folder, "--tokens", "1,7,40")
    assert done.returncode == 0 and "equal bits" in done.stdout, done.stdout + done.stderr


def test_expertctl_sends_them(model, rows, ids, tmp_path, start_daemon):
    daemon = start_daemon(model=model.folder)
    for name, values in {"rows": rows, "ids": ids}.items():
        np.save(tmp_path / name, values)
    forward = ("expertctl", "--address", f"unix:{daemon.socket}", "forward", "--layer", HASH_LAYER, "--hidden", tmp_path / "rows.npy")
    done = run_program(*forward, "--token-ids", tmp_path / "ids.npy", "--split", 16, "--output", tmp_path / "out.npy")
    assert done.returncode == 0, done.stderr
    with daemon.client() as client:
        assert np.load(tmp_path / "out.npy").tobytes() == client.forward(request_for(rows, ids)).output.data
    done = run_program(*forward)
    assert done.returncode != 0 and "token_ids" in done.stderr
