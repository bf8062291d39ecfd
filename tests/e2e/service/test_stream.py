"""Stream: answers in the order of completion, limits, and failures without an effect on other callers."""

import subprocess
import sys
import threading
import time

import grpc
import numpy as np
import pytest

from harness import http2, slow
from harness.daemon import CALL_SECONDS, Daemon, Feed
from harness.errors import failure_of_answer, failure_of_call
from harness.paths import ROOT, SANITIZER, SLOW
from harness.protos import pb
from harness.tensors import tensor
from harness.waiting import eventually

LAYER, HIDDEN = 1, 96
TINY_HIDDEN = 256  # of synthetic:tiny


def request(random, tokens=3, **fields):
    return pb.ForwardRequest(layer=LAYER, hidden=tensor(random.standard_normal((tokens, HIDDEN)).astype(np.float32)), **fields)


@pytest.fixture(scope="module")
def slow_daemon():
    daemon = Daemon(*slow.OPTIONS, "--max-inflight", 3, "--max-piece-tokens", 4096, "--max-message-bytes", 32 << 20, model=slow.MODEL)
    yield daemon
    daemon.stop()


@pytest.fixture(scope="module")
def slow_layer(slow_daemon):
    with slow_daemon.client() as client:
        yield slow.SlowLayer(client)


def test_an_empty_stream_ends_with_ok(client):
    call = client.stream([])
    assert list(call) == [] and call.code() == grpc.StatusCode.OK


def test_every_request_is_answered_once_after_half_close(client, random):
    requests = [request(random, tokens=int(random.integers(0, 9)), id=i) for i in range(200)]
    call = client.stream(requests)
    answers = list(call)
    assert call.code() == grpc.StatusCode.OK
    assert sorted(answer.id for answer in answers) == list(range(200))
    for answer in answers:
        assert list(answer.output.shape) == list(requests[answer.id].hidden.shape)


def test_equal_ids_are_allowed(client, random):
    assert [answer.id for answer in client.stream([request(random, id=9)] * 3)] == [9, 9, 9]


def test_a_stream_answers_before_its_next_request(client, random):
    feed = Feed()
    call = client.stream(feed)
    for number in range(5):
        feed.send(request(random, id=number))
        assert next(call).id == number
    feed.close()
    assert list(call) == []


@pytest.mark.threads
def test_answers_leave_in_order_of_completion(slow_daemon, slow_layer):
    """An error is sent at once. Requests that wait for the engine are computed by priority, the lowest number first."""
    with slow_daemon.client() as client:
        feed = Feed(slow_layer.lasting(1.0, id=1))
        call = client.stream(feed)
        slow_daemon.wait_queued(1)
        time.sleep(0.2)  # until the admitted request is being computed
        feed.send(slow_layer.request(1, id=2, priority=5))
        feed.send(slow_layer.request(1, id=3, priority=-5))
        feed.close()
        assert [answer.id for answer in call] == [1, 3, 2]
        feed = Feed(slow_layer.lasting(1.0, id=1), pb.ForwardRequest(id=4, layer=999))
        feed.close()
        assert [(answer.id, answer.HasField("error")) for answer in client.stream(feed)] == [(4, True), (1, False)]


@pytest.mark.threads
def test_at_most_max_inflight_requests_are_admitted(slow_daemon, slow_layer):
    with slow_daemon.client() as client:
        assert client.describe().limits.max_inflight == 3
        call = client.stream([slow_layer.lasting(0.2, id=i) for i in range(8)])
        most = 0
        seen = []
        done = threading.Event()

        def watch():
            nonlocal most
            while not done.is_set():
                most = max(most, slow_daemon.metric("expertd_queue_requests"))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            seen = [answer.id for answer in call]
        finally:
            done.set()
            watcher.join()
        assert sorted(seen) == list(range(8))
        assert 1 <= most <= 3


@pytest.mark.threads
def test_timeout_us_fails_its_request_alone(slow_daemon, slow_layer):
    with slow_daemon.client() as client:
        requests = [slow_layer.lasting(1.0, id=1), slow_layer.request(1, id=2, timeout_us=100_000), slow_layer.request(1, id=3)]
        answers = {answer.id: answer for answer in client.stream(requests)}
        assert sorted(answers) == [1, 2, 3]
        # RESOURCE_EXHAUSTED if the engine's rate is already known: the deadline cannot be met.
        assert failure_of_answer(answers[2]).code in ("DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED")
        assert answers[1].output.data and answers[3].output.data


@pytest.mark.threads
def test_the_deadline_of_the_stream_ends_it(slow_daemon, slow_layer):
    with slow_daemon.client() as client:
        call = client.stream([slow_layer.lasting(3.0)], timeout=0.3)
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        slow_daemon.wait_metric("expertd_open_calls", 0)
        assert client.forward(slow_layer.request(1)).output.data


@pytest.mark.threads
def test_a_cancelled_stream_leaves_nothing_behind(slow_daemon, slow_layer):
    with slow_daemon.client() as client:
        for _ in range(5):
            call = client.stream(Feed(slow_layer.lasting(0.5), slow_layer.lasting(0.5)))
            time.sleep(0.05)
            call.cancel()
        slow_daemon.wait_metric("expertd_open_calls", 0)
        assert client.forward(slow_layer.request(1)).output.data


def tiny(rows, **fields):
    layer = fields.pop("layer", 0)
    return pb.ForwardRequest(layer=layer, hidden=tensor(np.full((rows, TINY_HIDDEN), 0.5, np.float32)), **fields)


def lazy_client(daemon):
    """A client with small flow-control windows, which a few answers fill."""
    return daemon.client(options=[("grpc.http2.lookahead_bytes", 4096), ("grpc.http2.bdp_probe", 0)])


@pytest.mark.threads
def test_a_message_that_is_too_large_ends_its_stream_after_the_answers(start_daemon):
    daemon = start_daemon("--max-message-bytes", "64KiB", model="synthetic:tiny")
    with lazy_client(daemon) as client:
        for _ in range(3):
            call = client.stream(Feed(*[tiny(50, id=number) for number in range(12)], tiny(1000)))
            time.sleep(0.3)  # the answers wait for this reader when the large message arrives
            answers = []
            with pytest.raises(grpc.RpcError) as caught:
                for answer in call:
                    answers.append(answer.id)
            assert failure_of_call(caught.value).code == "RESOURCE_EXHAUSTED"
            assert sorted(answers) == list(range(12))
        assert client.forward(tiny(1)).output.data
        daemon.wait_metric("expertd_open_calls", 0)


@pytest.mark.threads
def test_a_stream_that_expires_between_its_answers_ends_alone(start_daemon):
    daemon = start_daemon(model="synthetic:tiny")
    with daemon.client() as client:
        for attempt in range(16):
            call = client.stream(Feed(*[tiny(2000, id=number) for number in range(14)]), timeout=0.05 + 0.013 * attempt)
            with pytest.raises(grpc.RpcError) as caught:
                list(call)
            assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        daemon.wait_metric("expertd_open_calls", 0)
        assert client.forward(tiny(1)).output.data


def test_unread_refusals_hold_no_request_memory(start_daemon):
    daemon = start_daemon("--max-message-bytes", 4 << 20, "--max-inflight", 32, model="synthetic:tiny")
    with http2.Peer(daemon.socket, window=0) as peer:
        stream = peer.open("/expertd.v1.Experts/Stream")
        refused = tiny((3 << 20) // (4 * TINY_HIDDEN), layer=999).SerializeToString()
        before = daemon.memory()["rss"]
        for _ in range(28):
            peer.send(stream, refused)
        eventually(lambda: daemon.metric("expertd_calls_total", 'method="Stream"') == 28)
        assert daemon.memory()["rss"] - before < (48 << 20) * (3 if SANITIZER else 1)


DYING_CLIENT = """
import sys, time
sys.path.insert(0, sys.argv[1])
import grpc
from harness.protos import pb, rpc
from harness import http2, slow
import numpy as np
stub = rpc.ExpertsStub(grpc.insecure_channel("unix:" + sys.argv[2], options=[("grpc.max_send_message_length", -1)]))
layer = slow.SlowLayer.__new__(slow.SlowLayer)
layer.layer = int(sys.argv[3])
def feed():
    for number in range(3):
        yield layer.request(int(sys.argv[4]), id=number)
    print("sent", flush=True)
    time.sleep(60)
for answer in stub.Stream(feed()):
    pass
"""


@pytest.mark.threads
def test_a_client_killed_in_a_stream_does_not_affect_others(slow_daemon, slow_layer):
    with slow_daemon.client() as client:
        before = client.forward(slow_layer.request(2)).output.data
        idle = slow_daemon.memory()["fds"]
        tokens = slow_layer.tokens_in(0.5)
        for _ in range(3):
            process = subprocess.Popen([sys.executable, "-c", DYING_CLIENT, str(ROOT / "tests" / "e2e"), slow_daemon.socket,
                                        str(slow_layer.layer), str(tokens)], stdout=subprocess.PIPE, text=True)
            assert process.stdout.readline() == "sent\n"
            process.kill()
            process.wait()
            process.stdout.close()
            assert client.forward(slow_layer.request(2)).output.data == before
        slow_daemon.wait_metric("expertd_open_calls", 0)
        eventually(lambda: slow_daemon.memory()["fds"] <= idle)


@pytest.mark.threads
def test_a_client_that_does_not_read_loses_its_stream(start_daemon):
    daemon = start_daemon("--send-timeout-ms", 500, "--max-inflight", 2, "--max-message-bytes", 32 << 20, model=slow.MODEL)
    with daemon.client(options=[("grpc.http2.lookahead_bytes", 65536), ("grpc.http2.bdp_probe", 0)]) as lazy, \
            daemon.client() as other:
        layer = other.describe().models[0].layers[0].layer
        zeros = tensor(np.zeros((2000, slow.HIDDEN)), "BF16")
        big = pb.ForwardRequest(layer=layer, hidden=zeros, routes=pb.Routes(
            ids=tensor(np.full((2000, 1), -1), "I32"), weights=tensor(np.zeros((2000, 1)))), output_dtype=pb.F32)
        call = lazy.stream(Feed(*[big] * 6), timeout=60 * SLOW)
        small = pb.ForwardRequest(layer=layer, hidden=tensor(np.zeros((1, slow.HIDDEN)), "BF16"))
        assert other.forward(small).output.data, "another caller is not served meanwhile"
        daemon.wait_metric("expertd_open_calls", 0, seconds=15 * SLOW)
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        failure = failure_of_call(caught.value)
        assert failure.code in ("DEADLINE_EXCEEDED", "CANCELLED", "UNAVAILABLE", "RESOURCE_EXHAUSTED"), failure
        assert other.forward(small).output.data


@pytest.mark.threads
def test_many_streams_at_once_get_their_own_answers(client, served, random):
    inputs = [request(random, tokens=2, id=i) for i in range(20)]
    expected = [client.forward(item).output.data for item in inputs]
    right = []

    def one(seed):
        order = np.random.default_rng(seed).permutation(20)
        with served.client(tcp=bool(seed % 2)) as mine:
            for answer in mine.stream([inputs[i] for i in order], timeout=CALL_SECONDS * 2):
                if answer.output.data == expected[answer.id]:
                    right.append((seed, answer.id))

    threads = [threading.Thread(target=one, args=(seed,)) for seed in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(right) == [(seed, id) for seed in range(12) for id in range(20)]
