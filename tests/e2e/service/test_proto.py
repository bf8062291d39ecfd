"""The published .proto files by buf: well-formed, and what was published once keeps its numbers and types on the wire.

published/expertd.v1.binpb holds expertd.proto as it was first published (inside proto/: buf build --exclude-source-info --path
expertd/v1/expertd.proto -o FILE). Fields are added to the .proto, never taken away, so the image is not renewed.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

from harness.paths import ROOT

BUF = pathlib.Path(sys.executable).with_name("buf")
PUBLISHED = pathlib.Path(__file__).with_name("published") / "expertd.v1.binpb"
# The names were chosen before the linter: dtypes are safetensors' own, the service is what it serves, Stream has Forward's messages.
LINT = {"use": ["STANDARD"], "ignore": ["google", "grpc"],
        "except": ["SERVICE_SUFFIX", "ENUM_VALUE_PREFIX", "RPC_REQUEST_RESPONSE_UNIQUE", "RPC_REQUEST_STANDARD_NAME",
                   "RPC_RESPONSE_STANDARD_NAME"]}
CONFIG = json.dumps({"version": "v2", "modules": [{"path": "."}], "lint": LINT, "breaking": {"use": ["WIRE"]}})


def buf(folder, home, *arguments):
    return subprocess.run([str(BUF), *arguments, "--config", CONFIG], cwd=folder, capture_output=True, text=True, timeout=60,
                          env={"PATH": os.environ["PATH"], "HOME": str(home)})


def breaking(folder, home):
    return buf(folder, home, "breaking", "--against", str(PUBLISHED), "--path", "expertd/v1/expertd.proto")


def test_lint_finds_nothing(tmp_path):
    done = buf(ROOT / "proto", tmp_path, "lint")
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_was_published_still_means_the_same_on_the_wire(tmp_path):
    done = breaking(ROOT / "proto", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_field_with_another_number_or_type_is_found(tmp_path):
    for old, new in (("uint64 timeout_us = 11;", "uint64 timeout_us = 21;"), ("uint64 timeout_us = 11;", "double timeout_us = 11;")):
        folder = tmp_path / "changed"
        shutil.copytree(ROOT / "proto", folder)
        file = folder / "expertd/v1/expertd.proto"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))
        done = breaking(folder, tmp_path)
        assert done.returncode != 0 and "ForwardRequest" in done.stdout, done.stdout + done.stderr
        shutil.rmtree(folder)
