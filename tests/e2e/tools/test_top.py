"""expertctl top: its figures agree with the daemon's load."""

import contextlib
import itertools
import json
import signal
import socket
import subprocess
import threading
import time

import numpy as np
import pytest

from harness.admin import admin_of, placement_of
from harness.daemon import Daemon, clean_environment, run_program
from harness.paths import BIN, SLOW
from harness.protos import pb
from harness.tensors import tensor

HIDDEN, EXPERTS, SHARDS = 256, 16, 3
USAGE, UNREACHABLE = 64, 69


@pytest.fixture(scope="module")
def daemon():
    daemon = Daemon("--shards", SHARDS, model="synthetic:tiny")
    yield daemon
    daemon.stop()


def top(daemon, *arguments):
    return run_program("expertctl", "--address", f"unix:{daemon.socket}", "top", "--http", daemon.http, *arguments)


def ask(client, tokens, expert):
    ids = np.full((tokens, 1), expert, np.int32)
    routes = pb.Routes(ids=tensor(ids, "I32"), weights=tensor(np.ones(ids.shape, np.float32)))
    client.forward(layer=0, hidden=tensor(np.ones((tokens, HIDDEN), np.float32)), routes=routes)


class Load:
    """Calls with `tokens` tokens to one expert, one after the other, until the `with` block ends."""

    def __init__(self, daemon, tokens, expert):
        self.daemon, self.tokens, self.expert = daemon, tokens, expert
        self.stop, self.thread = threading.Event(), threading.Thread(target=self._run)

    def _run(self):
        with self.daemon.client() as client:
            while not self.stop.is_set():
                ask(client, self.tokens, self.expert)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def test_an_idle_daemon_shows_zeros_and_its_memory(daemon):
    done = top(daemon, "--once", "--interval", "0.05", "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["state"] == "ready" and shown["model"] == "synthetic:tiny"
    assert shown["calls_per_s"] == shown["tokens_per_s"] == shown["refused_per_s"] == shown["latency_us"]["p99"] == 0
    assert shown["resident_bytes"] > shown["weights_bytes"] > 0 and shown["threads"] > 2 and shown["fds"] > 5
    assert [shard["shard"] for shard in shown["shards"]] == list(range(SHARDS))
    assert sum(shard["experts"] for shard in shown["shards"]) == 4 * EXPERTS  # in 4 layers
    assert all(shard["rows_per_s"] == shard["load"] == 0 for shard in shown["shards"])


def test_a_load_is_shown_with_its_shard(daemon):
    with Load(daemon, tokens=5, expert=EXPERTS - 1):
        done = top(daemon, "--once", "--interval", str(0.5 * SLOW), "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["calls_per_s"] > 0 and shown["failed_per_s"] == 0
    assert shown["tokens_per_s"] == pytest.approx(5 * shown["calls_per_s"], rel=0.5)
    assert 0 < shown["latency_us"]["p50"] <= shown["latency_us"]["p90"] <= shown["latency_us"]["p99"]
    assert [shard["load"] for shard in shown["shards"]] == [0, 0, SHARDS]
    assert shown["shards"][-1]["rows_per_s"] == pytest.approx(shown["tokens_per_s"], rel=0.5)


def test_the_table_shows_the_same_figures(daemon):
    with Load(daemon, tokens=5, expert=0):
        done = top(daemon, "--once", "--interval", str(0.2 * SLOW))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].endswith("synthetic:tiny, ready") and "\033" not in done.stdout
    assert [line.split()[0] for line in lines[1:7]] == ["calls", "tokens", "latency", "queued", "queue", "memory"]
    assert not lines[1].startswith("calls     0.0/s")
    assert lines[-SHARDS].split()[0] == "0" and lines[-SHARDS].split()[3] == "3.00"


def test_it_prints_a_line_per_interval_until_it_is_interrupted(daemon):
    process = subprocess.Popen([BIN / "expertctl", "--address", f"unix:{daemon.socket}", "top", "--http", daemon.http, "--json",
                                "--interval", "0.05"], stdout=subprocess.PIPE, text=True, env=clean_environment())
    with admin_of(daemon) as admin:
        shown = admin.show(0)[0]
        first = json.loads(process.stdout.readline())
        admin.apply(placement_of(0, shown.epoch, shown.ranks, [[expert % SHARDS] for expert in range(EXPERTS)]))
        deadline = time.monotonic() + 20 * SLOW
        while json.loads(process.stdout.readline())["placement_epoch"] <= first["placement_epoch"]:
            assert time.monotonic() < deadline
    process.terminate()
    process.communicate()


def test_a_missing_daemon_or_page_is_named(daemon):
    done = run_program("expertctl", "--address", f"unix:{daemon.socket}", "top", "--once", "--http", "127.0.0.1:1")
    assert done.returncode == UNREACHABLE and "127.0.0.1:1" in done.stderr and "--http" in done.stderr
    done = run_program("expertctl", "--address", f"unix:{daemon.socket}", "top", "--once", "--http", daemon.tcp)
    assert done.returncode != 0 and "--http" in done.stderr, done.stdout
    assert top(daemon, "--interval", "0").returncode == USAGE


class Page:
    """An HTTP server that sends one answer: the head, then the pieces of the body with a pause before each."""

    def __init__(self, pieces, pause=0.0):
        self.pieces, self.pause, self.asked, self.ended = pieces, pause, threading.Event(), threading.Event()
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.http = "127.0.0.1:%d" % self.socket.getsockname()[1]
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self):
        while not self.ended.is_set():
            try:
                with self.socket.accept()[0] as peer:
                    peer.recv(1 << 16)
                    self.asked.set()
                    peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                    for piece in self.pieces:
                        peer.sendall(piece)
                        if self.ended.wait(self.pause):
                            break
            except OSError:  # the client disconnected, or this server was closed
                pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.socket.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.socket.close()


def test_a_slow_page_ends_at_the_timeout(daemon):
    with Page(itertools.repeat(b"#"), pause=0.1) as page:
        done = run_program("expertctl", "--address", f"unix:{daemon.socket}", "--timeout", 1, "top", "--once", "--http", page.http)
    assert done.returncode == UNREACHABLE and page.http in done.stderr and "1 s" in done.stderr, (done.returncode, done.stderr)


def test_a_connection_that_is_not_accepted_ends_at_the_timeout(daemon):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as waiting:
        for _ in range(4):  # fills the backlog, which holds one more than its limit
            peer = waiting.enter_context(socket.socket())
            peer.setblocking(False)
            peer.connect_ex(full.getsockname())
        http = "127.0.0.1:%d" % full.getsockname()[1]
        done = run_program("expertctl", "--address", f"unix:{daemon.socket}", "--timeout", 1, "top", "--once", "--http", http)
    assert done.returncode == UNREACHABLE and "timed out" in done.stderr, (done.returncode, done.stderr)


def test_a_client_that_was_suspended_gets_its_page(daemon):
    """Socket calls with a socket timeout would fail with EINTR."""
    with Page([b"expertd_ready 1\n", b"expertd_build_info{} 1\n"], pause=1) as page:
        process = subprocess.Popen([str(BIN / "expertctl"), "--address", f"unix:{daemon.socket}", "top", "--once", "--interval", "0.05",
                                    "--http", page.http], env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert page.asked.wait(20 * SLOW)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            process.send_signal(number)
            time.sleep(0.1)
        out, err = process.communicate(timeout=60 * SLOW)
    assert process.returncode == 0 and b"ready" in out, err


def test_control_characters_in_labels_do_not_reach_the_terminal(daemon):
    labels = rb'version="1' + b"\x1b]0;X\x07" + rb'",model="a\"b\n"'
    with Page([b"expertd_ready 1\nexpertd_build_info{" + labels + b"} 1\n"]) as page:
        top = ("expertctl", "--address", f"unix:{daemon.socket}", "top", "--once", "--interval", 0.05, "--http", page.http)
        shown, said = run_program(*top), json.loads(run_program(*top, "--json").stdout)
    assert shown.returncode == 0 and shown.stdout.startswith('expertd 1?]0;X?, a"b?, ready\n'), shown.stdout
    assert said["version"] == "1\x1b]0;X\x07" and said["model"] == 'a"b\n'


def test_without_an_admin_socket_the_shards_are_left_out(daemon):
    done = run_program("expertctl", "--address", daemon.tcp, "top", "--once", "--interval", "0.05", "--http", daemon.http, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["shards"] == [], done.stderr
