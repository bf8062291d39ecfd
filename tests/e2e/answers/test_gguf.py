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


SOFTMAX, SIGMOID, OF_CHOSEN = ({"expert_gating_func": number} for number in (1, 2, 3))
SHARED = {"expert_shared_feed_forward_length": 128}
ONE_SHARED = {"expert_shared_count": 1}
V3 = dict(score="sigmoid", norm=True, select_bias=True, scale=2.5, shared=256)
V3_KEYS = SIGMOID | ONE_SHARED | {"expert_weights_norm": True, "expert_weights_scale": 2.5, "leading_dense_block_count": 1}
MIXTRAL = dict(width_key="feed_forward_length", norm=True, model_type="mixtral")
AFTER_DENSE = dict(layer=1, blocks=2)
ARCHITECTURES = {
    "llama": Spec("llama", **MIXTRAL),
    "llama_of_2023": Spec("llama", separate=True, **MIXTRAL),
    "qwen2moe": Spec("qwen2moe", SHARED, shared=128, shared_gate=True, model_type="qwen2_moe"),
    "qwen3vlmoe": Spec("qwen3vlmoe", norm=True, model_type="qwen3_vl_moe"),
    "qwen3next": Spec("qwen3next", SHARED | {"nextn_predict_layers": 0}, norm=True, shared=128, shared_gate=True,
                      model_type="qwen3_next"),
    "qwen35moe_fused": Spec("qwen35moe", SHARED, norm=True, shared=128, shared_gate=True, fused=True, model_type="qwen3_5_moe"),
    "olmoe": Spec("olmoe", width_key="feed_forward_length", model_type="olmoe"),
    "deepseek_v2": Spec("deepseek2", SOFTMAX | ONE_SHARED | {
        "expert_weights_scale": 16.0, "leading_dense_block_count": 1, "expert_group_count": 4, "expert_group_used_count": 2},
        scale=16.0, groups=4, top_groups=2, group_score="max", shared=256, model_type="deepseek_v2", **AFTER_DENSE),
    "deepseek_v2_before_groups": Spec("deepseek2", ONE_SHARED | {"expert_weights_scale": 16.0}, scale=16.0, groups=8, top_groups=3,
                                      group_score="max", shared=256, experts=160, model_type="deepseek_v2"),
    "deepseek_v2_lite": Spec("deepseek2", {"expert_shared_count": 2, "expert_weights_scale": 1.0}, shared=512,
                             model_type="deepseek_v2"),
    "deepseek_v3": Spec("deepseek2", V3_KEYS | {"expert_group_count": 4, "expert_group_used_count": 2}, groups=4, top_groups=2,
                        model_type="deepseek_v3", **V3, **AFTER_DENSE),
    "deepseek_v3_before_groups": Spec("deepseek2", V3_KEYS, groups=8, top_groups=4, experts=256, model_type="deepseek_v3", **V3,
                                      **AFTER_DENSE),
    "kimi_k2": Spec("deepseek2", V3_KEYS, model_type="deepseek_v3", **V3, **AFTER_DENSE),
    "mistral_large_3": Spec("deepseek2", SOFTMAX | ONE_SHARED | {"expert_weights_norm": True, "expert_weights_scale": 1.0},
                            norm=True, shared=256, model_type="mistral4"),
    "deepseek32": Spec("deepseek32", V3_KEYS | {"expert_group_count": 4, "expert_group_used_count": 2}, groups=4, top_groups=2,
                       model_type="deepseek_v32", **V3, **AFTER_DENSE),
    "glm_dsa": Spec("glm-dsa", V3_KEYS, model_type="glm_moe_dsa", **V3, **AFTER_DENSE),
    "glm4moe": Spec("glm4moe", V3_KEYS, model_type="glm4_moe", **V3, **AFTER_DENSE),
    "dots1": Spec("dots1", V3_KEYS, model_type="dots1", **V3, **AFTER_DENSE),
    "exaone_moe": Spec("exaone-moe", V3_KEYS | {"expert_shared_feed_forward_length": 256}, model_type="exaone_moe", **V3,
                       **AFTER_DENSE),
    "kimi_linear": Spec("kimi-linear", {key: value for key, value in V3_KEYS.items() if key != "expert_weights_norm"},
                        model_type="kimi_linear", **V3, **AFTER_DENSE),
    "mimo2": Spec("mimo2", SIGMOID, score="sigmoid", norm=True, select_bias=True, model_type="mimo_v2_flash"),
    "bailingmoe": Spec("bailingmoe", ONE_SHARED | {"expert_weights_norm": True, "expert_weights_scale": 1.0,
                                                   "leading_dense_block_count": 0}, norm=True, shared=256, model_type="bailing_moe"),
    "bailingmoe2": Spec("bailingmoe2", V3_KEYS | {"expert_group_count": 4, "expert_group_used_count": 2}, groups=4, top_groups=2,
                        model_type="bailing_moe_v2", **V3, **AFTER_DENSE),
    "afmoe": Spec("afmoe", V3_KEYS, model_type="afmoe", **V3, **AFTER_DENSE),
    "lfm2moe": Spec("lfm2moe", SIGMOID | {"leading_dense_block_count": 1}, score="sigmoid", norm=True, select_bias=True,
                    model_type="lfm2_moe", **AFTER_DENSE),
    "minimax_m2": Spec("minimax-m2", SIGMOID, score="sigmoid", norm=True, select_bias=True, model_type="minimax_m2"),
    "hunyuan": Spec("hunyuan-moe", ONE_SHARED | {"expert_shared_feed_forward_length": 256}, norm=True, shared=256,
                    model_type="hunyuan_v1_moe"),
    "ernie": Spec("ernie4_5-moe", {"expert_shared_count": 2, "leading_dense_block_count": 1, "interleave_moe_layer_step": 1},
                  norm=True, select_bias=True, shared=512, model_type="ernie4_5_moe", **AFTER_DENSE),
    "granitemoe": Spec("granitemoe", SHARED, width_key="feed_forward_length", score="softmax of chosen", shared=128, parallel=True,
                       model_type="granitemoe"),
    "granitehybrid": Spec("granitehybrid", width_key="feed_forward_length", score="softmax of chosen",
                          model_type="granitemoehybrid"),
    "dbrx": Spec("dbrx", width_key="feed_forward_length", norm=True, model_type="dbrx"),
    "jamba": Spec("jamba", width_key="feed_forward_length", model_type="jamba", **AFTER_DENSE),
    "gpt_oss": Spec("gpt-oss", score="softmax of chosen", router_bias=True, expert_bias=True, activation="oai",
                    model_type="gpt_oss"),
    "llama4": Spec("llama4", {"interleave_moe_layer_step": 2, "leading_dense_block_count": 0}, score="sigmoid of chosen",
                   on_input=True, shared=256, model_type="llama4", **AFTER_DENSE),
    "nemotron_h_moe": Spec("nemotron_h_moe", ONE_SHARED | SHARED | {
        "expert_weights_norm": True, "expert_weights_scale": 2.5, "expert_group_count": 1}, score="sigmoid", norm=True,
        select_bias=True, scale=2.5, shared=128, activation="relu2", model_type="nemotron_h"),
    "nemotron_3_super": Spec("nemotron_h_moe", ONE_SHARED | SHARED | {
        "expert_weights_norm": True, "expert_weights_scale": 2.5, "expert_group_count": 1, "moe_latent_size": 512}, score="sigmoid",
        norm=True, select_bias=True, scale=2.5, shared=128, activation="relu2", latent=512, model_type="nemotron_h"),
    "mistral4": Spec("mistral4", SOFTMAX | ONE_SHARED | {"expert_weights_norm": True, "expert_weights_scale": 1.5}, norm=True,
                     scale=1.5, shared=256, model_type="mistral4"),
    "laguna": Spec("laguna", SIGMOID | SHARED | {"expert_weights_norm": True, "expert_weights_scale": 2.5,
                                                 "leading_dense_block_count": 1}, score="sigmoid", norm=True, select_bias=True,
                   scale=2.5, shared=128, model_type="laguna", **AFTER_DENSE),
    "step35": Spec("step35", SIGMOID | SHARED | {"expert_weights_norm": True, "expert_weights_scale": 3.0, "moe_every_n_layers": 1},
                   score="sigmoid", norm=True, select_bias=True, scale=3.0, shared=128, model_type="step3p5"),
}


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
