"""The daemon's answers agree with the golden outputs, which other software computed, within each case's bounds."""

import itertools

import numpy as np
import pytest

from harness.daemon import Daemon
from harness.paths import SANITIZER, SERVED_CASES
from harness.protos import pb
from harness.tensors import error_per_token, rows_of, tensor, values_of

SHARDS = (1, 2, 3) if not SANITIZER else (3,)


def configurations():
    """Every case in both dtypes on each number of shards. One configuration of every third case also runs under ThreadSanitizer."""
    for name, dtype, shards in itertools.product(SERVED_CASES, ("f32", "bf16"), SHARDS):
        threads = (dtype, shards) == ("bf16", SHARDS[-1]) and name in SERVED_CASES[::3]
        marks = [pytest.mark.threads] if threads else []
        yield pytest.param((name, dtype, shards), marks=marks, id=f"{name}-{dtype}-{shards}shards")


@pytest.fixture(scope="module", params=configurations())
def served_case(request, case):
    name, dtype, shards = request.param
    daemon = Daemon("--compute-dtype", dtype, "--shards", shards, model=case(name).folder)
    with daemon.client() as client:
        yield case(name), dtype, client
    daemon.stop()


def routes(golden, layer, ids="I32", weights="F32"):
    return pb.Routes(ids=tensor(golden.get(layer, "topk_ids"), ids), weights=tensor(golden.get(layer, "topk_weights"), weights))


@pytest.mark.share(2)
def test_own_router_gives_the_block_of_the_model(served_case):
    golden, dtype, client = served_case
    for layer in golden.layers:
        answer = client.forward(id=5, layer=layer, hidden=tensor(golden.get(layer, "input")))
        wanted = golden.get(layer, "output")
        assert answer.id == 5 and list(answer.output.shape) == list(wanted.shape) and answer.output.dtype == pb.F32
        assert error_per_token(values_of(answer.output), wanted).max() <= golden.bound(dtype)


def test_routes_of_the_caller_give_the_same_block(served_case):
    golden, dtype, client = served_case
    for layer in golden.layers:
        hidden = tensor(golden.get(layer, "input"))
        include = pb.SHARED_EXPERTS_INCLUDE if golden.shared_output(layer) is not None else pb.SHARED_EXPERTS_UNSPECIFIED
        outputs = []
        for ids in ("I32", "I64"):
            answer = client.forward(layer=layer, hidden=hidden, routes=routes(golden, layer, ids), shared_experts=include)
            assert error_per_token(values_of(answer.output), golden.get(layer, "output")).max() <= golden.bound(dtype)
            outputs.append(answer.output.data)
        assert outputs[0] == outputs[1], "I32 and I64 ids give different bits"


def test_logits_of_the_caller_give_the_same_block(served_case):
    golden, dtype, client = served_case
    for layer in golden.layers:
        answer = client.forward(layer=layer, hidden=tensor(golden.get(layer, "input")),
                                router_logits=tensor(golden.router_logits(layer)))
        assert error_per_token(values_of(answer.output), golden.get(layer, "output")).max() <= golden.bound(dtype)


def test_routes_leave_the_shared_expert_to_the_caller(served_case):
    golden, dtype, client = served_case
    for layer in golden.layers:
        shared = golden.shared_output(layer)
        if shared is None:
            continue
        hidden = tensor(golden.get(layer, "input"))
        wanted = golden.get(layer, "output")
        for request in (dict(routes=routes(golden, layer)), dict(shared_experts=pb.SHARED_EXPERTS_EXCLUDE)):
            routed = values_of(client.forward(layer=layer, hidden=hidden, **request).output)
            # The bound is relative to the block's output; its parts may be larger than their sum.
            error = np.abs(routed + shared - wanted).max(axis=1)
            scale = np.maximum(np.abs(wanted).max(axis=1), np.abs(routed).max(axis=1) + np.abs(shared).max(axis=1))
            assert (error / scale).max() <= golden.bound(dtype)


def test_a_stream_answers_with_the_bytes_of_forward(served_case):
    golden, _, client = served_case
    requests = [pb.ForwardRequest(id=10 + layer, layer=layer, hidden=tensor(golden.get(layer, "input")))
                for layer in golden.layers]
    answers = {answer.id: answer for answer in client.stream(requests)}
    assert sorted(answers) == [10 + layer for layer in golden.layers]
    for request in requests:
        assert not answers[request.id].HasField("error")
        assert answers[request.id].output.data == client.forward(request).output.data


@pytest.mark.share(4)
@pytest.mark.parametrize("weights", ["BF16", "F16"])
def test_narrow_routing_weights_are_widened_exactly(served_case, weights):
    golden, _, client = served_case
    layer = golden.layers[0]
    hidden = tensor(golden.get(layer, "input"))
    narrow = tensor(golden.get(layer, "topk_weights"), weights)
    ids = tensor(golden.get(layer, "topk_ids"), "I32")
    as_sent = client.forward(layer=layer, hidden=hidden, routes=pb.Routes(ids=ids, weights=narrow))
    widened = client.forward(layer=layer, hidden=hidden, routes=pb.Routes(ids=ids, weights=tensor(values_of(narrow))))
    assert as_sent.output.data == widened.output.data


def test_hidden_states_in_bf16_give_the_same_rows(served_case):
    """The golden inputs are exactly representable in bf16."""
    golden, _, client = served_case
    layer = golden.layers[-1]
    values = golden.get(layer, "input")
    wide = client.forward(layer=layer, hidden=tensor(values), output_dtype=pb.F32)
    narrow = client.forward(layer=layer, hidden=tensor(values, "BF16"), output_dtype=pb.F32)
    assert rows_of(wide.output) == rows_of(narrow.output)
    assert client.forward(layer=layer, hidden=tensor(values, "BF16")).output.dtype == pb.BF16
