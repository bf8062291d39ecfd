"""Blocks with a step that few have, under the names of their authors' files, against numpy: Laguna's capped logits, A.X K1's
selection bias, which may miss, and the norm behind its block, which is the caller's."""

import json

import numpy as np
import pytest

from harness.checkpoints import write_safetensors
from harness.daemon import run_program
from harness.protos import pb
from harness.tensors import error_per_token, rows_of, tensor, values_of

H, I, SHARED, E, K, TOKENS, LAYER, BOUND = 64, 48, 48, 8, 3, 40, 1, 2e-6


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def network(x, gate, up, down):
    g = x @ gate.T
    return (g * sigmoid(g) * (x @ up.T)) @ down.T


class Model:
    """A dense layer and one with experts, of the names that `names` gives; `more` are tensors of the layer that are no part of it."""

    def __init__(self, folder, names, config, bias=True, more=()):
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
        stored |= {f"model.layers.{LAYER}.{name}": np.full(H, 3, np.float32) for name in more}
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
            kept = of_group >= np.sort(of_group, -1)[:, -self.config["topk_group"], None]
            chosen = np.where(np.repeat(kept, E // groups, 1), chosen, -np.inf)
        out = np.zeros(rows.shape)
        for token, x in enumerate(rows.astype(np.float64)):
            ids = np.argsort(-chosen[token])[:K]
            for weight, expert in zip(scores[token, ids] / scores[token, ids].sum(), ids):
                out[token] += weight * network(x, *self.networks[expert])
        out *= self.config.get("moe_routed_scaling_factor", 1) * self.config.get("routed_scaling_factor", 1)
        return out + network(rows.astype(np.float64), *self.shared) if shared else out


@pytest.fixture
def rows(random):
    return random.standard_normal((TOKENS, H)).astype(np.float32)


def asked(rows, **more):
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
            assert error_per_token(values_of(client.forward(asked(rows)).output), wanted[cap]).max() < BOUND
            by_logits = client.forward(asked(rows, router_logits=tensor(model.logits(rows).astype(np.float32))))
            assert error_per_token(values_of(by_logits.output), wanted[cap]).max() < BOUND
        done = run_program("expertd-verify", "--address", f"unix:{daemon.socket}", "--model", model.folder, "--tokens", "1,7,40")
        assert done.returncode == 0 and "equal bits" in done.stdout, done.stdout + done.stderr
    assert error_per_token(wanted[0.5], wanted[0]).max() > 0.01 and ids[0] != ids[0.5]


def test_devices_cap_logits_to_the_bits_of_the_cpu_with_their_arithmetic(rows, tmp_path, start_daemon):
    model, answers = laguna(tmp_path / "model", 0.5), []
    for options in (("--device", "sim:2"), ("--kernels", "scalar_sim90")):
        daemon = start_daemon("--compute-dtype", "bf16", *options, model=model.folder)
        with daemon.client() as client:
            answers.append(rows_of(client.forward(asked(rows[:9])).output))
        daemon.stop()
    assert answers[0] == answers[1]


def axk1(folder, model_type="axk1", bias=True):
    return Model(folder, {"shared": "mlp.shared_experts", "bias": "mlp.gate.e_score_correction_bias"},
                 {"model_type": model_type, "n_routed_experts": E, "routed_scaling_factor": 2.5, "n_shared_experts": 1, "n_group": 4,
                  "topk_group": 2, "first_k_dense_replace": 1}, bias, more=("post_mlp_layernorm.weight",))


@pytest.mark.parametrize("bias", (True, False))
def test_axk1s_block_ends_before_its_norm_and_may_have_no_bias(bias, rows, tmp_path, start_daemon):
    model = axk1(tmp_path / "model", bias=bias)
    daemon = start_daemon("--compute-dtype", "f32", model=model.folder)
    with daemon.client() as client:
        assert error_per_token(values_of(client.forward(asked(rows)).output), model.block(rows)).max() < BOUND
        routed = client.forward(asked(rows, shared_experts=pb.SHARED_EXPERTS_EXCLUDE)).output
        assert error_per_token(values_of(routed), model.block(rows, shared=False)).max() < BOUND
    done = run_program("expertd-verify", "--address", f"unix:{daemon.socket}", "--model", model.folder, "--tokens", "1,7,40")
    assert done.returncode == 0 and "equal bits" in done.stdout, done.stdout + done.stderr


def test_other_models_have_the_bias_or_are_refused(tmp_path):
    model = axk1(tmp_path / "model", "deepseek_v3", bias=False)
    done = run_program("expertd", "--model", model.folder, "--listen", f"unix:{tmp_path}/s", "--http", "off")
    assert done.returncode == 65 and "mlp.gate.e_score_correction_bias is missing" in done.stderr, done.stderr
