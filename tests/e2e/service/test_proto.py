"""Checks the .proto files with buf: they are well-formed, and published fields keep their numbers and wire types.

published/expertd.v1.binpb is the image of expertd.proto as first published (made in proto/ by
buf build --exclude-source-info --path expertd/v1/expertd.proto -o FILE). Fields are only ever added to the .proto, so the image is never
renewed.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

from harness.paths import ROOT

BUF = pathlib.Path(sys.executable).with_name("buf")
PUBLISHED = ROOT / "tests/e2e/service/published/expertd.v1.binpb"
# Rules that published names break: dtypes have safetensors' names, the service has no suffix, Stream uses Forward's messages.
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


def test_published_fields_mean_the_same_on_the_wire(tmp_path):
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
