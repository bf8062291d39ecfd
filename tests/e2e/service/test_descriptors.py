"""Compares the project's copies of the standard .proto files with the published descriptors. Each declaration of a copy must exist in the
original with the same number, type and label, down to enum values and methods. Needs no daemon."""

import pytest
from google.protobuf import any_pb2, descriptor_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_tools import protoc

from harness.protos import PROTO

# The project's copy, and the published module. The packages ship only v1alpha of reflection; v1 differs in the package name.
PUBLISHED = {
    "google/protobuf/any.proto": any_pb2,
    "google/protobuf/duration.proto": duration_pb2,
    "google/rpc/status.proto": status_pb2,
    "google/rpc/error_details.proto": error_details_pb2,
    "grpc/health/v1/health.proto": health_pb2,
    "grpc/reflection/v1/reflection.proto": reflection_pb2,
    "grpc/reflection/v1alpha/reflection.proto": reflection_pb2,
}


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    out = tmp_path_factory.mktemp("descriptors") / "set"
    assert protoc.main(["protoc", f"-I{PROTO}", "--include_imports", f"--descriptor_set_out={out}", *PUBLISHED]) == 0
    return {file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file}


def published(name):
    file = descriptor_pb2.FileDescriptorProto()
    PUBLISHED[name].DESCRIPTOR.CopyToProto(file)
    return file


def declarations(file):
    """{full name below the package: properties that must agree} for every declaration."""
    package = f".{file.package}."

    def local(type_name):
        return type_name.removeprefix(package)

    def of_enum(enum, prefix):
        yield prefix + enum.name, "enum"
        for value in enum.value:
            yield f"{prefix}{enum.name}.{value.name}", value.number

    def of_message(message, prefix):
        name = prefix + message.name
        yield name, ("message", message.options.map_entry)
        for field in message.field:
            oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else None
            yield f"{name}.{field.name}", (field.number, field.type, field.label, local(field.type_name), oneof)
        for nested in message.nested_type:
            yield from of_message(nested, name + ".")
        for enum in message.enum_type:
            yield from of_enum(enum, name + ".")

    for message in file.message_type:
        yield from of_message(message, "")
    for enum in file.enum_type:
        yield from of_enum(enum, "")
    for service in file.service:
        yield service.name, "service"
        for method in service.method:
            yield f"{service.name}.{method.name}", (local(method.input_type), local(method.output_type), method.client_streaming,
                                                    method.server_streaming)


@pytest.mark.parametrize("name", PUBLISHED)
def test_our_declarations_are_in_the_published_files(ours, name):
    theirs = dict(declarations(published(name)))
    mine = dict(declarations(ours[name]))
    assert mine, "the file declares nothing"
    assert mine == {declared: theirs.get(declared) for declared in mine}


@pytest.mark.parametrize("name", PUBLISHED)
def test_our_packages_have_the_published_names(ours, name):
    expected = published(name).package
    if name == "grpc/reflection/v1/reflection.proto":
        expected = "grpc.reflection.v1"
    assert (ours[name].package, ours[name].syntax) == (expected, "proto3")


@pytest.mark.parametrize("name", ["google/protobuf/any.proto", "google/protobuf/duration.proto"])
def test_the_protobuf_library_accepts_our_copies_as_its_own(ours, name):
    """Names and options agree too: other languages map these files to built-in types."""
    mine, theirs = ours[name], published(name)
    for file in (mine, theirs):
        for message in file.message_type:
            for field in message.field:
                field.ClearField("json_name")
    assert mine == theirs


def test_every_public_service_is_described(ours):
    services = {f"{file.package}.{service.name}" for file in ours.values() for service in file.service}
    assert services == {"grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"}
