"""The Python code of the interface, made from the .proto that the repository publishes. Nothing of the daemon's own encoders."""

import atexit
import functools
import importlib
import os
import shutil
import sys
import tempfile

import grpc_tools
from grpc_tools import protoc

from .paths import ROOT

PROTO = ROOT / "proto"


@functools.cache
def _folder():
    """Where the made code lies, on the import path."""
    folder = tempfile.mkdtemp(prefix="expertd-proto-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    sys.path.insert(0, folder)
    return folder


def compile_proto(name):
    """(messages, services) of a .proto that the repository publishes, by its file name."""
    folder = _folder()
    source = next(PROTO.rglob(name)).relative_to(PROTO)
    tools = os.path.dirname(grpc_tools.__file__)
    packages = os.path.dirname(tools)
    # google/rpc and google/protobuf come from the Python packages, not from the project's own copies.
    arguments = ["protoc", f"-I{tools}/_proto", f"-I{packages}", f"-I{PROTO}", f"--python_out={folder}",
                 f"--grpc_python_out={folder}", str(source)]
    if protoc.main(arguments) != 0:
        raise RuntimeError(f"protoc refused {source}")
    importlib.invalidate_caches()
    module = str(source.with_suffix("")).replace("/", ".")
    return importlib.import_module(module + "_pb2"), importlib.import_module(module + "_pb2_grpc")


pb, rpc = compile_proto("expertd.proto")
admin_pb, admin_rpc = compile_proto("admin.proto")
