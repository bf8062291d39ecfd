"""One process of callers of a soak test: threads make mixed calls in a closed loop until standard input closes. Then prints one JSON line.

    caller.py EXPECTED.npz SEED THREADS SECONDS ADDRESS…

The threads share the addresses. SECONDS is the deadline of calls. A line of addresses on standard input replaces them; "moved" is printed
when no call uses the earlier ones any more. EXPECTED.npz holds for each layer L: L.hidden [N, H], the routes L.ids and L.weights [N, K], and the bytes of each row's answer when computed
alone: L.own with the model's routing, L.given with the routes.
"""

import collections
import datetime
import json
import pathlib
import random
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

import grpc  # noqa: E402
import numpy as np  # noqa: E402

from harness.daemon import CHANNEL_OPTIONS, Client  # noqa: E402
from harness.protos import pb  # noqa: E402
from harness.tensors import rows_of, tensor  # noqa: E402

MESSAGE_BYTES_MAX = 1 << 20  # the daemon's limit

# Status codes that each kind of call may get besides OK. RESOURCE_EXHAUSTED (QUEUE_FULL) is allowed for all, as the load fills the queue.
EXPECTED_CODES = {"forward": (), "stream": (), "cancel": ("CANCELLED",), "deadline": ("DEADLINE_EXCEEDED",),
                  "bad": ("INVALID_ARGUMENT",), "drop": ("CANCELLED",), "late": ("DEADLINE_EXCEEDED",), "large": ()}
KINDS = [*["forward"] * 6, *["stream"] * 5, "cancel", "deadline", "bad", "drop", "late", "large"]
FAULTS_MAX = 5
STREAM_REQUESTS = 12
TOO_LARGE = pb.ForwardRequest(hidden=pb.Tensor(data=bytes(MESSAGE_BYTES_MAX)))


class Layer:
    """Input rows of a layer, their expected answers, and requests with a choice of rows."""

    def __init__(self, number, arrays):
        self.number = number
        self.hidden, self.ids, self.weights = (arrays[f"{number}.{name}"] for name in ("hidden", "ids", "weights"))
        self.expected = {routed: [row.tobytes() for row in arrays[f"{number}.{name}"]]
                         for routed, name in ((False, "own"), (True, "given"))}

    def request(self, rows, routed, **fields):
        if routed:
            fields["routes"] = pb.Routes(ids=tensor(self.ids[rows], "I32"), weights=tensor(self.weights[rows]))
        return pb.ForwardRequest(layer=self.number, hidden=tensor(self.hidden[rows]), **fields)


class Callers:
    def __init__(self, addresses, layers, seed, seconds, threads):
        self.addresses, self.layers, self.seed, self.seconds = addresses, layers, seed, seconds
        self.done, self.faults, self.failed, self.wrong, self.lost, self.longest = collections.Counter(), [], 0, 0, 0, 0.0
        self.lock, self.stop = threading.Condition(), threading.Event()
        self.moves, self.followed = 0, [0] * threads  # by each thread

    def move(self, addresses):
        """Returns when each thread uses the new addresses."""
        with self.lock:
            self.addresses, self.moves = addresses, self.moves + 1
            self.lock.wait_for(lambda: min(self.followed) == self.moves)

    def fault(self, text):
        with self.lock:
            self.failed += 1
            if len(self.faults) < FAULTS_MAX:
                self.faults.append(f"{datetime.datetime.now(datetime.UTC):%H:%M:%S.%f} {text}")

    def count(self, name, more=1):
        with self.lock:
            self.done[name] += more

    def client(self, number):
        return Client(grpc.insecure_channel(self.addresses[number % len(self.addresses)], options=CHANNEL_OPTIONS))

    def random_rows(self, rng):
        """Random (layer, rows, routed): mostly few rows, sometimes many; with given routes or the model's."""
        layer = rng.choice(self.layers)
        count = rng.randrange(200, 1500) if rng.random() < 0.05 else rng.randrange(1, 40)
        return layer, [rng.randrange(len(layer.hidden)) for _ in range(count)], rng.random() < 0.5

    def check(self, answer, layer, rows, routed, *, expected=()):
        """Checks an answer. expected: error codes that are allowed besides a full queue."""
        if answer.HasField("error"):
            self.count("stream answers with an error")
            if answer.error.code not in [code.value[0] for code in (grpc.StatusCode.RESOURCE_EXHAUSTED, *expected)]:
                self.fault(f"an answer of a stream is an unexpected error: {answer.error.message}")
            return
        if rows_of(answer.output) != [layer.expected[routed][row] for row in rows]:
            with self.lock:
                self.wrong += 1
            self.fault(f"an answer of layer {layer.number} for {len(rows)} rows differs from the rows computed alone "
                       f"(placement epoch {answer.placement_epoch})")
        self.count("rows", len(rows))

    def stream(self, client, rng, last=(), expected=(), **options):
        """Sends random requests and then `last`, which ends the stream with an error after the answers to the random requests."""
        calls = [self.random_rows(rng) for _ in range(rng.randrange(1, STREAM_REQUESTS))]
        requests = [layer.request(rows, routed, id=number) for number, (layer, rows, routed) in enumerate(calls)]
        options.setdefault("timeout", self.seconds)
        seen = set()
        try:
            for answer in client.stream([*requests, *last], **options):
                seen.add(answer.id)
                self.check(answer, *calls[answer.id], expected=expected)
        except grpc.RpcError as error:
            if not last or error.code() != grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
        if len(seen) != len(calls):
            with self.lock:
                self.lost += len(calls) - len(seen)
            self.fault(f"a stream of {len(calls)} requests ended without an error but with {len(seen)} answers")

    def make_call(self, kind, client, rng):
        layer, rows, routed = self.random_rows(rng)
        request = layer.request(rows, routed)
        if kind == "forward":
            self.check(client.forward(request, timeout=self.seconds), layer, rows, routed)
        elif kind == "stream":
            self.stream(client, rng)
        elif kind == "late":
            self.stream(client, rng, expected=[grpc.StatusCode.DEADLINE_EXCEEDED], timeout=rng.random() / 20)
        elif kind == "large":
            self.stream(client, rng, last=[TOO_LARGE])
        elif kind == "cancel":
            call = client.stub.Forward.future(request)
            self.stop.wait(rng.random() / 500)
            call.cancel()
        elif kind == "deadline":
            request.timeout_us = rng.choice((1, 200, 2000))
            self.check(client.forward(request), layer, rows, routed)
        elif kind == "bad":
            request.output_dtype = pb.I64
            client.forward(request)
        elif kind == "drop":
            with self.client(rng.randrange(2)) as other:
                next(other.stream([request] * 4))

    def take_turn(self, client, rng):
        kind, began = rng.choice(KINDS), time.monotonic()
        try:
            self.make_call(kind, client, rng)
            outcome = "ok"
        except grpc.RpcError as error:
            outcome = error.code().name
            if outcome not in EXPECTED_CODES[kind] and outcome != "RESOURCE_EXHAUSTED":
                self.fault(f"{kind}: {outcome} {error.details()}")
        except Exception as error:  # a fault of the test itself counts too
            outcome = "exception"
            self.fault(f"{kind}: {error!r}")
        self.count(f"{kind} {outcome}")
        with self.lock:
            self.longest = max(self.longest, time.monotonic() - began)

    def caller(self, number):
        rng = random.Random(self.seed * 1000 + number)
        client = self.client(number)
        while not self.stop.is_set():
            if self.followed[number] != self.moves:
                with self.lock:
                    client.channel.close()
                    client = self.client(number)
                    self.followed[number] = self.moves
                    self.lock.notify_all()
            self.take_turn(client, rng)
        client.channel.close()


def main():
    path, seed, count, seconds, *addresses = sys.argv[1:]
    with np.load(path) as arrays:
        arrays = dict(arrays)
    layers = [Layer(number, arrays) for number in sorted({int(name.split(".")[0]) for name in arrays})]
    callers = Callers(addresses, layers, int(seed), float(seconds), int(count))
    threads = [threading.Thread(target=callers.caller, args=(number,)) for number in range(int(count))]
    for thread in threads:
        thread.start()
    try:
        for line in sys.stdin:
            callers.move(line.split())
            print("moved", flush=True)
    finally:  # also when interrupted
        callers.stop.set()
    for thread in threads:
        thread.join()
    print(json.dumps({"done": callers.done, "faults": callers.faults, "failed": callers.failed, "wrong": callers.wrong, "lost": callers.lost,
                      "longest": callers.longest}))


if __name__ == "__main__":
    main()
