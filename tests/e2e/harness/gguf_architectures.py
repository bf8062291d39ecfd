"""llama.cpp's architectures with experts, each as a specification of a small model: its metadata, and what its authors compute."""

from .gguf_models import Spec

# Keys as llama.cpp's converter writes them (conversion/ of llama.cpp), besides the sizes.
SOFTMAX, SIGMOID = ({"expert_gating_func": number} for number in (1, 2))
ONE_SHARED, ONE_GROUP = {"expert_shared_count": 1}, {"expert_group_count": 1, "expert_group_used_count": 1}
TWO_OF_FOUR = {"expert_group_count": 4, "expert_group_used_count": 2}
SHARED = {"expert_shared_feed_forward_length": 128}
V3 = dict(score="sigmoid", norm=True, select_bias=True, scale=2.5, shared=256)
V3_KEYS = SIGMOID | ONE_SHARED | ONE_GROUP | {"expert_weights_norm": True, "expert_weights_scale": 2.5, "leading_dense_block_count": 1}
MIXTRAL = dict(width_key="feed_forward_length", norm=True, model_type="mixtral")
GRANITE = dict(width_key="feed_forward_length", score="softmax of chosen", model_type="granitemoe")
GATED = dict(shared=128, shared_gate=True)
AFTER_DENSE = dict(layer=1, blocks=2)
GROUPS = dict(groups=4, top_groups=2)


def without(keys, *names):
    return {key: value for key, value in keys.items() if key not in names}


ARCHITECTURES = {
    "llama": Spec("llama", **MIXTRAL),
    "llama_of_2023": Spec("llama", separate=True, **MIXTRAL),
    "mistral3": Spec("mistral3", **MIXTRAL),
    "minicpm": Spec("minicpm", **MIXTRAL),
    "minimax_01": Spec("minimax-01", **MIXTRAL | {"model_type": "minimax_text_01"}),
    "qwen2moe": Spec("qwen2moe", SHARED, model_type="qwen2_moe", **GATED),
    "qwen3moe": Spec("qwen3moe", norm=True, model_type="qwen3_moe"),
    "rnd1": Spec("rnd1", norm=True, model_type="qwen3_moe"),
    "mellum": Spec("mellum", norm=True, model_type="mellum"),
    "qwen3vlmoe": Spec("qwen3vlmoe", norm=True, model_type="qwen3_vl_moe"),
    "qwen3next": Spec("qwen3next", SHARED | {"nextn_predict_layers": 0}, norm=True, model_type="qwen3_next", **GATED),
    "qwen35moe_fused": Spec("qwen35moe", SHARED, norm=True, fused=True, model_type="qwen3_5_moe", **GATED),
    "qwen4exp": Spec("qwen4exp", SHARED, norm=True, model_type="qwen4_exp", **GATED),
    "olmoe": Spec("olmoe", width_key="feed_forward_length", model_type="olmoe"),
    "llada_moe": Spec("llada-moe", model_type="olmoe"),
    "deepseek": Spec("deepseek", {"expert_shared_count": 2, "expert_weights_scale": 1.0, "leading_dense_block_count": 1}, shared=512,
                     model_type="deepseek_v2", **AFTER_DENSE),
    "deepseek_v2": Spec("deepseek2", SOFTMAX | ONE_SHARED | TWO_OF_FOUR | {
        "expert_weights_scale": 16.0, "leading_dense_block_count": 1}, scale=16.0, group_score="max", shared=256,
        model_type="deepseek_v2", **GROUPS, **AFTER_DENSE),
    "deepseek_v2_before_groups": Spec("deepseek2", ONE_SHARED | {"expert_weights_scale": 16.0}, scale=16.0, groups=8, top_groups=3,
                                      group_score="max", shared=256, experts=160, model_type="deepseek_v2"),
    "deepseek_v2_lite": Spec("deepseek2", ONE_GROUP | {"expert_shared_count": 2, "expert_weights_scale": 1.0}, shared=512,
                             model_type="deepseek_v2"),
    "deepseek_ocr": Spec("deepseek2-ocr", ONE_GROUP | {"expert_shared_count": 2, "leading_dense_block_count": 1}, shared=512,
                         model_type="deepseek_v2", **AFTER_DENSE),
    "deepseek_v3": Spec("deepseek2", V3_KEYS | TWO_OF_FOUR, model_type="deepseek_v3", **V3, **GROUPS, **AFTER_DENSE),
    "deepseek_v3_before_groups": Spec("deepseek2", without(V3_KEYS, *ONE_GROUP) | {"vocab_size": 129280}, groups=8, top_groups=4,
                                      experts=256, model_type="deepseek_v3", **V3, **AFTER_DENSE),
    "kimi_k2": Spec("deepseek2", V3_KEYS, model_type="deepseek_v3", **V3, **AFTER_DENSE),
    "glm_4_7_flash_before_gating_func": Spec("deepseek2", without(V3_KEYS, *SIGMOID) | {
        "leading_dense_block_count": 46, "vocab_size": 154880}, model_type="deepseek_v3", layer=46, blocks=47, **V3),
    "mistral_large_3": Spec("deepseek2", SOFTMAX | ONE_SHARED | {"expert_weights_norm": True, "expert_weights_scale": 1.0},
                            norm=True, shared=256, model_type="mistral4"),
    "deepseek32": Spec("deepseek32", V3_KEYS | TWO_OF_FOUR, model_type="deepseek_v32", **V3, **GROUPS, **AFTER_DENSE),
    "glm_dsa": Spec("glm-dsa", V3_KEYS, model_type="glm_moe_dsa", **V3, **AFTER_DENSE),
    "glm4moe": Spec("glm4moe", V3_KEYS, model_type="glm4_moe", **V3, **AFTER_DENSE),
    "glm5_next": Spec("glm5-next", V3_KEYS | {"swiglu_clamp_exp": [0.5, 0.5], "swiglu_clamp_shexp": [0.5, 0.5]},
                      model_type="glm5_next", clamp="before", limit=0.5, shared_limit=0.5, **V3, **AFTER_DENSE),
    "dots1": Spec("dots1", V3_KEYS, model_type="dots1", **V3, **AFTER_DENSE),
    "dots3note": Spec("dots3note", V3_KEYS, model_type="dots3_note", **V3, **AFTER_DENSE),
    "exaone_moe": Spec("exaone-moe", V3_KEYS | {"expert_shared_feed_forward_length": 256, "nextn_predict_layers": 0},
                       model_type="exaone_moe", **V3, **AFTER_DENSE),
    "kimi_linear": Spec("kimi-linear", without(V3_KEYS, "expert_weights_norm"), model_type="kimi_linear", **V3, **AFTER_DENSE),
    "mimo2": Spec("mimo2", SIGMOID | ONE_GROUP, score="sigmoid", norm=True, select_bias=True, model_type="mimo_v2_flash"),
    "hy_v3": Spec("hy_v3", SIGMOID | {"expert_shared_feed_forward_length": 256, "expert_weights_norm": True, "expert_weights_scale": 2.5},
                  bias_name="exp_probs_b", model_type="hy_v3", **V3, **AFTER_DENSE),
    "hy_v4": Spec("hy_v4", without(V3_KEYS, *ONE_GROUP) | {"swiglu_clamp_exp": [0.5, 0.5]}, clamp="before", limit=0.5,
                  model_type="hy_v4", **V3, **AFTER_DENSE),
    "cohere2moe": Spec("cohere2moe", SIGMOID | {
        "expert_weights_norm": True, "expert_shared_count": 2, "expert_shared_feed_forward_length": 512,
        "leading_dense_block_count": 1}, score="sigmoid of chosen", norm=True, shared=512, average=True, model_type="cohere2_moe",
        **AFTER_DENSE),
    "cohere2moe_softmax": Spec("cohere2moe", SOFTMAX | {"expert_weights_norm": False, "leading_dense_block_count": 0},
                               score="softmax of chosen", model_type="cohere2_moe"),
    "bailingmoe": Spec("bailingmoe", ONE_SHARED | {"expert_weights_norm": True, "expert_weights_scale": 1.0,
                                                   "leading_dense_block_count": 0}, norm=True, shared=256, model_type="bailing_moe"),
    "bailingmoe2": Spec("bailingmoe2", V3_KEYS | TWO_OF_FOUR | {"expert_shared_feed_forward_length": 256},
                        model_type="bailing_moe_v2", **V3, **GROUPS, **AFTER_DENSE),
    "bailingmoe3": Spec("bailingmoe3", V3_KEYS | TWO_OF_FOUR | {
        "expert_shared_feed_forward_length": 256, "swiglu_clamp_exp": [0.0, 0.5], "swiglu_clamp_shexp": [0.0, 0.25]}, clamp="after",
        limit=0.5, shared_limit=0.25, model_type="bailing_moe_v3", **V3, **GROUPS, **AFTER_DENSE),
    "afmoe": Spec("afmoe", without(V3_KEYS, *ONE_GROUP), model_type="afmoe", **V3, **AFTER_DENSE),
    "lfm2moe": Spec("lfm2moe", SIGMOID | {"leading_dense_block_count": 1}, score="sigmoid", norm=True, select_bias=True,
                    model_type="lfm2_moe", **AFTER_DENSE),
    "minimax_m2": Spec("minimax-m2", SIGMOID, score="sigmoid", norm=True, select_bias=True, model_type="minimax_m2"),
    "minimax_m3": Spec("minimax-m3", without(V3_KEYS, *ONE_GROUP), activation="oai", model_type="minimax_m3", **V3, **AFTER_DENSE),
    "hunyuan": Spec("hunyuan-moe", ONE_SHARED | {"expert_shared_feed_forward_length": 256}, norm=True, shared=256,
                    model_type="hunyuan_v1_moe"),
    "ernie": Spec("ernie4_5-moe", {"expert_shared_count": 2, "expert_shared_feed_forward_length": 512, "leading_dense_block_count": 1,
                                   "interleave_moe_layer_step": 1}, norm=True, select_bias=True, shared=512,
                  model_type="ernie4_5_moe", **AFTER_DENSE),
    "granite": Spec("granite", SHARED, shared=128, parallel=True, **GRANITE),
    "granitemoe": Spec("granitemoe", SHARED, shared=128, parallel=True, **GRANITE),
    "granitehybrid": Spec("granitehybrid", **GRANITE | {"model_type": "granitemoehybrid"}),
    "granite_swa": Spec("granite_swa", SHARED, fused=True, beside=("ffn_up_shexp", "ffn_down_shexp"), **GRANITE),
    "arctic": Spec("arctic", beside=("ffn_norm_exps", "ffn_gate", "ffn_up", "ffn_down"), **GRANITE),
    "dbrx": Spec("dbrx", width_key="feed_forward_length", norm=True, model_type="dbrx"),
    "jamba": Spec("jamba", width_key="feed_forward_length", model_type="jamba", **AFTER_DENSE),
    "gpt_oss": Spec("gpt-oss", score="softmax of chosen", router_bias=True, expert_bias=True, activation="oai",
                    model_type="gpt_oss"),
    "llama4": Spec("llama4", {"interleave_moe_layer_step": 2, "leading_dense_block_count": 0}, score="sigmoid of chosen",
                   on_input=True, shared=256, model_type="llama4", **AFTER_DENSE),
    "nemotron_h_moe": Spec("nemotron_h_moe", ONE_SHARED | SHARED | {
        "expert_weights_norm": True, "expert_weights_scale": 2.5, "expert_group_count": 1, "moe_latent_size": 0}, activation="relu2",
        model_type="nemotron_h", **V3 | {"shared": 128}),
    "nemotron_3_super": Spec("nemotron_h_moe", ONE_SHARED | SHARED | {
        "expert_weights_norm": True, "expert_weights_scale": 2.5, "expert_group_count": 1, "moe_latent_size": 512}, activation="relu2",
        latent=512, model_type="nemotron_h", **V3 | {"shared": 128}),
    "mistral4": Spec("mistral4", SOFTMAX | ONE_SHARED | {"expert_weights_norm": True, "expert_weights_scale": 1.5}, norm=True,
                     scale=1.5, shared=256, model_type="mistral4"),
    "laguna": Spec("laguna", SIGMOID | SHARED | {"expert_weights_norm": True, "expert_weights_scale": 2.5,
                                                 "leading_dense_block_count": 1}, model_type="laguna", **V3 | {"shared": 128},
                   **AFTER_DENSE),
    "laguna_capped": Spec("laguna", SIGMOID | SHARED | {
        "expert_weights_norm": True, "expert_weights_scale": 2.5, "leading_dense_block_count": 1, "router_logit_softcapping": 0.75},
        softcap=0.75, model_type="laguna", **V3 | {"shared": 128}, **AFTER_DENSE),
    "step35": Spec("step35", SIGMOID | SHARED | {"expert_weights_norm": True, "expert_weights_scale": 3.0, "moe_every_n_layers": 1,
                                                 "swiglu_clamp_exp": [0.5], "swiglu_clamp_shexp": [0.25]}, clamp="after", limit=0.5,
                   shared_limit=0.25, model_type="step3p5", **V3 | {"scale": 3.0, "shared": 128}),
}
