"""GGUF files that are damaged, inconsistent or of a kind that is not served: exit 65, and the file's own key or tensor in the message."""

import dataclasses
import struct

import pytest
from gguf import GGMLQuantizationType as Type

from harness.gguf_models import HIDDEN, QWEN, Model, Spec, refused

V3 = Spec("deepseek2", {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 2.5, "expert_shared_count": 1,
                        "leading_dense_block_count": 1}, select_bias=True, shared=256, layer=1, blocks=2)

V4 = Spec("deepseek4", {"expert_gating_func": 4, "expert_weights_norm": True, "expert_weights_scale": 1.5, "expert_shared_count": 1,
                        "hash_layer_count": 0, "swiglu_clamp_exp": [0.5]}, select_bias=True, shared=256)


def changed(folder, change, spec=QWEN, kinds=Type.Q8_0):
    return Model(folder, spec, kinds, change={f"{spec.arch}.{key}": value for key, value in change.items()}).path


# (specification, changed keys, what the message must say)
METADATA = {
    "no experts": (QWEN, {"expert_count": None}, "qwen3moe.expert_count is missing: the model has no experts"),
    "zero experts": (QWEN, {"expert_count": 0}, "qwen3moe.expert_count is 0: the model has no experts"),
    "too many experts": (QWEN, {"expert_count": 1 << 20}, "qwen3moe.expert_count is 1048576: expected an integer from 1 to 4096"),
    "experts as a text": (QWEN, {"expert_count": "8"}, "qwen3moe.expert_count is a text: expected a number"),
    "experts as a fraction": (QWEN, {"expert_used_count": 1.5}, "qwen3moe.expert_used_count is 1.5: expected an integer"),
    "too many chosen": (QWEN, {"expert_used_count": 9}, "experts"),
    "no chosen": (QWEN, {"expert_used_count": None}, "qwen3moe.expert_used_count is missing"),
    "another width": (QWEN, {"expert_feed_forward_length": 512}, "blk.0.ffn_gate_exps.weight is [8, 256, 256]", "[8, 512, 256]"),
    "another hidden size": (QWEN, {"embedding_length": 512}, "blk.0.ffn_gate_inp.weight is [8, 256]", "the file's metadata requires"),
    "no blocks": (QWEN, {"block_count": None}, "qwen3moe.block_count is missing"),
    "no hidden size": (QWEN, {"embedding_length": None}, "qwen3moe.embedding_length is missing"),
    "another gating function": (QWEN, {"expert_gating_func": 2}, "qwen3moe.expert_gating_func is 2", "expected 1"),
    "not normalised": (QWEN, {"expert_weights_norm": False}, "qwen3moe.expert_weights_norm is 0", "expected 1"),
    "scaled": (QWEN, {"expert_weights_scale": 2.5}, "qwen3moe.expert_weights_scale is 2.5", "expected 0|1"),
    "groups": (QWEN, {"expert_group_count": 4}, "qwen3moe.expert_group_count is 4"),
    "a key of another architecture": (QWEN, {"expert_group_scale": 0.05}, "qwen3moe.expert_group_scale is 0.05",
                                      "ignoring it could change the outputs"),
    "only further blocks": (QWEN, {"nextn_predict_layers": 1}, "qwen3moe.block_count is 1 and qwen3moe.nextn_predict_layers is 1"),
    "an infinite scale": (V3, {"expert_weights_scale": float("inf")}, "deepseek2.expert_weights_scale is not a finite number"),
    "a negative scale": (V3, {"expert_weights_scale": -1.0}, "deepseek2.expert_weights_scale is -1: expected a positive number"),
    "groups without those used": (V3, {"expert_group_count": 4}, "deepseek2.expert_group_count is 4, but "
                                  "deepseek2.expert_group_used_count is missing: expected both keys or neither"),
    "used groups without a count": (V3, {"expert_group_used_count": 1}, "deepseek2.expert_group_used_count is 1, but "
                                    "deepseek2.expert_group_count is missing"),
    "a damaged key": (V3, {"expert_weights_norm": None, "expmrt_weights_norm": True}, "deepseek2.expmrt_weights_norm is 1: this "
                      "architecture (deepseek2) has no such key"),
    "a fraction of blocks": (QWEN, {"block_count": 1.6}, "qwen3moe.block_count is 1.6: expected an integer"),
    "half a further block": (V3, {"nextn_predict_layers": 0.5}, "deepseek2.nextn_predict_layers is 0.5: expected an integer"),
    "no gating function": (V3, {"expert_gating_func": None}, "deepseek2.expert_weights_scale is 2.5",
                           "expert_gating_func is missing and so taken as 1"),
    "a scale as a text": (V3, {"expert_weights_scale": "2.5"}, "deepseek2.expert_weights_scale is a text: expected a number"),
    "no count of hash layers": (V4, {"hash_layer_count": None}, "deepseek4.hash_layer_count is missing"),
    "groups that do not divide": (V3, {"expert_group_count": 3, "expert_group_used_count": 1}, "group"),
    "a list of norms": (V3, {"expert_weights_norm": [True, False]}, "deepseek2.expert_weights_norm", "expected true or false"),
    "shared experts without a clamp": (V4, {"swiglu_clamp_shexp": 0.0}, "deepseek4.swiglu_clamp_shexp is 0, but "
                                       "deepseek4.swiglu_clamp_exp is a list of 1 that begins with 0.5"),
    "shared experts with another clamp": (V4, {"swiglu_clamp_shexp": [0.75]}, "deepseek4.swiglu_clamp_shexp is a list of 1 that"),
    "a list of another architecture": (V3, {"swiglu_clamp_exp": [7.0, 7.0]}, "deepseek2.swiglu_clamp_exp is a list of 2 that begins "
                                       "with 7: this architecture (deepseek2) has no such key"),
    "a dense layer with experts": (V3, {"leading_dense_block_count": 2}, "the file's metadata says that layer 1 is dense"),
    "a layer without experts": (V3, {"leading_dense_block_count": 0}, "the file's metadata says that layer 0 holds experts",
                                "blk.0.ffn_down_exps"),
}


@pytest.mark.parametrize("name", METADATA)
def test_metadata(name, tmp_path):
    spec, change, *words = METADATA[name]
    refused(changed(tmp_path, change, spec), "model.gguf: ", *words)


@pytest.mark.parametrize("key", ["deep3eek2.expert_weights_scale", "qwen3moe.moe_latent_size", "clip.swiglu_clamp_exp"])
def test_a_key_of_another_architecture_is_refused(key, tmp_path):
    refused(Model(tmp_path, V3, Type.Q8_0, change={key: 2.5}).path, f"model.gguf: {key} is 2.5: this architecture (deepseek2) has no")


def test_an_unknown_architecture_lists_the_known_ones(tmp_path):
    refused(Model(tmp_path / "a", dataclasses.replace(QWEN, arch="qwen9moe")).path, "general.architecture is qwen9moe", "qwen3moe",
            "gpt-oss")
    refused(Model(tmp_path / "b", QWEN, change={"general.type": "mmproj"}).path, "general.type is mmproj")


def with_tensors(folder, change, spec=QWEN, kinds=Type.Q8_0):
    """A model whose tensors {name: (array, type)} were changed."""
    model = Model(folder, spec, kinds)
    change(model.tensors)
    model.write(0)
    return model.path


def test_tensors(tmp_path):
    down = "blk.0.ffn_down_exps.weight"
    path = with_tensors(tmp_path / "a", lambda tensors: tensors.pop(down))
    refused(path, f"tensor {down} is missing; the file's metadata (qwen3moe.expert_count 8")
    path = with_tensors(tmp_path / "none", lambda tensors: [tensors.pop(name) for name in list(tensors) if "_exps" in name])
    refused(path, "no layer holds experts", "blk.N.ffn_down_exps")
    path = with_tensors(tmp_path / "b", lambda tensors: tensors.pop("blk.0.ffn_up_exps.weight"))
    refused(path, "tensor blk.0.ffn_up_exps.weight is missing")
    path = with_tensors(tmp_path / "c", lambda tensors: tensors.pop("blk.0.ffn_gate_inp.weight"))
    refused(path, "tensor blk.0.ffn_gate_inp.weight is missing")
    for extra in ("exp_probs_b.bias", "ffn_gate_inp.bias", "ffn_down_exps.bias", "ffn_up_exps.scale", "ffn_up_shexp.weight",
                  "ffn_gate_inp_shexp.weight"):
        path = with_tensors(tmp_path / extra, lambda tensors, name=extra: tensors.update(
            {f"blk.0.{name}": tensors["blk.0.ffn_norm.weight"]}))
        refused(path, f"tensor blk.0.{extra} is in the MoE block")
    path = with_tensors(tmp_path / "two", lambda tensors: tensors.update(
        {"blk.0.ffn_gate_up_exps.weight": tensors["blk.0.ffn_gate_exps.weight"]}))
    refused(path, "blk.0.ffn_gate_up_exps", "two layouts of the same experts")
    latent = Spec("nemotron_h_moe", {"expert_gating_func": 2, "moe_latent_size": 512, "expert_weights_norm": True,
                                     "expert_weights_scale": 2.5, "expert_shared_feed_forward_length": 0}, select_bias=True, activation="relu2", latent=512)
    path = with_tensors(tmp_path / "transposed", lambda tensors: tensors.update(
        {down: (tensors["blk.0.ffn_up_exps.weight"][0], Type.F32)}), latent, Type.F32)
    refused(path, f"tensor {down} is [8, 256, 512], but the file's metadata requires [8, 512, 256] (")


@pytest.mark.parametrize("extra", [
    "exp_probs_b", "ffn_exp_probs_b.bias", "ffn_gate_chexps.weight", "ffn_norm_exps.weight", "ffn_gate_inp_s.weight",
    "ffn_down.0.weight", "ffn_router.bias", "ffn_gate_inp_bias", "ffn_exps.bias", "ffn_gate.weight"])
def test_tensors_of_other_blocks_are_refused(extra, tmp_path):
    path = with_tensors(tmp_path, lambda tensors: tensors.update({f"blk.0.{extra}": tensors["blk.0.ffn_norm.weight"]}))
    refused(path, f"blk.0.{extra}")


@pytest.mark.parametrize("extra", ["ffn_gate.8.weight", "ffn_gate.0.bias"])
def test_more_tensors_of_experts_of_their_own_are_refused(extra, tmp_path):
    spec = Spec("llama", separate=True, width_key="feed_forward_length", norm=True, model_type="mixtral")
    path = with_tensors(tmp_path, lambda tensors: tensors.update({f"blk.0.{extra}": tensors["blk.0.ffn_norm.weight"]}), spec)
    refused(path, f"blk.0.{extra}")


@pytest.mark.parametrize("kind", [Type.IQ2_XXS, Type.IQ3_S, Type.IQ1_M, Type.TQ1_0, Type.Q8_K], ids=lambda kind: kind.name)
def test_types_that_are_not_served_are_named(kind, tmp_path):
    import gguf
    import numpy as np
    elements, block = gguf.GGML_QUANT_SIZES[kind]
    zeros = np.zeros((8, 256, HIDDEN // elements * block), np.uint8)
    path = with_tensors(tmp_path, lambda tensors: tensors.update({"blk.0.ffn_up_exps.weight": (zeros, kind)}))
    refused(path, f"tensor blk.0.ffn_up_exps.weight is {kind.name}, which is not served", "another quantisation", "Q4_K")


def test_a_folder_of_several_models_names_them(tmp_path):
    for kind in ("Q8_0", "Q4_0"):
        Model(tmp_path, QWEN, getattr(Type, kind), name=f"tiny-{kind}")
    refused(tmp_path, "holds several models", "tiny-Q4_0.gguf", "tiny-Q8_0.gguf", "name one of the files")


def test_containers(tmp_path):
    path = Model(tmp_path, QWEN, Type.Q8_0).path
    data = path.read_bytes()
    for cut in (0, 3, 7, 20, 100, len(data) // 2, len(data) - 40):
        path.write_bytes(data[:cut])
        refused(path, "model.gguf: ")
    path.write_bytes(data[:4] + struct.pack(">I", 3) + data[8:])
    refused(path, "the file is big-endian")
    path.write_bytes(data[:4] + struct.pack("<I", 1) + data[8:])
    refused(path, "GGUF version 1 is not supported")
    path.write_bytes(data[:8] + struct.pack("<Q", 1 << 60) + data[16:])
    refused(path, "the header claims 1152921504606846976 tensors")
