"""The README's commands and examples work as written."""

import re
import subprocess
import sys

from harness.daemon import clean_environment, run_program
from harness.paths import BIN, ROOT, SLOW

README = (ROOT / "README.md").read_text()


def test_the_python_example_runs_as_written(served, tmp_path):
    generate = re.search(r"python3 (-m grpc_tools\.protoc .*)", README).group(1).split()
    generate[generate.index("proto")] = str(ROOT / "proto")
    subprocess.run([sys.executable, *generate], cwd=tmp_path, check=True, timeout=60)
    (example,) = re.findall(r"```python\n(.*?)```", README, re.S)
    example = example.replace("127.0.0.1:7411", served.tcp) + "\nprint(y.shape, np.isfinite(y).all())\n"
    (tmp_path / "example.py").write_text(example)
    done = subprocess.run([sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60 * SLOW,
                          env=clean_environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout == "(16, 96) True\n"


def test_the_expertctl_commands_are_accepted(served, tmp_path):
    import numpy as np
    np.save(tmp_path / "in.npy", np.zeros((2, 96), np.float32))
    lines = re.findall(r"^    build/bin/expertctl --address 127\.0\.0\.1:7411 (.*)$", README, re.M)
    assert len(lines) >= 3
    for line in lines:
        words = line.replace("--layer 3", "--layer 1").split()
        done = run_program("expertctl", "--address", served.tcp, *words, cwd=tmp_path)
        assert done.returncode == 0, (line, done.stderr)


def test_every_option_and_path_in_the_readme_exists():
    programs = [("expertd", "--help"), ("expertctl", "--help"), ("expertd-bench", "kernels", "--help")]
    scripts = ["tests/bench/peers/run", "tests/bench/service_cost/run", "tests/bench/overload", "tests/soak/run"]
    commands = [[sys.executable, ROOT / script] for script in scripts] + [[ROOT / "deploy/install-deps"]]
    help_text = "".join(run_program(*program).stdout for program in programs) + "".join(
        subprocess.run([*command, "--help"], check=True, capture_output=True, text=True).stdout for command in commands)
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+(?![\w-])", README)) - {"--quick"}
    for option in options:
        assert re.search(rf"{option}\b", help_text), option
    for path in re.findall(r"`((?:base|kernels|shard|expert|proto|daemon|client|tests|deploy)/[\w./]*)`", README):
        assert (ROOT / path).exists() or list(ROOT.glob(path + ".*")), path
    for path in ("quickstart", "check", "LICENSE"):
        assert (ROOT / path).exists()
    assert (BIN / "expertd").exists()
