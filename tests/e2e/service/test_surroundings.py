"""Programs as a process of any parent: descriptors, signals, limits, folders and files that are unusual or missing. A program serves, or
exits with a message that names what it needs. It never ends by a signal."""

import ctypes.util
import os
import shlex
import signal
import subprocess
import sys
import time

import grpc
import numpy as np
import pytest

from harness.daemon import READY_SECONDS, STOP_SECONDS, Client, Daemon, clean_environment
from harness.paths import BIN, SANITIZER
from harness.protos import pb
from harness.tensors import tensor

BLOCKED = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); os.execv(sys.argv[1], sys.argv[1:])"


def shell(script):
    """A prefix that runs `script`, then the program in place of the shell."""
    return ("sh", "-c", f'{script} exec "$0" "$@"')


def closed(*descriptors):
    return ("sh", "-c", 'exec "$0" "$@" ' + " ".join(f"{d}>&-" for d in descriptors))


def mounted(script):
    return ("unshare", "-m", *shell(f"{script} || exit 99;"))


def may_mount():
    return subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode == 0


SERVED = {
    "stdin closed": closed(0),
    "stdout closed": closed(1),
    "stderr closed": closed(2),
    "all closed": closed(0, 1, 2),
    "full log": ("sh", "-c", 'exec "$0" "$@" 2>/dev/full'),
    "little stack": shell("ulimit -Ss 256;"),
    "less stack": shell("ulimit -s 1024;"),
    "endless stack": shell("ulimit -s unlimited;"),
    "few descriptors": shell("ulimit -Sn 8;"),
    "no locked memory": shell("ulimit -l 0;"),
    "signals ignored": shell("trap '' TERM INT PIPE CHLD XFSZ USR1 ALRM;"),
    "signals blocked": (sys.executable, "-c", BLOCKED),
    "no environment": ("env", "-i"),
    "odd environment": ("env", "LC_ALL=xx_YY.odd", "LANG=odd", "TZ=:/odd", "TMPDIR=/nonexistent", "GRPC_POLL_STRATEGY=odd", "GRPC_EXPERIMENTS=odd"),
    "no home": ("env", "-u", "HOME", "-u", "PATH"),
    "working folder removed": shell('d=$(mktemp -d); cd "$d"; rmdir "$d";'),
    "odd umask": shell("umask 777;"),
}
SERVED_MOUNTED = {
    "no proc": mounted("mount -t tmpfs none /proc"),
    "no sys": mounted("mount -t tmpfs none /sys"),
    "no dev": mounted("exec 2>&-; mount -t tmpfs none /dev"),
    "read-only": mounted("mount -o bind /tmp /tmp && mount -o remount,bind,ro /"),
}
REFUSED = {
    "stack": ("ulimit -s 128;", "stack is limited to 128 KiB"),
    "descriptors": ("ulimit -n 8;", "can open"),
    "address space": ("ulimit -v 95000;", "(RLIMIT_AS): raise it (ulimit -v"),
    "data": ("ulimit -d 50000;", "(RLIMIT_DATA): raise it (ulimit -d"),
}
PROGRAMS = {"expertd": ("--version",), "expertctl": ("models",), "expertd-bench": ("--help",), "expertd-verify": ("--help",)}


def serve_and_stop(prefix):
    """The daemon answers under the prefix, then ends on SIGTERM."""
    daemon = Daemon(model="synthetic:tiny", prefix=prefix, http="off", tcp=False, wait=False)
    try:
        with Client(daemon.channel()) as client:
            deadline = time.monotonic() + READY_SECONDS
            while True:
                try:
                    assert client.forward(pb.ForwardRequest(layer=1, hidden=tensor(np.ones((1, 256))))).output.data
                    break
                except grpc.RpcError as error:
                    assert daemon.process.poll() is None and time.monotonic() < deadline, f"{error}\n{daemon.log}"
                    time.sleep(0.1)
    finally:
        daemon.stop()


@pytest.mark.share(4)
@pytest.mark.parametrize("name", [name for name in SERVED if not SANITIZER or name != "no environment"])  # it has the suppressions
def test_a_daemon_serves_in_any_surroundings(name):
    serve_and_stop(SERVED[name])


@pytest.mark.skipif(SANITIZER != "", reason="sanitizers read /proc")
@pytest.mark.parametrize("name", SERVED_MOUNTED)
def test_a_daemon_serves_without_usual_folders(name):
    if not may_mount():
        pytest.skip("mounting needs privileges")
    serve_and_stop(SERVED_MOUNTED[name])


@pytest.mark.skipif(SANITIZER != "", reason="sanitizers have an allocator of their own")
@pytest.mark.parametrize("name", ("jemalloc", "mimalloc", "tcmalloc_minimal"))
def test_a_daemon_serves_with_another_allocator(name):
    library = ctypes.util.find_library(name)
    if not library:
        pytest.skip(f"lib{name} is not installed")
    serve_and_stop(("env", f"LD_PRELOAD={library}"))


@pytest.mark.skipif(SANITIZER != "", reason="sanitizers need more of both")
@pytest.mark.parametrize("limit", REFUSED)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_low_hard_limit_is_named(program, limit):
    script, named = REFUSED[limit]
    done = subprocess.run([*shell(script), str(BIN / program), *PROGRAMS[program]], env=clean_environment(), capture_output=True,
                          text=True, timeout=READY_SECONDS)
    assert done.returncode == 69 and named in done.stderr, done


@pytest.mark.skipif(SANITIZER != "", reason="sanitizers need more of both")
@pytest.mark.parametrize("limit, named", [
    ("-v 200000", "RLIMIT_AS"), ("-v 350000", "RLIMIT_AS"), ("-v 450000", "RLIMIT_AS"), ("-d 160000", "RLIMIT_DATA"), ("-d 250000", "RLIMIT_DATA")])
def test_a_daemon_without_memory_for_its_start_names_the_limit(limit, named, tmp_path):
    done = subprocess.run([*shell(f"ulimit {limit};"), str(BIN / "expertd"), "--model", "synthetic:tiny", "--device", "cpu", "--http", "off",
                           "--listen", f"unix:{tmp_path}/s"], env=clean_environment(), capture_output=True, text=True, timeout=READY_SECONDS)
    assert done.returncode == 69 and f"({named}): raise it (ulimit {limit[:2]}" in done.stderr, done


@pytest.mark.share(3)
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", [n for n in SERVED if n not in ("no environment", "no home")])
def test_a_tool_never_ends_by_a_signal(program, name):
    done = subprocess.run([*SERVED[name], str(BIN / program), *PROGRAMS[program]], env=clean_environment(), capture_output=True,
                          text=True, timeout=READY_SECONDS)
    assert 0 <= done.returncode < 128, done


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_tool_reports_a_reader_that_has_gone(program):
    read, write = os.pipe()
    os.close(read)
    arguments = ("--help",) if program == "expertctl" else PROGRAMS[program]
    done = subprocess.run([str(BIN / program), *arguments], env=clean_environment(), stdout=write, stderr=subprocess.PIPE, text=True,
                          timeout=READY_SECONDS)
    os.close(write)
    assert done.returncode in (65, 69), done
    assert "Broken pipe" in done.stderr, done


@pytest.mark.parametrize("bytes_read", (0, 1, 500, 2000, 4000, 100_000))
def test_the_reader_of_the_log_goes_away_at_any_time(tmp_path, bytes_read):
    """The daemon serves on, whether its first or its last line fails."""
    read, write = os.pipe()
    daemon = subprocess.Popen([str(BIN / "expertd"), "--model", "synthetic:tiny", "--listen", f"unix:{tmp_path}/s", "--http", "off"],
                              env=clean_environment(), stderr=write, stdin=subprocess.DEVNULL)
    os.close(write)
    seen = b""
    while len(seen) < bytes_read and b"event=ready" not in seen:
        seen += os.read(read, 256)
    os.close(read)
    with Client(grpc.insecure_channel(f"unix:{tmp_path}/s")) as client:
        grpc.channel_ready_future(client.channel).result(READY_SECONDS)
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(STOP_SECONDS) == 0


def test_a_reader_of_the_log_that_stops_reading_does_not_stop_the_daemon(tmp_path):
    read, write = os.pipe()
    os.set_blocking(write, False)
    while True:  # the pipe is full before the daemon starts
        try:
            os.write(write, b"-" * 4096)
        except BlockingIOError:
            break
    os.set_blocking(write, True)
    daemon = subprocess.Popen([str(BIN / "expertd"), "--model", "synthetic:tiny", "--listen", f"unix:{tmp_path}/s", "--http", "off"],
                              env=clean_environment(), stderr=write, stdin=subprocess.DEVNULL)
    os.close(write)
    with Client(grpc.insecure_channel(f"unix:{tmp_path}/s")) as client:
        grpc.channel_ready_future(client.channel).result(READY_SECONDS)
    os.read(read, 1 << 20)  # the reader is back
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(STOP_SECONDS) == 0
    with os.fdopen(read, "rb") as rest:
        log = rest.read().decode()
    assert "event=log_lines_lost count=" in log and "event=stopped exit=0" in log, shlex.quote(log)
