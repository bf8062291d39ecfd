"""A shard process (--role shard): what fronts assign to it, the bits of its rows, what it keeps and what it frees, its end."""

import json
import signal

import grpc
import numpy as np
import pytest

from harness.certificates import LOCAL, Authority
from harness.checkpoints import copy_case, read_header
from harness.daemon import CHANNEL_OPTIONS, Client, run_program
from harness.errors import failure_of_call
from harness.protos import pb
from harness.shard_front import Front, ShardError, Stream, hello, identity_of, shard_pb, shard_rpc
from harness.tensors import bf16_bits, rows_of, tensor
from harness.waiting import eventually

# With biases, weights on the input, several quantised formats, several sizes.
MODELS = ("qwen3_moe_sharded", "gpt_oss", "llama4", "deepseek_v3_fp8", "gpt_oss_mxfp4", "kimi_k2_int4")
SPLIT = "qwen3_moe_sharded"  # each expert has tensors of its own, in several files


@pytest.fixture
def start_shard(start_daemon, case):
    def start(*arguments, model=SPLIT, **options):
        return start_daemon("--role", "shard", *arguments, model=case(model).folder if isinstance(model, str) else model, **options)

    return start


@pytest.fixture
def connect():
    """connect(shard) connects a Front. Each is closed when the test ends."""
    fronts = []

    def start(shard, channel=None, identity=None, **options):
        channel = channel or shard.channel(tcp=True)
        front = Front(channel, identity or identity_of(shard.channel(tcp=True)), **options)
        fronts.append(front)
        return front

    yield start
    for front in fronts:
        front.close()


def layer_of(shard, index=-1):
    with shard.client() as client:
        return client.describe().models[0].layers[index]


def hidden_of(layer, tokens, seed=1):
    values = np.random.default_rng(seed).standard_normal((tokens, layer.hidden_size)).astype(np.float32)
    return values if "/f32/" in layer.numerics_id else bf16_bits(values)


def plain_row(client, layer, hidden, expert):
    """The result of one expert for one hidden row, from a daemon that answers callers."""
    dtype = "F32" if hidden.dtype == np.float32 else "BF16"
    routes = pb.Routes(ids=tensor(np.array([[expert]]), "I32"), weights=tensor(np.ones((1, 1))))
    answer = client.forward(layer=layer.layer, hidden=tensor(hidden[None], dtype), routes=routes, output_dtype=pb.DType.Value(dtype))
    return rows_of(answer.output)[0]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.share(3)
def test_rows_have_the_bits_of_one_process(start_shard, start_daemon, connect, case, model):
    shard, plain = start_shard(model=model), start_daemon(model=case(model).folder)
    layer = layer_of(shard)
    front, hidden = connect(shard), hidden_of(layer, 9)
    experts = sorted({0, 1, layer.num_experts - 1})
    front.assign({layer.layer: experts})
    front.wait_ready({layer.layer: experts})
    rows = {expert: list(range(expert % 3, 9 - i)) for i, expert in enumerate(experts)}
    with plain.client() as client:
        wanted = [plain_row(client, layer, hidden[row], expert) for expert in experts for row in rows[expert]]
    for pieces in (1, 2, len(experts)):
        assert front.compute(layer.layer, rows, hidden, pieces) == wanted


def expert_bytes(folder, layer, expert):
    """Bytes of one expert's tensors in the files."""
    spans = [entry["data_offsets"] for path in folder.glob("*.safetensors") for name, entry in read_header(path)[0].items()
             if f"layers.{layer}.mlp.experts.{expert}." in name]
    assert len(spans) == 3
    return sum(end - begin for begin, end in spans)


def test_only_the_bytes_of_assigned_experts_are_read(start_shard, connect, case):
    shard = start_shard()
    layer, front = layer_of(shard), connect(shard)
    assert shard.metric("expertd_shard_read_bytes_total") == 0
    front.assign({layer.layer: [2]})
    front.wait_ready({layer.layer: [2]})
    folder = case(SPLIT).folder
    assert shard.metric("expertd_shard_read_bytes_total") == expert_bytes(folder, layer.layer, 2)
    front.assign({layer.layer: [2, 3]})
    front.wait_ready({layer.layer: [3]})
    assert shard.metric("expertd_shard_read_bytes_total") == expert_bytes(folder, layer.layer, 2) + expert_bytes(folder, layer.layer, 3)
    assert shard.metric("expertd_shard_experts") == shard.metric("expertd_shard_loads_total") == 2


def test_an_expert_that_is_not_here_costs_one_batch(start_shard, connect):
    shard = start_shard()
    layer, front = layer_of(shard), connect(shard)
    hidden = hidden_of(layer, 4)
    front.assign({layer.layer: [0]})
    front.wait_ready({layer.layer: [0]})
    with pytest.raises(ShardError, match=f"expert 1 of layer {layer.layer} is not on this shard") as raised:
        front.compute(layer.layer, {0: [0], 1: [1]}, hidden)
    assert raised.value.reason == "SHARD_LOST"
    assert len(front.compute(layer.layer, {0: [0, 1]}, hidden)) == 2
    assert shard.metric("expertd_shard_errors_total") == 1


def test_a_later_batch_replaces_the_one_before(start_shard, connect):
    shard = start_shard()
    layer, front = layer_of(shard), connect(shard)
    hidden = hidden_of(layer, 8)
    front.assign({layer.layer: [0, 1]})
    front.wait_ready({layer.layer: [0, 1]})
    wanted = front.compute(layer.layer, {0: [3, 4], 1: [4]}, hidden)
    for _ in range(40):
        front.send_batch(layer.layer, {0: [0, 1, 2], 1: [5, 6, 7]}, hidden, pieces=2)
    assert front.compute(layer.layer, {0: [3, 4], 1: [4]}, hidden, pieces=2) == wanted
    batches = [message.batch for message in front.rows.messages]
    assert batches == sorted(batches)


@pytest.mark.threads
def test_two_fronts_use_the_same_experts_and_one_places_them(start_shard, connect):
    shard = start_shard()
    identity, layer = identity_of(shard.channel(tcp=True)), layer_of(shard)
    first, second = connect(shard, identity=identity, instance=5), connect(shard, identity=identity, instance=6)
    lease = first.control.wait(lambda messages: [m for m in messages if m.HasField("lease")])[-1].lease
    assert lease.granted and lease.owner == 5
    lease = second.control.wait(lambda messages: [m for m in messages if m.HasField("lease")])[-1].lease
    assert not lease.granted and lease.owner == 0  # who knows a front's id can take its place
    second.assign({layer.layer: [3]})  # without the lease: nothing happens
    first.assign({layer.layer: [0, 1]})
    for front in (first, second):
        front.wait_ready({layer.layer: [0, 1]})
    second.wait_states("UNSPECIFIED", {layer.layer: [3]})
    assert first.states() == {cell: state for cell, state in second.states().items() if cell != (layer.layer, 3)}
    hidden = hidden_of(layer, 6)
    wanted = first.compute(layer.layer, {0: [0, 1], 1: [2]}, hidden)
    for _ in range(5):
        counts = [front.send_batch(layer.layer, {0: [0, 1], 1: [2]}, hidden, pieces=2) for front in (first, second)]
        for front, count in zip((first, second), counts):
            assert b"".join(answer.results for answer in front.answers(front.batch, count)) == b"".join(wanted)
    first.close()
    second.control.wait(lambda messages: [m for m in messages if m.lease.granted])
    second.assign({layer.layer: [3]})
    second.wait_ready({layer.layer: [3]})


@pytest.mark.threads
def test_a_retired_expert_is_freed_when_every_front_has_released_it(start_shard, connect):
    shard = start_shard()
    identity, layer = identity_of(shard.channel(tcp=True)), layer_of(shard)
    first, second = connect(shard, identity=identity, instance=5), connect(shard, identity=identity, instance=6)
    both = {layer.layer: [0, 1]}
    first.assign(both)
    for front in (first, second):
        front.wait_ready(both)
    used = shard.metric("expertd_shard_experts_bytes")
    assert used > 0
    first.retire({layer.layer: [0]})
    for front in (first, second):
        front.wait_states("RETIRING", {layer.layer: [0]})
    hidden = hidden_of(layer, 3)
    assert len(second.compute(layer.layer, {0: [0]}, hidden)) == 1  # still served
    first.release({layer.layer: [0]})
    assert shard.metric("expertd_shard_experts") == 2
    second.release({layer.layer: [0]})
    for front in (first, second):
        front.wait_states("UNSPECIFIED", {layer.layer: [0]})
    shard.wait_metric("expertd_shard_experts_bytes", used / 2)  # fronts hear of it before the memory is free
    shard.wait_metric("expertd_shard_experts", 1)
    with pytest.raises(ShardError, match="SHARD_LOST"):
        second.compute(layer.layer, {0: [0]}, hidden)
    first.assign(both)
    first.wait_ready(both)
    assert shard.metric("expertd_shard_loads_total") == 3 and shard.metric("expertd_shard_frees_total") == 1


def test_experts_stay_when_their_front_goes_away(start_shard, connect):
    shard = start_shard()
    layer, front = layer_of(shard), connect(shard)
    front.assign({layer.layer: [0, 1, 2]})
    front.wait_ready({layer.layer: [0, 1, 2]})
    states = front.states()
    front.close()  # as a front that is killed: the streams end without a word
    shard.wait_metric("expertd_shard_fronts", 0)
    assert shard.metric("expertd_shard_experts") == 3
    again = connect(shard)
    assert again.states() == states and again.hello.instance == front.hello.instance
    assert len(again.compute(layer.layer, {2: [0]}, hidden_of(layer, 1))) == 1
    assert shard.metric("expertd_shard_loads_total") == 3


def test_a_front_that_connects_again_replaces_its_streams(start_shard, connect):
    shard = start_shard()
    identity = identity_of(shard.channel(tcp=True))
    front = connect(shard, identity=identity, instance=77)
    again = connect(shard, identity=identity, instance=77)
    for stream in (front.control, front.rows):
        code, details = stream.ended()
        assert code == grpc.StatusCode.CANCELLED and "has connected again" in details
    assert shard.metric("expertd_shard_fronts") == 1 and again.control.code is None


def test_no_more_memory_than_the_limit_is_used(start_shard, connect):
    probe = start_shard()
    size = connect(probe).hello.layers[-1].expert_bytes
    shard = start_shard("--memory-max", 2 * size)
    layer, front = layer_of(shard), connect(shard)
    assert front.hello.bytes_max == 2 * size
    front.assign({layer.layer: [0, 1, 2]})
    front.wait_ready({layer.layer: [0, 1]})
    front.wait_states("FAILED", {layer.layer: [2]})
    assert shard.metric("expertd_shard_experts_bytes") == 2 * size


def test_an_expert_that_cannot_be_loaded_is_told_with_its_file(start_shard, connect, tmp_path):
    folder = copy_case(SPLIT, tmp_path)
    shard = start_shard(model=folder)
    layer, front = layer_of(shard), connect(shard)
    broken = next(path for path in sorted(folder.glob("*.safetensors"))
                  if any(f"layers.{layer.layer}.mlp.experts.1.down" in name for name in read_header(path)[0]))
    with open(broken, "r+b") as file:
        file.truncate(read_header(broken)[1] + 8)
    front.assign({layer.layer: [1]})
    front.wait_states("FAILED", {layer.layer: [1]})
    failure = front.control.wait(lambda messages: [m.failure for m in messages if m.HasField("failure")])[0]
    assert (failure.layer, failure.expert) == (layer.layer, 1) and broken.name in failure.message
    event = shard.wait_for("expert_failed")
    assert event["expert"] == "1" and broken.name in event["message"]
    assert shard.metric("expertd_shard_load_failures_total") == 1


def test_load_progress_is_told_and_logged(start_shard, connect):
    shard = start_shard()
    layer, front = layer_of(shard), connect(shard)
    front.assign({layer.layer: [0, 1, 2]})
    progress = front.control.wait(lambda messages: [m.progress for m in messages if m.HasField("progress") and m.progress.loading == 0])[-1]
    assert progress.bytes_left == 0 and progress.bytes_per_second > 0
    event = shard.wait_for("experts")
    assert int(event["loaded"]) <= 3 and int(event["used_bytes"]) > 0


def test_callers_are_told_who_answers_them(start_shard, start_daemon, case):
    shard = start_shard()
    request = pb.ForwardRequest(layer=0, hidden=tensor(np.ones((1, 96))))
    with shard.client() as client:
        calls = [lambda: client.forward(request), lambda: list(client.stream([request])),
                 lambda: client.stub.OpenRegion(pb.OpenRegionRequest(bytes=4096), timeout=60),
                 lambda: client.stub.CloseRegion(pb.CloseRegionRequest(region=1), timeout=60)]
        for call in calls:
            with pytest.raises(grpc.RpcError) as raised:
                call()
            failure = failure_of_call(raised.value)
            assert failure.code == "UNIMPLEMENTED" and failure.reason == "UNIMPLEMENTED"
            assert "this process is a shard" in failure.message and "call a front" in failure.message
    plain = start_daemon(model=case(SPLIT).folder)
    for method in ("Control", "Rows"):
        stream = Stream(getattr(shard_rpc.ShardStub(plain.channel()), method))
        code, details = stream.ended()
        assert code == grpc.StatusCode.UNIMPLEMENTED and "--role shard" in details
        stream.close()


def test_status_tells_what_it_holds(start_shard, connect):
    shard = start_shard()
    layer, front = layer_of(shard), connect(shard)
    front.assign({layer.layer: [0, 1, 2]})
    front.wait_ready({layer.layer: [0, 1, 2]})
    text = run_program("expertctl", "--address", shard.tcp, "status").stdout
    assert f"{layer.layer}: 3 of {layer.num_experts}" in text and "fronts           1 connected" in text and "role             shard" in text
    found = json.loads(run_program("expertctl", "--address", shard.tcp, "--json", "status").stdout)["shard"]
    assert found["fronts"] == 1 and found["bytes_used"] == 3 * front.hello.layers[-1].expert_bytes and not found["draining"]
    assert found["layers"][-1] == {"layer": layer.layer, "held": 3, "experts": layer.num_experts}
    page = json.loads(shard.get("/api/status")[1])
    assert page["role"] == "shard" and page["shard"]["experts"] == 3 and page["layers"][-1]["experts_held"] == 3
    assert "A shard with 3 experts in memory" in shard.get("/")[1] and shard.get("/health/ready")[0] == 200


def test_an_operator_drains_a_shard_and_takes_it_back(start_shard, connect):
    shard = start_shard()
    front = connect(shard)
    for drains in (True, False):
        front.control.send(shard_pb.ControlRequest(drain=shard_pb.Drain(drains=drains)))
        front.control.wait(lambda messages, drains=drains: any(m.HasField("draining") and m.draining.drains == drains for m in messages))
        shard.wait_metric("expertd_shard_draining", int(drains))
    assert shard.process.poll() is None


@pytest.mark.threads
def test_it_ends_when_fronts_have_taken_over_its_experts(start_shard, connect):
    shard = start_shard("--drain-timeout-ms", 3600000)
    layer, front = layer_of(shard), connect(shard)
    experts = {layer.layer: [0, 1]}
    front.assign(experts)
    front.wait_ready(experts)
    shard.signal()
    told = front.control.wait(lambda messages: [m.draining for m in messages if m.HasField("draining")])[0]
    assert told.drains and "process" in told.reason
    assert len(front.compute(layer.layer, {0: [0]}, hidden_of(layer, 1))) == 1  # it serves on
    front.retire(experts)
    front.wait_states("RETIRING", experts)
    front.release(experts)
    code, details = front.control.ended()
    assert code == grpc.StatusCode.UNAVAILABLE and "shutting down" in details
    assert shard.wait_exit() == 0


@pytest.mark.parametrize("end", ["timeout", "second signal", "no front"])
def test_it_ends_without_fronts_that_take_over(start_shard, connect, end):
    shard = start_shard("--drain-timeout-ms", 300 if end == "timeout" else 3600000)
    layer, front = layer_of(shard), connect(shard)
    front.assign({layer.layer: [0]})
    front.wait_ready({layer.layer: [0]})
    if end == "no front":
        front.close()
        shard.wait_metric("expertd_shard_fronts", 0)
    shard.signal()
    if end == "second signal":
        shard.wait_for("draining")
        shard.signal(signal.SIGINT)
    assert shard.wait_exit() == 0


def test_expertctl_drain_ends_it(start_shard):
    shard = start_shard()
    assert run_program("expertctl", "--address", f"unix:{shard.socket}", "drain").returncode == 0
    assert shard.wait_exit() == 0


def test_fronts_are_known_by_their_certificates(start_shard, connect, tmp_path):
    ca = Authority(tmp_path)
    server = ca.issue(LOCAL, name="server")
    front = ca.issue("URI:spiffe://example/front/1", name="front")
    caller = ca.issue("URI:spiffe://example/engine/1", name="caller")
    shard = start_shard(*server.flags(), "--tls-client-ca", ca.crt, "--tls-allow-fronts", "spiffe://example/front/*")

    def channel(own):
        key, crt = own.bytes()
        return grpc.secure_channel(shard.tcp, grpc.ssl_channel_credentials(ca.crt.read_bytes(), key, crt), CHANNEL_OPTIONS)

    identity = identity_of(channel(front))
    connected = connect(shard, channel=channel(front), identity=identity)
    layer = layer_of(shard)
    connected.assign({layer.layer: [0]})
    connected.wait_ready({layer.layer: [0]})
    assert len(connected.compute(layer.layer, {0: [0]}, hidden_of(layer, 1))) == 1
    for method in ("Control", "Rows"):
        stream = Stream(getattr(shard_rpc.ShardStub(channel(caller)), method))
        stream.send(hello(identity) if method == "Control" else shard_pb.RowsRequest(token=connected.hello.rows_token))
        code, details = stream.ended()
        assert code == grpc.StatusCode.PERMISSION_DENIED and "tls_allow_fronts" in details and "spiffe://example/engine/1" in details
    with Client(channel(caller)) as client:
        assert client.describe().shard.fronts == 1
    event = shard.wait_for("identity_refused")
    assert event["method"] == "expertd.shard.v1.Shard/Control"
