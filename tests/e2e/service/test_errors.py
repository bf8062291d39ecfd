"""Every error that a caller can cause: code, reason and field, in unary calls and in streams, without an effect on other callers."""

import struct

import grpc
import numpy as np
import pytest

from harness.errors import check, failure_of_answer, raises
from harness.protos import pb
from harness.tensors import rows_of, tensor

LAYER, HIDDEN, EXPERTS, TOP_K = 1, 96, 8, 4
DAEMON_OPTIONS = ("--max-message-bytes", 1 << 20, "--max-request-tokens", 512, "--max-top-k", 16)

ROWS = np.random.default_rng(1).standard_normal((4, HIDDEN)).astype(np.float32)


def good(**fields):
    return pb.ForwardRequest(**{"layer": LAYER, "hidden": tensor(ROWS), **fields})


def routes(ids=None, weights=None):
    ids = tensor(np.zeros((4, 2)), "I32") if ids is None else ids
    return pb.Routes(ids=ids, weights=tensor(np.ones((4, 2))) if weights is None else weights)


def sized(shape, data, dtype=pb.F32):
    return pb.Tensor(dtype=dtype, shape=shape, data=data)


def f8(scale, tokens=4):
    return good(hidden=tensor(np.zeros((tokens, HIDDEN), np.uint8), "F8_E4M3"), hidden_scale=scale)


INVALID, ABSENT, STATE, LARGE = "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED"
EXTENT = pb.Extent(region=3, offset=0, length=4 * HIDDEN * 4)

# name: (request, code, reason, field that BadRequest must name)
BAD = {
    "model": (good(model="nobody"), ABSENT, "MODEL_UNKNOWN", None),
    "model_too_long": (good(model="m" * 256), ABSENT, "MODEL_UNKNOWN", "model"),
    "layer_dense": (good(layer=0), ABSENT, "LAYER_UNKNOWN", None),
    "layer_past_the_last": (good(layer=4_000_000_000), ABSENT, "LAYER_UNKNOWN", None),
    "weights_id": (good(weights_id=12345), STATE, "WEIGHTS_CHANGED", None),
    "hidden_extent": (good(hidden=pb.Tensor(dtype=pb.F32, shape=[4, HIDDEN], extent=EXTENT)), ABSENT, "REGION_UNKNOWN", None),
    "output_extent": (good(output=EXTENT), ABSENT, "REGION_UNKNOWN", None),
    "extent_misaligned": (good(hidden=pb.Tensor(dtype=pb.F32, shape=[4, HIDDEN], extent=pb.Extent(offset=32, length=512))), INVALID,
                          "TENSOR_BYTES", "hidden.extent.offset"),
    "hidden_rank_1": (good(hidden=tensor(ROWS[0])), INVALID, "SHAPE_MISMATCH", "hidden"),
    "hidden_rank_3": (good(hidden=tensor(ROWS, shape=[2, 2, HIDDEN])), INVALID, "SHAPE_MISMATCH", "hidden"),
    "hidden_narrow": (good(hidden=tensor(ROWS[:, :-1])), INVALID, "SHAPE_MISMATCH", "hidden"),
    "hidden_padded": (good(hidden=tensor(np.zeros((4, HIDDEN + 32)))), INVALID, "SHAPE_MISMATCH", "hidden"),
    "hidden_short_data": (good(hidden=sized([4, HIDDEN], b"\0" * (4 * HIDDEN * 4 - 1))), INVALID, "TENSOR_BYTES", "hidden.data"),
    "hidden_long_data": (good(hidden=sized([4, HIDDEN], b"\0" * (4 * HIDDEN * 4 + 4))), INVALID, "TENSOR_BYTES", "hidden.data"),
    "hidden_no_data": (good(hidden=pb.Tensor(dtype=pb.F32, shape=[4, HIDDEN])), INVALID, "TENSOR_BYTES", "hidden.data"),
    "hidden_huge_shape": (good(hidden=sized([1 << 40, 1 << 40], b"")), INVALID, "SHAPE_MISMATCH", None),
    "hidden_shape_product_wraps": (good(hidden=sized([1 << 62, 4], b"")), INVALID, "SHAPE_MISMATCH", None),
    "hidden_rank_99": (good(hidden=sized([1] * 99, b"\0" * 4)), INVALID, "SHAPE_MISMATCH", None),
    "hidden_dtype_integer": (good(hidden=tensor(np.zeros((4, HIDDEN)), "I32")), INVALID, "DTYPE_UNSUPPORTED", "hidden"),
    "hidden_dtype_none": (good(hidden=sized([4, HIDDEN], ROWS.tobytes(), 0)), INVALID, "DTYPE_UNSUPPORTED", None),
    "hidden_dtype_unknown": (good(hidden=sized([4, HIDDEN], ROWS.tobytes(), 42)), INVALID, "DTYPE_UNSUPPORTED", None),
    "hidden_absent": (pb.ForwardRequest(layer=LAYER), INVALID, "SHAPE_MISMATCH", "hidden"),
    "f8_without_scale": (good(hidden=tensor(np.zeros((4, HIDDEN), np.uint8), "F8_E4M3")), INVALID, "SHAPE_MISMATCH", "hidden_scale"),
    "f8_scale_shape": (f8(tensor(np.ones((3, 1)))), INVALID, "SHAPE_MISMATCH", "hidden_scale"),
    "f8_scale_dtype": (f8(tensor(np.ones((4, 1)), "BF16")), INVALID, "DTYPE_UNSUPPORTED", "hidden_scale"),
    "scale_without_f8": (good(hidden_scale=tensor(np.ones((4, 1)))), INVALID, "DTYPE_UNSUPPORTED", "hidden_scale"),
    "output_dtype_integer": (good(output_dtype=pb.I32), INVALID, "DTYPE_UNSUPPORTED", "output_dtype"),
    "output_dtype_f8": (good(output_dtype=pb.F8_E4M3), INVALID, "DTYPE_UNSUPPORTED", "output_dtype"),
    "output_dtype_unknown": (good(output_dtype=77), INVALID, "DTYPE_UNSUPPORTED", "output_dtype"),
    "ids_past_the_experts": (good(routes=routes(tensor(np.full((4, 2), EXPERTS), "I32"))), INVALID, "EXPERT_OUT_OF_RANGE",
                             "routes.ids"),
    "ids_past_32_bits": (good(routes=routes(tensor(np.full((4, 2), 1 << 40), "I64"))), INVALID, "EXPERT_OUT_OF_RANGE",
                         "routes.ids"),
    "ids_float": (good(routes=routes(tensor(np.zeros((4, 2))))), INVALID, "DTYPE_UNSUPPORTED", "routes.ids"),
    "ids_other_tokens": (good(routes=routes(tensor(np.zeros((3, 2)), "I32"))), INVALID, "SHAPE_MISMATCH", "routes.ids"),
    "ids_rank_1": (good(routes=routes(tensor(np.zeros(8), "I32"))), INVALID, "SHAPE_MISMATCH", "routes.ids"),
    "weights_integer": (good(routes=routes(weights=tensor(np.zeros((4, 2)), "I32"))), INVALID, "DTYPE_UNSUPPORTED",
                        "routes.weights"),
    "weights_other_k": (good(routes=routes(weights=tensor(np.zeros((4, 3))))), INVALID, "SHAPE_MISMATCH", "routes.weights"),
    "weights_absent": (good(routes=pb.Routes(ids=tensor(np.zeros((4, 2)), "I32"))), INVALID, "SHAPE_MISMATCH", "routes.weights"),
    "ids_absent": (good(routes=pb.Routes(weights=tensor(np.zeros((4, 2))))), INVALID, "SHAPE_MISMATCH", "routes.ids"),
    "routes_empty": (good(routes=pb.Routes()), INVALID, "SHAPE_MISMATCH", "routes.ids"),
    "logits_columns": (good(router_logits=tensor(np.zeros((4, EXPERTS + 1)))), INVALID, "SHAPE_MISMATCH", "router_logits"),
    "logits_rows": (good(router_logits=tensor(np.zeros((5, EXPERTS)))), INVALID, "SHAPE_MISMATCH", "router_logits"),
    "logits_integer": (good(router_logits=tensor(np.zeros((4, EXPERTS)), "I32")), INVALID, "DTYPE_UNSUPPORTED", "router_logits"),
    # The layer needs neither field, but each must be valid if it is sent.
    "token_ids_float": (good(token_ids=tensor(np.zeros(4))), INVALID, "DTYPE_UNSUPPORTED", "token_ids.dtype"),
    "token_ids_other_tokens": (good(token_ids=tensor(np.zeros(3), "I32")), INVALID, "SHAPE_MISMATCH", "token_ids.shape"),
    "token_ids_rank_2": (good(token_ids=tensor(np.zeros((4, 1)), "I64")), INVALID, "SHAPE_MISMATCH", "token_ids.shape"),
    "token_ids_beside_routes": (good(token_ids=tensor(np.zeros(5), "I64"), routes=routes()), INVALID, "SHAPE_MISMATCH",
                                "token_ids.shape"),
    "token_ids_extent": (good(token_ids=pb.Tensor(dtype=pb.I32, shape=[4], extent=pb.Extent(region=3, length=16))), ABSENT,
                         "REGION_UNKNOWN", "token_ids.extent"),
    "router_input_integer": (good(router_input=tensor(np.zeros((4, HIDDEN)), "I32")), INVALID, "DTYPE_UNSUPPORTED",
                             "router_input.dtype"),
    "router_input_narrow": (good(router_input=tensor(np.zeros((4, HIDDEN - 1)))), INVALID, "SHAPE_MISMATCH", "router_input"),
    "router_input_other_tokens": (good(router_input=tensor(np.zeros((5, HIDDEN))), routes=routes()), INVALID, "SHAPE_MISMATCH",
                                  "router_input"),
    "router_input_beside_logits": (good(router_input=tensor(np.zeros((4, HIDDEN, 1))), router_logits=tensor(np.zeros((4, EXPERTS)))),
                                   INVALID, "SHAPE_MISMATCH", "router_input"),
    "shared_experts_unknown": (good(shared_experts=9), INVALID, "UNKNOWN_FIELD", "shared_experts"),
    "too_many_choices": (good(routes=routes(tensor(np.zeros((4, 17)), "I32"), tensor(np.ones((4, 17))))), LARGE, "TOO_LARGE", None),
    "too_many_tokens": (good(hidden=tensor(np.zeros((513, HIDDEN)))), LARGE, "TOO_LARGE", None),
}


# The request of the message-level errors.
DOCUMENTED = {"MODEL_UNKNOWN", "LAYER_UNKNOWN", "REGION_UNKNOWN", "SHAPE_MISMATCH", "DTYPE_UNSUPPORTED", "EXPERT_OUT_OF_RANGE",
              "UNKNOWN_FIELD", "TENSOR_BYTES", "WEIGHTS_CHANGED", "NO_ROUTER", "NO_SHARED_EXPERTS", "TOO_LARGE"}


def varint(value):
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number, wire_type, payload):
    return varint(number << 3 | wire_type) + (varint(len(payload)) + payload if wire_type == 2 else payload)


GOOD = good().SerializeToString()
TENSOR = tensor(ROWS).SerializeToString()
# Malformed messages, which no protobuf library would write. name: (bytes, reason or None)
CRAFTED = {
    "unknown_field": (GOOD + field(99, 0, b"\x01"), "UNKNOWN_FIELD"),
    "unknown_field_first": (field(1000, 2, b"abc") + GOOD, "UNKNOWN_FIELD"),
    "unknown_field_in_tensor": (field(3, 0, b"\x01") + field(31, 2, TENSOR + field(9, 0, b"\x01")), "UNKNOWN_FIELD"),
    "unknown_field_in_routes": (GOOD + field(5, 2, routes().SerializeToString() + field(7, 0, b"\x01")), "UNKNOWN_FIELD"),
    "layer_twice": (GOOD + field(3, 0, b"\x01"), "UNKNOWN_FIELD"),
    "hidden_twice": (GOOD + field(31, 2, TENSOR), "UNKNOWN_FIELD"),
    "dtype_twice": (field(3, 0, b"\x01") + field(31, 2, field(1, 0, b"\x01") + TENSOR), "UNKNOWN_FIELD"),
    "data_twice": (field(3, 0, b"\x01") + field(31, 2, TENSOR + field(15, 2, ROWS.tobytes())), "UNKNOWN_FIELD"),
    "data_and_extent": (field(3, 0, b"\x01") + field(31, 2, TENSOR + field(3, 2, b"\x08\x01")), "UNKNOWN_FIELD"),
    "routes_and_logits": (GOOD + field(5, 2, routes().SerializeToString()) +
                          field(6, 2, tensor(np.zeros((4, EXPERTS))).SerializeToString()), "UNKNOWN_FIELD"),
    "cut_short": (GOOD[:-1], None),
    "cut_in_a_length": (GOOD[:3] + b"\xfa", None),
    "length_past_the_end": (field(3, 0, b"\x01") + varint(31 << 3 | 2) + varint(1 << 60) + b"abc", None),
    "varint_of_11_bytes": (field(1, 0, b"\xff" * 10 + b"\x01") + GOOD, None),
    "field_number_zero": (b"\x00\x01" + GOOD, None),
    "group": (varint(40 << 3 | 3) + varint(40 << 3 | 4) + GOOD, None),
    "wrong_wire_type": (field(3, 5, struct.pack("<I", 1)) + field(31, 2, TENSOR), None),
    "wire_type_7": (varint(3 << 3 | 7) + GOOD, None),
    "noise": (bytes(range(255, 0, -1)) * 5, None),
    "only_zeros": (b"\0" * 64, None),
}


@pytest.fixture
def undisturbed(served):
    """Another connection must get the same answer before and after the test."""
    with served.client() as other:
        before = other.forward(good()).output.data
        yield
        assert other.forward(good()).output.data == before
    assert served.process.poll() is None


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_is_refused_with_its_reason(client, undisturbed, name):
    request, code, reason, wrong = BAD[name]
    with raises(code, reason, wrong) as raised:
        client.forward(request)
    assert raised.failure.reason in DOCUMENTED
    assert len(raised.failure.message) > 15, "the message is too short to name the cause"


@pytest.mark.parametrize("name", BAD)
def test_in_a_stream_a_bad_request_fails_alone_and_the_stream_goes_on(client, name):
    request, code, reason, wrong = BAD[name]
    bad = pb.ForwardRequest()
    bad.CopyFrom(request)
    bad.id = 7
    answers = {answer.id: answer for answer in client.stream([good(id=1), bad, good(id=2)])}
    assert sorted(answers) == [1, 2, 7]
    check(failure_of_answer(answers[7]), code, reason, wrong)
    assert not answers[7].HasField("output")
    assert answers[1].output.data == answers[2].output.data == client.forward(good()).output.data


@pytest.mark.parametrize("name", CRAFTED)
def test_malformed_messages_are_refused(client, undisturbed, name):
    data, reason = CRAFTED[name]
    with raises("INVALID_ARGUMENT", reason) as raised:
        client.raw("Forward", data)
    assert raised.failure.info, "no ErrorInfo"


@pytest.mark.parametrize("name", CRAFTED)
def test_in_a_stream_malformed_messages_fail_alone(client, name):
    data, reason = CRAFTED[name]
    call = client.channel.stream_stream("/expertd.v1.Experts/Stream", request_serializer=lambda b: b,
                                        response_deserializer=pb.ForwardResponse.FromString)
    answers = list(call(iter([data, good(id=2).SerializeToString()]), timeout=10))
    failed = [answer for answer in answers if answer.HasField("error")]
    assert len(answers) == 2 and len(failed) == 1
    check(failure_of_answer(failed[0]), "INVALID_ARGUMENT", reason)


def test_fields_that_a_layer_does_not_need_change_nothing(client):
    """A caller may send the same fields to every layer. A layer without a table of token ids does not check their range."""
    for more in ({}, {"routes": routes()}, {"router_logits": tensor(np.ones((4, EXPERTS)))}):
        expected = client.forward(good(**more)).output
        for ids in (tensor(np.full(4, -1), "I32"), tensor(np.full(4, 1 << 40), "I64")):
            assert client.forward(good(token_ids=ids, router_input=tensor(-ROWS, "BF16"), **more)).output == expected


def test_fields_may_come_in_any_order(client, random):
    request = good(id=3, model="qwen2_moe", routes=routes(), timings=True, priority=-3, output_dtype=pb.BF16,
                   shared_experts=pb.SHARED_EXPERTS_EXCLUDE, traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    expected = client.forward(request).output
    parts = [pb.ForwardRequest(**{descriptor.name: value}).SerializeToString() for descriptor, value in request.ListFields()]
    for _ in range(10):
        shuffled = b"".join(parts[i] for i in random.permutation(len(parts)))
        assert pb.ForwardResponse.FromString(client.raw("Forward", shuffled)).output == expected


def test_shape_may_be_packed_or_not(client):
    unpacked = field(1, 0, b"\x01") + field(2, 0, varint(4)) + field(2, 0, varint(HIDDEN)) + field(15, 2, ROWS.tobytes())
    mixed = field(2, 0, varint(4)) + field(15, 2, ROWS.tobytes()) + field(1, 0, b"\x01") + field(2, 2, varint(HIDDEN))
    expected = client.forward(good()).output
    for data in (unpacked, mixed):
        assert pb.ForwardResponse.FromString(client.raw("Forward", field(3, 0, b"\x01") + field(31, 2, data))).output == expected


def test_an_oversized_message_fails_its_call_and_not_the_connection(client, undisturbed):
    with raises("RESOURCE_EXHAUSTED", "TOO_LARGE") as raised:
        client.raw("Forward", b"\0" * ((1 << 20) + 1))
    assert "1048576" in raised.failure.message, "the message must name the limit"
    assert client.forward(good()).output.data


def test_a_message_just_within_the_limit_is_read(client):
    padding = (1 << 20) - len(GOOD) - 4
    data = GOOD + field(14, 2, b"0" * padding)
    assert len(data) == 1 << 20
    with raises("INVALID_ARGUMENT"):  # refused for the overlong traceparent, not as TOO_LARGE
        client.raw("Forward", data)


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_messages_are_refused(served, undisturbed, compression):
    with served.client() as client:
        request = good(hidden=tensor(np.zeros((400, HIDDEN))))
        with raises("UNIMPLEMENTED") as raised:
            client.stub.Forward(request, timeout=10, compression=compression)
        assert "ompress" in raised.failure.message


def test_an_unknown_method_has_a_reason(served):
    for tcp in (False, True):
        with served.client(tcp=tcp) as client, raises("UNIMPLEMENTED", "UNIMPLEMENTED"):
            client.raw("Nope", b"")


def test_every_top_k_up_to_the_limit_is_accepted_with_every_number_of_tokens(start_daemon, random):
    """A request's routes may have up to max_top_k choices, more than the router makes. Such a request is computed in pieces."""
    daemon = start_daemon("--max-request-tokens", 300, "--max-batch-tokens", 256, model="synthetic:tiny,layers=1")
    with daemon.client() as client:
        limits, layer = (lambda answer: (answer.limits, answer.models[0].layers[0]))(client.describe())
        assert limits.max_top_k > layer.top_k and limits.max_tokens == 300
        hidden = random.standard_normal((300, layer.hidden_size)).astype(np.float32)
        ids = random.integers(-1, layer.num_experts, (300, limits.max_top_k)).astype(np.int32)
        weights = random.standard_normal(ids.shape).astype(np.float32)

        def rows(part):
            routes = pb.Routes(ids=tensor(ids[part], "I32"), weights=tensor(weights[part]))
            return rows_of(client.forward(layer=layer.layer, hidden=tensor(hidden[part]), routes=routes).output)

        all_rows = rows(slice(None))
        assert all_rows[:7] + all_rows[290:] == rows(slice(0, 7)) + rows(slice(290, 300))


def test_a_deadline_that_has_passed_is_not_computed(client, undisturbed):
    with raises("DEADLINE_EXCEEDED"):
        client.forward(good(timeout_us=1, hidden=tensor(np.zeros((512, HIDDEN)))))


def test_the_right_weights_id_is_accepted(client):
    layer = client.describe().models[0].layers[0]
    answer = client.forward(good(weights_id=layer.weights_id))
    assert answer.weights_id == layer.weights_id
    with raises("FAILED_PRECONDITION", "WEIGHTS_CHANGED"):
        client.forward(good(weights_id=layer.weights_id ^ 1))


def test_requests_for_missing_shared_experts_are_refused(case, start_daemon):
    with start_daemon(model=case("mixtral").folder).client() as client:
        with raises("FAILED_PRECONDITION", "NO_SHARED_EXPERTS"):
            client.forward(layer=0, hidden=tensor(np.zeros((1, 64))), shared_experts=pb.SHARED_EXPERTS_INCLUDE)
        client.forward(layer=0, hidden=tensor(np.zeros((1, 64))), shared_experts=pb.SHARED_EXPERTS_EXCLUDE)


def test_timings_are_filled_on_request(client):
    assert not client.forward(good()).HasField("timings")
    timings = client.forward(good(timings=True)).timings
    assert timings.batch_tokens >= 4 and timings.batch_requests >= 1
    assert timings.total >= timings.compute > 0 and timings.total < 10**11
