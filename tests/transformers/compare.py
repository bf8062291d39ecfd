"""Saves each model, serves it, and compares the MoE blocks' outputs in fp32. Run by tests/transformers/run."""

import re
import sys
import tempfile

import models
import numpy as np
from harness.daemon import Daemon
from harness.protos import pb
from harness.tensors import error_per_token, tensor, values_of

TOKENS = 32
ERROR_MAX = 2e-6  # relative to the token's greatest value; the orders of summation differ
REASON = re.compile(r'message="((?:[^"\\]|\\.)*)"')


def errors_of(model, client):
    """The error of each layer, by number. AssertionError if transformers and the daemon have different MoE layers."""
    blocks = models.blocks(model)
    served = {layer.layer: layer for layer in client.describe().models[0].layers}
    if not blocks or set(blocks) != set(served):
        raise AssertionError(f"transformers has experts in layers {sorted(blocks)}, the daemon in {sorted(served)}")
    errors = {}
    for number, block in sorted(blocks.items()):
        rows = np.random.default_rng(number).standard_normal((TOKENS, served[number].hidden_size)).astype(np.float32)
        token_ids = np.random.default_rng(number).integers(0, models.VOCABULARY, TOKENS)
        router_rows = np.random.default_rng(number + 100).standard_normal(rows.shape).astype(np.float32) * 3
        needed = {"token_ids": tensor(token_ids, "I64")} if served[number].needs_token_ids else {}
        if served[number].needs_router_input:
            needed["router_input"] = tensor(router_rows)
        got = values_of(client.forward(layer=number, hidden=tensor(rows), output_dtype=pb.F32, **needed).output)
        errors[number] = error_per_token(got, models.answer(block, rows, token_ids, router_rows)).max()
    return errors


def compare(model_type):
    """(True, the error of each layer), or (False, the reason)."""
    model = models.make(model_type)
    with tempfile.TemporaryDirectory(prefix="expertd-transformers-") as folder:
        model.save_pretrained(folder)
        try:
            daemon = Daemon(model=folder)
        except AssertionError as refused:
            said = REASON.findall(str(refused))
            return False, "refused: " + (said[-1] if said else str(refused))
        try:
            with daemon.client() as client:
                errors = errors_of(model, client)
        except AssertionError as different:
            return False, str(different)
        finally:
            daemon.stop()
    text = ", ".join(f"layer {layer} {error:.1e}" for layer, error in errors.items())
    return all(error <= ERROR_MAX for error in errors.values()), text


def main(wanted):
    unknown = [model_type for model_type in wanted if model_type not in models.MODELS]
    if unknown:
        sys.exit(f"unknown model types: {', '.join(unknown)}; known are {', '.join(models.MODELS)}")
    failed = 0
    for model_type in wanted or models.MODELS:
        equal, text = compare(model_type)
        failed += not equal
        print(f"{model_type:24} {'equal' if equal else 'DIFFERS'}  {text}", flush=True)
    total = len(wanted or models.MODELS)
    print(f"{total - failed} passed, {failed} failed")
    return failed > 0


sys.exit(main(sys.argv[1:]))
