"""tests/bench/builds, which runs two builds alternately: a build compared with itself, with one that computes something else, and errors."""

import json
import subprocess
import sys
import textwrap

import pytest

from harness.paths import BUILD, ROOT, SLOW

RUN = ROOT / "tests" / "bench" / "builds" / "run"


def run(*arguments):
    return subprocess.run([sys.executable, RUN, *map(str, arguments)], capture_output=True, text=True, timeout=120 * SLOW)


def test_a_build_compared_with_itself_has_equal_bits():
    done = run("--before", BUILD, "--after", BUILD, "--shape", "tiny", "--dtype", "bf16,f32,i8,mxfp4,nvfp4,mxfp8,int4-32,int8-32", "--seconds",
               "0.1", "--threads", "1", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["dtype"] for row in rows] == ["bf16", "f32", "i8", "mxfp4", "nvfp4", "mxfp8", "int4-32", "int8-32"]
    for row in rows:
        assert row["same_bits"] and row["pairs"] >= 5
        assert 0 < row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
        assert row["before_seconds"] > 0 and row["after_seconds"] > 0


def other_build(folder, body):
    program = folder / "bin" / "peer-ours"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nimport sys\n" + textwrap.dedent(body))
    program.chmod(0o755)
    return folder


def test_different_bits_are_reported_and_fail(tmp_path):
    other = other_build(tmp_path, """
        print("ready", flush=True)
        for line in sys.stdin:
            print(1000, flush=True)
    """)
    done = run("--before", BUILD, "--after", other, "--shape", "tiny", "--seconds", "0.1", "--threads", "1")
    assert done.returncode == 1, done.stderr
    row, = [line for line in done.stdout.splitlines() if line.startswith("tiny")]
    assert row.endswith("BITS DIFFER")


def test_a_build_that_does_not_start_is_named(tmp_path):
    other = other_build(tmp_path, "sys.exit('no such shape here')\n")
    done = run("--before", other, "--after", BUILD, "--shape", "tiny", "--seconds", "0.1", "--threads", "1")
    assert done.returncode == 1
    assert "no such shape here" in done.stderr and f"{other}/bin/peer-ours did not start" in done.stderr


def test_a_build_that_ends_is_named(tmp_path):
    other = other_build(tmp_path, """
        print("ready", flush=True)
        sys.stdin.readline()
        sys.exit("out of memory, say")
    """)
    done = run("--before", BUILD, "--after", other, "--shape", "tiny", "--seconds", "0.1", "--threads", "1")
    assert done.returncode == 1
    assert "out of memory, say" in done.stderr and f"builds/run: {other}/bin/peer-ours ended with status 1" in done.stderr


@pytest.mark.parametrize("arguments, words", [
    (("--before", BUILD, "--shape", "a51"), ("unknown shape a51", "a512", "rows1")),
    (("--before", BUILD, "--shape", "rows0"), ("unknown shape rows0",)),
    (("--before", BUILD, "--dtype", "f64"), ("unknown dtype f64", "bf16")),
    (("--before", BUILD, "--layers", "qwen"), ("unknown layer qwen", "qwen3")),
    (("--before", BUILD, "--tokens", "0"), ("--tokens 0", "1,256")),
    (("--before", "no-such-commit"), ("no-such-commit", "neither a folder nor a commit")),
    (("--before", BUILD, "--after", ROOT / "tests"), ("tests/bin/peer-ours is not there", "build it first")),
])
def test_run_names_the_cause_and_the_remedy(arguments, words):
    done = run(*arguments)
    assert done.returncode == 1
    assert all(word in done.stderr for word in words), done.stderr
