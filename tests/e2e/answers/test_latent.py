"""Latent experts (Nemotron-H): routed experts work on rows of L elements between a down and an up projection; router and shared expert
read the full row. Answers are compared with numpy for every kind of request. A token's bits are the same alone and in any placement."""

import json

import numpy as np
import pytest

from harness.admin import admin_of, moved
from harness.checkpoints import write_safetensors
from harness.daemon import run_program
from harness.protos import pb
from harness.quantised import SIZES, VARIANTS
from harness.tensors import bf16_bits, error_per_token, rows_of, tensor, values_of

H, L, I, SHARED, E, K, TOKENS, LAYER, SCALE = 128, 96, 64, 80, 8, 3, 40, 1, 2.5
MIXER = f"backbone.layers.{LAYER}.mixer"
# Bounds for fp32 sums in another order, and for intermediates rounded to bf16.
F32_BOUND, BF16_BOUND = 2e-6, 2e-2


def relu2(x):
    return np.maximum(x, 0) ** 2


class Model:
    """A Mamba layer, which the daemon skips, and an MoE layer, with the tensor names of NVIDIA's files."""

    def __init__(self, folder, dtype="F32", latent=L, drop=(), cut=(), variant=None, **config):
        random = np.random.default_rng(31)
        rows = latent or H
        self.folder, self.stored, self.latent = folder, {}, latent
        self.router = self.put("gate.weight", random.standard_normal((E, H)) / 2, "F32")
        self.bias = self.put("gate.e_score_correction_bias", random.uniform(-0.2, 0.2, E), "F32")
        if latent:
            self.into = self.weight("fc1_latent_proj", (latent, H), random, dtype)
            self.out_of = self.weight("fc2_latent_proj", (H, latent), random, dtype)
        self.experts = [(self.weight(f"experts.{e}.up_proj", (I, rows), random, dtype, variant),
                         self.weight(f"experts.{e}.down_proj", (rows, I), random, dtype, variant)) for e in range(E)]
        self.shared = (self.weight("shared_experts.up_proj", (SHARED, H), random, dtype),
                       self.weight("shared_experts.down_proj", (H, SHARED), random, dtype))
        for name in cut:
            self.stored[name] = (self.stored[name][0], self.stored[name][1][:-1])
        folder.mkdir(parents=True)
        write_safetensors(folder / "model.safetensors", {
            f"{MIXER}.{name}": (kind, np.shape(array), np.ascontiguousarray(array).astype(SIZES[kind]).tobytes())
            for name, (kind, array) in self.stored.items() if name not in drop})
        (folder / "config.json").write_text(json.dumps({
            "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "hidden_size": H, "num_hidden_layers": 2,
            "hybrid_override_pattern": "ME", "n_routed_experts": E, "num_experts_per_tok": K, "moe_intermediate_size": I,
            "n_shared_experts": 1, "moe_shared_expert_intermediate_size": SHARED, "mlp_hidden_act": "relu2", "mlp_bias": False,
            "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": SCALE, "moe_latent_size": latent,
            **({"quantization_config": variant.config} if variant else {}), **config}))

    def put(self, name, values, dtype):
        values = values.astype(np.float32)
        self.stored[name] = (dtype, bf16_bits(values) if dtype == "BF16" else values)
        return (values_of(tensor(values, dtype)) if dtype == "BF16" else values).astype(np.float64)

    def weight(self, module, shape, random, dtype, variant=None):
        values = random.standard_normal(shape) / np.sqrt(shape[1])
        if not variant:
            return self.put(f"{module}.weight", values, dtype)
        stored, meant = variant.quantise(values, np.random.default_rng(1))
        self.stored.update({module + suffix: entry for suffix, entry in stored.items()})
        return meant

    def logits(self, rows):
        return rows.astype(np.float64) @ self.router.T

    def routes(self, rows):
        scores = 1 / (1 + np.exp(-self.logits(rows)))
        ids = np.argsort(-(scores + self.bias), -1)[:, :K]
        weights = np.take_along_axis(scores, ids, -1)
        return ids, weights / weights.sum(-1, keepdims=True) * SCALE

    def routed(self, rows, ids, weights):
        x = rows.astype(np.float64)
        x = x @ self.into.T if self.latent else x
        out = np.zeros(x.shape)
        for token in range(len(x)):
            for expert, weight in zip(ids[token], weights[token]):
                if expert >= 0:
                    up, down = self.experts[expert]
                    out[token] += weight * (down @ relu2(up @ x[token]))
        return out @ self.out_of.T if self.latent else out

    def shared_part(self, rows):
        return relu2(rows.astype(np.float64) @ self.shared[0].T) @ self.shared[1].T


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return Model(tmp_path_factory.mktemp("nemotron") / "model")


@pytest.fixture
def rows():
    return values_of(tensor(np.random.default_rng(3).standard_normal((TOKENS, H)), "BF16"))


def request_for(rows, **more):
    return pb.ForwardRequest(layer=LAYER, hidden=tensor(rows), output_dtype=pb.F32, **more)


def as_routes(ids, weights):
    return pb.Routes(ids=tensor(ids, "I32"), weights=tensor(weights.astype(np.float32)))


@pytest.mark.parametrize("dtype, bound", [("f32", F32_BOUND), ("bf16", BF16_BOUND)])
def test_answers_agree_with_numpy_for_every_kind_of_request(dtype, bound, model, rows, start_daemon):
    daemon = start_daemon("--compute-dtype", dtype, model=model.folder)
    ids, weights = model.routes(rows)
    own, shared = model.routed(rows, ids, weights), model.shared_part(rows)
    other_ids = np.random.default_rng(5).integers(-1, E, (TOKENS, 5))
    other = np.random.default_rng(6).uniform(-1, 1, (TOKENS, 5)).astype(np.float32)
    theirs = model.routed(rows, other_ids, other)
    logits = tensor(model.logits(rows).astype(np.float32))
    include, exclude = {"shared_experts": pb.SHARED_EXPERTS_INCLUDE}, {"shared_experts": pb.SHARED_EXPERTS_EXCLUDE}
    none = np.full((TOKENS, 1), -1)
    with daemon.client() as client:
        (layer,) = client.describe().models[0].layers
        assert (layer.layer, layer.hidden_size, layer.num_experts, layer.top_k) == (LAYER, H, E, K)
        for fields, wanted in [({}, own + shared), (exclude, own), ({"router_logits": logits}, own + shared),
                            ({"routes": as_routes(other_ids, other)}, theirs),
                            ({"routes": as_routes(other_ids, other), **include}, theirs + shared),
                            ({"routes": as_routes(none, np.ones((TOKENS, 1))), **include}, shared)]:
            got = values_of(client.forward(request_for(rows, **fields)).output)
            assert got.shape == (TOKENS, H)
            assert error_per_token(got, wanted).max() < bound, fields.keys()
        nothing = client.forward(request_for(rows, routes=as_routes(none, np.ones((TOKENS, 1))))).output
        assert not values_of(nothing).any()


def test_a_model_without_latent_experts_is_served(tmp_path, rows, start_daemon):
    for latent in (None, 0):
        model = Model(tmp_path / str(latent), latent=latent)
        daemon = start_daemon("--compute-dtype", "f32", model=model.folder)
        with daemon.client() as client:
            wanted = model.routed(rows, *model.routes(rows)) + model.shared_part(rows)
            assert error_per_token(values_of(client.forward(request_for(rows)).output), wanted).max() < F32_BOUND


def test_experts_may_read_wider_rows_than_the_model_has(tmp_path, rows, start_daemon):
    model = Model(tmp_path / "model", latent=2 * H)
    daemon = start_daemon("--compute-dtype", "f32", "--shards", 2, model=model.folder)
    with daemon.client() as client:
        wanted = model.routed(rows, *model.routes(rows)) + model.shared_part(rows)
        assert error_per_token(values_of(client.forward(request_for(rows)).output), wanted).max() < F32_BOUND
    assert_verified(daemon, model)


def assert_verified(daemon, model):
    done = run_program("expertd-verify", "--address", f"unix:{daemon.socket}", "--model", model.folder, "--tokens", "1,7,40")
    assert done.returncode == 0 and "equal bits" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("dtype", ("f32", pytest.param("bf16", marks=pytest.mark.threads)))
def test_bits_are_those_of_a_token_alone_in_every_placement(dtype, model, rows, start_daemon):
    answers = []
    for options in (("--shards", 1, "--threads", 1), ("--shards", 3, "--threads", 4, "--max-piece-tokens", 7),
                    ("--shards", 4, "--threads", 2, "--kernels", "scalar")):
        daemon = start_daemon("--compute-dtype", dtype, *options, model=model.folder)
        with daemon.client() as client:
            all_rows = rows_of(client.forward(request_for(rows)).output)
            for token in range(0, TOKENS, 7):
                assert rows_of(client.forward(request_for(rows[token:token + 1])).output) == [all_rows[token]]
            routes = as_routes(np.zeros((TOKENS, 1)), np.ones((TOKENS, 1)))
            mixed = [request_for(rows, id=1), request_for(rows[::-1], routes=routes, id=2), request_for(rows[5:9], id=3)]
            streamed = {answer.id: answer for answer in client.stream(mixed)}
            assert rows_of(streamed[1].output) == all_rows and rows_of(streamed[3].output) == all_rows[5:9]
            if "--max-piece-tokens" in options:
                with admin_of(daemon) as admin:
                    random = np.random.default_rng(1)
                    for _ in range(3):
                        (shown,) = admin.show(LAYER)
                        admin.apply(moved(random, shown))
                        assert rows_of(client.forward(request_for(rows)).output) == all_rows
        assert_verified(daemon, model)
        daemon.stop()
        answers.append(all_rows)
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("name", ("fp8_blocks", "modelopt_nvfp4", "compressed_int4"))
@pytest.mark.share(3)
def test_experts_may_be_quantised(name, rows, tmp_path, start_daemon):
    variant, ids = VARIANTS[name], set()
    model = Model(tmp_path / "model", "BF16", variant=variant)
    wanted = model.routed(rows, *model.routes(rows)) + model.shared_part(rows)
    for options in (("--compute-dtype", "f32", "--shards", 2), ("--compute-dtype", "f32", "--widen"), ("--shards", 3)):
        daemon = start_daemon(*options, model=model.folder)
        with daemon.client() as client:
            (layer,) = client.describe().models[0].layers
            assert layer.quantisation == variant.name
            ids.add(layer.weights_id)
            bound = 1e-5 if "f32" in options else BF16_BOUND
            assert error_per_token(values_of(client.forward(request_for(rows)).output), wanted).max() < bound, options
        assert_verified(daemon, model)
        daemon.stop()
    assert len(ids) == 1


def test_a_move_copies_experts_of_latent_rows(model, tmp_path, start_daemon):
    """A move copies rows of L, and the projections are part of weights_id."""
    daemon = start_daemon("--compute-dtype", "f32", "--shards", 2, model=model.folder)
    wide = start_daemon("--compute-dtype", "f32", "--shards", 2, model=Model(tmp_path / "wide", latent=None).folder)
    copied = []
    for one in (daemon, wide):
        with admin_of(one) as admin:
            (shown,) = admin.show(LAYER)
            copied.append(admin.apply(moved(np.random.default_rng(1), shown))[-1].all_bytes)
    assert 0 < copied[0] < copied[1]
    ids = set()
    for drop in ("fc1_latent_proj", "fc2_latent_proj", None):
        other = Model(tmp_path / str(drop))
        if drop:
            name = f"{MIXER}.{drop}.weight"
            data = (other.folder / "model.safetensors").read_bytes()
            stored = other.stored[f"{drop}.weight"][1].astype("<f4").tobytes()
            assert data.count(stored) == 1, name
            (other.folder / "model.safetensors").write_bytes(data.replace(stored, stored[4:8] + stored[4:]))
        one = start_daemon(model=other.folder)
        with one.client() as client:
            ids.add(client.describe().models[0].layers[0].weights_id)
        one.stop()
    assert len(ids) == 3


@pytest.mark.parametrize("name, made, words", [
    ("no down projection", {"drop": ("fc1_latent_proj.weight",)}, "mixer.fc1_latent_proj.weight is missing"),
    ("no up projection", {"drop": ("fc2_latent_proj.weight",)}, "mixer.fc2_latent_proj.weight is missing"),
    ("a short down projection", {"cut": ("fc1_latent_proj.weight",)}, "mixer.fc1_latent_proj.weight"),
    ("a short up projection", {"cut": ("fc2_latent_proj.weight",)}, "mixer.fc2_latent_proj.weight"),
    ("another latent size", {"moe_latent_size": L - 1}, "experts.0.up_proj.weight"),
    ("latent size missing", {"moe_latent_size": None}, "experts.0.up_proj.weight"),
    ("biased", {"mlp_bias": True}, "mlp_bias is true"),
])
def test_inconsistent_checkpoints_are_refused_by_name(name, made, words, tmp_path):
    model = Model(tmp_path / "model", **made)
    done = run_program("expertd", "--model", model.folder, "--listen", f"unix:{tmp_path}/s", "--http", "off")
    assert done.returncode == 65 and words in done.stderr, done.stderr


def test_devices_refuse_latent_experts_by_name(model, tmp_path):
    done = run_program("expertd", "--model", model.folder, "--device", "sim:2", "--listen", f"unix:{tmp_path}/s", "--http", "off")
    assert done.returncode == 69 and "latent experts" in done.stderr, done.stderr
