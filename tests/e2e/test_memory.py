"""Bounded: after the warm-up nothing grows, whatever callers do."""

import time

import grpc
import numpy as np
import pytest

from harness.paths import SANITIZER, SLOW
from harness.protos import pb
from harness.tensors import tensor

LAYER, HIDDEN = 1, 96
CALLS = 3000 if not SANITIZER else 600
GROWTH_BYTES = 4 << 20


def request(random, tokens, **fields):
    return pb.ForwardRequest(layer=LAYER, hidden=tensor(random.standard_normal((tokens, HIDDEN)).astype(np.float32)), **fields)


def settled(daemon, fds):
    """Memory when all connections of the test are gone."""
    deadline = time.monotonic() + 10 * SLOW
    while daemon.memory()["fds"] > fds and time.monotonic() < deadline:
        time.sleep(0.05)
    return daemon.memory()


def grows_not(daemon, work, rounds=3, growth=GROWTH_BYTES):
    """The first rounds warm up; then resident memory, descriptors and threads stay."""
    fds = daemon.memory()["fds"]
    sizes = []
    for _ in range(rounds + 1):
        work()
        sizes.append(settled(daemon, fds))
    first, last = sizes[1], sizes[-1]
    assert last["fds"] <= fds, f"descriptors: {fds} before, {last['fds']} after"
    assert last["threads"] <= first["threads"]
    if not SANITIZER:
        assert last["rss"] <= first["rss"] + growth, f"resident: {[s['rss'] >> 10 for s in sizes]} KiB"


def test_calls_leave_nothing_behind(served, random):
    requests = [request(random, int(tokens)) for tokens in random.integers(0, 60, 50)]

    def work():
        with served.client() as client:
            for number in range(CALLS):
                client.forward(requests[number % len(requests)])

    grows_not(served, work)


def test_refused_calls_leave_nothing_behind(served, random):
    bad = [pb.ForwardRequest(layer=9), request(random, 2, model="x"), pb.ForwardRequest(layer=LAYER),
           request(random, 2, output_dtype=pb.I32), request(random, 2, weights_id=1)]

    def work():
        with served.client() as client:
            for number in range(CALLS // 3):
                with pytest.raises(grpc.RpcError):
                    client.forward(bad[number % len(bad)])
                with pytest.raises(grpc.RpcError):
                    client.raw("Forward", b"\xff" * 50)

    grows_not(served, work)


def test_connections_streams_and_cancellations_leave_nothing_behind(served, random):
    one = request(random, 5)

    def work():
        for number in range(CALLS // 30):
            with served.client(tcp=bool(number % 2)) as client:
                call = client.stream([one] * 5)
                next(call)
                if number % 3 == 0:
                    call.cancel()
                client.stub.Forward.future(one).cancel()
                client.describe()

    grows_not(served, work)


def test_large_messages_are_given_back(served, random):
    large = request(random, 4000)

    def work():
        with served.client() as client:
            for _ in range(20):
                client.forward(large, timeout=60 * SLOW)

    # A message is 1.5 MB and 60 are sent after the warm-up: one lost in four would show. Which of gRPC's threads hold a chunk varies.
    grows_not(served, work, growth=24 << 20)
