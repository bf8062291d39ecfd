"""llama.cpp's files: every type of blocks and every architecture. Answers agree with weights that the package `gguf` dequantises."""

import pytest
from gguf import GGMLQuantizationType as Type

from harness.gguf_models import BLOCKS, PLAIN, Model, Spec
from harness.paths import SANITIZER
from harness.tensors import error_per_token, rows_of, tensor, values_of

TOKENS = 40
# Bounds for fp32 sums in another order, for exact weights with activations rounded to bf16, and for both rounded.
BOUNDS = {"f32": 1e-5, "bf16": 1.5e-2, "widened": 2e-2}
QWEN = Spec("qwen3moe", norm=True, model_type="qwen3_moe")


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
