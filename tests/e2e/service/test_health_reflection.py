"""The standard health and reflection services, called with their Python packages; and the project's .proto files compared with the
published ones."""

import contextlib
import time

import grpc
import pytest
from google.protobuf import any_pb2, descriptor_pb2, duration_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_tools import protoc

from harness import http2, slow
from harness.daemon import READY_SECONDS
from harness.protos import PROTO, pb
from harness.waiting import eventually

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
SERVICES = {"expertd.v1.Experts", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection"}


def check(channel, service=""):
    return health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status


@pytest.mark.parametrize("service", ["", "expertd.v1.Experts", "qwen2_moe"])
def test_served_services_are_healthy(client, service):
    assert check(client.channel, service) == SERVING


def test_an_unknown_service_is_not_found(client):
    with pytest.raises(grpc.RpcError) as caught:
        check(client.channel, "nobody.Knows")
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def test_a_watch_of_an_unknown_service_reports_it_and_stays(client):
    call = health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest(service="nobody.Knows"), timeout=20)
    assert next(call).status == UNKNOWN
    assert call.is_active()
    call.cancel()


CHECKS, CHECKS_OF_CONNECTION, WATCHES_OF_CONNECTION = 1024, 16, 128  # the limits; a connection may have half of 256 watches


@pytest.mark.threads
def test_checks_and_watches_without_a_request_are_limited_and_time_out(start_daemon, case):
    daemon = start_daemon("--send-timeout-ms", 1500, model=case("mixtral").folder)
    with daemon.client() as client, http2.Peer(daemon.socket) as peer:
        for _ in range(200):
            peer.open("/grpc.health.v1.Health/Check")
        eventually(lambda: daemon.metric("expertd_open_calls") == CHECKS_OF_CONNECTION)
        for _ in range(200):
            peer.open("/grpc.health.v1.Health/Watch")
        eventually(lambda: daemon.metric("expertd_open_calls") == CHECKS_OF_CONNECTION + WATCHES_OF_CONNECTION)
        assert check(client.channel) == SERVING
        watch = health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
        assert next(watch).status == SERVING
        for method in ("Describe", "OpenRegion", "CloseRegion"):
            peer.open(f"/expertd.v1.Experts/{method}")
        peer.open("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        daemon.wait_metric("expertd_open_calls", 1)  # only the watch with a request is left
        assert watch.is_active()
        watch.cancel()


def open_for_long(daemon):
    """The number of open calls if it stays the same for 1.2 s, else None."""
    before = daemon.metric("expertd_open_calls")
    time.sleep(1.2)
    return before if daemon.metric("expertd_open_calls") == before else None


@pytest.mark.threads
def test_checks_without_a_request_delay_other_checks_for_a_second_only(start_daemon, case):
    """As many as the limit, from many connections. Half of them get one second instead of ten to send their request."""
    daemon = start_daemon(model=case("mixtral").folder)
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(http2.Peer(daemon.socket)) for _ in range(CHECKS // CHECKS_OF_CONNECTION)]
        begun = time.monotonic()
        for peer in peers:
            for _ in range(CHECKS_OF_CONNECTION):
                peer.open("/grpc.health.v1.Health/Check")
        eventually(lambda: open_for_long(daemon) == CHECKS // 2)
        assert time.monotonic() - begun < 9, "the calls that may wait ten seconds must not have timed out yet"
        with daemon.client() as client:
            assert check(client.channel) == SERVING


@pytest.mark.threads
def test_a_watch_follows_the_drain_and_ends(start_daemon, case):
    daemon = start_daemon(model=case("mixtral").folder)
    with daemon.client() as client:
        calls = [health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest(service=name), timeout=60)
                 for name in ("", "expertd.v1.Experts", "mixtral")]
        assert [next(call).status for call in calls] == [SERVING] * 3
        daemon.signal()
        assert [next(call).status for call in calls] == [NOT_SERVING] * 3
        for call in calls:
            with pytest.raises((grpc.RpcError, StopIteration)):
                next(call)
        assert daemon.wait_exit() == 0


@pytest.mark.threads
def test_a_watch_follows_the_load(start_daemon):
    daemon = start_daemon(model=slow.MODEL, wait=False)
    daemon.wait_for("listening", count=2)
    with daemon.client() as client:
        call = health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest(), timeout=READY_SECONDS)
        states = [next(call).status]
        while states[-1] != SERVING:
            states.append(next(call).status)
        assert set(states[:-1]) <= {NOT_SERVING} and check(client.channel) == SERVING
        call.cancel()


def reflect(channel, version, requests):
    call = channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                                 request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
                                 response_deserializer=reflection_pb2.ServerReflectionResponse.FromString)
    return list(call(iter(requests), timeout=10))


Request = reflection_pb2.ServerReflectionRequest


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_lists_the_services(client, version):
    (answer,) = reflect(client.channel, version, [Request(list_services="")])
    assert {service.name for service in answer.list_services_response.service} == SERVICES


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_serves_files_that_load_into_a_pool(client, version):
    (answer,) = reflect(client.channel, version, [Request(file_containing_symbol="expertd.v1.Experts")])
    files = [descriptor_pb2.FileDescriptorProto.FromString(data) for data in answer.file_descriptor_response.file_descriptor_proto]
    names = {file.name for file in files}
    assert all(set(file.dependency) <= names for file in files), "a dependency is missing"
    pool = DescriptorPool()
    waiting = {file.name: file for file in files}
    while waiting:
        ready = [file for file in waiting.values() if not set(file.dependency) & set(waiting)]
        assert ready, "the files import each other in a circle, or a file is missing"
        for file in ready:
            pool.Add(file)
            del waiting[file.name]
    service = pool.FindServiceByName("expertd.v1.Experts")
    assert [method.name for method in service.methods] == [method.name for method in pb.DESCRIPTOR.services_by_name["Experts"].methods]


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_finds_symbols_and_files_by_name(client, version):
    symbols = ["expertd.v1.ForwardRequest", "expertd.v1.Tensor", "expertd.v1.DType", "expertd.v1.Experts.Forward",
               "google.rpc.Status", "google.rpc.ErrorInfo", "grpc.health.v1.Health"]
    answers = reflect(client.channel, version, [Request(file_containing_symbol=symbol, host="h") for symbol in symbols])
    assert all(answer.HasField("file_descriptor_response") for answer in answers), answers
    assert [answer.original_request.file_containing_symbol for answer in answers] == symbols
    (first,) = reflect(client.channel, version, [Request(file_containing_symbol="expertd.v1.Experts")])
    name = descriptor_pb2.FileDescriptorProto.FromString(first.file_descriptor_response.file_descriptor_proto[0]).name
    (by_name,) = reflect(client.channel, version, [Request(file_by_filename=name)])
    assert by_name.HasField("file_descriptor_response")


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_answers_unknown_names_with_an_error_response(client, version):
    requests = [Request(file_containing_symbol="no.Such"), Request(file_by_filename="no/such.proto"),
                Request(all_extension_numbers_of_type="no.Such"), Request(list_services="")]
    answers = reflect(client.channel, version, requests)
    assert [answer.error_response.error_code for answer in answers[:3]] == [5, 5, 5]
    assert answers[3].HasField("list_services_response"), "the stream goes on"


def test_the_descriptor_database_of_the_package_works(client):
    """As grpcurl does: from a channel to a typed call, by reflection."""
    database = ProtoReflectionDescriptorDatabase(client.channel)
    assert set(database.get_services()) == SERVICES
    pool = DescriptorPool(database)
    request = pool.FindMessageTypeByName("expertd.v1.ForwardRequest")
    assert {field.name: field.number for field in request.fields} == {
        field.name: field.number for field in pb.ForwardRequest.DESCRIPTOR.fields}


# The published descriptors, and the project's file that must be wire-compatible with each.
PUBLISHED = {
    "google/rpc/status.proto": status_pb2,
    "google/rpc/error_details.proto": error_details_pb2,
    "google/protobuf/any.proto": any_pb2,
    "google/protobuf/duration.proto": duration_pb2,
    "grpc/health/v1/health.proto": health_pb2,
    "grpc/reflection/v1alpha/reflection.proto": reflection_pb2,
    "grpc/reflection/v1/reflection.proto": reflection_pb2,
}


def messages_of(messages, prefix=""):
    for message in messages:
        yield prefix + message.name, message
        yield from messages_of(message.nested_type, prefix + message.name + ".")


@pytest.mark.parametrize("name", PUBLISHED)
def test_our_proto_files_are_wire_compatible_with_the_published(name, tmp_path):
    out = tmp_path / "set"
    assert protoc.main(["protoc", f"-I{PROTO}", f"--descriptor_set_out={out}", name]) == 0
    (ours,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    theirs = descriptor_pb2.FileDescriptorProto()
    PUBLISHED[name].DESCRIPTOR.CopyToProto(theirs)
    if name.startswith("grpc/reflection/v1/"):  # the package ships only v1alpha; v1 differs in the package name
        theirs = descriptor_pb2.FileDescriptorProto.FromString(theirs.SerializeToString().replace(b"v1alpha", b"v1\0\0\0\0\0"))
        assert ours.package == "grpc.reflection.v1"
    else:
        assert ours.package == theirs.package
    published = dict(messages_of(theirs.message_type))
    for message_name, message in messages_of(ours.message_type):
        fields = {field.number: field for field in published[message_name].field}
        for field in message.field:
            other = fields[field.number]
            assert (field.name, field.type, field.label) == (other.name, other.type, other.label), message_name
    methods = lambda file: {(service.name, method.name, method.client_streaming, method.server_streaming)
                            for service in file.service for method in service.method}
    assert methods(ours) == methods(theirs)
