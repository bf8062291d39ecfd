"""Layouts of the experts: the same weights give the same bits and the same weights_id under every tool's names, in every family."""

import numpy as np
import pytest

from harness.daemon import run_program
from harness.layouts import (FAMILIES, H, K, Weights, by_expert, by_part, fp8_layouts_of, fused, layer_tensors, layouts_of, stacked,
                             write_layers)
from harness.tensors import error_per_token, rows_of, tensor, values_of

TOKENS = 9


def answers_of(start_daemon, folder, hidden):
    """(the output's rows, the weights_id) of each layer."""
    daemon = start_daemon("--compute-dtype", "f32", model=folder)
    inputs = tensor(np.random.default_rng(5).standard_normal((TOKENS, hidden)).astype(np.float32))
    with daemon.client() as client:
        layers = client.describe().models[0].layers
        answers = [(rows_of(client.forward(layer=layer.layer, hidden=inputs).output), layer.weights_id) for layer in layers]
    daemon.stop()
    return answers


@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_weights_give_the_same_bits_in_every_layout(name, tmp_path, start_daemon):
    family = FAMILIES[name]
    weights, layouts = Weights(family), layouts_of(family)
    layers = [layer_tensors(weights, layout, number) for number, layout in enumerate(layouts.values())]
    folder = write_layers(tmp_path / name, family, layers)
    answers = answers_of(start_daemon, folder, H)
    assert len(answers) == len(layouts)
    for layout, answer in zip(layouts, answers):
        assert answer == answers[0], f"{name}: {layout} differs from {next(iter(layouts))}"


@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_codes_give_the_same_bits_in_every_layout(name, tmp_path, start_daemon):
    family = FAMILIES[name]
    weights, layouts = Weights(family), fp8_layouts_of(family)
    layers = [layer_tensors(weights, layout, number) for number, layout in enumerate(layouts.values())]
    answers = answers_of(start_daemon, write_layers(tmp_path / name, family, layers), H)
    for layout, answer in zip(layouts, answers):
        assert answer == answers[0], f"{name}: {layout} differs from {next(iter(layouts))}"


def silu(x):
    return x / (1 + np.exp(-x))


def test_the_bits_are_those_of_the_weights(tmp_path, start_daemon):
    """One layout of the matrix above, against numpy."""
    family = FAMILIES["mixtral"]
    weights = Weights(family)
    daemon = start_daemon("--compute-dtype", "f32", model=write_layers(tmp_path / "m", family, [layer_tensors(weights, fused())]))
    x = np.random.default_rng(5).standard_normal((TOKENS, H)).astype(np.float32)
    with daemon.client() as client:
        got = values_of(client.forward(layer=0, hidden=tensor(x)).output)
    logits = x.astype(np.float64) @ weights.router.T.astype(np.float64)
    wanted = np.zeros((TOKENS, H))
    for t, row in enumerate(x.astype(np.float64)):
        chosen = np.argsort(-logits[t])[:K]
        shares = np.exp(logits[t][chosen] - logits[t].max())
        for e, share in zip(chosen, shares / shares.sum()):
            wanted[t] += share * (weights.down[e] @ (silu(weights.gate[e] @ row) * (weights.up[e] @ row)))
    assert error_per_token(got, wanted).max() < 1e-5


SQUARE = {"H = I": (64, 64), "H = 2I": (64, 32)}


@pytest.mark.parametrize("sizes", SQUARE)
@pytest.mark.parametrize("name", ("qwen3_moe", "gpt_oss"))
def test_square_tensors_are_not_taken_for_transposed_ones(name, sizes, tmp_path, start_daemon):
    """The pair of a fused layout decides; MLX's stacked tensors are never transposed."""
    family, (hidden, width) = FAMILIES[name], SQUARE[sizes]
    weights = Weights(family, hidden, width)
    layouts = (by_expert(), fused(), fused(transposed=True), fused(suffix=".weight"), stacked(module="{block}.switch_mlp"))
    layers = [layer_tensors(weights, layout, number) for number, layout in enumerate(layouts)]
    answers = answers_of(start_daemon, write_layers(tmp_path / "m", family, layers, hidden, width), hidden)
    assert all(answer == answers[0] for answer in answers)


PREFIXES = ("layers", "language_model.model.layers", "model.language_model.layers", "base_model.model.model.layers",
            "module.model.layers", "_orig_mod.model.layers", "transformer.blocks", "transformer.h")


def test_any_prefix_is_the_decoder(tmp_path, start_daemon):
    family = FAMILIES["qwen3_moe"]
    layer = layer_tensors(Weights(family), by_expert())
    answers = [answers_of(start_daemon, write_layers(tmp_path / str(i), family, [layer], prefix=prefix), H)
               for i, prefix in enumerate(PREFIXES)]
    wrapped = {f"_orig_mod.{name}": array for name, array in layer.items()}
    answers.append(answers_of(start_daemon, write_layers(tmp_path / "wrapped", family, [wrapped]), H))
    assert all(answer == answers[0] for answer in answers)


def test_experts_under_another_word_for_layers_are_in_the_log(tmp_path, start_daemon):
    family = FAMILIES["qwen3_moe"]
    layer, other = layer_tensors(Weights(family), by_expert()), layer_tensors(Weights(family), by_expert(), 1)
    alone = answers_of(start_daemon, write_layers(tmp_path / "alone", family, [layer]), H)
    both = write_layers(tmp_path / "both", family, [layer], others=[("transformer.h", [other])])
    assert answers_of(start_daemon, both, H) == alone
    [note] = start_daemon(model=both).events("checkpoint_note")
    assert note["kind"] == "experts_elsewhere" and all(place in note["message"] for place in (family["prefix"], "transformer.h"))


# ---- refusals


def tensors(**more):
    """A layer of qwen3_moe, with changes: None removes a tensor."""
    layer = layer_tensors(Weights(FAMILIES["qwen3_moe"]), by_expert())
    for name, array in more.items():
        layer[name] = array
    return {name: array for name, array in layer.items() if array is not None}


def renamed(old, new):
    return {name.replace(old, new): array for name, array in tensors().items()}


ONE, VECTOR = np.ones((1,), np.float32), np.full(64, 2, np.float32)
REFUSED = {
    "two layouts": (lambda: {**tensors(), **layer_tensors(Weights(FAMILIES["qwen3_moe"]), fused())},
                    "model.layers.0.mlp.experts.0.up_proj", "mlp.experts.gate_up_proj", "cannot tell which"),
    "two modules": (lambda: {**tensors(), **layer_tensors(Weights(FAMILIES["qwen3_moe"]), stacked(module="mlp.switch_mlp"))},
                    "model.layers.0.mlp.experts", "model.layers.0.mlp.switch_mlp", "cannot tell which"),
    "two routers": (lambda: tensors(**{"mlp.router.weight": tensors()["mlp.gate.weight"]}),
                    "both model.layers.0.mlp.gate.weight and model.layers.0.mlp.router.weight exist"),
    "with and without .weight": (lambda: tensors(**{"mlp.experts.2.up_proj": tensors()["mlp.experts.2.up_proj.weight"]}),
                                 "model.layers.0.mlp.experts.2.up_proj.weight", "both", "cannot tell which"),
    "names that no layout has": (lambda: renamed("_proj", "_matrix"), "4 x model.layers.N.mlp.experts.N.down_matrix.weight F32 [64, 48]",
                                 "Known are"),
    "a module that no layout has": (lambda: renamed("mlp.experts", "mlp.expertises"), "no layer holds experts",
                                    "4 x model.layers.N.mlp.expertises.N.gate_proj.weight F32 [48, 64]"),
    "a matrix that is missing in all experts": (
        lambda: {name: array for name, array in tensors().items() if "up_proj" not in name},
        "tensor model.layers.0.mlp.experts.0.up_proj.weight is missing"),
    "an adapter": (lambda: tensors(**{"mlp.experts.1.up_proj.lora_A.weight": ONE}), "lora_A", "merge the adapter"),
    "weights below an adapter": (lambda: renamed("_proj.weight", "_proj.base_layer.weight"),
                                 "mlp.experts.0.gate_proj.base_layer.weight", "merge the adapter"),
    "a factor of the input": (lambda: tensors(**{"mlp.experts.1.up_proj.pre_quant_scale": ONE}), "pre_quant_scale",
                              "a factor of the matrix's input"),
    "a vector in the place of an input's scale": (lambda: tensors(**{"mlp.experts.1.up_proj.input_scale": VECTOR}),
                                                  "mlp.experts.1.up_proj.input_scale", "factor of each input"),
    "another name of it": (lambda: tensors(**{"mlp.experts.2.gate_proj.activation_scale": VECTOR}),
                           "mlp.experts.2.gate_proj.activation_scale", "factor of each input"),
    "a part of a stacked quantisation": (lambda: tensors(**{"mlp.experts.1.up_proj.absmax": ONE}), "up_proj.absmax", "bitsandbytes"),
    "a scale without codes": (lambda: tensors(**{"mlp.experts.1.up_proj.weight_scale": ONE}), "mlp.experts.1.up_proj.weight_scale",
                              "no matrix beside it is stored in codes"),
    "a router without a known name": (lambda: renamed("mlp.gate", "mlp.chooser"), "tensor model.layers.0.mlp.gate.weight is missing",
                                      "beside the experts, model.layers.0.mlp holds 1 x model.layers.N.mlp.chooser.weight F32 [4, 64]"),
    "a shared expert that the architecture has not": (lambda: tensors(**{"mlp.shared_expert.up_proj.weight": ONE}),
                                                      "mlp.shared_expert.up_proj.weight is in the MoE block"),
    "one in the layer": (lambda: tensors(**{"shared_expert.up_proj.weight": ONE}), "model.layers.0.shared_expert.up_proj.weight is in"),
}


def refusal_of(folder, *words):
    done = run_program("expertd", "--model", str(folder), "--listen", "127.0.0.1:0", "--http", "off", "--admin", "off")
    assert done.returncode == 65, done.stderr
    for word in words:
        assert word in done.stderr, f"{word!r} is not in: {done.stderr[-1500:]}"


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_ambiguous_or_unknown_is_refused_with_its_names(name, tmp_path):
    layer, *words = REFUSED[name]
    refusal_of(write_layers(tmp_path / "m", FAMILIES["qwen3_moe"], [layer()]), *words)


def test_a_fused_tensor_whose_rows_may_alternate_is_refused(tmp_path):
    """Which rows are gate's cannot be seen in a file."""
    family = FAMILIES["gpt_oss"]
    layer = layer_tensors(Weights(family), fused(("input_linear", "output_linear"), ".weight"))
    refusal_of(write_layers(tmp_path / "m", family, [layer]), "model.layers.0.mlp.experts.input_linear", "alternate")


def test_halves_of_alternating_rows_are_not_taken_for_gate_and_up(tmp_path):
    """GPTQModel writes them under the names of gate and up."""
    family = FAMILIES["gpt_oss"]
    meta = {"quantization_config": {"quant_method": "gptq", "bits": 4, "meta": {"quantizer": ["gptqmodel:5.0.0"]}}}
    layer = layer_tensors(Weights(family), by_expert())
    refusal_of(write_layers(tmp_path / "m", {**family, "config": {**family["config"], **meta}}, [layer]),
               "model.layers.0.mlp.experts", "quantization_config.meta.quantizer", "gptqmodel:5.0.0", "cannot be told")


def test_stacked_parameters_that_fit_two_orientations_are_refused(tmp_path):
    family = FAMILIES["qwen3_moe"]
    layer = layer_tensors(Weights(family, 64, 64), stacked(suffix=""))
    refusal_of(write_layers(tmp_path / "m", family, [layer], 64, 64), "model.layers.0.mlp.experts.gate_proj", "may be transposed")


HARMLESS = ("mlp.experts.1.up_proj.input_scale", "mlp.experts.2.down_proj.input_global_scale", "mlp.experts._extra_state",
            "mlp.tokens_per_expert")


@pytest.mark.parametrize("layout", (by_expert(suffix=""), by_part(suffix=""), by_expert(("w1", "v1", "w2"), suffix="")))
def test_square_parameters_of_single_experts_may_be_transposed(layout, tmp_path):
    """Such as are cut from stacked ones, which have both orientations."""
    family = FAMILIES["qwen3_moe"]
    folder = write_layers(tmp_path / "m", family, [layer_tensors(Weights(family, H, H), layout)], width=H)
    refusal_of(folder, "is [64, 64] and may be transposed", ".weight")


def test_the_pair_tells_the_orientation_of_square_parameters(tmp_path, start_daemon):
    family = FAMILIES["qwen3_moe"]
    weights = Weights(family, H, H)
    layers = [layer_tensors(weights, layout, number) for number, layout in enumerate((by_expert(), fused(split="expert", suffix="")))]
    answers = answers_of(start_daemon, write_layers(tmp_path / "m", family, layers, width=H), H)
    assert answers[0] == answers[1]


def test_tensors_without_a_part_in_the_outputs_are_ignored(tmp_path, start_daemon):
    family = FAMILIES["qwen3_moe"]
    plain = answers_of(start_daemon, write_layers(tmp_path / "plain", family, [tensors()]), H)
    more = answers_of(start_daemon, write_layers(tmp_path / "more", family, [tensors(**dict.fromkeys(HARMLESS, ONE))]), H)
    assert more == plain


# ---- changes at random

SYNONYMS = (("gate_proj", "up_proj", "down_proj", "w1", "w2", "w3", "v1", "fc1", "gate_up_proj", "gate_up", "linear_gate", "gate_projs"),
            ("experts", "switch_mlp", "switch_glu", "shared_expert", "shared_experts"), ("mlp", "block_sparse_moe", "moe", "ffn"),
            ("gate", "router"))


def rename(random, name):
    """The name with one component replaced by another known one."""
    parts = name.split(".")
    places = [(i, names) for i, part in enumerate(parts) for names in SYNONYMS if part in names]
    i, names = places[random.integers(len(places))]
    return ".".join(parts[:i] + [names[random.integers(len(names))]] + parts[i + 1:])


def change(random, layer, other):
    """One mistake that a tool could make. None: nothing changes."""
    names = [name for name in layer if not name.endswith(("router_bias", "expert_bias"))]
    name = names[random.integers(len(names))]
    new = rename(random, name)
    kind = ("rename", "copy", "drop", "stray", "both", "transpose")[random.integers(6)]
    if kind == "rename" and new not in layer:
        return {new if old == name else old: array for old, array in layer.items()}
    if kind == "copy" and new not in layer:
        return {**layer, new: layer[name] + np.float32(1)}
    if kind == "drop":
        return {old: array for old, array in layer.items() if old != name}
    if kind == "stray":
        return {**layer, name + ("_bias", ".bias", ".x")[random.integers(3)]: layer[name]}
    if kind == "both" and other.keys() - layer.keys():
        return {**other, **layer}
    if kind == "transpose" and layer[name].ndim > 1 and layer[name].shape[-1] != layer[name].shape[-2]:
        return {**layer, name: np.swapaxes(layer[name], -1, -2)}
    return None


def answers_or_none(start_daemon, folder):
    """None: the daemon refused the checkpoint."""
    try:
        return answers_of(start_daemon, folder, H)
    except AssertionError as error:
        assert "event=load_failed reason=CHECKPOINT" in str(error), error
        return None


@pytest.mark.share(3)
@pytest.mark.parametrize("seed", range(6))
def test_a_change_at_random_is_refused_or_has_no_effect(seed, tmp_path, start_daemon):
    """Never a wrong answer: what is served has the bits of the unchanged layer."""
    random = np.random.default_rng(seed)
    for case in range(8):
        family = FAMILIES[list(FAMILIES)[random.integers(len(FAMILIES))]]
        weights, layouts = Weights(family), list(layouts_of(family).values())
        layer, other = (layer_tensors(weights, layouts[i], case) for i in random.integers(len(layouts), size=2))
        changed = change(random, layer, other)
        if changed is None:
            continue
        answers = answers_or_none(start_daemon, write_layers(tmp_path / f"changed{case}", family, [changed]))
        if answers is not None:
            assert answers == answers_of(start_daemon, write_layers(tmp_path / f"same{case}", family, [layer]), H), sorted(changed)
