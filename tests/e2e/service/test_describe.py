"""Describe: models, layers, limits and features, and the ids that change with the weights."""

import json
import re

import grpc
import pytest

from harness.checkpoints import copy_case, read_header
from harness.errors import raises
from harness.paths import SERVED_CASES
from harness.protos import pb

PREFIXES = {
    "mixtral": "model.layers.1.block_sparse_moe.experts",
    "qwen2_moe": "model.layers.1.mlp.experts",
    "qwen3_5_moe": "model.language_model.layers.1.mlp.experts",
    "deepseek_v3": "model.layers.1.mlp.experts",
    "gpt_oss": "model.layers.1.mlp.experts",
    "llama4": "model.layers.1.feed_forward.experts",
}

# The quantisation, and the dtype of the codes if safetensors has one.
QUANTISED = {
    "deepseek_v3_fp8": ("fp8_block128", pb.F8_E4M3),
    "gpt_oss_mxfp4": ("mxfp4", pb.DTYPE_UNSPECIFIED),
    "kimi_k2_int4": ("int4_group32", pb.DTYPE_UNSPECIFIED),
    "mixtral_awq": ("int4_group32_zero", pb.DTYPE_UNSPECIFIED),
}


SHARED = {"deepseek_v3_fp8": "fp8_block128", "granitemoe_f16": "f16"}


@pytest.mark.share(3)
@pytest.mark.parametrize("name", SERVED_CASES)
def test_layers_are_those_of_the_checkpoint(name, case, start_daemon):
    golden = case(name)
    with start_daemon(model=golden.folder).client() as client:
        (model,) = client.describe().models
    assert model.name == name
    assert model.architecture == json.loads((golden.folder / "config.json").read_text())["model_type"]
    assert len(model.digest) == 16 and any(model.digest)
    assert [layer.layer for layer in model.layers] == golden.layers
    for layer in model.layers:
        assert layer.hidden_size == golden.get(layer.layer, "input").shape[1]
        assert layer.num_experts == golden.router_logits(layer.layer).shape[1]
        assert layer.top_k == golden.get(layer.layer, "topk_ids").shape[1]
        assert layer.has_router and layer.ready and layer.weights_id
        assert layer.has_shared_experts == (golden.shared_output(layer.layer) is not None)
        assert layer.shared_quantisation == (SHARED.get(name, "bf16") if layer.has_shared_experts else "")
        assert layer.weights_on_input == (name == "llama4")
        assert layer.quantisation == QUANTISED.get(name, ("",))[0] and layer.num_zero_experts == 0
        assert not layer.needs_token_ids and not layer.needs_router_input
        plain = {"mixtral_one_token": pb.F32, "granitemoe_f16": pb.F16}.get(name, pb.BF16)
        assert layer.weight_dtype == QUANTISED.get(name, ("", plain))[1]
        # f32 only if every expert weight is F32
        assert layer.numerics_id == ("1/f32/cpu" if name == "mixtral_one_token" else "1/bf16/cpu")
    if name in PREFIXES:
        assert model.layers[-1].prefix == PREFIXES[name]


def test_limits_and_features_are_named(client):
    answer = client.describe()
    assert answer.limits.max_message_bytes >= 1 << 20
    assert answer.limits.max_tokens > 0 and answer.limits.max_top_k >= 8 and answer.limits.max_inflight > 0
    assert answer.limits.max_region_bytes == 256 << 20
    assert {"routes", "router_logits", "shared_experts", "stream", "regions"} <= set(answer.features)
    assert {pb.F32, pb.F16, pb.BF16} <= set(answer.hidden_dtypes)
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", answer.server_version)


def test_one_model_may_be_asked_for_by_name(client):
    assert client.describe("qwen2_moe").models[0].name == "qwen2_moe"
    with raises("NOT_FOUND", "MODEL_UNKNOWN") as raised:
        client.describe("another")
    assert "another" in raised.failure.message and "qwen2_moe" in raised.failure.message


def test_unknown_fields_are_ignored_in_describe(client):
    answer = pb.DescribeResponse.FromString(client.raw("Describe", b"\x98\x06\x01"))
    assert answer.models[0].name == "qwen2_moe"


def test_tcp_and_unix_give_the_same_answer(served):
    with served.client() as over_unix, served.client(tcp=True) as over_tcp:
        assert over_unix.describe() == over_tcp.describe()


def ids_of(daemon):
    with daemon.client() as client:
        (model,) = client.describe().models
        return model.digest, {layer.layer: layer.weights_id for layer in model.layers}


def test_weights_id_follows_the_weights(tmp_path, start_daemon):
    """A changed bit of an expert changes the layer's id and the model's digest. Changed attention weights change neither."""
    folder = copy_case("mixtral", tmp_path)
    digest, ids = ids_of(start_daemon(model=folder))
    assert (digest, ids) == ids_of(start_daemon("--shards", 3, model=folder))
    file = folder / "model.safetensors"
    header, start = read_header(file)

    def flip(name):
        data = bytearray(file.read_bytes())
        data[start + header[name]["data_offsets"][0]] ^= 1
        file.write_bytes(data)
        return ids_of(start_daemon(model=folder))

    assert flip("model.layers.0.self_attn.q_proj.weight") == (digest, ids)
    changed_digest, changed = flip("model.layers.1.block_sparse_moe.experts.6.w2.weight")
    assert changed_digest != digest and changed[0] == ids[0] and changed[1] != ids[1]
    _, with_router = flip("model.layers.0.block_sparse_moe.gate.weight")
    assert with_router[0] != ids[0] and with_router[1] == changed[1]


def test_weights_id_depends_on_parameters_and_not_on_files(tmp_path, start_daemon, case):
    """Another top-k changes the answers and the id. The distribution of tensors over files does not change the id."""
    folder = copy_case("mixtral", tmp_path)
    _, ids = ids_of(start_daemon(model=folder))
    config = folder / "config.json"
    text = config.read_text()
    config.write_text(text.replace('"num_experts_per_tok": 2', '"num_experts_per_tok": 3'))
    assert config.read_text() != text
    _, changed = ids_of(start_daemon(model=folder))
    assert all(changed[layer] != ids[layer] for layer in ids)


def test_layers_option_serves_a_range(case, start_daemon):
    with start_daemon("--layers", "1-1", model=case("mixtral").folder).client() as client:
        assert [layer.layer for layer in client.describe().models[0].layers] == [1]
        with raises("NOT_FOUND", "LAYER_UNKNOWN"):
            client.forward(layer=0)


def test_unknown_methods_are_unimplemented_at_once(client):
    for path in ("/expertd.v1.Experts/Nothing", "/no.such.Service/Method"):
        call = client.channel.unary_unary(path, request_serializer=bytes, response_deserializer=bytes)
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", timeout=5)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
