"""Damaged, inconsistent and unsupported quantised checkpoints: each is refused at once, with the tensor, the cause and the remedy."""

import copy
import json

import numpy as np
import pytest

from harness.daemon import run_program
from harness.quantised import EXPERTS, HIDDEN, VARIANTS, WIDTH, QuantisedCheckpoint, Variant, pack_quantized
from harness.tensors import error_per_token, tensor, values_of

TOKENS = 40
GATE = "model.layers.0.mlp.experts.0.gate_proj"
LAST = f"model.layers.0.mlp.experts.{EXPERTS - 1}.down_proj"


def refused(checkpoint, *words, options=()):
    checkpoint.write()
    done = run_program("expertd", "--model", str(checkpoint.folder), "--listen", "127.0.0.1:0", "--http", "off", "--admin", "off",
                       *options)
    assert done.returncode == 65, done.stderr
    for word in words:
        assert word in done.stderr, f"{word!r} is not in: {done.stderr[-900:]}"


def remove(*names):
    def change(checkpoint):
        for name in names:
            del checkpoint.tensors[name]

    return change


def put(name, value, index=None):
    """Sets one element, or all elements."""

    def change(checkpoint):
        dtype, array = checkpoint.tensors[name]
        array = np.array(array, copy=True)
        if index is None:
            array = np.asarray(value, array.dtype)
        else:
            array[index] = value
        checkpoint.tensors[name] = (dtype, array)

    return change


def cast(name, dtype, array=None):
    def change(checkpoint):
        checkpoint.tensors[name] = (dtype, checkpoint.tensors[name][1] if array is None else array)

    return change


def set_config(**words):
    return lambda checkpoint: checkpoint.config["quantization_config"].update(words)


def set_section(value):
    return lambda checkpoint: checkpoint.config.update(quantization_config=value)


def set_weights_config(**words):
    return lambda checkpoint: checkpoint.config["quantization_config"]["config_groups"]["group_0"]["weights"].update(words)


def shape(name, *dims):
    return lambda checkpoint: cast(name, checkpoint.tensors[name][0], np.ones(dims))(checkpoint)


def add(name, dtype, array):
    return lambda checkpoint: checkpoint.tensors.update({name: (dtype, np.asarray(array))})


def each_of(*changes):
    def change(checkpoint):
        for one in changes:
            one(checkpoint)

    return change


def up_in_another_order(checkpoint):
    """Expert 1's up, sorted by a quantiser that treats each matrix separately."""
    w = np.random.default_rng(5).standard_normal((WIDTH, HIDDEN)) * HIDDEN ** -0.5
    stored, checkpoint.experts[1]["up"] = checkpoint.variant.quantise(w, np.random.default_rng(6))
    checkpoint.tensors.update({checkpoint.module("up_proj", 1) + suffix: tensor for suffix, tensor in stored.items()})


def as_bitsandbytes(checkpoint):
    for expert in range(EXPERTS):
        for part in ("gate_proj", "up_proj", "down_proj"):
            name = checkpoint.module(part, expert) + ".weight"
            del checkpoint.tensors[name + "_scale_inv"]
            checkpoint.tensors[name] = ("U8", np.ones((WIDTH * HIDDEN // 2, 1)))
    set_config(quant_method="bitsandbytes")(checkpoint)


REFUSED = {
    # missing
    "scales_missing": ("fp8_blocks", remove(f"{GATE}.weight_scale_inv"), [f"{GATE}.weight", "F8_E4M3", "weight_scale_inv"]),
    "scales_of_the_last_missing": ("fp8_blocks", remove(f"{LAST}.weight_scale_inv"), [f"{LAST}.weight", "weight_scale_inv"]),
    "codes_missing": ("compressed_int4", remove(f"{GATE}.weight_packed"), [f"{GATE}.weight", "missing"]),
    "zero_points_missing": ("awq", remove(f"{GATE}.qzeros"), [f"{GATE}.qzeros", "missing"]),
    "zero_points_of_one_missing": ("compressed_int4_asymmetric", remove(f"{LAST}.weight_zero_point"),
                                   ["config_groups.group_0.weights.symmetric is false", f"{LAST}.weight_zero_point"]),
    "zero_points_of_up_missing": ("compressed_int4_asymmetric", remove(f"{GATE.replace('gate', 'up')}.weight_zero_point"),
                                  ["config_groups.group_0.weights.symmetric is false", "experts.0.up_proj.weight_zero_point"]),
    "global_scale_missing": ("modelopt_nvfp4", remove(f"{GATE}.weight_scale_2"), [f"{GATE}.weight_scale_2", "missing"]),
    # damaged
    "global_scale_divides_by_0": ("compressed_nvfp4", put(f"{GATE}.weight_global_scale", 0.0, 0),
                                  ["expert 0", f"{GATE}.weight_global_scale", "global scale", "0"]),
    "zero_point_past_the_codes": ("gptq_8_bits", put(f"{GATE}.qzeros", -1, (0, 0)), ["expert 0", "zero point", "256"]),
    # shapes
    "scales_of_another_shape": ("fp8_blocks", shape(f"{GATE}.weight_scale_inv", 2, 3),
                                [f"{GATE}.weight_scale_inv", "[2, 3]", "128 x 128"]),
    "scales_of_no_element": ("compressed_int4", shape(f"{GATE}.weight_scale", WIDTH, 0), [f"{GATE}.weight_scale", f"[{WIDTH}, 0]"]),
    "codes_of_another_shape": ("compressed_int4", shape(f"{GATE}.weight_packed", WIDTH, HIDDEN // 8 + 1),
                               [f"{GATE}.weight_packed", f"[{WIDTH}, {HIDDEN // 8 + 1}]", f"[{WIDTH}, {HIDDEN // 8}]"]),
    "zero_points_of_another_shape": ("awq", shape(f"{GATE}.qzeros", 6, WIDTH // 8 + 1),
                                     [f"{GATE}.qzeros", f"[6, {WIDTH // 8 + 1}]"]),
    "g_idx_of_another_length": ("gptq", shape(f"{GATE}.g_idx", HIDDEN - 1), [f"{GATE}.g_idx", f"[{HIDDEN - 1}]"]),
    "global_scale_of_two": ("modelopt_nvfp4", cast(f"{GATE}.weight_scale_2", "F32", np.ones(2)),
                            [f"{GATE}.weight_scale_2", "one number"]),
    "three_bits": ("gptq", each_of(shape(f"{GATE}.qweight", HIDDEN * 3 // 32, WIDTH), set_config(bits=3)),
                   [f"{GATE}.qweight", f"[{HIDDEN * 3 // 32}, {WIDTH}]"]),
    # dtypes
    "scales_are_integers": ("fp8_blocks", cast(f"{GATE}.weight_scale_inv", "I64"),
                            [f"{GATE}.weight_scale_inv is I64", "must be F32 or F16 or BF16 or U8 or F8_E8M0"]),
    "codes_are_floats": ("gptq", cast(f"{GATE}.qweight", "F32"), [f"{GATE}.qweight is F32", "codes of that name must be I32 or U32"]),
    "packed_codes_are_wide": ("compressed_nvfp4", cast(f"{LAST}.weight_packed", "I64"),
                              [f"{LAST}.weight_packed is I64", "codes of that name must be I32 or I8 or U8 or U32"]),
    "zero_points_are_floats": ("gptq", cast(f"{GATE}.qzeros", "F32"), [f"{GATE}.qzeros", "F32"]),
    "zero_points_of_elements_are_integers": ("compressed_int8_elements_asymmetric", cast(f"{GATE}.weight_zero_point", "I32"),
                                             [f"{GATE}.weight_zero_point is I32", "must be I8"]),
    "zero_points_of_elements_are_unsigned": ("compressed_int8_elements_asymmetric", cast(f"{LAST}.weight_zero_point", "U8", np.ones((HIDDEN, WIDTH // 32))),
                                             [f"{LAST}.weight_zero_point is U8", "must be I8"]),
    "two_scales": ("fp8_blocks", add(f"{GATE}.weight_scale", "F32", np.ones(1)),
                   [f"{GATE}.weight_scale and {GATE}.weight_scale_inv are both scales of {GATE}.weight", "which of them counts"]),
    "g_idx_of_64_bits": ("gptq", cast(f"{GATE}.g_idx", "I64"), [f"{GATE}.g_idx is I64", "must be I32"]),
    "router_quantised": ("fp8_blocks", cast("model.layers.0.mlp.gate.weight", "F8_E4M3", np.ones((EXPERTS, HIDDEN))),
                         ["model.layers.0.mlp.gate.weight", "F8_E4M3"]),
    # orders
    "g_idx_past_the_last_scale": ("gptq_ordered", put(f"{GATE}.g_idx", 6, 7),
                                  ["expert 0", "g_idx gives scale 6 to k 7", "6 scales"]),
    "g_idx_negative": ("gptq_ordered", put(f"{GATE}.g_idx", -1, 7), ["expert 0", "g_idx gives scale -1"]),
    "g_idx_fills_one_group_twice": ("gptq_ordered", put(f"{GATE}.g_idx", np.zeros(HIDDEN)), ["expert 0", "more than the 32 k"]),
    "g_idx_out_of_order_without_desc_act": ("gptq", put(f"{LAST}.g_idx", np.arange(WIDTH)[::-1] // 32),
                                           [f"expert {EXPERTS - 1}", "g_idx", "desc_act"]),
    "gate_and_up_in_two_orders": ("gptq_ordered", up_in_another_order, ["expert 1", "gate and up", "--widen"]),
    # config.json
    "group_does_not_divide": ("compressed_int4", set_weights_config(group_size=48), ["weight_scale", "groups of 48 k"]),
    "group_of_8": ("compressed_int4", None, ["spans 8 k", "multiple of 16"]),
    "bits_disagree": ("compressed_int4", set_weights_config(num_bits=8), ["weight_packed", "codes of 4 bits", "quantization_config.config_groups.group_0.weights.num_bits is 8"]),
    "group_size_is_text": ("gptq", set_config(group_size="many"), ["group_size", "many"]),
    "group_size_is_minus_two": ("gptq", set_config(group_size=-2), ["group_size", "-2"]),
    "block_of_nothing": ("fp8_blocks", set_config(weight_block_size=[0, 128]), ["weight_block_size"]),
    "block_of_three": ("fp8_blocks", set_config(weight_block_size=[1, 2, 3]), ["weight_block_size"]),
    "awq_gemv": ("awq", set_config(version="gemv"), ["version", "gemv", "gemm"]),
    "section_is_text": ("gptq", set_section(json.dumps({"quant_method": "gptq"})), ["quantization_config is", "expected an object"]),
    "section_is_a_list": ("fp8_blocks", set_section([{"quant_method": "fp8"}]), ["quantization_config", "expected an object"]),
    "groups_are_a_number": ("compressed_int4", set_config(config_groups=3), ["quantization_config.config_groups is 3", "expected an object"]),
    "form_of_zero_points_unsaid": ("gptq", set_section(None), [f"{GATE}.qzeros", "checkpoint_format gptq", "gptq_v2"]),
    "gptq_marlin": ("gptq", set_config(checkpoint_format="marlin"), ["checkpoint_format", "marlin"]),
    "rotations": ("compressed_int4", set_config(transform_config={"config_groups": {"R1": {"type": "hadamard"}}}), ["transform_config"]),
    "another_method": ("fp8_blocks", set_config(quant_method="eetq"), [f"{GATE}.weight", "eetq"]),
    "gptq_tensors_said_to_be_awq": ("gptq", set_config(quant_method="awq"), [f"{GATE}.qweight"]),
    # tensors and formats that no row of the table has
    "an_unknown_tensor": ("modelopt_nvfp4", add(f"{GATE}.pre_quant_scale", "F32", np.ones(HIDDEN)),
                              [f"{GATE}.pre_quant_scale"]),
    "a_bias_that_is_not_zero": ("gptq_symmetric_with_bias", put(f"{GATE}.bias", 1.0, 3), [f"{GATE}.bias"]),
    "bitsandbytes": ("fp8_blocks", as_bitsandbytes, [f"{GATE}.weight", "U8", "bitsandbytes"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_inconsistent_tensors_are_refused_by_name(name, tmp_path):
    variant, change, words = REFUSED[name]
    variant = VARIANTS[variant]
    if name == "group_of_8":
        config = copy.deepcopy(variant.config)
        config["config_groups"]["group_0"]["weights"]["group_size"] = 8
        variant = Variant(variant.name, config, pack_quantized(4, 8))
    checkpoint = QuantisedCheckpoint(tmp_path / name, Variant(variant.name, copy.deepcopy(variant.config), variant.quantise))
    if change:
        change(checkpoint)
    refused(checkpoint, *words)


def write_with_index(checkpoint, *omitted):
    """One shard, and an index that lists all of its tensors but those of these suffixes."""
    checkpoint.write()
    shard = "model-00001-of-00001.safetensors"
    (checkpoint.folder / "model.safetensors").rename(checkpoint.folder / shard)
    listed = {name: shard for name in checkpoint.tensors if not name.endswith(omitted)}
    (checkpoint.folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))


@pytest.mark.parametrize("name, suffix", (("gptq_ordered", ".g_idx"), ("compressed_int4_asymmetric", ".weight_zero_point")))
def test_a_tensor_that_changes_codes_must_be_in_the_index(name, suffix, tmp_path):
    variant = VARIANTS[name]
    checkpoint = QuantisedCheckpoint(tmp_path / name, Variant(name, copy.deepcopy(variant.config), variant.quantise))
    checkpoint.config["quantization_config"].pop("desc_act", None)
    checkpoint.config["quantization_config"].get("config_groups", {}).get("group_0", {}).get("weights", {}).pop("symmetric", None)
    write_with_index(checkpoint, suffix)
    done = run_program("expertd", "--model", str(checkpoint.folder), "--listen", "127.0.0.1:0", "--http", "off", "--admin", "off")
    assert done.returncode == 65 and f"{GATE}{suffix} is not in the index" in done.stderr, done.stderr


def test_a_tensor_that_does_not_change_codes_may_be_missing_in_the_index(tmp_path, start_daemon):
    checkpoint = QuantisedCheckpoint(tmp_path / "listed", VARIANTS["compressed_int4"])
    write_with_index(checkpoint, ".weight_shape")
    hidden = checkpoint.inputs(TOKENS)
    with start_daemon("--compute-dtype", "f32", model=checkpoint.folder).client() as client:
        answer = client.forward(layer=0, hidden=tensor(hidden))
    assert error_per_token(values_of(answer.output), checkpoint.outputs(hidden)).max() <= 1e-5


def test_experts_fused_in_fp8_are_refused_by_name(tmp_path):
    checkpoint = QuantisedCheckpoint(tmp_path / "fused", VARIANTS["fp8_blocks"])
    module = "model.layers.0.mlp.experts"
    for name in [name for name in checkpoint.tensors if name.startswith(f"{module}.")]:
        del checkpoint.tensors[name]
    checkpoint.tensors[f"{module}.gate_up_proj"] = ("F8_E4M3", np.ones((EXPERTS, 2 * WIDTH, HIDDEN)))
    checkpoint.tensors[f"{module}.down_proj"] = ("F8_E4M3", np.ones((EXPERTS, HIDDEN, WIDTH)))
    refused(checkpoint, f"{module}.gate_up_proj", "F8_E4M3", "quant_method fp8")


def test_gate_and_up_in_two_orders_are_served_widened(tmp_path, start_daemon):
    checkpoint = QuantisedCheckpoint(tmp_path / "orders", VARIANTS["gptq_ordered"])
    up_in_another_order(checkpoint)
    checkpoint.write()
    hidden = checkpoint.inputs(TOKENS)
    with start_daemon("--compute-dtype", "f32", "--widen", model=checkpoint.folder).client() as client:
        answer = client.forward(layer=0, hidden=tensor(hidden))
    assert error_per_token(values_of(answer.output), checkpoint.outputs(hidden)).max() <= 1e-5


def test_a_model_that_does_not_fit_is_refused_with_its_format(tmp_path):
    checkpoint = QuantisedCheckpoint(tmp_path / "memory", VARIANTS["fp8_blocks"])
    for options, word in (((), "fp8_block128"), (("--widen",), "without --widen")):
        done = run_program("expertd", "--model", str(checkpoint.folder), "--listen", "127.0.0.1:0", "--http", "off", "--admin",
                           "off", "--memory-max", "64KiB", *options)
        assert done.returncode == 69 and word in done.stderr, done.stderr
