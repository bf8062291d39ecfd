"""--quantize: plain experts become codes while they are loaded. numpy quantises by the rules of docs/models.md; the daemon's answers must be
those of numpy's weights. expertctl compare measures the error."""

import json
import subprocess

import numpy as np
import pytest

from harness.checkpoints import write_safetensors
from harness.daemon import run_program
from harness.paths import BIN
from harness.quantised import E2M1, spread
from harness.tensors import F8_VALUES, bf16_bits, bf16_values, error_per_token, rows_of, tensor, values_of

HIDDEN, WIDTH, EXPERTS, TOP_K, TOKENS = 208, 144, 6, 2, 33  # short last blocks and groups
DTYPES = {"F32": 4, "F16": 2, "BF16": 2}


def stored(w, dtype):
    """(bytes, the values they mean)."""
    if dtype == "BF16":
        bits = bf16_bits(w.astype(np.float32))
        return bits.tobytes(), bf16_values(bits).astype(np.float32)
    values = w.astype({"F32": np.float32, "F16": np.float16}[dtype])
    return values.tobytes(), values.astype(np.float32)


def extremes(w, block_n, block_k):
    """The weight of greatest magnitude in each block."""
    found = np.zeros((-(-w.shape[0] // block_n), -(-w.shape[1] // block_k)), np.float32)
    for r in range(found.shape[0]):
        for c in range(found.shape[1]):
            block = w[r * block_n:(r + 1) * block_n, c * block_k:(c + 1) * block_k].ravel()
            found[r, c] = block[np.abs(block).argmax()]
    return found


def even(values, table):
    """The entry nearest to each value; ties go to the even code. `table` ascends by code for positive values."""
    table = table[:len(table) // 2].astype(np.float64)
    table = table[np.isfinite(table)]
    m = np.minimum(np.abs(values.astype(np.float64)), table[-1])
    low = np.clip(np.searchsorted(table, m, side="right") - 1, 0, len(table) - 2)
    middle = (table[low] + table[low + 1]) / 2
    up = (m > middle) | ((m == middle) & (low % 2 == 1))
    return np.sign(values) * table[low + up]


def quantised(w, kind):
    """W as the daemon must mean it, in float64."""
    if kind == "fp8":
        scale = spread((np.abs(extremes(w, 128, 128)) / np.float32(448)), 128, 128, w.shape)
        return even(w / np.where(scale == 0, 1, scale), F8_VALUES["F8_E4M3"]) * scale.astype(np.float64)
    if kind == "int8":
        scale = spread(np.abs(extremes(w, 1, 128)) / np.float32(127), 1, 128, w.shape)
        return np.clip(np.rint(w / np.where(scale == 0, 1, scale)), -127, 127) * scale.astype(np.float64)
    if kind == "int4":
        scale = spread(bf16_values(bf16_bits(extremes(w, 1, 32) / np.float32(-8))), 1, 32, w.shape)
        return np.clip(np.rint(w / np.where(scale == 0, 1, scale)), -8, 7) * scale.astype(np.float64)
    extreme = np.abs(extremes(w, 1, 32))
    exponent = np.where(extreme > 0, np.floor(np.log2(np.where(extreme > 0, extreme, 1))) - 2, -127)
    scale = spread(2.0 ** exponent, 1, 32, w.shape)
    return even(w / scale, E2M1) * scale


class Plain:
    """A Qwen3-MoE checkpoint of plain experts."""

    def __init__(self, folder, dtype, spoil=None):
        random = np.random.default_rng(5)
        folder.mkdir(parents=True)
        self.folder, self.weights, tensors = folder, {}, {}
        (folder / "config.json").write_text(json.dumps({
            "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_act": "silu", "hidden_size": HIDDEN,
            "moe_intermediate_size": WIDTH, "num_hidden_layers": 1, "num_experts": EXPERTS, "num_experts_per_tok": TOP_K,
            "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}))
        self.router = random.standard_normal((EXPERTS, HIDDEN)).astype(np.float32)
        tensors["model.layers.0.mlp.gate.weight"] = ("F32", self.router.shape, self.router.tobytes())
        for e in range(EXPERTS):
            for part, shape in (("gate_proj", (WIDTH, HIDDEN)), ("up_proj", (WIDTH, HIDDEN)), ("down_proj", (HIDDEN, WIDTH))):
                w = random.standard_normal(shape) / np.sqrt(shape[1])
                w[0, :32] = 0  # a group of zeros
                w[1, :32] = np.linspace(-8, 7, 32) / 16  # exact codes, and ties
                if spoil == (e, part):
                    w[3, 5] = np.inf
                data, values = stored(w, dtype)
                self.weights[e, part] = values
                tensors[f"model.layers.0.mlp.experts.{e}.{part}.weight"] = (dtype, shape, data)
        write_safetensors(folder / "model.safetensors", tensors)

    def outputs(self, hidden, kind):
        meant = {key: quantised(w, kind) for key, w in self.weights.items()}
        out = np.zeros(hidden.shape)
        for t, x in enumerate(hidden.astype(np.float64)):
            scores = np.exp(self.router.astype(np.float64) @ x)
            chosen = np.argsort(-scores)[:TOP_K]
            for e in chosen:
                gate, up = meant[e, "gate_proj"] @ x, meant[e, "up_proj"] @ x
                out[t] += scores[e] / scores[chosen].sum() * (meant[e, "down_proj"] @ (gate / (1 + np.exp(-gate)) * up))
        return out


def inputs():
    random = np.random.default_rng(9)
    return bf16_values(bf16_bits(random.standard_normal((TOKENS, HIDDEN)).astype(np.float32)))


@pytest.mark.share(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind, name", [("fp8", "fp8_block128"), ("int8", "int8_group128"), ("int4", "int4_group32"), ("mxfp4", "mxfp4")])
def test_answers_are_those_of_the_quantised_weights(kind, name, dtype, tmp_path, start_daemon):
    checkpoint, hidden, bits, ids = Plain(tmp_path / "plain", dtype), inputs(), set(), set()
    wanted = checkpoint.outputs(hidden, kind)
    for shards in (1, 3):
        daemon = start_daemon("--quantize", kind, "--compute-dtype", "f32", "--shards", shards, model=checkpoint.folder)
        with daemon.client() as client:
            (layer,) = client.describe().models[0].layers
            answer = client.forward(layer=0, hidden=tensor(hidden)).output
        daemon.stop()
        assert layer.quantisation == name and layer.numerics_id == f"1/f32/cpu+quantize_{kind}"
        assert error_per_token(values_of(answer), wanted).max() <= 1e-5
        bits.add(tuple(rows_of(answer)))
        ids.add(layer.weights_id)
    plain = start_daemon(model=checkpoint.folder)
    with plain.client() as client:
        ids.add(client.describe().models[0].layers[0].weights_id)
    assert len(bits) == 1 and len(ids) == 1, "bits depend on shards, or weights_id on --quantize"


def test_a_weight_that_is_not_finite_is_refused(tmp_path):
    checkpoint = Plain(tmp_path / "spoiled", "BF16", spoil=(2, "up_proj"))
    done = run_program("expertd", "--model", checkpoint.folder, "--quantize", "int8")
    assert done.returncode == 65
    for part in ("layer 0, expert 2", "tensor model.layers.0.mlp.experts.2.up_proj.weight", "row 3, column 5", "infinite", "--verify"):
        assert part in done.stderr, done.stderr


def test_compare_reports_the_error_of_each_layer(tmp_path, start_daemon):
    plain = start_daemon(model="synthetic:tiny,layers=2")
    coarse = start_daemon("--quantize", "int4", model="synthetic:tiny,layers=2")
    compare = lambda *more: subprocess.run([str(BIN / "expertctl"), "compare", "--address", f"unix:{plain.socket}", *more],
                                           capture_output=True, text=True, timeout=60)
    done = compare("--with", f"unix:{coarse.socket}", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [layer["layer"] for layer in report["layers"]] == [0, 1] and report["rows"] == 64
    for layer in report["layers"]:
        assert layer["weights"] == ["bf16", "int4_group32"] or layer["weights"] == ["BF16", "int4_group32"]
        assert not layer["equal_bits"] and layer["finite"]
        assert 0.02 < layer["relative_rms"] < 0.3 and layer["least_cosine"] > 0.95
    itself = json.loads(compare("--with", f"unix:{plain.socket}", "--json", "--layer", "1").stdout)
    assert [(layer["layer"], layer["equal_bits"], layer["relative_rms"]) for layer in itself["layers"]] == [(1, True, 0)]
    hidden = tmp_path / "rows.npy"
    np.save(hidden, np.random.default_rng(1).standard_normal((5, 256)).astype(np.float32))
    table = compare("--with", f"unix:{coarse.socket}", "--hidden", str(hidden), "--split", "2")
    assert table.returncode == 0 and "5 rows of --hidden" in table.stdout and "int4_group32" in table.stdout
    missing = compare()
    assert missing.returncode == 64 and "--with" in missing.stderr


def test_quantize_and_widen_are_refused_together():
    done = run_program("expertd", "--model", "synthetic:tiny", "--quantize", "fp8", "--widen", "--check-config")
    assert done.returncode in (64, 78) and "quantize" in done.stderr and "widen" in done.stderr
