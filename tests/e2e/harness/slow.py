"""Requests that take a while, on any machine and under any sanitizer: a synthetic layer, and as many tokens as the time needs."""

import pathlib
import time

import numpy as np

from .paths import SANITIZER
from .protos import pb
from .tensors import tensor

# Eight experts of a real shape, and tokens that go to all of them: 75 MB of weights, some 75 MFLOP a token. A sanitizer slows them down by
# itself, so that they go to fewer.
MODEL = "synthetic:qwen3-30b-a3b,layers=1,experts=8"
HIDDEN, CHOICES = 2048, {"": 8, "asan": 4, "tsan": 1}[SANITIZER]
TOKENS_MAX = 3000
# A fast CPU's best kernels are through TOKENS_MAX in the time of a deadline that a test sets: half-way ones are slow enough anywhere.
KERNELS = "avx2" if " avx2 " in pathlib.Path("/proc/cpuinfo").read_text() else "scalar"
OPTIONS = ("--kernels", KERNELS)


class SlowLayer:
    def __init__(self, client):
        self.client = client
        self.layer = client.describe().models[0].layers[0].layer
        client.forward(self.request(8))
        begun = time.monotonic()
        client.forward(self.request(64))
        self.seconds_per_token = (time.monotonic() - begun) / 64

    def request(self, tokens, **fields):
        hidden = tensor(np.full((tokens, HIDDEN), 0.5, np.float32), "BF16")
        routes = pb.Routes(ids=tensor(np.tile(np.arange(CHOICES), (tokens, 1)), "I32"),
                           weights=tensor(np.full((tokens, CHOICES), 0.125, np.float32)))
        return pb.ForwardRequest(layer=getattr(self, "layer", 0), hidden=hidden, routes=routes, **fields)

    def tokens_in(self, seconds):
        return min(max(int(seconds / self.seconds_per_token), 1), TOKENS_MAX)

    def lasting(self, seconds, **fields):
        return self.request(self.tokens_in(seconds), **fields)
