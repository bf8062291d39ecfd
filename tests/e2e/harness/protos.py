"""Python modules generated from the published .proto files, independent of the daemon's own encoders."""

import importlib
import os
import sys
import tempfile

import grpc_tools
from grpc_tools import protoc

from .paths import ROOT

PROTO = ROOT / "proto"


def compile_proto(name):
    """(messages, services) of a published .proto, by its file name."""
    source = next(PROTO.rglob(name)).relative_to(PROTO)
    tools = os.path.dirname(grpc_tools.__file__)
    packages = os.path.dirname(tools)
    module = str(source.with_suffix("")).replace("/", ".")
    # The generated code is deleted after the import: a test worker may end without cleaning up.
    with tempfile.TemporaryDirectory(prefix="expertd-proto-") as folder:
        # google/rpc and google/protobuf come from the Python packages, not from the copies in proto/.
        arguments = ["protoc", f"-I{tools}/_proto", f"-I{packages}", f"-I{PROTO}", f"--python_out={folder}",
                     f"--grpc_python_out={folder}", str(source)]
        if protoc.main(arguments) != 0:
            raise RuntimeError(f"protoc refused {source}")
        sys.path.insert(0, folder)
        try:
            importlib.invalidate_caches()
            return importlib.import_module(module + "_pb2"), importlib.import_module(module + "_pb2_grpc")
        finally:
            sys.path.remove(folder)


pb, rpc = compile_proto("expertd.proto")
admin_pb, admin_rpc = compile_proto("admin.proto")
