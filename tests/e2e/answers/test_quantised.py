"""Checkpoints in every supported quantised format. Answers agree with weights that numpy dequantises, for every compute dtype, and have the
same bits on any number of shards."""

import os
import subprocess

import numpy as np
import pytest

from harness.daemon import run_program
from harness.paths import BIN, SANITIZER
from harness.quantised import TWO_FORMATS, VARIANTS, QuantisedCheckpoint
from harness.tensors import error_per_token, rows_of, tensor, values_of

TOKENS = 40
# Bounds for fp32 sums in another order, for exact weights with activations rounded to bf16, and for both rounded.
BOUNDS = {"f32": 1e-5, "bf16": 1.5e-2, "bf16 widened": 2e-2}


@pytest.mark.share(3)
@pytest.mark.parametrize("name", VARIANTS)
def test_answers_are_those_of_the_dequantised_weights(name, tmp_path, start_daemon):
    checkpoint = QuantisedCheckpoint(tmp_path / name, VARIANTS[name])
    hidden = checkpoint.inputs(TOKENS)
    wanted, ids, bits = checkpoint.outputs(hidden), set(), {}
    setups = {"f32": ("--compute-dtype", "f32", "--shards", 2), "bf16": ("--shards", 3),
              "bf16 alone": ("--shards", 1, "--threads", 1), "f32 widened": ("--compute-dtype", "f32", "--widen"),
              "bf16 widened": ("--widen",)}
    if SANITIZER:
        chosen = ("bf16", "bf16 widened") if list(VARIANTS).index(name) % 3 == 0 else ("bf16",)
        setups = {setup: setups[setup] for setup in chosen}
    for setup, options in setups.items():
        daemon = start_daemon(*options, model=checkpoint.folder)
        with daemon.client() as client:
            (layer,) = client.describe().models[0].layers
            answer = client.forward(layer=0, hidden=tensor(hidden))
        daemon.stop()
        assert layer.quantisation == VARIANTS[name].name
        arithmetic = "sm_90" if setup.startswith("bf16") and os.environ.get("EXPERTD_DEVICE", "").startswith("sim") else "cpu"
        assert layer.numerics_id == f"1/{setup[:4].strip()}/{arithmetic}" + ("+widen" if "widened" in setup else "")
        assert error_per_token(values_of(answer.output), wanted).max() <= BOUNDS.get(setup, BOUNDS[setup.split()[0]]), setup
        ids.add(layer.weights_id)
        bits[setup] = rows_of(answer.output)
    assert len(ids) == 1, "weights_id must not depend on the compute dtype or --widen"
    assert SANITIZER or bits["bf16"] == bits["bf16 alone"]


@pytest.mark.parametrize("name", TWO_FORMATS)
def test_down_may_have_another_format_than_gate_and_up(name, tmp_path, start_daemon):
    """With small m and with large m, which use different kernels."""
    checkpoint = QuantisedCheckpoint(tmp_path / name, TWO_FORMATS[name])
    hidden = checkpoint.inputs(TOKENS)
    wanted = checkpoint.outputs(hidden)
    for dtype in ("bf16", "f32"):
        daemon = start_daemon("--compute-dtype", dtype, model=checkpoint.folder)
        with daemon.client() as client:
            answer = client.forward(layer=0, hidden=tensor(hidden)).output
            assert error_per_token(values_of(answer), wanted).max() <= BOUNDS[dtype]
            rows = rows_of(answer)
            for first, tokens in ((0, 1), (1, 2), (3, 3), (6, 4), (10, 7)):
                few = client.forward(layer=0, hidden=tensor(hidden[first:first + tokens])).output
                assert rows_of(few) == rows[first:first + tokens], (dtype, tokens)
            assert client.describe().models[0].layers[0].quantisation == TWO_FORMATS[name].name
        daemon.stop()


def test_expertd_verify_agrees_with_both_kinds(tmp_path, start_daemon):
    checkpoint = QuantisedCheckpoint(tmp_path / "ordered", VARIANTS["gptq_ordered"])
    for options in ((), ("--widen",), ("--compute-dtype", "f32")):
        daemon = start_daemon(*options, model=checkpoint.folder)
        done = subprocess.run([str(BIN / "expertd-verify"), "--address", f"unix:{daemon.socket}", "--model", str(checkpoint.folder),
                               "--tokens", "1,7,64"], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and "equal bits" in done.stdout, done.stdout + done.stderr
        daemon.stop()


FORMATS = ("fp8_block128", "fp8_channel", "mxfp8", "mxfp4", "nvfp4", "int4_group32", "int4_group128_zero", "int8_channel")


@pytest.mark.parametrize("name", FORMATS)
def test_synthetic_models_are_made_in_each_format(name, start_daemon):
    model, answers = f"synthetic:tiny,layers=1,format={name}", {}
    hidden = np.random.default_rng(4).standard_normal((TOKENS, 256)).astype(np.float32)
    for options in (("--shards", 1), ("--shards", 3), ("--widen",)):
        daemon = start_daemon(*options, model=model)
        with daemon.client() as client:
            assert client.describe().models[0].layers[0].quantisation == name
            answers[options[0], options[-1]] = client.forward(layer=0, hidden=tensor(hidden)).output
        daemon.stop()
    alone, spread, widened = answers.values()
    assert rows_of(alone) == rows_of(spread)
    # The router's weights are not quantised, so both models choose the same experts.
    assert error_per_token(values_of(widened), values_of(alone)).max() <= BOUNDS["bf16 widened"]


@pytest.mark.parametrize("name", ("fp8_block128", "mxfp4", "int4_group32"))
def test_make_checkpoint_writes_the_synthetic_models_weights(name, tmp_path, start_daemon):
    assert run_program("make-checkpoint", tmp_path / name, "--format", name).returncode == 0
    layers = []
    for model in (tmp_path / name, f"synthetic:tiny,format={name}"):
        daemon = start_daemon(model=model)
        with daemon.client() as client:
            layers.append([(layer.weights_id, layer.quantisation) for layer in client.describe().models[0].layers])
        daemon.stop()
    assert layers[0] == layers[1] and len(layers[0]) == 4
