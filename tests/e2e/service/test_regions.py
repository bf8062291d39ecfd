"""Shared memory: tensors in a region give the same bits as tensors in a message, and no misuse harms the daemon or other callers."""

import concurrent.futures
import ctypes
import fcntl
import mmap
import os
import random as python_random
import socket
import subprocess
import sys
import threading
import time

import grpc
import numpy as np
import pytest

from harness import slow
from harness.daemon import Daemon, run_program
from harness.errors import check, failure_of_answer, raises
from harness.paths import ROOT, SANITIZER, SLOW
from harness.protos import pb
from harness.regions import Layout, Region, connect, fetch, is_cut, offer
from harness.tensors import tensor
from harness.waiting import eventually

LAYER, HIDDEN, EXPERTS = 1, 96, 8
MIB = 1 << 20
DAEMON_OPTIONS = ("--max-region-bytes", 8 * MIB, "--max-regions", 8, "--max-connection-share", 100)

ROWS = np.random.default_rng(1).standard_normal((32, HIDDEN)).astype(np.float32)


@pytest.fixture
def region(client):
    with Region(client, MIB) as region:
        yield region


@pytest.fixture(scope="module")
def slow_daemon():
    daemon = Daemon(*slow.OPTIONS, model=slow.MODEL)
    yield daemon
    daemon.stop()


@pytest.fixture(scope="module")
def slow_layer(slow_daemon):
    with slow_daemon.client() as client:
        yield slow.SlowLayer(client)


def routes_for(tokens, seed=2, ids_dtype="I32", weights_dtype="F32"):
    random = np.random.default_rng(seed)
    return pb.Routes(ids=tensor(random.integers(-1, EXPERTS, (tokens, 3)), ids_dtype),
                     weights=tensor(random.standard_normal((tokens, 3)).astype(np.float32), weights_dtype))


def in_region(request, region):
    """The same request with every tensor and the output in the region."""
    layout = Layout(region)
    shared = pb.ForwardRequest()
    shared.CopyFrom(request)
    shared.hidden.CopyFrom(layout.put(request.hidden))
    if request.HasField("hidden_scale"):
        shared.hidden_scale.CopyFrom(layout.put(request.hidden_scale))
    if request.HasField("router_logits"):
        shared.router_logits.CopyFrom(layout.put(request.router_logits))
    if request.HasField("routes"):
        shared.routes.ids.CopyFrom(layout.put(request.routes.ids))
        shared.routes.weights.CopyFrom(layout.put(request.routes.weights))
    if request.HasField("token_ids"):
        shared.token_ids.CopyFrom(layout.put(request.token_ids))
    if request.HasField("router_input"):
        shared.router_input.CopyFrom(layout.put(request.router_input))
    width = 4 if request.output_dtype == pb.F32 else 2
    shared.output.CopyFrom(layout.take(request.hidden.shape[0] * HIDDEN * width))
    return shared


def requests_of_every_kind():
    codes = np.random.default_rng(3).integers(0, 120, (8, HIDDEN)).astype(np.uint8)
    logits = np.random.default_rng(4).standard_normal((8, EXPERTS)).astype(np.float32)
    base = {"layer": LAYER, "output_dtype": pb.F32}
    return {
        "own_router": pb.ForwardRequest(hidden=tensor(ROWS), **base),
        "bf16": pb.ForwardRequest(hidden=tensor(ROWS, "BF16"), layer=LAYER, output_dtype=pb.BF16),
        "routes": pb.ForwardRequest(hidden=tensor(ROWS), routes=routes_for(32), **base),
        "routes_i64_f16": pb.ForwardRequest(hidden=tensor(ROWS, "F16"), routes=routes_for(32, 5, "I64", "F16"), **base),
        "logits": pb.ForwardRequest(hidden=tensor(ROWS[:8]), router_logits=tensor(logits), **base),
        "f8_scaled": pb.ForwardRequest(hidden=tensor(codes, "F8_E4M3"), hidden_scale=tensor(np.full((8, 1), 0.5)), **base),
        "all_there_is": pb.ForwardRequest(hidden=tensor(codes, "F8_E4M3"), hidden_scale=tensor(np.full((8, 1), 0.5)),
                                          routes=routes_for(8), token_ids=tensor(np.arange(8), "I64"),
                                          router_input=tensor(ROWS[:8], "F16"), **base),
        "one_row": pb.ForwardRequest(hidden=tensor(ROWS[:1]), **base),
        "no_rows": pb.ForwardRequest(hidden=tensor(ROWS[:0]), **base),
    }


# ---- answers


def test_describe_names_shared_memory(client):
    answer = client.describe()
    assert "regions" in answer.features and answer.limits.max_region_bytes == 8 * MIB


@pytest.mark.parametrize("kind", requests_of_every_kind())
def test_tensors_in_a_region_give_the_same_bits_as_data(client, region, kind):
    request = requests_of_every_kind()[kind]
    expected = client.forward(request).output
    shared = in_region(request, region)
    region.map[shared.output.offset:shared.output.offset + shared.output.length] = b"\xa5" * shared.output.length
    answer = client.forward(shared)
    assert answer.output.WhichOneof("place") == "extent" and answer.output.extent == shared.output
    assert answer.output.dtype == expected.dtype and answer.output.shape == expected.shape
    assert region.at(shared.output) == expected.data
    after = region.map[shared.output.offset + shared.output.length:][:64]
    assert after == b"\0" * len(after), "the daemon wrote past the output"


def test_the_c_client_gets_correct_answers_through_a_region(served, case):
    model = ("--model", case("qwen2_moe").folder, "--shared-memory", "--tokens", "0,1,64")
    done = run_program("expertd-verify", "--address", f"unix:{served.socket}", *model)
    assert done.returncode == 0, done.stderr + done.stdout
    refused = run_program("expertd-verify", "--address", served.tcp, *model)
    assert refused.returncode == 70 and "PERMISSION" in refused.stderr, refused.stderr


def test_a_request_in_a_region_is_small(region):
    shared = in_region(requests_of_every_kind()["own_router"], region)
    assert len(shared.SerializeToString()) < 100


def test_data_and_extents_mix(client, region):
    request = pb.ForwardRequest(layer=LAYER, hidden=tensor(ROWS), routes=routes_for(32))
    expected = client.forward(request).output.data
    mixed = pb.ForwardRequest(layer=LAYER, hidden=region.tensor(0, ROWS), routes=request.routes)
    assert client.forward(mixed).output.data == expected, "hidden in the region, the rest in the message"
    out = region.extent(65536, len(expected))
    answer = client.forward(pb.ForwardRequest(layer=LAYER, hidden=request.hidden, routes=request.routes, output=out))
    assert not answer.output.data and region.at(out) == expected, "only the output in the region"


def test_the_output_may_overwrite_hidden(client, region):
    expected = client.forward(layer=LAYER, hidden=tensor(ROWS)).output.data
    shared = region.tensor(0, ROWS)
    client.forward(layer=LAYER, hidden=shared, output=shared.extent)
    assert region.at(shared.extent) == expected


def test_two_regions_in_one_request(client, region):
    expected = client.forward(layer=LAYER, hidden=tensor(ROWS)).output.data
    with Region(client, len(expected)) as other:
        out = other.extent(0, len(expected))
        client.forward(layer=LAYER, hidden=region.tensor(0, ROWS), output=out)
        assert other.at(out) == expected


def test_a_stream_takes_regions_too(client, region):
    expected = client.forward(layer=LAYER, hidden=tensor(ROWS)).output.data
    requests, layout = [], Layout(region)
    for number in range(10):
        hidden = layout.put(tensor(ROWS))
        requests.append(pb.ForwardRequest(id=number, layer=LAYER, hidden=hidden, output=layout.take(len(expected))))
    answers = list(client.stream(requests))
    assert sorted(answer.id for answer in answers) == list(range(10))
    for answer in answers:
        assert not answer.HasField("error") and region.at(requests[answer.id].output) == expected


def test_any_connection_may_name_a_region_by_its_id(served, region):
    expected = None
    hidden = region.tensor(0, ROWS)
    for tcp in (False, True):
        with served.client(tcp=tcp) as other:
            expected = expected or other.forward(layer=LAYER, hidden=tensor(ROWS)).output.data
            assert other.forward(layer=LAYER, hidden=hidden).output.data == expected


def test_ids_are_random(client):
    ids = [offer(client, 4096) for _ in range(6)]
    try:
        assert len({o.region for o in ids}) == 6 and len({o.token for o in ids}) == 6
        assert all(len(o.token) == 16 for o in ids)
        assert sum(o.region >> 32 != 0 for o in ids) == 6, "64 bits each"
    finally:
        for o in ids:
            client.stub.CloseRegion(pb.CloseRegionRequest(region=o.region))


# ---- refused extents


def refused(client, reason, field, code="INVALID_ARGUMENT", **fields):
    with raises(code, reason, field):
        client.forward(pb.ForwardRequest(**{"layer": LAYER, "hidden": tensor(ROWS), **fields}))


def hidden_at(extent):
    return pb.Tensor(dtype=pb.F32, shape=ROWS.shape, extent=extent)


SIZE = ROWS.nbytes

BAD_EXTENTS = {  # (offset, length, reason)
    "one_byte_past_the_end": (MIB - SIZE + 64, SIZE, "TENSOR_BYTES"),
    "at_the_end": (MIB, SIZE, "TENSOR_BYTES"),
    "far_past_the_end": (1 << 62, SIZE, "TENSOR_BYTES"),
    "end_wraps_round": ((1 << 64) - 64, SIZE, "TENSOR_BYTES"),
    "misaligned": (32, SIZE, "TENSOR_BYTES"),
    "misaligned_by_one": (1, SIZE, "TENSOR_BYTES"),
    "too_short": (0, SIZE - 4, "TENSOR_BYTES"),
    "too_long": (0, SIZE + 4, "TENSOR_BYTES"),
    "empty": (0, 0, "TENSOR_BYTES"),
    "all_there_is": (0, (1 << 64) - 64, "TENSOR_BYTES"),
}


@pytest.mark.parametrize("name", BAD_EXTENTS)
def test_bad_extents_are_refused_with_their_field(client, region, name):
    offset, length, reason = BAD_EXTENTS[name]
    extent = region.extent(offset, length)
    refused(client, reason, "hidden.extent", hidden=hidden_at(extent))
    refused(client, reason, "output", output=extent)
    logits = pb.Tensor(dtype=pb.F32, shape=ROWS.shape, extent=extent)
    refused(client, reason, "router_logits.extent", router_logits=logits)
    ids = pb.Tensor(dtype=pb.I32, shape=ROWS.shape, extent=extent)
    refused(client, reason, "routes.ids.extent", routes=pb.Routes(ids=ids, weights=tensor(ROWS)))
    assert client.forward(layer=LAYER, hidden=region.tensor(0, ROWS)).output.data, "the region no longer works"


def test_a_shape_whose_product_wraps_is_refused(client, region):
    for shape in ([1 << 62, 4], [1 << 32, 1 << 32], [(1 << 63) + 1, 2]):
        refused(client, None, None, hidden=pb.Tensor(dtype=pb.F32, shape=shape, extent=region.extent(0, 0)))


def test_huge_routes_are_refused_before_they_are_copied(client):
    with Region(client, 8 * MIB) as region:
        rows = region.size // 4
        ids = pb.Tensor(dtype=pb.I32, shape=[rows, 1], extent=region.extent(0, region.size))
        refused(client, "TOO_LARGE", "routes.ids", code="RESOURCE_EXHAUSTED",
                routes=pb.Routes(ids=ids, weights=pb.Tensor(dtype=pb.F32, shape=[rows, 1], extent=region.extent(0, region.size))))


def test_unknown_regions_are_not_found(client, region):
    for number in (0, 1, region.id ^ 1, (1 << 64) - 1):
        extent = pb.Extent(region=number, offset=0, length=SIZE)
        refused(client, "REGION_UNKNOWN", "hidden.extent", code="NOT_FOUND", hidden=hidden_at(extent))
        refused(client, "REGION_UNKNOWN", "output", code="NOT_FOUND", output=extent)
        with raises("NOT_FOUND", "REGION_UNKNOWN", "region"):
            client.stub.CloseRegion(pb.CloseRegionRequest(region=number))


def test_wrong_ids_in_a_region_are_refused_as_in_a_message(client, region):
    ids = region.tensor(0, np.full((32, 3), EXPERTS), "I32")
    refused(client, "EXPERT_OUT_OF_RANGE", "routes.ids", routes=pb.Routes(ids=ids, weights=tensor(np.ones((32, 3)))))


def test_a_failed_request_writes_nothing(client, region):
    out = region.write(0, b"\x5a" * SIZE)
    refused(client, "EXPERT_OUT_OF_RANGE", None, output=out,
            routes=pb.Routes(ids=tensor(np.full((32, 3), EXPERTS), "I32"), weights=tensor(np.ones((32, 3)))))
    assert region.at(out) == b"\x5a" * SIZE


def test_a_bad_extent_does_not_end_its_stream(client, region):
    expected = client.forward(layer=LAYER, hidden=tensor(ROWS)).output.data
    good = pb.ForwardRequest(id=1, layer=LAYER, hidden=region.tensor(0, ROWS))
    bad = pb.ForwardRequest(id=2, layer=LAYER, hidden=hidden_at(region.extent(MIB, SIZE)))
    answers = {answer.id: answer for answer in client.stream([bad, good])}
    check(failure_of_answer(answers[2]), "INVALID_ARGUMENT", "TENSOR_BYTES", "hidden.extent")
    assert answers[1].output.data == expected


# ---- opening regions


def test_sizes_out_of_bounds_are_refused(client):
    with raises("INVALID_ARGUMENT", "TENSOR_BYTES", "bytes"):
        offer(client, 0)
    for size in (8 * MIB + 1, 1 << 63, (1 << 64) - 1):
        with raises("RESOURCE_EXHAUSTED", "TOO_LARGE", "bytes"):
            offer(client, size)


def test_a_region_of_one_byte_is_legal(client):
    with Region(client, 1) as region:
        assert region.map[:] == b"\0"
        with raises("INVALID_ARGUMENT", "TENSOR_BYTES", "output"):
            client.forward(layer=LAYER, hidden=tensor(ROWS), output=region.extent(0, SIZE))


def test_unknown_fields_are_refused(client):
    for method in ("OpenRegion", "CloseRegion"):
        with raises("INVALID_ARGUMENT", "UNKNOWN_FIELD", "15"):
            client.raw(method, b"\x08\x01\x78\x01")
        with raises("INVALID_ARGUMENT"):
            client.raw(method, b"\x08")


def test_regions_are_refused_over_tcp(served):
    with served.client(tcp=True) as client:
        with raises("PERMISSION_DENIED"):
            offer(client, 4096)


@pytest.mark.parametrize("options", [{"listen": ["127.0.0.1:0"]}, {"off": True}], ids=["no_socket", "switched_off"])
def test_without_shared_memory_describe_and_open_report_it(case, start_daemon, options):
    off = ("--max-region-bytes", 0) if options.pop("off", False) else ()
    daemon = start_daemon(*off, model=case("qwen2_moe").folder, **options)
    with daemon.client(tcp=True) as client:
        answer = client.describe()
        assert "regions" not in answer.features and answer.limits.max_region_bytes == 0
        for call, request in ((client.stub.OpenRegion, pb.OpenRegionRequest(bytes=4096)),
                              (client.stub.CloseRegion, pb.CloseRegionRequest(region=1))):
            with raises("UNIMPLEMENTED"):
                call(request, timeout=10)
        refused(client, "REGION_UNKNOWN", "hidden", code="NOT_FOUND", hidden=hidden_at(pb.Extent(region=1, length=SIZE)))
    assert not os.path.exists(daemon.socket + ".regions")


def test_too_many_regions_are_refused_until_one_is_closed(client):
    regions = [Region(client, 4096) for _ in range(8)]
    try:
        with raises("RESOURCE_EXHAUSTED", "QUEUE_FULL") as raised:
            offer(client, 4096)
        assert raised.failure.retry is not None
        regions.pop().close()
        regions.append(Region(client, 4096))
    finally:
        for region in regions:
            region.release()
    eventually(lambda: opens(client))


def test_one_connection_may_hold_a_share_of_the_regions(start_daemon):
    daemon = start_daemon("--max-regions", 8, model="synthetic:tiny")
    with daemon.client() as greedy, daemon.client() as other:
        regions = [Region(greedy, 4096) for _ in range(4)]
        with raises("RESOURCE_EXHAUSTED", "QUEUE_FULL") as raised:
            offer(greedy, 4096)
        assert "this connection holds 4 regions" in raised.failure.message
        with Region(other, 4096):
            regions.pop().close()
            regions.append(Region(greedy, 4096))
        for region in regions:
            region.release()


def test_regions_of_an_ended_connection_do_not_count_for_a_later_one(start_daemon):
    daemon = start_daemon("--max-regions", 8, "--max-connection-share", 13, model="synthetic:tiny", tcp=False)
    with daemon.client() as ended:
        region = Region(ended, 4096)
    time.sleep(0.2 * SLOW)  # its descriptor is closed, and the next connection gets the same number
    with daemon.client() as other, Region(other, 4096):
        pass
    region.release()


def opens(client):
    """Can the client open all eight regions again?"""
    offers = []
    try:
        for _ in range(8):
            offers.append(offer(client, 4096))
    except grpc.RpcError:
        return False
    finally:
        for o in offers:
            client.stub.CloseRegion(pb.CloseRegionRequest(region=o.region))
    return True


def settled_fds(daemon, client):
    """The number of the daemon's descriptors with this client connected, after those of earlier tests are closed."""
    client.describe()
    fds, same = daemon.memory()["fds"], 0
    while same < 10:
        time.sleep(0.02)
        now = daemon.memory()["fds"]
        same = same + 1 if now == fds else 0
        fds = now
    return fds


# ---- tokens


def test_a_token_gives_one_descriptor_once(client):
    with Region(client, 4096) as region:
        with connect(region.offer.socket) as second:
            assert fetch(second, region.offer.token) is None
        assert client.forward(layer=LAYER, hidden=tensor(ROWS[:1]), output=region.extent(0, HIDDEN * 4)), "the first is well"


def test_wrong_tokens_close_the_connection(client):
    offered = offer(client, 4096)
    random = python_random.Random(5)
    for data in (b"\0" * 16, random.randbytes(16), random.randbytes(5000), b"GET / HTTP/1.1\r\n\r\n"):
        with connect(offered.socket) as lease:
            assert fetch(lease, data) is None
    with connect(offered.socket) as lease:
        fd = fetch(lease, offered.token)
        assert fd is not None, "wrong guesses invalidated the token"
        os.close(fd)


def test_a_token_may_arrive_in_pieces(client):
    offered = offer(client, 4096)
    with connect(offered.socket) as lease:
        for i in range(15):
            lease.sendall(offered.token[i:i + 1])
            time.sleep(0.002)
        fd = fetch(lease, offered.token[15:])
        assert fd is not None
        os.close(fd)


def test_descriptors_sent_to_the_daemon_are_dropped(served, client):
    before = settled_fds(served, client)
    offered = offer(client, 4096)
    with connect(offered.socket) as lease, open("/dev/null") as null:
        socket.send_fds(lease, [offered.token], [null.fileno()] * 20)
        _, fds, _, _ = socket.recv_fds(lease, 16, 4)
        assert len(fds) == 1
        eventually(lambda: served.memory()["fds"] <= before + 1)  # only the lease is left after the daemon has closed the received descriptors
        os.close(fds[0])
    eventually(lambda: served.memory()["fds"] <= before)


def test_a_silent_client_is_disconnected(client):
    offered = offer(client, 4096)
    begun = time.monotonic()
    with connect(offered.socket) as silent, connect(offered.socket) as slow_one:
        slow_one.sendall(offered.token[:7])
        assert is_cut(silent, 10 * SLOW) and is_cut(slow_one, 5 * SLOW)
    assert time.monotonic() - begun > 4


def test_an_offer_that_is_not_taken_expires(served, client):
    before, begun = settled_fds(served, client), time.monotonic()
    offered = offer(client, 4096)
    extent = pb.Extent(region=offered.region, length=HIDDEN * 4)
    client.forward(layer=LAYER, hidden=tensor(ROWS[:1]), output=extent)  # the region is usable at once
    def is_gone():
        try:
            client.forward(layer=LAYER, hidden=tensor(ROWS[:1]), output=extent)
        except grpc.RpcError as error:
            return error.code() == grpc.StatusCode.NOT_FOUND
        return False
    eventually(is_gone, 20 * SLOW)
    assert time.monotonic() - begun > 9
    with connect(offered.socket) as late:
        assert fetch(late, offered.token) is None
    eventually(lambda: served.memory()["fds"] <= before)


def test_many_connections_are_bounded(served, client):
    before = settled_fds(served, client)
    offered = offer(client, 4096)
    connections = [connect(offered.socket) for _ in range(200)]
    eventually(lambda: served.memory()["fds"] <= before + 60)
    for connection in connections:
        connection.close()
    eventually(lambda: served.memory()["fds"] <= before + 2)
    with connect(offered.socket) as lease:
        fd = fetch(lease, offered.token)
        assert fd is not None, "the region socket no longer serves"
        os.close(fd)


# ---- seals


F_ADD_SEALS, F_GET_SEALS = 1033, 1034
F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE = 1, 2, 4, 8


def test_a_region_cannot_be_resized_nor_sealed_further(client, region):
    assert fcntl.fcntl(region.fd, F_GET_SEALS) == F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW
    again = os.open(f"/proc/self/fd/{region.fd}", os.O_RDWR)
    for fd in (region.fd, again):
        for size in (0, 4096, MIB - 1, MIB + 1, 1 << 40):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)
        with pytest.raises(PermissionError):
            os.posix_fallocate(fd, MIB, 4096)
        with pytest.raises(PermissionError):
            fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE)
    with pytest.raises(PermissionError):
        os.close(os.open(f"/proc/self/fd/{region.fd}", os.O_RDWR | os.O_TRUNC))
    os.close(again)
    assert client.forward(layer=LAYER, hidden=region.tensor(0, ROWS)).output.data


def test_holes_that_a_caller_punches_read_as_zeros(client, region):
    zeros = client.forward(layer=LAYER, hidden=tensor(ROWS * 0)).output.data
    hidden = region.tensor(0, ROWS)
    keep_size, punch_hole = 1, 2
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.fallocate(region.fd, keep_size | punch_hole, ctypes.c_long(0), ctypes.c_long(MIB)) == 0
    assert client.forward(layer=LAYER, hidden=hidden).output.data == zeros


# ---- closing, killed owners, races


def test_a_closed_region_is_unknown_at_once(client, region):
    hidden = region.tensor(0, ROWS)
    region.close()
    refused(client, "REGION_UNKNOWN", "hidden.extent", code="NOT_FOUND", hidden=hidden)
    with raises("NOT_FOUND", "REGION_UNKNOWN"):
        region.close()
    assert is_cut(region.lease), "the lease must end with the region"
    assert region.map[:4] == ROWS.tobytes()[:4], "the caller's mapping must stay"


@pytest.mark.parametrize("how", ["close", "shutdown", "garbage"])
def test_ownership_ends_with_the_connection(client, region, how):
    hidden = region.tensor(0, ROWS)
    client.forward(layer=LAYER, hidden=hidden)
    if how == "close":
        region.lease.close()
    elif how == "shutdown":
        region.lease.shutdown(socket.SHUT_WR)
    else:
        region.lease.sendall(b"more")

    def is_gone():
        try:
            client.forward(layer=LAYER, hidden=hidden)
        except grpc.RpcError as error:
            return error.code() == grpc.StatusCode.NOT_FOUND
        return False
    eventually(is_gone)


def slow_request(slow_layer, region, seconds, **fields):
    request = slow_layer.lasting(seconds)
    layout = Layout(region)
    return pb.ForwardRequest(layer=request.layer, hidden=layout.put(request.hidden), output_dtype=pb.BF16,
                             routes=pb.Routes(ids=layout.put(request.routes.ids), weights=layout.put(request.routes.weights)),
                             output=layout.take(len(request.hidden.data)), **fields), request


def plain(daemon, client, request):
    request.output_dtype = pb.BF16
    data = client.forward(request).output.data
    daemon.wait_queued(0)
    return data


@pytest.mark.parametrize("how", ["closed", "lease_lost"])
def test_a_region_closed_while_in_use_lasts_until_the_answer(slow_daemon, slow_layer, how):
    with slow_daemon.client() as client, Region(client, 32 * MIB) as region:
        request, same = slow_request(slow_layer, region, 0.5)
        expected = plain(slow_daemon, client, same)
        call = client.stub.Forward.future(request, timeout=60 * SLOW)
        slow_daemon.wait_queued(1)
        if how == "closed":
            region.close()
        else:
            region.lease.close()
        answer = call.result()
        assert answer.output.extent == request.output
        assert region.at(request.output) == expected, "the running request must be answered"
        refused_after = pb.ForwardRequest(layer=request.layer, hidden=request.hidden)
        with raises("NOT_FOUND", "REGION_UNKNOWN"):
            client.forward(refused_after)


def test_after_a_timeout_nothing_is_written(slow_daemon, slow_layer):
    with slow_daemon.client() as client, Region(client, 32 * MIB) as region:
        for timeouts in ({"timeout_us": 100_000}, {}):
            request, _ = slow_request(slow_layer, region, 0.8, **timeouts)
            region.write(request.output.offset, b"\x5a" * request.output.length)
            with raises("DEADLINE_EXCEEDED"):
                client.forward(request, timeout=60 * SLOW if timeouts else 0.1)
            slow_daemon.wait_queued(0)
            time.sleep(0.2)
            assert region.at(request.output) == b"\x5a" * request.output.length


def test_a_cancelled_request_writes_nothing(slow_daemon, slow_layer):
    with slow_daemon.client() as client, Region(client, 32 * MIB) as region:
        request, _ = slow_request(slow_layer, region, 0.5)
        region.write(request.output.offset, b"\x5a" * request.output.length)
        slow_daemon.wait_queued(0)
        call = client.stub.Forward.future(request)
        slow_daemon.wait_queued(1)
        time.sleep(0.1)
        call.cancel()
        slow_daemon.wait_queued(0)
        assert region.at(request.output) == b"\x5a" * request.output.length


def test_a_killed_owner_leaves_nothing_behind(slow_daemon, slow_layer):
    """A client process is killed while its request is computed."""
    code = f"""
import sys, time
sys.path.insert(0, {str(ROOT / "tests" / "e2e")!r})
import grpc
from harness.daemon import Client
from harness.protos import pb
from harness.regions import Layout, Region
from harness.slow import SlowLayer
client = Client(grpc.insecure_channel("unix:{slow_daemon.socket}"))
layer = SlowLayer(client)
region = Region(client, {32 * MIB})
layout = Layout(region)
request = layer.lasting(1.0)
hidden = layout.put(request.hidden)
call = client.stub.Forward.future(pb.ForwardRequest(layer=request.layer, hidden=hidden, routes=request.routes, output=hidden.extent))
print("sent", region.id, flush=True)
time.sleep(600)
"""
    with slow_daemon.client() as client:
        before = settled_fds(slow_daemon, client)
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    word, number = owner.stdout.readline().split()
    assert word == "sent"
    slow_daemon.wait_queued(1)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    slow_daemon.wait_queued(0)
    with slow_daemon.client() as client:
        def is_gone():
            try:
                client.stub.CloseRegion(pb.CloseRegionRequest(region=int(number)))
            except grpc.RpcError as error:
                return error.code() == grpc.StatusCode.NOT_FOUND
            raise AssertionError("the region outlived its owner")
        eventually(is_gone)
        client.forward(slow_layer.request(4))
    eventually(lambda: slow_daemon.memory()["fds"] <= before)


def test_changes_of_routes_after_the_check_are_ignored(slow_daemon, slow_layer):
    """Routes overwritten while the request waits are not used. Overwritten hidden states may be used; they cannot harm others."""
    with slow_daemon.client() as client, Region(client, MIB) as region:
        request = slow_layer.request(16)
        request.hidden.data = np.random.default_rng(8).integers(0x3e00, 0x4000, (16, slow.HIDDEN)).astype(np.uint16).tobytes()
        expected = client.forward(request).output.data
        layout = Layout(region)
        ids, weights = layout.put(request.routes.ids), layout.put(request.routes.weights)
        shared = pb.ForwardRequest(layer=request.layer, hidden=request.hidden, routes=pb.Routes(ids=ids, weights=weights))
        slow_daemon.wait_queued(0)
        earlier = client.stub.Forward.future(slow_layer.lasting(0.5))
        slow_daemon.wait_queued(1)
        behind = client.stub.Forward.future(shared)
        slow_daemon.wait_queued(2)
        region.write(ids.extent.offset, np.full(16 * slow.CHOICES, 0x7fffffff, np.int32).tobytes())
        region.write(weights.extent.offset, b"\xff" * weights.extent.length)
        assert not earlier.done(), "the machine is too fast for this test"
        assert behind.result().output.data == expected
        with raises("INVALID_ARGUMENT", "EXPERT_OUT_OF_RANGE", "routes.ids"):
            client.forward(shared)


@pytest.mark.threads
def test_writing_during_compute_does_not_affect_others(served, client, region):
    """A caller overwrites its region during its calls. Another caller's bits stay the same, and invalid ids are never used."""
    honest = pb.ForwardRequest(layer=LAYER, hidden=tensor(ROWS), routes=routes_for(32), output_dtype=pb.F32)
    expected = client.forward(honest).output.data
    shared = in_region(honest, region)
    stop = threading.Event()

    def scribble():
        random = python_random.Random(7)
        ids, good_ids = shared.routes.ids.extent, honest.routes.ids.data
        while not stop.is_set():
            region.write(ids.offset, random.randbytes(ids.length))
            region.write(ids.offset, good_ids)  # lets some requests pass the check
            for extent in (shared.hidden.extent, shared.routes.weights.extent, shared.output):
                region.write(extent.offset, random.randbytes(extent.length))

    def ask():
        with served.client() as mine:
            outcomes = set()
            for _ in range(400):
                try:
                    mine.forward(shared)
                    outcomes.add("OK")
                except grpc.RpcError as error:
                    outcomes.add(error.code().name)
            return outcomes

    scribbler = threading.Thread(target=scribble)
    scribbler.start()
    try:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            asking = [pool.submit(ask) for _ in range(2)]
            while not all(a.done() for a in asking):
                assert client.forward(honest).output.data == expected
        outcomes = set().union(*(a.result() for a in asking))
        assert outcomes <= {"OK", "INVALID_ARGUMENT"} and "OK" in outcomes
    finally:
        stop.set()
        scribbler.join()
    assert client.forward(in_region(honest, region)).output.extent and region.at(shared.output) == expected


# ---- leaks


def test_500_regions_leave_no_descriptor_and_no_memory(served, client):
    def cycles(count):
        for number in range(count):
            region = Region(client, MIB)
            hidden = region.tensor(0, ROWS)
            client.forward(layer=LAYER, hidden=hidden, output=hidden.extent)
            if number % 2:
                region.close()
            region.release()
            while number % 8 == 7 and not opens(client):
                time.sleep(0.01)

    cycles(32)
    eventually(lambda: opens(client))
    settled_fds(served, client)
    before = served.memory()
    cycles(500)
    eventually(lambda: opens(client))
    eventually(lambda: served.memory()["fds"] <= before["fds"])
    after = served.memory()
    assert after["threads"] == before["threads"]
    if not SANITIZER:
        assert after["rss"] <= before["rss"] + 8 * MIB
    maps = open(f"/proc/{served.process.pid}/maps").read()
    assert maps.count("expertd-region") == 0


@pytest.mark.threads
def test_regions_opened_used_and_lost_by_many_at_once(served):
    """Threads open, use, close and drop regions in random order, each on its own connection. Every answer must be correct."""
    with served.client() as client:
        expected = client.forward(layer=LAYER, hidden=tensor(ROWS)).output.data

    def live(seed):
        random = python_random.Random(seed)
        right = 0
        with served.client() as mine:
            region = None
            for _ in range(60):
                try:
                    region = region or Region(mine, MIB)
                    hidden = region.tensor(0, ROWS)
                    mine.forward(layer=LAYER, hidden=hidden, output=hidden.extent)
                    assert region.at(hidden.extent) == expected
                    right += 1
                except grpc.RpcError as error:
                    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
                if region and random.random() < 0.4:
                    if random.random() < 0.5:
                        region.close()
                    region.release()
                    region = None
            if region:
                region.release()
        return right

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert min(pool.map(live, range(6))) > 10
    with served.client() as client:
        eventually(lambda: opens(client))


def test_a_drain_ends_leases_and_removes_the_socket(case, start_daemon):
    daemon = start_daemon(model=case("qwen2_moe").folder)
    with daemon.client() as client, Region(client, MIB) as region:
        path = region.offer.socket
        assert path == daemon.socket + ".regions" and os.path.exists(path)
        lease = region.lease
        client.channel.close()
        daemon.stop()
        assert is_cut(lease) and not os.path.exists(path)


def test_a_killed_daemon_leaves_the_callers_mapping_intact(case, start_daemon):
    daemon = start_daemon(model=case("qwen2_moe").folder)
    with daemon.client() as client, Region(client, MIB) as region:
        region.map[:4] = b"mine"
        daemon.process.kill()
        daemon.process.wait()
        assert is_cut(region.lease) and region.map[:4] == b"mine"
        assert mmap.mmap(region.fd, MIB)[:4] == b"mine"
