"""Hostile and broken fronts of a shard: each costs itself alone. The front of the fixture `good` must serve on in every test."""

import contextlib

import grpc
import numpy as np
import pytest

from harness import http2
from harness.daemon import Daemon, Feed
from harness.paths import SLOW
from harness.shard_front import Front, Stream, hello, identity_of, shard_pb, shard_rpc
from harness.tensors import bf16_bits
from harness.waiting import eventually

MODEL = "synthetic:tiny,seed=3"  # four layers of 16 experts, hidden size 256
HIDDEN = bf16_bits(np.random.default_rng(2).standard_normal((64, 256)))
ROWS = {0: [0, 1], 3: [2]}
EXPERTS = {1: [0, 3]}
REFUSALS = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.PERMISSION_DENIED)


@pytest.fixture
def start_shard(start_daemon):
    return lambda *arguments: start_daemon("--role", "shard", *arguments, model=MODEL)


@pytest.fixture(scope="module")
def shard():
    daemon = Daemon("--role", "shard", model=MODEL)
    yield daemon
    daemon.stop()


@pytest.fixture(scope="module")
def identity(shard):
    return identity_of(shard.channel(tcp=True))


@pytest.fixture(scope="module")
def front(shard, identity):
    front = Front(shard.channel(tcp=True), identity, instance=1)  # the lowest id has the lease
    front.assign(EXPERTS)
    front.wait_ready(EXPERTS)
    front.wanted = front.compute(1, ROWS, HIDDEN)
    yield front
    front.close()


@pytest.fixture
def good(front):
    yield front
    assert front.compute(1, ROWS, HIDDEN) == front.wanted
    assert front.control.code is None and front.rows.code is None


@pytest.fixture
def stub(shard):
    """A stub on a connection of its own."""
    return shard_rpc.ShardStub(shard.channel(tcp=True))


@pytest.fixture
def victim(shard, identity, good):
    """A front whose streams a test spoils."""
    front = Front(shard.channel(tcp=True), identity, lease=False)
    front.compute(1, ROWS, HIDDEN)  # its rows stream has shown the token
    yield front
    front.close()


# ---- hellos

@pytest.mark.parametrize("field, value, words", [
    ("protocol", 2, ["version 2", "version 1", "install one version"]),
    ("numerics_id", "1/bf16/amx", ["1/bf16/amx", "1/bf16/cpu", "--numerics portable"]),
    ("compute_dtype", "f32", ["f32", "bf16", "--compute-dtype"]),
    ("model_digest", bytes(range(16)), ["000102030405060708090a0b0c0d0e0f", "same checkpoint"]),
    ("model_digest", b"short", ["model_digest"]),
])
def test_another_identity_is_refused_with_both_values(good, stub, identity, field, value, words):
    other = type(identity)()
    other.CopyFrom(identity)
    setattr(other, field, value)
    stream = Stream(stub.Control)
    stream.send(hello(other))
    code, details = stream.ended()
    assert code == grpc.StatusCode.INVALID_ARGUMENT and all(word in details for word in words), details


def test_batches_larger_than_the_shards_memory_are_refused_at_once(good, stub, identity):
    stream = Stream(stub.Control)
    stream.send(hello(identity, rows=1 << 30))
    code, details = stream.ended()
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED and str(1 << 30) in details and "--max-batch-tokens" in details


def other_message(**fields):
    return shard_pb.ControlRequest(**fields)


@pytest.mark.parametrize("message", [
    other_message(heartbeat=shard_pb.Heartbeat(number=1)),
    other_message(assign=shard_pb.Command(number=1)),
    other_message(hello=shard_pb.FrontHello()),
    other_message(),
])
def test_the_first_message_of_a_control_stream_is_a_hello(good, stub, message):
    stream = Stream(stub.Control)
    stream.send(message)
    assert stream.ended()[0] == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.release  # it takes the ten seconds of the time limit
def test_streams_without_a_first_message_end(good, stub):
    for stream in (Stream(stub.Control), Stream(stub.Rows)):
        code, details = stream.ended()
        assert code == grpc.StatusCode.DEADLINE_EXCEEDED and "in time" in details


@pytest.mark.threads
def test_a_flood_of_streams_keeps_no_front_out(good, shard, identity):
    channel = shard.channel(tcp=True)
    streams = [Stream(method) for method in (shard_rpc.ShardStub(channel).Control, shard_rpc.ShardStub(channel).Rows) for _ in range(60)]
    eventually(lambda: sum(stream.code is not None for stream in streams) >= len(streams) - 64)
    assert all(stream.code in (None, grpc.StatusCode.RESOURCE_EXHAUSTED) for stream in streams)
    Front(shard.channel(tcp=True), identity, lease=False).close()
    for stream in streams:
        stream.close()


def test_the_number_of_fronts_is_limited(start_shard):
    shard = start_shard("--max-fronts", "2")
    channel = shard.channel(tcp=True)
    identity = identity_of(channel)
    fronts = [Front(channel, identity), Front(channel, identity)]
    stream = Stream(shard_rpc.ShardStub(channel).Control)
    stream.send(hello(identity))
    code, details = stream.ended()
    assert code == grpc.StatusCode.UNAVAILABLE and "2 fronts are connected" in details
    fronts[0].close()
    shard.wait_metric("expertd_shard_fronts", 1)
    Front(channel, identity).close()
    fronts[1].close()


# ---- control messages

def spoiled(victim, message):
    victim.control.send(message)
    code, details = victim.control.ended()
    assert victim.rows.ended() == (code, details)
    return code, details


@pytest.mark.parametrize("message, words", [
    (other_message(hello=shard_pb.FrontHello(instance=1, identity=shard_pb.Identity(model_digest=bytes(16)))), "second hello"),
    (other_message(assign=shard_pb.Command(number=1, experts=[shard_pb.Experts(layer=9, experts=[0])])), "does not have"),
    (other_message(assign=shard_pb.Command(number=1, experts=[shard_pb.Experts(layer=1, experts=[16])])), "does not have"),
    (other_message(retire=shard_pb.Command(number=1, experts=[shard_pb.Experts(layer=1, experts=[65536])])), "does not have"),
    (other_message(release=shard_pb.Release(sequence=1, experts=[shard_pb.Experts(layer=1, experts=[0xffffffff])])), "does not have"),
    (other_message(release=shard_pb.Release(sequence=1 << 40)), "no stream has so many"),
    (other_message(assign=shard_pb.Command(number=1, experts=[shard_pb.Experts(layer=1, experts=[0] * 100000)])), "at most 65536"),
    (other_message(), ""),
])
def test_absurd_control_messages_end_their_session(victim, message, words):
    code, details = spoiled(victim, message)
    assert code in REFUSALS and words in details, details


def test_lists_that_repeat_an_expert_do_no_harm(good):
    good.assign({1: [0, 3] * 5000})
    good.assign({1: []})
    good.wait_ready(EXPERTS)


def test_a_front_without_the_lease_moves_nothing(victim, good):
    victim.retire(EXPERTS)
    victim.release(EXPERTS)
    good.assign({2: [1]})
    good.wait_ready({2: [1], **EXPERTS})


# ---- rows streams

@pytest.mark.parametrize("token, words", [(b"", "has the token"), (bytes(16), "no open control stream"), (b"short", "token")])
def test_a_wrong_token_is_refused(good, stub, token, words):
    stream = Stream(stub.Rows)
    stream.send(shard_pb.RowsRequest(token=token, batch=1, layer=1, groups=[0, 1], hidden_rows=[0], row_bytes=512, hidden=HIDDEN[0].tobytes()))
    code, details = stream.ended()
    assert code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT) and words in details, details


def test_a_token_opens_one_stream(good, stub):
    stream = Stream(stub.Rows)
    stream.send(shard_pb.RowsRequest(token=good.hello.rows_token))
    code, details = stream.ended()
    assert code == grpc.StatusCode.PERMISSION_DENIED and "a rows stream already" in details


def test_the_token_may_come_with_the_first_piece(good, shard, identity):
    channel = shard.channel(tcp=True)
    control = Stream(shard_rpc.ShardStub(channel).Control)
    control.send(hello(identity, lease=False))
    token = control.wait(lambda messages: messages[0].hello.rows_token if messages else None)
    rows = Stream(shard_rpc.ShardStub(channel).Rows)
    rows.send(shard_pb.RowsRequest(token=token, batch=7, epoch=2, layer=1, groups=[0, 1], hidden_rows=[0], row_bytes=512, hidden=HIDDEN[0].tobytes()))
    answer = rows.wait(lambda messages: messages[0] if messages else None)
    assert (answer.batch, answer.epoch, answer.rows) == (7, 2, 1) and len(answer.results) == 512
    rows.close()
    assert control.ended()[0] == grpc.StatusCode.CANCELLED
    control.close()


def piece(**fields):
    usual = {"batch": 10, "epoch": 1, "layer": 1, "groups": [0, 2], "hidden_rows": [0, 1], "row_bytes": 512, "hidden": HIDDEN[:2].tobytes()}
    return shard_pb.RowsRequest(**(usual | fields))


@pytest.mark.parametrize("fields, reason", [
    ({"layer": 77}, "LAYER_UNKNOWN"),
    ({"row_bytes": 256, "hidden": HIDDEN[0].tobytes()}, "SHAPE_MISMATCH"),
    ({"groups": [16, 2]}, "EXPERT_OUT_OF_RANGE"),
    ({"groups": [0xffffffff, 2]}, "EXPERT_OUT_OF_RANGE"),
    ({"groups": [3, 1, 0, 1]}, "INVALID"),
    ({"groups": [0, 0, 3, 2]}, "INVALID"),
    ({"groups": [0, 0xffffffff, 3, 3]}, "INVALID"),
    ({"groups": [0, 3]}, "INVALID"),
    ({"groups": []}, "INVALID"),
    ({"hidden_rows": [0, 2]}, "INVALID"),
    ({"hidden_rows": [0, 0xffffffff]}, "INVALID"),
    ({"first_row": 5}, "INVALID"),
    ({"first_hidden": 0xffffffff}, "INVALID"),
    ({"groups": [5, 2]}, "SHARD_LOST"),
    ({"groups": [0, 16384], "hidden_rows": [0] * 16384}, None),  # 8 MiB of results
])
def test_a_piece_that_fits_nothing_costs_its_batch(victim, fields, reason):
    victim.batch = 10
    victim.rows.send(piece(**fields))
    if reason is None:
        assert sum(answer.rows for answer in victim.answers(10, 16384)) == 16384
        return
    error = victim.answers(10, 1)[-1].error
    assert error.reason == reason and error.message
    victim.rows.send(piece(first_row=2, first_hidden=2))  # needs no answer
    assert len(victim.compute(1, ROWS, HIDDEN)) == 3
    assert [message.batch for message in victim.rows.messages].count(10) == 1


def test_a_batch_keeps_its_epoch_and_layer(victim):
    for batch, change in ((11, {"epoch": 2}), (12, {"layer": 2}), (13, {"epoch": 0})):
        victim.rows.send(piece(batch=batch))
        victim.rows.send(piece(batch=batch, first_row=2, first_hidden=2, **change))
        assert victim.answers(batch, 4)[-1].error.reason == "INVALID"
    victim.rows.send(piece(batch=12))  # an old batch: no answer
    victim.batch = 13
    assert len(victim.compute(1, ROWS, HIDDEN)) == 3


@pytest.mark.parametrize("fields", [
    {"hidden": b"odd"}, {"row_bytes": 0}, {"groups": [0]}, {"token": bytes(16)}, {"batch": 0},
    {"hidden_rows": [0] * 400000}, {"groups": list(range(200)) * 2}, {"hidden": bytes(9 << 20)},
])
def test_a_malformed_piece_ends_its_session(victim, fields):
    victim.rows.send(piece(**fields))
    code, details = victim.rows.ended()
    assert code in REFUSALS and details
    assert victim.control.ended() == (code, details)


@pytest.mark.parametrize("method", ["Control", "Rows"])
@pytest.mark.parametrize("data", [b"\xff" * 50, b"\x0a\xff\xff\xff\xff\x0f", b"\x7a\xff\xff\xff\xff\x07abc", b"\xa2\x06\x01a", b""])
def test_bytes_that_are_no_message_end_their_stream(good, shard, method, data):
    call = shard.channel(tcp=True).stream_stream(f"/expertd.shard.v1.Shard/{method}", request_serializer=lambda b: b,
                                                  response_deserializer=lambda b: b)
    with pytest.raises(grpc.RpcError) as raised:
        list(call(iter(Feed(data)), timeout=60 * SLOW))
    assert raised.value.code() in REFUSALS


def test_half_a_message_ends_with_its_connection(good, shard, stub, identity):
    control = Stream(stub.Control)
    control.send(hello(identity, lease=False))
    token = control.wait(lambda messages: messages[0].hello.rows_token if messages else None)
    whole = piece(batch=11).SerializeToString()
    before = shard.memory()["fds"]
    with http2.Peer(shard.socket) as peer:
        rows = peer.open("/expertd.shard.v1.Shard/Rows")
        peer.send(rows, piece(token=token).SerializeToString())
        while peer.take_frame()[0] != http2.DATA:  # the answer to the first batch
            pass
        peer.send(rows, whole[:len(whole) // 2], len(whole))
    code, details = control.ended()
    assert code == grpc.StatusCode.CANCELLED and "rows stream has ended" in details
    eventually(lambda: shard.memory()["fds"] <= before)


@pytest.mark.threads
def test_a_front_that_does_not_read_loses_its_session(start_shard):
    shard = start_shard("--send-timeout-ms", 500)
    channel = shard.channel(tcp=True)
    identity = identity_of(channel)
    good = Front(channel, identity)
    good.assign(EXPERTS)
    good.wait_ready(EXPERTS)
    control = Stream(shard_rpc.ShardStub(shard.channel(tcp=True)).Control)
    control.send(hello(identity, lease=False))
    token = control.wait(lambda messages: messages[0].hello.rows_token if messages else None)
    feed = Feed(shard_pb.RowsRequest(token=token))
    unread = shard_rpc.ShardStub(shard.channel(tcp=True)).Rows(iter(feed))  # nobody reads its answers
    big = piece(groups=[0, 16000], hidden_rows=[0] * 16000, hidden=HIDDEN[0].tobytes())  # 8 MB of results each
    for batch in range(1, 40):
        big.batch = batch
        feed.send(shard_pb.RowsRequest.FromString(big.SerializeToString()))
    code, _ = control.ended()
    assert code in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
    assert len(good.compute(1, ROWS, HIDDEN)) == 3
    assert shard.memory()["rss"] < 700 << 20
    feed.close()
    unread.cancel()
    good.close()


@pytest.mark.threads
def test_sessions_that_a_front_replaces_and_does_not_read_hold_no_memory(start_shard):
    shard = start_shard("--max-fronts", "4")
    channel = shard.channel(tcp=True)
    identity = identity_of(channel)
    good = Front(channel, identity, instance=1)
    good.assign(EXPERTS)
    good.wait_ready(EXPERTS)
    wanted, before = good.compute(1, ROWS, HIDDEN), shard.memory()["rss"]
    big = {"batch": 1, "groups": [0, 16000], "hidden_rows": [0] * 16000}  # 8 MB of results each
    with contextlib.ExitStack() as stack:
        computed = shard.metric("expertd_shard_rows_total")
        for _ in range(30):
            control = Stream(shard_rpc.ShardStub(channel).Control)
            stack.callback(control.close)
            control.send(hello(identity, instance=2, lease=False))  # ends the session before
            try:
                token = control.wait(lambda messages: messages[0].hello.rows_token if messages else None)
            except AssertionError:
                assert control.ended()[0] == grpc.StatusCode.UNAVAILABLE and "have not been closed" in control.ended()[1]
                continue
            peer = stack.enter_context(http2.Peer(shard.socket, window=0))  # takes no answer
            rows = peer.open("/expertd.shard.v1.Shard/Rows")
            peer.send(rows, piece(token=token, **big, hidden=HIDDEN[0].tobytes()).SerializeToString())
            peer.send(rows, piece(**big, first_row=16000, first_hidden=1, hidden=b"").SerializeToString())
            computed += 32000
            eventually(lambda: shard.metric("expertd_shard_rows_total") >= computed)
        assert shard.memory()["rss"] < before + (250 << 20)
    assert good.compute(1, ROWS, HIDDEN) == wanted
    good.close()


@pytest.mark.threads
def test_memory_and_threads_are_flat_over_many_sessions(good, shard, identity):
    def sessions(count):
        for _ in range(count):
            channel = shard.channel(tcp=True)
            front = Front(channel, identity, lease=False)
            assert len(front.compute(1, ROWS, HIDDEN)) == 3
            front.send_batch(1, ROWS, HIDDEN)
            front.close()
            channel.close()

    sessions(10)
    shard.wait_metric("expertd_shard_fronts", 1)
    before = shard.memory()
    sessions(30)
    shard.wait_metric("expertd_shard_fronts", 1)
    eventually(lambda: shard.memory()["fds"] <= before["fds"] and shard.memory()["threads"] <= before["threads"])
    assert shard.memory()["rss"] < before["rss"] + (64 << 20)
