"""Steps of the MoE block that few models have, compared with numpy: Laguna's soft cap on router logits, A.X K1's optional selection bias
and the norm at the end of its block. The checkpoints have the tensor names of the vendors."""

import json

import numpy as np
import pytest

from harness.checkpoints import write_safetensors
from harness.daemon import run_program
from harness.protos import pb
from harness.tensors import bf16_bits, error_per_token, rows_of, tensor, values_of

H, I, SHARED, E, K, TOKENS, LAYER, BOUND = 64, 48, 48, 8, 3, 40, 1, 2e-6


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def network(x, gate, up, down):
    g = x @ gate.T
    return (g * sigmoid(g) * (x @ up.T)) @ down.T


class Model:
    """A dense layer and an MoE layer. names: the vendor's tensor names. norms: the names under which the output norm's weight is stored."""

    def __init__(self, folder, names, config, bias=True, norms=()):
        random = np.random.default_rng(23)
        parts = ("gate_proj", "up_proj", "down_proj")
        shapes = {f"{module}.{part}.weight": (H, width) if part == "down_proj" else (width, H)
                  for module, width in [(names["shared"], SHARED), *((f"mlp.experts.{e}", I) for e in range(E))] for part in parts}
        self.weights = {name: random.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(shape[-1]))
                        for name, shape in shapes.items()}
        self.weights["mlp.gate.weight"] = random.standard_normal((E, H)).astype(np.float32) / 2
        self.weights[names["bias"]] = random.uniform(-0.2, 0.2, E).astype(np.float32) * bias
        self.networks = [[self.weights[f"mlp.experts.{e}.{part}.weight"].astype(np.float64) for part in parts] for e in range(E)]
        self.shared = [self.weights[f"{names['shared']}.{part}.weight"].astype(np.float64) for part in parts]
        self.bias, self.config, self.folder = self.weights[names["bias"]].astype(np.float64), config, folder
        left_out = () if bias else names["bias"]
        stored = {f"model.layers.{LAYER}.{name}": value for name, value in self.weights.items() if name not in left_out}
        self.norm = random.uniform(0.5, 1.5, H).astype(np.float32)
        stored |= {f"model.layers.{LAYER}.{name}": self.norm for name in norms}
        stored["model.layers.0.mlp.up_proj.weight"] = np.zeros((I, H), np.float32)
        folder.mkdir()
        write_safetensors(folder / "model.safetensors", {name: ("F32", v.shape, v.tobytes()) for name, v in stored.items()})
        (folder / "config.json").write_text(json.dumps({
            "hidden_size": H, "num_hidden_layers": 2, "num_experts_per_tok": K, "moe_intermediate_size": I, "hidden_act": "silu",
            "norm_topk_prob": True, **config}))

    def logits(self, rows):
        return rows.astype(np.float64) @ self.weights["mlp.gate.weight"].T

    def block(self, rows, shared=True):
        logits, cap = self.logits(rows), self.config.get("moe_router_logit_softcapping")
        scores = sigmoid(cap * np.tanh(logits / cap) if cap else logits)
        chosen = scores + self.bias
        groups = self.config.get("n_group", 1)
        if groups > 1:
            of_group = np.sort(chosen.reshape(len(rows), groups, -1), -1)[..., -2:].sum(-1)
            selected = of_group >= np.sort(of_group, -1)[:, -self.config["topk_group"], None]
            chosen = np.where(np.repeat(selected, E // groups, 1), chosen, -np.inf)
        out = np.zeros(rows.shape)
        for token, x in enumerate(rows.astype(np.float64)):
            ids = np.argsort(-chosen[token])[:K]
            for weight, expert in zip(scores[token, ids] / scores[token, ids].sum(), ids):
                out[token] += weight * network(x, *self.networks[expert])
        out *= self.config.get("moe_routed_scaling_factor", 1) * self.config.get("routed_scaling_factor", 1)
        return out + network(rows.astype(np.float64), *self.shared) if shared else out

    def normed(self, sums):
        return sums / np.sqrt((sums ** 2).mean(-1, keepdims=True) + self.config.get("rms_norm_eps", 1e-6)) * self.norm


@pytest.fixture
def rows(random):
    return random.standard_normal((TOKENS, H)).astype(np.float32)


def request_for(rows, **more):
    return pb.ForwardRequest(layer=LAYER, hidden=tensor(rows), output_dtype=pb.F32, **more)


def laguna(folder, cap):
    return Model(folder, {"shared": "mlp.shared_expert", "bias": "mlp.experts.e_score_correction_bias"},
                 {"model_type": "laguna", "architectures": ["LagunaForCausalLM"], "num_experts": E, "moe_routed_scaling_factor": 2.5,
                  "shared_expert_intermediate_size": SHARED, "mlp_layer_types": ["dense", "sparse"],
                  "moe_router_logit_softcapping": cap})


def test_lagunas_logits_are_capped_the_callers_too(rows, tmp_path, start_daemon):
    wanted, ids = {}, {}
    for cap in (0, 0.5):
        model = laguna(tmp_path / str(cap), cap)
        daemon = start_daemon("--compute-dtype", "f32", model=model.folder)
        with daemon.client() as client:
            ids[cap] = client.describe().models[0].layers[0].weights_id
            wanted[cap] = model.block(rows)
            assert error_per_token(values_of(client.forward(request_for(rows)).output), wanted[cap]).max() < BOUND
            by_logits = client.forward(request_for(rows, router_logits=tensor(model.logits(rows).astype(np.float32))))
            assert error_per_token(values_of(by_logits.output), wanted[cap]).max() < BOUND
        done = run_program("expertd-verify", "--address", f"unix:{daemon.socket}", "--model", model.folder, "--tokens", "1,7,40")
        assert done.returncode == 0 and "equal bits" in done.stdout, done.stdout + done.stderr
    assert error_per_token(wanted[0.5], wanted[0]).max() > 0.01 and ids[0] != ids[0.5]


def test_devices_cap_logits_to_the_bits_of_the_cpu_with_their_arithmetic(rows, tmp_path, start_daemon):
    model, answers = laguna(tmp_path / "model", 0.5), []
    for options in (("--device", "sim:2"), ("--kernels", "scalar_sm90")):
        daemon = start_daemon("--compute-dtype", "bf16", *options, model=model.folder)
        with daemon.client() as client:
            answers.append(rows_of(client.forward(request_for(rows[:9])).output))
        daemon.stop()
    assert answers[0] == answers[1]


BESIDE, WITHIN = "post_mlp_layernorm.weight", "mlp.post_mlp_layernorm.weight"


def axk1(folder, model_type="axk1", bias=True, norms=(BESIDE,), **config):
    return Model(folder, {"shared": "mlp.shared_experts", "bias": "mlp.gate.e_score_correction_bias"},
                 {"model_type": model_type, "n_routed_experts": E, "routed_scaling_factor": 2.5, "n_shared_experts": 1, "n_group": 4,
                  "topk_group": 2, "first_k_dense_replace": 1, **config}, bias, norms)


def own_routes(rows, model):
    """Routes that send every token to the same two experts, and the expected sum."""
    ids, weights = np.tile(np.int32([5, 2]), (len(rows), 1)), np.tile(np.float32([0.5, 0.75]), (len(rows), 1))
    x = rows.astype(np.float64)
    return pb.Routes(ids=tensor(ids, "I32"), weights=tensor(weights)), sum(
        weight * network(x, *model.networks[expert]) for expert, weight in ((5, 0.5), (2, 0.75)))


@pytest.mark.parametrize("bias,norm,config", ((True, BESIDE, {}), (False, BESIDE, {"rms_norm_eps": 0.25}), (True, WITHIN, {})))
def test_axk1s_block_ends_with_a_norm_and_may_have_no_bias(bias, norm, config, rows, tmp_path, start_daemon):
    model = axk1(tmp_path / "model", bias=bias, norms=(norm,), **config)
    daemon = start_daemon("--compute-dtype", "f32", model=model.folder)
    with daemon.client() as client:
        def error(wanted, **more):
            return error_per_token(values_of(client.forward(request_for(rows, **more)).output), wanted).max()
        assert error(model.normed(model.block(rows))) < BOUND
        by_logits = {"router_logits": tensor(model.logits(rows).astype(np.float32))}
        assert error(model.normed(model.block(rows)), **by_logits) < BOUND
        routed = model.block(rows, shared=False)
        assert error(routed, shared_experts=pb.SHARED_EXPERTS_EXCLUDE) < BOUND
        # A caller that computes the shared expert itself completes the block like this.
        completed = model.normed(routed + network(rows.astype(np.float64), *model.shared))
        assert error(completed) < BOUND
    done = run_program("expertd-verify", "--address", f"unix:{daemon.socket}", "--model", model.folder, "--tokens", "1,7,40")
    assert done.returncode == 0 and "equal bits" in done.stdout, done.stdout + done.stderr


def test_axk1s_norm_follows_the_shared_experts_with_the_callers_routes(rows, tmp_path, start_daemon):
    model = axk1(tmp_path / "model")
    routes, routed = own_routes(rows, model)
    completed = model.normed(routed + network(rows.astype(np.float64), *model.shared))
    with start_daemon("--compute-dtype", "f32", model=model.folder).client() as client:
        for shared, wanted in ((pb.SHARED_EXPERTS_UNSPECIFIED, routed), (pb.SHARED_EXPERTS_EXCLUDE, routed),
                               (pb.SHARED_EXPERTS_INCLUDE, completed)):
            got = values_of(client.forward(request_for(rows, routes=routes, shared_experts=shared)).output)
            assert error_per_token(got, wanted).max() < BOUND


@pytest.mark.parametrize("dtype", ("bf16", "f32"))
def test_axk1s_norm_has_one_rounding_and_the_same_bits_in_every_configuration(dtype, random, tmp_path, start_daemon):
    model, many = axk1(tmp_path / "model"), random.standard_normal((600, H)).astype(np.float32)
    answers = {}
    for options in (("--threads", 1), ("--threads", 2, "--shards", 3), ("--kernels", "scalar"),
                    ("--max-batch-tokens", 64, "--max-piece-tokens", 7)):
        daemon = start_daemon("--compute-dtype", dtype, *options, model=model.folder)
        with daemon.client() as client:
            answer = client.forward(request_for(many)).output
            answers[options] = rows_of(answer)
            for few in (slice(0, 1), slice(7, 20)):
                assert rows_of(client.forward(request_for(many[few])).output) == answers[options][few]
            narrow = client.forward(pb.ForwardRequest(layer=LAYER, hidden=tensor(many), output_dtype=pb.BF16)).output
            assert narrow.data == bf16_bits(values_of(answer)).tobytes()
        daemon.stop()
    assert all(rows == answers["--threads", 1] for rows in answers.values())


def test_axk1s_norm_is_part_of_its_weights_id(tmp_path, start_daemon):
    ids = []
    for name, config in (("one", {}), ("the same", {"rms_norm_eps": 1e-6}), ("epsilon", {"rms_norm_eps": 1e-5}), ("weight", {})):
        model = axk1(tmp_path / name, **config)
        if name == "weight":
            path = model.folder / "model.safetensors"
            path.write_bytes(path.read_bytes().replace(model.norm.tobytes(), (model.norm * 2).tobytes()))
        daemon = start_daemon(model=model.folder)
        with daemon.client() as client:
            ids.append(client.describe().models[0].layers[0].weights_id)
        daemon.stop()
    assert ids[0] == ids[1] and len(set(ids)) == 3


@pytest.mark.parametrize("what,model,message", (
    ("no norm", {"norms": ()}, "model.layers.1.post_mlp_layernorm.weight is missing"),
    ("two norms", {"norms": (BESIDE, WITHIN)}, "both model.layers.1.post_mlp_layernorm.weight and model.layers.1.mlp.post_mlp"),
    ("a bias too", {"norms": (BESIDE, "post_mlp_layernorm.bias")}, "post_mlp_layernorm.bias is in the MoE block"),
    ("another model's", {"model_type": "deepseek_v3", "norms": (WITHIN,)}, "mlp.post_mlp_layernorm.weight is in the MoE block"),
    ("no shared expert", {"n_shared_experts": 0}, "n_shared_experts is 0"),
    ("epsilon", {"rms_norm_eps": 0}, "rms_norm_eps is 0"),
))
def test_an_unsupported_norm_is_refused_by_name(what, model, message, tmp_path):
    folder = axk1(tmp_path / "model", **model).folder
    done = run_program("expertd", "--model", folder, "--listen", f"unix:{tmp_path}/s", "--http", "off")
    assert done.returncode == 65 and message in done.stderr, done.stderr


def test_devices_refuse_a_norm_by_name(tmp_path):
    folder = axk1(tmp_path / "model").folder
    done = run_program("expertd", "--model", folder, "--listen", f"unix:{tmp_path}/s", "--http", "off", "--device", "sim:1")
    assert done.returncode == 69 and "blocks that end with a norm" in done.stderr, done.stderr


def test_other_models_without_the_bias_are_refused(tmp_path):
    model = axk1(tmp_path / "model", "deepseek_v3", bias=False)
    done = run_program("expertd", "--model", model.folder, "--listen", f"unix:{tmp_path}/s", "--http", "off")
    assert done.returncode == 65 and "mlp.gate.e_score_correction_bias is missing" in done.stderr, done.stderr
