"""Overload: which calls wait, which are refused and with what retry delay, without an effect on other callers."""

import contextlib
import json
import re
import socket
import threading
import time

import grpc
import numpy as np
import pytest

from harness import http2, slow
from harness.daemon import CALL_SECONDS, Feed
from harness.errors import failure_of_call, raises
from harness.paths import SLOW
from harness.protos import pb
from harness.tensors import rows_of, tensor
from harness.waiting import eventually, is_closed

TWO_LAYERS = "synthetic:qwen3-30b-a3b,layers=2,experts=8"
PUSHBACK_SECONDS = (0.01, 5)
FOREVER = 300 * SLOW


def start(start_daemon, *arguments, model=slow.MODEL, **options):
    """A daemon with pieces of 32 tokens, so that a small call waits for at most 32 tokens of another call."""
    daemon = start_daemon(*slow.OPTIONS, "--max-message-bytes", 32 << 20, "--max-piece-tokens", 32, *arguments, model=model, **options)
    client = daemon.client()
    return daemon, client, slow.SlowLayer(client)


def refused(daemon, reason):
    return daemon.metric("expertd_refused_total", f'reason="{reason}"')


def check_pushback(error):
    """The error is QUEUE_FULL, and its RetryInfo and grpc-retry-pushback-ms agree."""
    failure = failure_of_call(error)
    assert (failure.code, failure.reason) == ("RESOURCE_EXHAUSTED", "QUEUE_FULL"), failure
    assert PUSHBACK_SECONDS[0] <= failure.retry_seconds <= PUSHBACK_SECONDS[1], failure
    pushback = dict(error.trailing_metadata())["grpc-retry-pushback-ms"]
    assert int(pushback) == round(failure.retry_seconds * 1000)
    return failure


@contextlib.contextmanager
def is_refused():
    with pytest.raises(grpc.RpcError) as caught:
        yield
    check_pushback(caught.value)


# ---- pieces


@pytest.mark.threads
def test_a_small_call_is_answered_while_a_large_one_is_computed(start_daemon):
    daemon, client, layer = start(start_daemon)
    large = client.stub.Forward.future(layer.request(slow.TOKENS_MAX), timeout=FOREVER)
    daemon.wait_queued(1)
    for _ in range(3):
        assert client.forward(layer.request(1)).output.data
    assert not large.done()
    large.cancel()
    client.channel.close()


@pytest.mark.threads
def test_a_small_call_to_another_layer_is_answered_too(start_daemon):
    daemon, client, layer = start(start_daemon, model=TWO_LAYERS)
    other = [described.layer for described in client.describe().models[0].layers if described.layer != layer.layer][0]
    large = client.stub.Forward.future(layer.request(slow.TOKENS_MAX), timeout=FOREVER)
    daemon.wait_queued(1)
    small = layer.request(1)
    small.layer = other
    for _ in range(3):
        assert client.forward(small).output.data
    assert not large.done()
    large.cancel()
    client.channel.close()


@pytest.mark.parametrize("case_name", ["qwen2_moe", "deepseek_v3"])
def test_a_request_larger_than_a_batch_has_the_bits_of_its_rows(case, start_daemon, random, case_name):
    golden = case(case_name)
    daemon = start_daemon("--max-batch-tokens", 8, "--max-piece-tokens", 3, "--max-request-tokens", 100, model=golden.folder)
    layer = golden.layers[-1]
    hidden = np.tile(golden.get(layer, "input"), (4, 1))[:50]
    tokens = len(hidden)
    with daemon.client() as client:
        described = next(each for each in client.describe().models[0].layers if each.layer == layer)
        assert client.describe().limits.max_tokens == 100
        ids = random.integers(-1, described.num_experts, (tokens, 3))
        weights = random.standard_normal((tokens, 3)).astype(np.float32)
        codes, scales = random.integers(0, 0x70, hidden.shape), random.random((tokens, 1)).astype(np.float32)

        def ask(rows):
            plain = dict(layer=layer, hidden=tensor(hidden[rows]))
            f8 = dict(layer=layer, hidden=tensor(codes[rows], "F8_E4M3"))
            return [
                client.forward(**plain),
                client.forward(routes=pb.Routes(ids=tensor(ids[rows], "I64"), weights=tensor(weights[rows], "BF16")), **plain),
                client.forward(router_logits=tensor(weights[rows][:, :1] * np.arange(described.num_experts)), **plain),
                client.forward(hidden_scale=tensor(scales[rows]), **f8),
                client.forward(hidden_scale=tensor(np.float32([0.5])), **f8),
            ]

        together = [rows_of(answer.output) for answer in ask(slice(None))]
        for row in range(0, tokens, 7):
            assert [rows_of(answer.output)[0] for answer in ask(slice(row, row + 1))] == [rows[row] for rows in together]


def test_a_request_of_several_batches_reports_them(start_daemon):
    _, client, layer = start(start_daemon)
    timings = client.forward(layer.request(80, timings=True)).timings
    assert timings.batch_tokens == 32 and timings.batch_requests == 1
    assert timings.compute + timings.route + timings.queue <= timings.total
    client.channel.close()


@pytest.mark.threads
def test_a_cancelled_call_leaves_the_queue_before_it_is_computed(start_daemon):
    daemon, client, layer = start(start_daemon)
    request = layer.request(slow.TOKENS_MAX)
    call = client.stub.Forward.future(request, timeout=FOREVER)
    daemon.wait_queued(1)
    call.cancel()
    daemon.wait_queued(0)
    assert daemon.metric("expertd_tokens_total") < slow.TOKENS_MAX / 2
    assert client.forward(layer.request(1)).output.data
    client.channel.close()


@pytest.mark.threads
def test_an_expired_call_leaves_the_queue_before_it_is_computed(start_daemon):
    daemon, client, layer = start(start_daemon)
    with raises("DEADLINE_EXCEEDED"):  # a quarter of the computing time on this machine, at most
        client.forward(layer.request(slow.TOKENS_MAX), timeout=min(0.3, layer.seconds_per_token * slow.TOKENS_MAX / 4))
    daemon.wait_queued(0)
    assert daemon.metric("expertd_tokens_total") < slow.TOKENS_MAX / 2
    client.channel.close()


@pytest.mark.threads
@pytest.mark.parametrize("tokens", [1, 3000])
def test_rows_without_experts_do_not_wait_for_the_engine(start_daemon, tokens):
    daemon, client, layer = start(start_daemon)
    request = layer.request(tokens)
    request.routes.ids.data = np.full((tokens, slow.CHOICES), -1, np.int32).tobytes()
    call = client.stub.Forward.future(layer.request(slow.TOKENS_MAX), timeout=FOREVER)
    daemon.wait_queued(1)
    answer = client.forward(request)
    assert not any(answer.output.data) and list(answer.output.shape) == [tokens, slow.HIDDEN]
    assert answer.placement_epoch == client.describe().placement_epoch
    assert not call.done()
    call.cancel()
    client.channel.close()


# ---- merging into batches


@pytest.mark.threads
def test_a_queue_delay_merges_two_calls_into_a_batch(case, start_daemon):
    daemon = start_daemon("--max-queue-delay-us", 1000000, "--max-batch-tokens", 4, model=case("qwen2_moe").folder)
    request = pb.ForwardRequest(layer=1, hidden=tensor(np.ones((2, 96))), timings=True)
    with daemon.client() as one, daemon.client(tcp=True) as other:
        begun = time.monotonic()
        calls = [client.stub.Forward.future(request, timeout=CALL_SECONDS) for client in (one, other)]
        assert [call.result().timings.batch_requests for call in calls] == [2, 2]
        assert calls[0].result().timings.batch_tokens == 4
        assert time.monotonic() - begun < 1 * SLOW, "a full batch must not wait for the queue delay"
        assert one.forward(request).timings.batch_requests == 1, "a single call must have a batch of its own"


@pytest.mark.threads
def test_calls_that_wait_for_the_engine_are_merged(start_daemon):
    daemon, client, layer = start(start_daemon)
    running = client.stub.Forward.future(layer.lasting(2.0), timeout=FOREVER)
    daemon.wait_queued(1)
    waiting = [client.stub.Forward.future(layer.request(1, timings=True), timeout=FOREVER) for _ in range(8)]
    assert max(call.result().timings.batch_requests for call in waiting) > 1
    running.cancel()
    client.channel.close()


# ---- budgets


@pytest.mark.threads
def test_a_greedy_connection_does_not_keep_others_out(start_daemon):
    """One connection fills each free slot of the queue at once. The other retries after the given delay and must be served."""
    daemon, client, layer = start(start_daemon, "--max-queue", 4)
    stop, refusals, request = threading.Event(), [], layer.lasting(0.02)

    def greed():
        while not stop.is_set():
            try:
                client.forward(request, timeout=FOREVER)
            except grpc.RpcError as error:
                refusals.append(error)

    greedy = [threading.Thread(target=greed) for _ in range(8)]
    for thread in greedy:
        thread.start()
    try:
        daemon.wait_queued(4)
        with daemon.client() as other:
            answered, tries = 0, 0
            while answered < 10:
                tries += 1
                assert tries <= 60, f"{answered} answers in {tries} tries"
                try:
                    answered += bool(other.forward(request).output.data)
                except grpc.RpcError as error:
                    time.sleep(check_pushback(error).retry_seconds)
    finally:
        stop.set()
        for thread in greedy:
            thread.join()
    for error in refusals:
        check_pushback(error)
    assert refused(daemon, "connection_share") > 0
    client.channel.close()


@pytest.mark.threads
def test_the_bytes_of_the_queue_are_bounded(start_daemon):
    daemon, client, layer = start(start_daemon, "--max-queue-bytes", 32 << 20)
    calls = [client.stub.Forward.future(layer.request(1500), timeout=FOREVER) for _ in range(6)]
    eventually(lambda: refused(daemon, "queue") > 0)
    assert daemon.metric("expertd_queue_bytes") <= 32 << 20
    eventually(lambda: sum(call.done() and call.exception() is not None for call in calls) >= 1)
    for call in calls:
        if call.done() and call.exception():
            check_pushback(call.exception())
        call.cancel()
    daemon.wait_queued(0)
    client.channel.close()


@pytest.mark.threads
def test_a_call_that_cannot_meet_its_deadline_is_refused_at_once(start_daemon):
    daemon, client, layer = start(start_daemon)
    running = [client.stub.Forward.future(layer.request(slow.TOKENS_MAX), timeout=FOREVER) for _ in range(3)]
    daemon.wait_queued(3)
    eventually(lambda: daemon.metric("expertd_batches_total") >= 8)  # then the engine's rate is known
    with is_refused():
        client.forward(layer.request(slow.TOKENS_MAX), timeout=layer.seconds_per_token * slow.TOKENS_MAX / 2)
    assert refused(daemon, "would_miss_deadline") == 1
    assert client.forward(layer.request(1)).output.data, "a small call with a long deadline must be served"
    for call in running:
        call.cancel()
    client.channel.close()


@pytest.mark.threads
def test_a_flood_of_streams_does_not_keep_others_out(start_daemon, case):
    daemon = start_daemon("--max-streams", 6, model=case("qwen2_moe").folder)
    request = pb.ForwardRequest(layer=1, hidden=tensor(np.ones((2, 96))))
    with daemon.client() as greedy, daemon.client() as other:
        feeds = [Feed() for _ in range(20)]
        streams = [greedy.stream(feed) for feed in feeds]
        eventually(lambda: sum(not stream.is_active() for stream in streams) == 17)
        daemon.wait_metric("expertd_open_streams", 3)
        for stream in streams:
            if not stream.is_active():
                with is_refused():
                    next(stream)
        feed = Feed(request)
        stream = other.stream(feed)
        assert next(stream).output.data
        for each in feeds + [feed]:
            each.close()
        assert list(stream) == []
    daemon.wait_metric("expertd_open_streams", 0)
    assert refused(daemon, "connection_share") == 17


@pytest.mark.threads
def test_a_flood_of_calls_does_not_keep_others_out(start_daemon, case):
    """More idle streams on one connection than max_calls."""
    daemon = start_daemon("--max-calls", 8, "--max-streams", 1000, model=case("qwen2_moe").folder)
    with daemon.client() as greedy, daemon.client() as other:
        feeds = [Feed() for _ in range(40)]
        streams = [greedy.stream(feed) for feed in feeds]
        eventually(lambda: sum(not stream.is_active() for stream in streams) == 36)
        assert other.forward(layer=1, hidden=tensor(np.ones((2, 96)))).output.data
        for feed in feeds:
            feed.close()
    daemon.wait_metric("expertd_open_calls", 0)


@pytest.mark.threads
def test_a_caller_that_sends_no_message_does_not_delay_others(start_daemon, case):
    """It holds its share of the read slots, one half. Other callers use the rest."""
    daemon = start_daemon("--read-slots", 2, model=case("qwen2_moe").folder)
    with daemon.client() as slow_sender, daemon.client() as other:
        silent = slow_sender.channel.stream_unary("/expertd.v1.Experts/Forward", request_serializer=None)
        feeds = [Feed() for _ in range(10)]
        calls = [silent.future(iter(feed), timeout=FOREVER) for feed in feeds]
        daemon.wait_metric("expertd_read_slots_used", 1)
        for _ in range(5):
            assert other.forward(layer=1, hidden=tensor(np.ones((2, 96)))).output.data
        assert daemon.metric("expertd_read_slots_used") == 1
        for call, feed in zip(calls, feeds):
            call.cancel()
            feed.close()
    daemon.wait_metric("expertd_read_slots_used", 0)


@pytest.mark.threads
def test_the_next_read_slot_goes_to_a_connection_that_holds_none(start_daemon, case):
    """Two connections hold both slots and have many waiting calls. A third connection gets the next slot, although it came last."""
    daemon = start_daemon("--read-slots", 2, "--rpc-threads", 1, "--send-timeout-ms", 1000, model=case("qwen2_moe").folder)
    with http2.Peer(daemon.socket) as one, http2.Peer(daemon.socket) as two, daemon.client() as other:
        for peer in (one, two):
            for _ in range(100):
                peer.open("/expertd.v1.Experts/Forward")
        daemon.wait_metric("expertd_open_calls", 200)
        daemon.wait_metric("expertd_read_slots_used", 2)
        for _ in range(3):
            assert other.forward(layer=1, hidden=tensor(np.ones((2, 96))), timeout=10 * SLOW).output.data
        assert daemon.metric("expertd_open_calls") > 100, "the waiting calls timed out too soon for this test"


@pytest.mark.threads
def test_a_flood_of_unix_connections_is_turned_away(start_daemon, case):
    daemon = start_daemon("--max-connections", 8, model=case("qwen2_moe").folder)
    request = pb.ForwardRequest(layer=1, hidden=tensor(np.ones((2, 96))))
    with daemon.client() as client:
        assert client.forward(request).output.data
        flood = []
        for _ in range(40):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(daemon.socket)
            flood.append(connection)
        eventually(lambda: refused(daemon, "connections") == 33)
        assert sum(is_closed(connection) for connection in flood) == 33
        assert client.forward(request).output.data, "an existing connection is no longer served"
        assert len(daemon.events("connections_full")) >= 1
        for connection in flood:
            connection.close()

        def is_served():
            with daemon.client() as late, contextlib.suppress(grpc.RpcError):
                return late.forward(request, timeout=1 * SLOW).output.data

        eventually(is_served)


def test_refusals_are_counted_by_reason(start_daemon, case):
    daemon = start_daemon(model=case("qwen2_moe").folder)
    text = daemon.get("/metrics")[1]
    reasons = set(re.findall(r'expertd_refused_total\{reason="(\w+)"\} 0', text))
    assert {"queue", "connection_share", "would_miss_deadline", "streams", "calls", "connections", "draining"} <= reasons
    status = json.loads(daemon.get("/api/status")[1])
    assert set(status["refused"]) == reasons and status["pushback_ms"] == 10


# ---- options


def test_a_piece_larger_than_a_batch_is_refused(start_daemon):
    daemon = start_daemon("--max-batch-tokens", 16, "--max-piece-tokens", 17, model=slow.MODEL, wait=False)
    assert daemon.wait_exit() == 64
    assert "max_piece_tokens is 17" in daemon.log and "max_batch_tokens" in daemon.log
