"""llama.cpp's files: every type of blocks and every architecture. Answers agree with weights that the package `gguf` dequantises."""

import dataclasses
import json

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import quants

from harness.daemon import run_program
from harness.gguf_architectures import ARCHITECTURES, ONE_SHARED, SHARED, V3, V3_KEYS
from harness.gguf_models import BLOCKS, EXPERTS, HIDDEN, PLAIN, QWEN, TOP_K, WIDTH, Model, Spec, silu
from harness.gguf_vendors import write_vendor
from harness.paths import DEVICE, SANITIZER
from harness.tensors import error_per_token, tensor, values_of

TOKENS = 40
# Bounds for fp32 sums in another order, for exact weights with activations rounded to bf16, and for both rounded.
BOUNDS = {"f32": 1e-5, "bf16": 1.5e-2, "widened": 2e-2}


def answer(daemon, x, **options):
    with daemon.client() as client:
        (layer,) = client.describe().models[0].layers
        output = client.forward(layer=layer.layer, hidden=tensor(x), **options).output
    daemon.stop()
    return layer, output


@pytest.mark.parametrize("kind", (*BLOCKS, *PLAIN), ids=lambda kind: kind.name)
def test_every_type(kind, tmp_path, start_daemon):
    model = Model(tmp_path, QWEN, kind)
    x = model.inputs(TOKENS)
    wanted, ids = model.outputs(x), set()
    setups = {"f32": ("--compute-dtype", "f32", "--shards", 2), "bf16": ("--compute-dtype", "bf16", "--shards", 3),
              "f32 widened": ("--compute-dtype", "f32", "--widen"), "bf16 widened": ("--compute-dtype", "bf16", "--widen")}
    for setup, options in setups.items():
        if SANITIZER and "f32" in setup:
            continue
        layer, output = answer(start_daemon(*options, model=model.path), x)
        assert layer.quantisation == ("" if kind in PLAIN else kind.name.lower())
        bound = BOUNDS["widened" if setup == "bf16 widened" or kind == Type.F32 else setup.split()[0]]
        assert error_per_token(values_of(output), wanted).max() <= bound, setup
        ids.add(layer.weights_id)
    assert len(ids) == 1, "weights_id must not depend on the compute dtype or --widen"


# ---- devices, which have no kernels for minima

MINIMA = (Type.Q4_1, Type.Q5_1, Type.Q2_K, Type.Q4_K, Type.Q5_K)


def on_device(start_daemon, model, *options, device=DEVICE, dtype="bf16"):
    """(the layer's description, the output, the lines event=widened, the bytes of device memory)"""
    daemon = start_daemon("--device", device, "--compute-dtype", dtype, *options, model=model.path)
    layer, output = answer(daemon, model.inputs(TOKENS))
    return layer, output, daemon.events("widened"), int(daemon.events("engine")[0]["device_bytes"])


def widened(model, names, kind, reason, dtype="BF16"):
    """The line of a type that these tensors have."""
    tensors = {name: model.tensors[f"blk.{model.spec.layer}.{name}"][0] for name in names}
    shared = sum(name.endswith("_shexp.weight") for name in names)
    return {"format": kind.name.lower(), "to": dtype, "layers": str(model.spec.layer),
            "matrices": str((len(names) - shared) * EXPERTS + shared), "stored_bytes": str(sum(raw.nbytes for raw in tensors.values())),
            "bytes": str(sum(model.values[name].size for name in names) * (2 if dtype == "BF16" else 4)), "reason": reason}


NO_KERNEL, TWO_FORMATS = "no kernel for this format", "gate and up of an expert in one format"
GATE, UP, DOWN = (f"ffn_{part}_exps.weight" for part in ("gate", "up", "down"))


def assert_lines(lines, wanted):
    for line, want in zip(lines, wanted, strict=True):
        assert line["level"] == "warning" and want.pop("reason") in line["message"]
        assert want.items() <= line.items()


@pytest.mark.parametrize("dtype", ("bf16", "f32"))
@pytest.mark.parametrize("kind", (*MINIMA, Type.Q6_K, Type.IQ4_XS), ids=lambda kind: kind.name)
def test_devices_widen_what_they_have_no_kernels_for(kind, dtype, tmp_path, start_daemon):
    """All experts in one type: the bits and the numerics id are those of --widen."""
    if SANITIZER and dtype == "f32":
        return
    model = Model(tmp_path, QWEN, kind)
    layer, output, lines, reserved = on_device(start_daemon, model, dtype=dtype)
    assert error_per_token(values_of(output), model.outputs(model.inputs(TOKENS))).max() <= BOUNDS["widened" if dtype == "bf16" else "f32"]
    assert layer.quantisation == kind.name.lower()
    wide_layer, wide, none, wide_reserved = on_device(start_daemon, model, "--widen", dtype=dtype)
    assert none == [] and layer.weights_id == wide_layer.weights_id
    if kind in MINIMA:
        assert_lines(lines, [widened(model, (GATE, UP, DOWN), kind, NO_KERNEL, dtype.upper())])
        assert output.data == wide.data and layer.numerics_id == wide_layer.numerics_id and layer.numerics_id.endswith("+widen")
        assert reserved == wide_reserved
    else:
        assert lines == [] and "+" not in layer.numerics_id and reserved < wide_reserved


MIXED = {  # types of gate, up, down: (tensors that are widened, their type, the reason)
    (Type.Q4_K, Type.Q4_K, Type.Q6_K): [((GATE, UP), Type.Q4_K, NO_KERNEL)],
    (Type.Q8_0, Type.Q8_0, Type.Q5_1): [((DOWN,), Type.Q5_1, NO_KERNEL)],
    (Type.Q2_K, Type.Q8_0, Type.Q3_K): [((GATE,), Type.Q2_K, NO_KERNEL), ((UP,), Type.Q8_0, TWO_FORMATS)],
    (Type.Q4_0, Type.BF16, Type.Q6_K): [((GATE,), Type.Q4_0, TWO_FORMATS)],
}

# Bytes of a weight on devices: 4 or 8 bits, and a scale of F16 for 32 or of F32 for 16 k.
ON_DEVICE = {Type.Q8_0: 1 + 2 / 32, Type.Q6_K: 1 + 4 / 16, Type.Q3_K: 1 / 2 + 4 / 16, Type.BF16: 2}


@pytest.mark.share(2)
@pytest.mark.parametrize("kinds", MIXED, ids=lambda kinds: "_".join(kind.name for kind in kinds))
def test_devices_widen_only_matrices_without_a_kernel(kinds, tmp_path, start_daemon):
    model = Model(tmp_path, QWEN, kinds)
    layer, output, lines, reserved = on_device(start_daemon, model)
    assert_lines(lines, [widened(model, *which) for which in MIXED[kinds]])
    assert error_per_token(values_of(output), model.outputs(model.inputs(TOKENS))).max() <= BOUNDS["widened"]
    plain, wide, _, all_reserved = on_device(start_daemon, model, "--widen")
    assert layer.numerics_id == plain.numerics_id + "_gpu" and layer.weights_id == plain.weights_id
    kept = {name: kind for name, kind in zip((GATE, UP, DOWN), kinds) if not any(name in names for names, _, _ in MIXED[kinds])}
    saved = sum(model.values[name].size * (2 - ON_DEVICE[kind]) for name, kind in kept.items())
    assert all_reserved - reserved == saved, "codes that have a kernel stay codes"


def test_status_shows_what_is_widened(tmp_path, start_daemon):
    model = Model(tmp_path, QWEN, (Type.Q2_K, Type.Q8_0, Type.Q4_0))
    for device, names in (("cpu", None), ("sim", "q2_k, q8_0")):
        daemon = start_daemon("--device", device, "--compute-dtype", "bf16", model=model.path)
        status, page = json.loads(daemon.get("/api/status")[1]), daemon.get("/")[1]
        assert status["layers"][0]["weights"] == "q2_k+q8_0+q4_0" and status["layers"][0].get("widened") == names
        assert (f"<td>{names}<td>" in page) == bool(names)
        if names:
            assert status["device"]["widened_bytes"] == 2 * EXPERTS * WIDTH * HIDDEN * 2
            assert status["device"]["widened_stored_bytes"] == sum(model.tensors[f"blk.0.{name}"][0].nbytes for name in (GATE, UP))
        daemon.stop()


@pytest.mark.parametrize("device", ("sim:3", "cpu"))
def test_verify_widens_as_the_daemon_did(device, tmp_path, start_daemon):
    """With a shared expert, and plain experts that --quantize quantises where devices can read the result."""
    spec = dataclasses.replace(QWEN, arch="qwen2moe", keys={"expert_shared_feed_forward_length": 256}, norm=False, shared=256,
                               shared_gate=True, model_type="qwen2_moe")
    cases = (((Type.Q5_K, Type.Q5_K, Type.Q4_0), (), [("q5_k", 2 * (EXPERTS + 1))]),
             ((Type.F16, Type.Q4_1, Type.BF16), ("--quantize", "int4"), [("q4_1", EXPERTS + 1)]))
    for kinds, options, wanted in cases:
        model = Model(tmp_path / kinds[0].name, spec, kinds)
        daemon = start_daemon("--device", device, "--compute-dtype", "bf16", *options, model=model.path)
        done = run_program("expertd-verify", "--address", f"unix:{daemon.socket}", "--model", model.path, "--tokens", "1,20")
        assert done.returncode == 0 and "equal bits" in done.stdout, done.stdout + done.stderr
        number, lines = daemon.events("loaded")[0]["numerics_id"], daemon.events("widened")
        assert ("+widen_gpu" in number) == (device != "cpu") and ("quantize_int4" in number) == bool(options)
        assert [(line["format"], int(line["matrices"])) for line in lines] == (wanted if device != "cpu" else [])
        daemon.stop()


@pytest.mark.share(4)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture(name, tmp_path, start_daemon):
    """In two types: of blocks that are narrower than the rows, and of other blocks for down."""
    spec = ARCHITECTURES[name]
    kinds = (Type.Q4_0,) * 3 if spec.experts > 8 else (Type.Q8_0, Type.Q8_0, Type.Q5_1)
    model = Model(tmp_path, spec, kinds)
    x = model.inputs(TOKENS)
    daemon = start_daemon("--compute-dtype", "f32", model=model.path)
    with daemon.client() as client:
        assert client.describe().models[0].name == "model.gguf"
    layer, output = answer(daemon, x)
    assert layer.layer == spec.layer
    assert error_per_token(values_of(output), model.outputs(x)).max() <= BOUNDS["f32"]


SMALL = dict(hidden=64, width=48)


def small(spec):
    """The specification with widths that all differ, so that nothing fits if it is transposed or taken for another matrix."""
    def scaled(width):
        return width * SMALL["width"] // 256
    keys = {key: scaled(value) if key in ("expert_shared_feed_forward_length", "moe_latent_size") else value
            for key, value in spec.keys.items()}
    return dataclasses.replace(spec, keys=keys, shared=scaled(spec.shared), latent=scaled(spec.latent), **SMALL)


def bits(daemon, x, **options):
    layer, output = answer(daemon, x, **options)
    return layer.weights_id, output.data


def has_the_vendors_bits(model, folder, start_daemon, x, **options):
    """The answers of the GGUF file and of the vendor's checkpoint, from which llama.cpp's converter makes it."""
    own = bits(start_daemon("--compute-dtype", "f32", model=model.path), x, **options)
    vendor = bits(start_daemon("--compute-dtype", "f32", model=write_vendor(model, folder)), x, **options)
    assert own == vendor, "weights_id, or the answer's bits, differ"


@pytest.mark.share(8)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_vendors_checkpoint_gives_the_same_bits(name, tmp_path, start_daemon):
    model = Model(tmp_path, small(ARCHITECTURES[name]))
    has_the_vendors_bits(model, tmp_path / "vendor", start_daemon, model.inputs(TOKENS))


def served(daemon, model, **options):
    """The layer's description, after a comparison of its answer in fp32."""
    x = model.inputs(TOKENS)
    layer, output = answer(daemon, x, **options)
    assert error_per_token(values_of(output), model.outputs(x)).max() <= BOUNDS["f32"]
    return layer


def test_down_has_a_type_of_its_own(tmp_path, start_daemon):
    """As llama.cpp's mixed quantisations have it."""
    model = Model(tmp_path, QWEN, (Type.Q4_K, Type.Q4_K, Type.Q6_K))
    assert served(start_daemon("--compute-dtype", "f32", model=model.path), model).quantisation == "q4_k+q6_k"


@pytest.mark.parametrize("kinds", [(Type.Q4_K, Type.Q6_K, Type.Q5_0), (Type.F16, Type.Q8_0, Type.Q4_K), (Type.IQ4_XS, Type.BF16, Type.F32)],
                         ids=lambda kinds: "_".join(kind.name for kind in kinds))
def test_each_matrix_has_a_type_of_its_own(kinds, tmp_path, start_daemon):
    """As a tool that chooses a type for each tensor by its name may store them."""
    model = Model(tmp_path, QWEN, kinds)
    for widen in ((), ("--widen",)):
        served(start_daemon("--compute-dtype", "f32", "--shards", 2, *widen, model=model.path), model)


@pytest.mark.parametrize("format", ["fp8", "int8", "int4", "mxfp4"])
def test_plain_experts_are_quantised_while_loading(format, tmp_path, start_daemon):
    """The same outputs as those of the weights, up to the format's error; experts in blocks stay as they are."""
    bounds = {"fp8": 0.1, "int8": 0.05, "int4": 0.4, "mxfp4": 0.6}
    for kind in PLAIN:
        model = Model(tmp_path / kind.name, QWEN, kind)
        x = model.inputs(TOKENS)
        layer, output = answer(start_daemon("--compute-dtype", "f32", "--quantize", format, model=model.path), x)
        error = error_per_token(values_of(output), model.outputs(x)).max()
        assert layer.quantisation.startswith(format) and 1e-4 < error < bounds[format], (kind, error)
    model = Model(tmp_path / "mixed", QWEN, (Type.Q8_0, Type.Q8_0, Type.F16))
    layer, _ = answer(start_daemon("--compute-dtype", "f32", "--quantize", format, model=model.path), model.inputs(TOKENS))
    assert layer.quantisation.startswith(f"q8_0+{format}")


@pytest.mark.parametrize("fused", [False, True])
def test_nvfp4_has_a_global_scale_for_each_expert(fused, tmp_path, start_daemon):
    model = Model(tmp_path, dataclasses.replace(QWEN, fused=fused), Type.NVFP4, scales=True)
    assert served(start_daemon("--compute-dtype", "f32", model=model.path), model).quantisation == "nvfp4"


def test_nvfp4_has_a_global_scale_for_a_shared_expert(tmp_path, start_daemon):
    model = Model(tmp_path, dataclasses.replace(QWEN, arch="qwen35moe", keys=SHARED, shared=128, shared_gate=True), Type.NVFP4)
    for part in ("gate", "up", "down"):
        model.values[f"ffn_{part}_shexp.weight"] *= model.add(f"ffn_{part}_shexp.scale", (1,))
    model.write(0)
    served(start_daemon("--compute-dtype", "f32", model=model.path), model)


def test_nvfp4_reads_the_scales_that_ggml_reads_as_zero(tmp_path, start_daemon):
    model = Model(tmp_path, QWEN, Type.NVFP4)
    raw, _ = model.tensors["blk.0.ffn_down_exps.weight"]
    raw.reshape(-1, 36)[::3, :4] = [0x7f, 0x00, 0x01, 0x7e]
    model.parts["down"] = quants.dequantize(raw, Type.NVFP4).astype(np.float64)
    model.write(0)
    served(start_daemon("--compute-dtype", "f32", model=model.path), model)


def test_outer_dimensions_of_1_are_padding(tmp_path, start_daemon):
    """Of matrices in blocks and of plain tensors: the shared expert's, its gate's, and those of one expert each in files of 2023."""
    for name in ("qwen2moe", "llama_of_2023"):
        model = Model(tmp_path / name, ARCHITECTURES[name], Type.Q8_0)
        for tensor_name, (raw, kind) in model.tensors.items():
            model.tensors[tensor_name] = (raw.reshape((1,) * (4 - raw.ndim) + raw.shape), kind)
        model.write(0)
        served(start_daemon("--compute-dtype", "f32", model=model.path), model)


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q5_K, Type.BF16], ids=lambda kind: kind.name)
def test_fused_gate_and_up(kind, tmp_path, start_daemon):
    model = Model(tmp_path, dataclasses.replace(QWEN, fused=True), kind)
    served(start_daemon("--compute-dtype", "f32", model=model.path), model)


def test_the_same_weights_have_the_same_id_however_they_are_stored(tmp_path, start_daemon):
    """In one file, in parts, in a folder."""
    ids = set()
    for name, parts in (("one", 0), ("three", 3)):
        model = Model(tmp_path / name, QWEN, Type.Q4_K, parts=parts)
        for path in (model.path, model.path.parent):
            daemon = start_daemon("--compute-dtype", "f32", model=path)
            ids.add(served(daemon, model).weights_id)
    assert len(ids) == 1


def test_gemma4_routes_by_rows_of_its_own(tmp_path, start_daemon):
    spec = Spec("gemma4", {"attention.layer_norm_rms_epsilon": 1e-6}, norm=True, activation="gelu", own_router_input=True, fused=True,
                model_type="gemma4")
    model = Model(tmp_path, spec, Type.Q8_0)
    for part in ("gate", "up", "down"):  # the perceptron beside the experts
        model.add(f"ffn_{part}.weight", (HIDDEN, HIDDEN))
    model.write(0)
    x, residual = model.inputs(TOKENS), model.inputs(TOKENS, seed=8)
    layer, output = answer(start_daemon("--compute-dtype", "f32", model=model.path), x, router_input=tensor(residual))
    assert layer.needs_router_input
    assert error_per_token(values_of(output), model.outputs(x, residual)).max() <= BOUNDS["f32"]
    plain = Model(tmp_path / "plain", small(spec))
    rows = plain.inputs(TOKENS), tensor(plain.inputs(TOKENS, seed=8))
    has_the_vendors_bits(plain, tmp_path / "vendor", start_daemon, rows[0], router_input=rows[1])


class DeepseekV4(Model):
    """Layer 0 chooses experts by token id."""
    VOCABULARY, LIMIT = 50, 2.0

    def make_router(self):
        super().make_router()
        self.table = np.stack([self.random.permutation(EXPERTS)[:TOP_K] for _ in range(self.VOCABULARY)]).astype(np.int32)
        self.tensors["blk.0.ffn_gate_tid2eid.weight"] = (self.table, Type.I32)
        self.values["ffn_gate_tid2eid.weight"] = self.table

    def clamped(self, x, gate, up, down):
        return (silu(np.minimum(x @ gate.T, self.LIMIT)) * np.clip(x @ up.T, -self.LIMIT, self.LIMIT)) @ down.T

    def outputs_of(self, x, ids):
        x = x.astype(np.float64)
        scores = np.sqrt(np.log1p(np.exp(self.logits(x))))
        out = self.clamped(x, *(self.values[f"ffn_{part}_shexp.weight"] for part in ("gate", "up", "down")))
        for token, chosen in enumerate(self.table[ids]):
            weights = scores[token, chosen] / scores[token, chosen].sum() * self.spec.scale
            for weight, e in zip(weights, chosen):
                out[token] += weight * self.clamped(x[token], *(self.parts[part][e] for part in ("gate", "up", "down")))
        return out


def test_deepseek_v4_chooses_experts_by_token_id(tmp_path, start_daemon):
    spec = Spec("deepseek4", ONE_SHARED | {"expert_gating_func": 4, "expert_weights_norm": True, "expert_weights_scale": 1.5,
                                           "hash_layer_count": 1, "swiglu_clamp_exp": [2.0],
                                           "swiglu_clamp_shexp": [2.0], "nextn_predict_layers": 0},
                scale=1.5, shared=256, limit=2.0, model_type="deepseek_v4")
    model = DeepseekV4(tmp_path, spec, Type.MXFP4)
    x, ids = model.inputs(TOKENS), np.random.default_rng(4).integers(0, DeepseekV4.VOCABULARY, TOKENS)
    layer, output = answer(start_daemon("--compute-dtype", "f32", model=model.path), x, token_ids=tensor(ids, "I32"))
    assert layer.needs_token_ids
    assert error_per_token(values_of(output), model.outputs_of(x, ids)).max() <= BOUNDS["f32"]
    plain = DeepseekV4(tmp_path / "plain", small(spec))
    has_the_vendors_bits(plain, tmp_path / "vendor", start_daemon, plain.inputs(TOKENS), token_ids=tensor(ids, "I32"))


def test_phimoe_routes_as_its_authors_do(tmp_path, start_daemon):
    """By sparsemixer, not by the softmax that llama.cpp takes. Both of a token's weights then come from masked softmaxes."""
    model = Model(tmp_path, Spec("phimoe", width_key="feed_forward_length", norm=True, model_type="phimoe"), Type.Q8_0)
    x, jitter = model.inputs(TOKENS), 0.01
    logits, out = model.logits(x), np.zeros((TOKENS, HIDDEN))
    for token in range(TOKENS):
        taken = np.zeros(EXPERTS, bool)
        for _ in range(TOP_K):
            row = np.where(taken, -np.inf, logits[token])
            best = int(row.argmax())
            factor = np.maximum(np.abs(logits[token]), row[best])
            masked = np.where((row[best] - logits[token]) / factor > 2 * jitter, -np.inf, row)
            weights = np.exp(masked - row[best])
            out[token] += model.expert(best, x[token:token + 1].astype(np.float64), weights[best] / weights.sum())[0]
            taken[best] = True
    _, output = answer(start_daemon("--compute-dtype", "f32", model=model.path), x)
    assert error_per_token(values_of(output), out).max() <= BOUNDS["f32"]
    plain = Model(tmp_path / "plain", small(model.spec))
    has_the_vendors_bits(plain, tmp_path / "vendor", start_daemon, plain.inputs(TOKENS))


def test_blocks_that_predict_further_tokens_are_not_served(tmp_path, start_daemon):
    """By their tensors: some files have the key without the blocks."""
    keys = V3_KEYS | {"nextn_predict_layers": 1}
    for name, blocks, extra in (("with", 3, ["blk.2.nextn.eh_proj.weight", "blk.2.ffn_down_exps.weight"]), ("without", 2, []), ("decoder alone", 3, [])):
        spec = Spec("glm4moe", keys, layer=1, blocks=blocks, model_type="glm4_moe", **V3)
        model = Model(tmp_path / name, spec, Type.F16)
        for tensor_name in extra:
            model.tensors[tensor_name] = (np.zeros((8, HIDDEN), np.float32), Type.F32)
        model.write(0)
        assert served(start_daemon("--compute-dtype", "f32", model=model.path), model).layer == 1


COMMIT = "3333333333333333333333333333333333333333"


def test_a_file_of_the_hub_cache_by_its_quantisation(tmp_path, start_daemon):
    repository = tmp_path / "hub" / "models--Acme--Tiny-GGUF"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    models = {kind: Model(snapshot, QWEN, getattr(Type, kind), name=f"Tiny-{kind}") for kind in ("Q4_K", "Q6_K")}
    models["Q8_0"] = Model(snapshot / "Q8_0", QWEN, Type.Q8_0, name="Tiny-Q8_0", parts=2)
    for beside in ("mmproj-F16", "Tiny-mmproj-Q4_K", "imatrix_Q6_K"):
        (snapshot / f"{beside}.gguf").write_bytes(models["Q4_K"].path.read_bytes())
    models["Q5_K"] = Model(snapshot, QWEN, Type.Q5_K, name="Tiny-imatrix-Q5_K")  # a model, which no other file names
    for kind, model in models.items():
        daemon = start_daemon("--compute-dtype", "f32", model=f"Acme/Tiny-GGUF:{kind.lower()}",
                              env={"HF_HUB_CACHE": str(tmp_path / "hub")})
        assert served(daemon, model).quantisation == kind.lower()


def test_a_folder_of_one_model_that_was_quantised_by_an_importance_matrix(tmp_path, start_daemon):
    model = Model(tmp_path, QWEN, Type.Q8_0, name="Tiny-imatrix-Q8_0")
    (tmp_path / "mmproj-F16.gguf").write_bytes(model.path.read_bytes())
    served(start_daemon("--compute-dtype", "f32", model=tmp_path), model)
