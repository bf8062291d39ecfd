"""Requests that take a given time on any machine and under any sanitizer: a synthetic layer with a matching number of tokens."""

import pathlib
import time

import numpy as np

from .paths import SANITIZER
from .protos import pb
from .tensors import tensor

# Eight experts of a real shape, and tokens routed to all of them: 75 MB of weights, about 75 MFLOP a token. Sanitizers slow the kernels
# down, so there the tokens go to fewer experts.
MODEL = "synthetic:qwen3-30b-a3b,layers=1,experts=8"
HIDDEN, CHOICES = 2048, {"": 8, "asan": 4, "tsan": 1}[SANITIZER]
TOKENS_MAX = 3000
# A fast CPU's best kernels would compute TOKENS_MAX within the deadlines of the tests. AVX2 kernels are slow enough everywhere.
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
