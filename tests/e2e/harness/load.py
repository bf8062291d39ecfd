"""Callers in closed loops, which compare every answer with the right one."""

import threading
import time

import grpc

from .daemon import Daemon
from .protos import pb
from .tensors import tensor


def requests_of(golden):
    return [pb.ForwardRequest(layer=layer, hidden=tensor(golden.get(layer, "input"))) for layer in golden.layers]


def answers_of_one_process(golden):
    """The output bytes of requests_of(golden), from a daemon without shards in other processes."""
    daemon = Daemon(model=golden.folder)
    with daemon.client() as client:
        outputs = [client.forward(request).output.data for request in requests_of(golden)]
    daemon.stop()
    return outputs


class Load:
    """Calls a daemon from several threads until the `with` block ends. wanted: the output bytes of each request."""

    def __init__(self, daemon, requests, wanted, callers=2, timeout=5.0):
        self.daemon, self.requests, self.wanted, self.timeout = daemon, requests, wanted, timeout
        self.calls, self.wrong, self.failures, self.ends = 0, 0, [], []
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(callers)]

    def _run(self, number):
        with self.daemon.client() as client:
            while not self._stop.is_set():
                at = number % len(self.requests)
                number += 1
                try:
                    answer = client.forward(self.requests[at], timeout=self.timeout)
                    is_wrong, failure = answer.output.data != self.wanted[at], None
                except grpc.RpcError as error:
                    is_wrong, failure = False, f"{error.code().name}: {error.details()}"
                with self._lock:
                    self.calls += 1
                    self.wrong += is_wrong
                    self.ends.append(time.monotonic())
                    if failure:
                        self.failures.append(failure)
                if failure:
                    time.sleep(0.01)

    def progress(self, calls=20, seconds=30):
        """Waits until so many further calls have ended."""
        target, until = self.calls + calls, time.monotonic() + seconds
        while self.calls < target:
            assert time.monotonic() < until, f"{self.calls} calls instead of {target} after {seconds} s: {self.failures[-3:]}"
            time.sleep(0.005)

    def longest_gap(self):
        """The longest time between two answers, in seconds."""
        ends = sorted(self.ends)
        return max((b - a for a, b in zip(ends, ends[1:])), default=0.0)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        if not kind:
            assert self.wrong == 0, f"{self.wrong} of {self.calls} answers are wrong"

    def check(self):
        """After the block: no call has failed."""
        assert not self.failures, f"{len(self.failures)} of {self.calls} calls failed: {self.failures[:3]}"
