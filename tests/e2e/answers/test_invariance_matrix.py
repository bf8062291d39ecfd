"""Equal bits for every golden case in every combination of 1, 2, 3 or 5 shards, 1, 4 or 16 callers, single rows, pieces or all rows per
request, unary calls or streams, and before, during and after moves of the experts with replicas.

The expected bits come from one shard with one thread and one row per request: without merging, splitting, sharding or moves.
"""

import concurrent.futures

import numpy as np
import pytest

from harness.admin import Mover
from harness.paths import SANITIZER, SERVED_CASES
from harness.protos import pb
from harness.tensors import rows_of, tensor

# Sanitizer builds look for other faults than wrong bits, so they run fewer combinations.
SHARDS = (1, 2, 3, 5) if not SANITIZER else (1, 3)
CALLERS = (1, 4, 16) if not SANITIZER else (5,)
ROWS = 24
ROUNDS = 2 if not SANITIZER else 1
MOVES = 3  # at least so many moves during calls
# ThreadSanitizer runs these: a router with bias and groups, biases and clamps, weights on the input. AddressSanitizer runs every second case.
THREADED = ("deepseek_v3", "gpt_oss", "llama4")


class Problem:
    """Rows for a golden case's last layer, with the model's routing or given routes. `expected` holds their answers after compute_expected."""

    def __init__(self, case):
        random = np.random.default_rng(11)
        self.layer = case.layers[-1]
        own = case.get(self.layer, "input")
        self.experts = case.router_logits(self.layer).shape[1]
        scale = 2.0 ** random.integers(-8, 8, (ROWS, 1))
        self.hidden = (own[np.arange(ROWS) % len(own)] * scale).astype(np.float32)
        self.ids = random.integers(-1, self.experts, (ROWS, 3)).astype(np.int32)
        self.ids[3] = -1
        self.weights = random.standard_normal(self.ids.shape).astype(np.float32)
        self.expected, self.epochs = {}, set()

    def request(self, rows, routed, **fields):
        if routed:
            fields["routes"] = pb.Routes(ids=tensor(self.ids[rows], "I32"), weights=tensor(self.weights[rows]))
        return pb.ForwardRequest(layer=self.layer, hidden=tensor(self.hidden[rows]), timings=True, **fields)

    def compute_expected(self, client):
        for routed in (False, True):
            self.expected[routed] = [rows_of(client.forward(self.request([row], routed)).output)[0] for row in range(ROWS)]

    def check(self, answer, rows, routed):
        assert rows_of(answer.output) == [self.expected[routed][row] for row in rows], f"rows {list(rows)}, given routes: {routed}"
        self.epochs.add(answer.placement_epoch)
        return answer.timings.batch_requests > 1


def batchings(random, caller):
    """The rows of each request of one caller: all rows, pieces, or single rows."""
    all_rows = [random.permutation(ROWS)]
    pieces = np.array_split(random.permutation(ROWS), random.integers(2, 6))
    alone = [[row] for row in random.permutation(ROWS)[:6]]
    return [all_rows, pieces, alone][caller % 3]


def call(problem, client, seed):
    """The calls of one caller, unary or on a stream, with either routing. Returns the number of answers from merged batches."""
    random, merged = np.random.default_rng(seed), 0
    for turn in range(ROUNDS):
        lists = batchings(random, seed + turn)
        routed = bool((seed + turn) % 2)
        if (seed // 2 + turn) % 2:
            merged += sum(problem.check(client.forward(problem.request(rows, routed)), rows, routed) for rows in lists)
            continue
        requests = [problem.request(rows, routed, id=number) for number, rows in enumerate(lists)]
        answers = {answer.id: answer for answer in client.stream(requests)}
        assert sorted(answers) == list(range(len(lists))), "an answer is missing"
        merged += sum(problem.check(answers[number], rows, routed) for number, rows in enumerate(lists))
    return merged


def call_from_many(problem, daemon, callers):
    clients = [daemon.client(tcp=bool(number % 2)) for number in range(min(callers, 4))]
    with concurrent.futures.ThreadPoolExecutor(callers) as pool:
        parts = [pool.submit(call, problem, clients[number % len(clients)], number) for number in range(callers)]
        merged = sum(part.result() for part in parts)
    for client in clients:
        client.channel.close()
    return merged


def call_from_all(problem, daemon):
    """Calls with every number of callers. Returns the number of answers from merged batches, and the placement epochs of all answers."""
    problem.epochs = set()
    merged = sum(call_from_many(problem, daemon, callers) for callers in CALLERS)
    return merged, problem.epochs


def call_while_experts_move(problem, daemon, seed):
    """Calls before, during and after moves. Returns the number of answers from merged batches."""
    merged_before, before = call_from_all(problem, daemon)
    during, merged_during = set(), 0
    with Mover(daemon, problem.layer, seed) as mover:
        while not mover.failure and (mover.moves < MOVES or len(during) < 2):
            merged, epochs = call_from_all(problem, daemon)
            during, merged_during = during | epochs, merged_during + merged
    merged_after, after = call_from_all(problem, daemon)
    assert mover.replicas > 0
    assert len(before) == 1 and after == {mover.epoch} != before, "one epoch before the moves, another one after them"
    return merged_before + merged_during + merged_after


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.threads if name in THREADED else ())
                                  for name in (SERVED_CASES if SANITIZER != "asan" else SERVED_CASES[::2])])
def test_bits_are_equal_for_every_number_of_shards_batching_caller_and_placement(case, name, start_daemon):
    problem, merged = Problem(case(name)), 0
    alone = start_daemon("--shards", 1, "--threads", 1, model=case(name).folder)
    with alone.client() as client:
        problem.compute_expected(client)
    alone.stop()
    for shards in SHARDS:
        if shards > problem.experts:
            continue  # test_empty_shards.py covers shards without experts
        daemon = start_daemon("--shards", shards, "--threads", max(2, shards), model=case(name).folder)
        if shards == 1:
            merged += call_from_all(problem, daemon)[0]  # one shard has only one placement
        else:
            merged += call_while_experts_move(problem, daemon, shards)
        daemon.stop()
    assert merged > 0, "no two requests shared a batch, so merging was not tested"
