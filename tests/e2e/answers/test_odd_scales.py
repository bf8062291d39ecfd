"""Quantised checkpoints with unusual values. NaN and infinite scales are served as stored, with the bits of the scalar twin on every path
and one warning that names the first tensor; experts without such scales are not affected. Zero points of 16 give a warning too."""

import numpy as np
import pytest

from harness.protos import pb
from harness.quantised import EXPERTS, VARIANTS, QuantisedCheckpoint
from harness.tensors import error_per_token, rows_of, tensor, values_of

TOKENS, BOUND = 40, 1e-5
LAST = EXPERTS - 1
# name: (variant, [(part, expert, suffix, index, value)], the number of scales that are not finite)
CASES = {
    "nan_of_f32": ("fp8_blocks", [("gate_proj", LAST, ".weight_scale_inv", (1, 0), np.nan)], 1),
    "bf16_and_two_parts": ("fp8_blocks_bf16_scales", [("up_proj", LAST, ".weight_scale_inv", (0, 0), np.inf),
                                                      ("down_proj", LAST, ".weight_scale_inv", (0, 0), np.nan)], 2),
    "inf_of_f16": ("gptq", [("down_proj", LAST, ".scales", (2, 5), np.inf)], 1),
    "255_of_e8m0": ("compressed_mxfp4", [("gate_proj", LAST, ".weight_scale", (3, 1), 255),
                                         ("gate_proj", LAST, ".weight_scale", (4, 0), 255)], 2),
    "255_of_mxfp8": ("mxfp8", [("down_proj", LAST, ".weight_scale_inv", (3, 1), 255)], 1),
    "nan_of_e4m3": ("compressed_nvfp4", [("gate_proj", LAST, ".weight_scale", (3, 1), 0x7F)], 1),
    "global_to_divide_by": ("compressed_nvfp4", [("up_proj", LAST, ".weight_global_scale", 0, np.nan)], 1),
    "global_to_multiply_by": ("modelopt_nvfp4", [("up_proj", LAST, ".weight_scale_2", None, np.inf)], 1),
}


def as_stored(dtype, value):
    return int(np.float32(value).view(np.uint32) >> 16) if dtype == "BF16" else value


def damage(checkpoint, changes):
    for part, expert, suffix, index, value in changes:
        name = checkpoint.module(part, expert) + suffix
        dtype, array = checkpoint.tensors[name]
        array = np.array(array, copy=True)
        array[() if index is None else index] = as_stored(dtype, value) if array.dtype.kind in "iu" else value
        checkpoint.tensors[name] = (dtype, array)
    checkpoint.write()


def routed(hidden, expert):
    """Routes every row to `expert` and to expert 0, which is not damaged."""
    ids = np.array([[expert, 0]] * len(hidden))
    return pb.ForwardRequest(layer=0, hidden=tensor(hidden), output_dtype=pb.F32,
                             routes=pb.Routes(ids=tensor(ids, "I32"), weights=tensor(np.full(ids.shape, 0.5))))


def bits(output):
    """The output's bits, with every NaN replaced by the same NaN: the bits of a NaN are not promised."""
    values = values_of(output)
    return np.where(np.isnan(values), np.float32(np.nan), values).astype(np.float32).tobytes()


def answers_of(daemon, hidden):
    """Answers for the damaged expert, for another expert and with the model's router; with many rows and with few."""
    with daemon.client() as client:
        requests = [routed(hidden, LAST), routed(hidden[:1], LAST), routed(hidden[1:4], LAST), routed(hidden, 1), routed(hidden[:2], 1),
                 pb.ForwardRequest(layer=0, hidden=tensor(hidden), output_dtype=pb.F32)]
        return [client.forward(request).output for request in requests]


CONFIGURATIONS = {"bf16": ((), ("--shards", 3), ("--kernels", "avx2")), "f32": (("--compute-dtype", "f32"),), "widened": (("--widen",),),
        "f32 widened": (("--widen", "--compute-dtype", "f32"),)}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.share(3)
def test_scales_that_are_not_finite_give_the_twins_bits_on_every_path(name, tmp_path, start_daemon):
    variant, changes, count = CASES[name]
    intact, damaged = (QuantisedCheckpoint(tmp_path / kind, VARIANTS[variant]) for kind in ("intact", "damaged"))
    damage(damaged, changes)
    hidden = damaged.inputs(TOKENS)
    part, expert, suffix, *_ = changes[0]
    for configuration, options in CONFIGURATIONS.items():
        twin = start_daemon(*options[0], "--kernels", "scalar", model=damaged.folder)
        wanted = answers_of(twin, hidden)
        twin.stop()
        assert not np.isfinite(values_of(wanted[0])).all(), "no output depends on the damaged scales"
        for more in options:
            daemon = start_daemon(*more, model=damaged.folder)
            got = answers_of(daemon, hidden)
            warned = daemon.events("scales_not_finite")
            daemon.stop()
            assert [bits(output) for output in got] == [bits(output) for output in wanted], (configuration, more)
            assert len(warned) == 1 and warned[0]["level"] == "warning" and int(warned[0]["count"]) == count
            assert warned[0]["tensor"] == damaged.module(part, expert) + suffix
            assert warned[0]["file"] == str(damaged.folder / "model.safetensors")
        daemon = start_daemon(*options[0], model=intact.folder)
        of_intact = answers_of(daemon, hidden)
        assert not daemon.events("scales_not_finite")
        daemon.stop()
        for other_expert in (3, 4):
            assert rows_of(of_intact[other_expert]) == rows_of(got[other_expert]), "the answers of an undamaged expert changed"


@pytest.mark.parametrize("name", ("nan_of_f32", "255_of_e8m0", "nan_of_e4m3", "inf_of_f16", "global_to_multiply_by"))
@pytest.mark.share(3)
def test_devices_give_the_bits_of_their_twin(name, tmp_path, start_daemon):
    variant, changes, _ = CASES[name]
    damaged, answers = QuantisedCheckpoint(tmp_path / "damaged", VARIANTS[variant]), []
    damage(damaged, changes)
    hidden = damaged.inputs(9)
    for options in (("--device", "sim:2"), ("--kernels", "scalar_sm90")):
        daemon = start_daemon("--compute-dtype", "bf16", *options, model=damaged.folder)
        answers.append([bits(output) for output in answers_of(daemon, hidden)])
        assert len(daemon.events("scales_not_finite")) == 1
        daemon.stop()
    assert answers[0] == answers[1]


@pytest.mark.parametrize("variant,count", (("gptq", 2), ("gptq_ordered", 2), ("gptq_v2", 0), ("gptq_8_bits", 0)))
def test_zero_points_of_16_give_a_warning(variant, count, tmp_path, start_daemon):
    """GPTQ stores zero points minus 1. A stored 15 means 16 to auto-gptq and to the daemon; GPTQModel reads another value."""
    checkpoint = QuantisedCheckpoint(tmp_path / "model", VARIANTS[variant])
    for expert in (2, LAST):
        name = checkpoint.module("up_proj", expert)
        words, scales = (np.array(checkpoint.tensors[name + suffix][1]) for suffix in (".qzeros", ".scales"))
        if variant == "gptq":  # its k are in order: the first 32 weights of the row change
            checkpoint.experts[expert]["up"][0, :32] -= (15 - (int(words[0, 0]) & 15)) * float(scales[0, 0])
        words[0, 0] |= 15
        checkpoint.tensors[name + ".qzeros"] = ("I32", words)
    daemon = start_daemon("--compute-dtype", "f32", model=checkpoint.folder)
    assert daemon.events("zero_points_of_16") == []
    checkpoint.write()
    daemon.stop()
    daemon = start_daemon("--compute-dtype", "f32", model=checkpoint.folder)
    warned = daemon.events("zero_points_of_16")
    assert [(line["level"], int(line["count"]), line["tensor"]) for line in warned] == (
        [("warning", count, checkpoint.module("up_proj", 2) + ".qzeros")] if count else [])
    if variant == "gptq":
        hidden = checkpoint.inputs(TOKENS)
        with daemon.client() as client:
            answer = values_of(client.forward(layer=0, hidden=tensor(hidden)).output)
        assert error_per_token(answer, checkpoint.outputs(hidden)).max() < BOUND
