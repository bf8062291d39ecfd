"""GGUF files as other tools and older converters write them: absent keys, other types of numbers, lists by layer, routers in blocks."""

import dataclasses

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Type

from harness.gguf_architectures import ARCHITECTURES
from harness.gguf_models import QWEN, Model, refused
from harness.tensors import error_per_token, tensor, values_of

TOKENS = 24
BOUND = 1e-5  # fp32 sums in another order


def check(model, start_daemon, *options):
    """The layer's description, after a comparison of its answer in fp32."""
    daemon, x = start_daemon("--compute-dtype", "f32", *options, model=model.path), model.inputs(TOKENS)
    with daemon.client() as client:
        (layer,) = client.describe().models[0].layers
        output = client.forward(layer=layer.layer, hidden=tensor(x)).output
    daemon.stop()
    assert error_per_token(values_of(output), model.outputs(x)).max() <= BOUND
    return layer


# (architecture of ARCHITECTURES, absent keys, fields of the specification that then differ). What llama.cpp takes instead:
ABSENT = {
    "width": ("qwen3moe", ["expert_feed_forward_length"], {}),  # feed_forward_length / expert_used_count
    "width_of_mixtral": ("llama", ["feed_forward_length"], {}),  # refuses: every tensor has another shape
    "width_of_2023": ("llama_of_2023", ["feed_forward_length"], {}),
    "width_of_latent_experts": ("nemotron_3_super", ["expert_feed_forward_length"], {}),
    "shared_width": ("qwen2moe", ["expert_shared_feed_forward_length"], {}),  # feed_forward_length
    "shared_width_beside_a_count": ("bailingmoe2", ["expert_shared_feed_forward_length"], {}),  # the count times the width
    "shared_count": ("glm4moe", ["expert_shared_count"], {}),  # refuses
    "shared_count_beside_a_width": ("exaone_moe", ["expert_shared_count"], {}),  # 0, which it does not read
    "shared_count_and_width": ("hy_v3", ["expert_shared_feed_forward_length"], {}),  # one expert's width
    "widths_of_both": ("minimax_m3", ["expert_feed_forward_length", "expert_shared_count"], {}),
    "scale": ("deepseek_v3", ["expert_weights_scale"], {"scale": 1.0}),  # 1
    "norm": ("glm4moe", ["expert_weights_norm"], {"norm": False}),  # false
    "norm_that_the_authors_always_have": ("afmoe", ["expert_weights_norm"], {}),  # false; the authors always normalise
    "gating_sigmoid": ("glm4moe", ["expert_gating_func"], {}),  # the architecture's
    "gating_softmax": ("mistral_large_3", ["expert_gating_func"], {}),
    "dense_layers": ("glm4moe", ["leading_dense_block_count"], {}),  # 0: it then refuses a dense layer
    "dense_layers_of_afmoe": ("afmoe", ["leading_dense_block_count"], {}),
    "step": ("llama4", ["interleave_moe_layer_step"], {}),  # refuses
    "step_and_start": ("ernie", ["interleave_moe_layer_step", "leading_dense_block_count"], {}),
    "groups": ("glm4moe", ["expert_group_count", "expert_group_used_count"], {}),  # one
    "clamps": ("bailingmoe3", ["swiglu_clamp_exp", "swiglu_clamp_shexp"], {"limit": 0.0, "shared_limit": 0.0}),  # none
    "clamp_of_shared_experts": ("glm5_next", ["swiglu_clamp_shexp"], {}),  # the other one
    "softcap": ("laguna_capped", ["router_logit_softcapping"], {"softcap": 0.0}),  # it has no cap
}


# Old files of DeepSeek-V3 do not say that its 256 experts are in groups; Kimi-K2, cut to 256 experts, has none. With K = 8 groups matter.
@pytest.mark.parametrize("vocabulary, groups", [(129280, (8, 4)), (163840, (1, 1))])
def test_groups_of_256_experts(vocabulary, groups, monkeypatch, tmp_path, start_daemon):
    monkeypatch.setattr("harness.gguf_models.TOP_K", 8)
    spec = dataclasses.replace(ARCHITECTURES["deepseek_v3_before_groups"], groups=groups[0], top_groups=groups[1])
    check(Model(tmp_path, spec, change={"deepseek2.vocab_size": vocabulary}), start_daemon)


@pytest.mark.share(4)
@pytest.mark.parametrize("name", ABSENT)
def test_absent_keys(name, tmp_path, start_daemon):
    architecture, keys, fields = ABSENT[name]
    spec = dataclasses.replace(ARCHITECTURES[architecture], **fields)
    check(Model(tmp_path, spec, change={f"{spec.arch}.{key}": None for key in keys}), start_daemon)


@pytest.mark.parametrize("name", ["glm4moe", "nemotron_3_super", "laguna_capped"])
@pytest.mark.parametrize("integer, real", [("uint64", "float64"), ("int32", "float64"), ("int64", "float32"), ("uint16", "float32")])
def test_numbers_of_another_type(name, integer, real, tmp_path, start_daemon):
    spec = ARCHITECTURES[name]
    usual = Model(tmp_path, spec).metadata
    change = {key: (integer if isinstance(value, int) else real, value) for key, value in usual.items()
              if isinstance(value, (int, float)) and not isinstance(value, bool)}
    check(Model(tmp_path, spec, change=change), start_daemon)


@pytest.mark.parametrize("name", ["glm4moe", "llama4", "jamba"])
def test_lists_by_layer(name, tmp_path, start_daemon):
    """As llama.cpp reads them for layers that differ; a dense layer has 0, of the experts' number too."""
    spec = ARCHITECTURES[name]
    change = {f"{spec.arch}.{key}": [0, value] for key, value in (
        ("expert_count", spec.experts), ("expert_used_count", 2), (spec.width_key, spec.width))}
    check(Model(tmp_path, spec, change=change), start_daemon)


@pytest.mark.parametrize("key", ["list", "absent"])
def test_layers_of_different_widths(key, tmp_path, start_daemon):
    """As in models whose experts were pruned layer by layer."""
    widths, models = (96, 160), []
    for layer, width in enumerate(widths):
        glm = ARCHITECTURES["glm4moe"]
        spec = dataclasses.replace(glm, keys=glm.keys | {"leading_dense_block_count": 0}, shared=width, hidden=64, width=width, layer=layer)
        change = {"glm4moe.expert_feed_forward_length": list(widths) if key == "list" else None}
        models.append(Model(tmp_path, spec, change=change, seed=layer))
    models[1].tensors |= models[0].tensors
    models[1].write(0)
    daemon = start_daemon("--compute-dtype", "f32", model=models[1].path)
    with daemon.client() as client:
        for layer, model in enumerate(models):
            x = model.inputs(TOKENS)
            output = client.forward(layer=layer, hidden=tensor(x)).output
            assert error_per_token(values_of(output), model.outputs(x)).max() <= BOUND
    daemon.stop()


@pytest.mark.parametrize("kind", (Type.F16, Type.BF16, Type.Q8_0, Type.Q5_1, Type.Q4_K, Type.Q6_K, Type.MXFP4), ids=lambda kind: kind.name)
def test_a_router_in_any_type(kind, tmp_path, start_daemon):
    """With its bias, the shared expert's gate and the projections of latent experts. Each is widened to fp32."""
    gated, latent = ARCHITECTURES["qwen2moe"], ARCHITECTURES["nemotron_3_super"]
    latent = dataclasses.replace(latent, experts=max(32, GGML_QUANT_SIZES[kind][0]))
    for name, spec in ("gated", gated), ("latent", latent):
        model = Model(tmp_path / name, spec, Type.Q8_0 if name == "gated" else Type.Q4_0)
        for tensor_name in ("ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "exp_probs_b.bias", "ffn_latent_down.weight",
                            "ffn_latent_up.weight"):
            if tensor_name in model.values:
                model.store_as(tensor_name, kind, 4.0 if tensor_name == "exp_probs_b.bias" else 1.0)
        model.write(0)
        ids = {check(model, start_daemon, *options).weights_id for options in ((), ("--shards", 2), ("--widen",))}
        assert len(ids) == 1


def test_a_router_in_a_type_that_is_not_served(tmp_path):
    model = Model(tmp_path, QWEN, Type.Q8_0)
    model.tensors["blk.0.ffn_gate_inp.weight"] = (np.zeros((8, 66), np.uint8), Type.IQ2_XXS)
    model.write(0)
    refused(model.path, "tensor blk.0.ffn_gate_inp.weight is IQ2_XXS, which is not served", "another quantisation")


@pytest.mark.parametrize("bias", ["exp_probs_b", "exp_probs_b.weight", "ffn_exp_probs_b.bias", "ffn_exp_probs_b"])
def test_names_of_the_selection_bias(bias, tmp_path, start_daemon):
    model = Model(tmp_path, dataclasses.replace(ARCHITECTURES["glm4moe"], bias_name=bias))
    check(model, start_daemon)
    model.add("exp_probs_b.bias", (8,))
    model.write(0)
    refused(model.path, "both blk.1.exp_probs_b.bias and", "cannot tell which of them counts")
