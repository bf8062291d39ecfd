"""The daemon as a process: starts it on a private Unix socket and free TCP ports, reads its log, and stops it with SIGTERM."""

import contextlib
import functools
import os
import pathlib
import queue
import re
import resource
import shlex
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

import grpc

from .paths import BIN, ROOT, SLOW
from .protos import pb, rpc

# Timeouts, long enough for a busy machine.
READY_SECONDS = STOP_SECONDS = CALL_SECONDS = PROGRAM_SECONDS = 60 * SLOW
CHANNEL_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1),
                   ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
SANITIZER_SIGNS = ("ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "runtime error:", "WARNING: ThreadSanitizer",
                   "broken invariant")
PAIR = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)')


def sanitizer_environment():
    """Options that end a process with its own exit status after a sanitizer report. The tests look for the report too.

    detect_stack_use_after_return stays off: gcc 12 misaligns 64-byte vectors under it (gcc bug 110027).
    """
    return {
        "ASAN_OPTIONS": "exitcode=99:detect_leaks=1",
        "LSAN_OPTIONS": f"suppressions={ROOT}/tests/lsan.supp:print_suppressions=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": f"exitcode=98:suppressions={ROOT}/tests/tsan.supp",
    }


def clean_environment(extra=None):
    """The environment of programs under test: no notification socket, no hub cache, and of the caller's EXPERTD_… only EXPERTD_DEVICE.

    EXPERTD_DEVICE defaults to cpu, also on a machine with a GPU: most tests compare bits of the CPU's arithmetic.
    """
    keep = {name: os.environ[name] for name in ("EXPERTD_DEVICE", "PATH", "LANG", "LC_ALL", "TMPDIR") if name in os.environ}
    return {"EXPERTD_DEVICE": "cpu", **keep, "HOME": "/nonexistent", **sanitizer_environment(), **(extra or {})}


@functools.cache
def has_amx():
    return " amx_bf16 " in pathlib.Path("/proc/cpuinfo").read_text()


def numerics_environment(arguments, env):
    """On a CPU with AMX: the arithmetic of other CPUs, unless the test chooses one. Most tests compare bits of it."""
    chosen = any(str(argument).split("=")[0] in ("--device", "--kernels", "--numerics") for argument in arguments)
    chosen = chosen or "EXPERTD_DEVICE" in os.environ or any(f"EXPERTD_{name}" in (env or {}) for name in ("DEVICE", "KERNELS", "NUMERICS"))
    return {} if chosen or not has_amx() else {"EXPERTD_NUMERICS": "portable"}


def run_program(program, *arguments, env=None, timeout=PROGRAM_SECONDS, stdout=subprocess.PIPE, **options):
    """Runs a program of the build to its end. Returns the CompletedProcess; output is text."""
    env = numerics_environment(arguments, env) | (env or {})
    return subprocess.run([str(BIN / program), *map(str, arguments)], env=clean_environment(env), timeout=timeout,
                          stdout=stdout, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL, **options)


class Daemon:
    def __init__(self, *arguments, model=None, listen=None, http="127.0.0.1:0", env=None, wait=True, tcp=True, prefix=(),
                 program="expertd"):
        self.folder = tempfile.TemporaryDirectory(prefix="expertd-e2e-")
        self.socket = os.path.join(self.folder.name, "expertd.sock")
        self.command = [*map(str, prefix), str(BIN / program)]
        if model is not None:
            self.command += ["--model", str(model)]
        for address in listen if listen is not None else [f"unix:{self.socket}"] + (["127.0.0.1:0"] if tcp else []):
            self.command += ["--listen", address.replace("{folder}", self.folder.name)]
        self.command += ["--http", http, *map(str, arguments)]
        self.lines, self._more, self._ended = [], threading.Condition(), False
        env = numerics_environment(arguments, env) | (env or {})
        self.process = subprocess.Popen(self.command, env=clean_environment(env), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if wait:
            try:
                self.wait_for("ready")
            except BaseException:
                self.kill()
                raise

    def _read(self):
        for line in self.process.stderr:
            with self._more:
                self.lines.append(line.rstrip("\n"))
                self._more.notify_all()
        with self._more:
            self._ended = True
            self._more.notify_all()

    # ---- the log

    @property
    def log(self):
        with self._more:
            return "\n".join(self.lines)

    def events(self, name):
        """The key=value pairs of each log line with event=NAME."""
        with self._more:
            lines = list(self.lines)
        found = []
        for line in lines:
            pairs = {key: value[1:-1] if value.startswith('"') else value for key, value in PAIR.findall(line)}
            if pairs.get("event") == name:
                found.append(pairs)
        return found

    def wait_for(self, event, seconds=READY_SECONDS, count=1):
        with self._more:  # the lock is held between a check and its wait, so that no line is missed
            self._more.wait_for(lambda: self._ended or len(self.events(event)) >= count, seconds)
            found = self.events(event)
        assert len(found) >= count, f"no event={event} within {seconds} s\n{shlex.join(self.command)}\n{self.log}"
        return found[count - 1]

    # ---- addresses

    @property
    def tcp(self):
        return next(e["address"] for e in self.events("listening") if not e["address"].startswith("unix:"))

    @property
    def http(self):
        return self.events("http")[0]["address"]

    def get(self, path, method="GET"):
        """(status, body) of an HTTP request."""
        request = urllib.request.Request(f"http://{self.http}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=CALL_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name, *labels):
        """The sum of a metric's samples that have all the labels, written as on the page: method="Forward"."""
        total = 0.0
        for line in self.get("/metrics")[1].splitlines():
            if re.split(r"[{ ]", line)[0] == name and all(label in line for label in labels):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def wait_metric(self, name, value, seconds=10 * SLOW):
        deadline = time.monotonic() + seconds
        while self.metric(name) != value:
            assert time.monotonic() < deadline, f"{name} is {self.metric(name)}, not {value}, after {seconds} s"
            time.sleep(0.02)

    def wait_queued(self, requests):
        """Waits until this many requests are admitted and not answered."""
        self.wait_metric("expertd_queue_requests", requests)

    # ---- calls

    def channel(self, tcp=False, options=()):
        return grpc.insecure_channel(self.tcp if tcp else f"unix:{self.socket}", options=CHANNEL_OPTIONS + list(options))

    def client(self, **options):
        return Client(self.channel(**options))

    # ---- the process

    def memory(self):
        """Resident bytes, threads and open descriptors."""
        status = open(f"/proc/{self.process.pid}/status").read()
        read = lambda key: int(re.search(rf"^{key}:\s+(\d+)", status, re.M).group(1))
        return {"rss": read("VmRSS") * 1024, "peak": read("VmHWM") * 1024, "threads": read("Threads"),
                "fds": len(os.listdir(f"/proc/{self.process.pid}/fd"))}

    @contextlib.contextmanager
    def no_descriptors(self):
        """Within this context the daemon cannot open a descriptor. The limit is 3, as 0, 1 and 2 stay open for the daemon's life. A higher
        limit would leave a descriptor as soon as an earlier connection is closed."""
        open_now = set(map(int, os.listdir(f"/proc/{self.process.pid}/fd")))
        assert open_now >= {0, 1, 2}, open_now
        before = resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            yield
        finally:
            resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, before)

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(5)
        self.process.stderr.close()
        self.folder.cleanup()

    def wait_exit(self, seconds=STOP_SECONDS):
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the daemon did not end within {seconds} s\n{self.log}") from None
        self._reader.join(5)
        return status

    def stop(self, expected=0):
        """Sends SIGTERM, then checks the exit status, the log for sanitizer reports, and that no socket is left."""
        try:
            if self.process.poll() is None:
                self.signal()
            status = self.wait_exit()
            assert not any(sign in self.log for sign in SANITIZER_SIGNS), self.log
            assert status == expected, f"exit status {status}, expected {expected}\n{self.log}"
            assert os.listdir(self.folder.name) == [], "the daemon left files in its socket's folder"
        finally:
            self.kill()


class Feed:
    """An iterator of requests that keeps its stream open until close()."""

    def __init__(self, *requests):
        self._queue = queue.Queue()
        for item in requests:
            self.send(item)

    def send(self, item):
        self._queue.put(item)

    def close(self):
        self._queue.put(None)

    def __iter__(self):
        return iter(self._queue.get, None)


class Client:
    """A client of the Experts service. Every call has a deadline."""

    def __init__(self, channel):
        self.channel = channel
        self.stub = rpc.ExpertsStub(channel)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()

    def describe(self, model="", **options):
        return self.stub.Describe(pb.DescribeRequest(model=model), timeout=CALL_SECONDS, **options)

    def forward(self, request=None, timeout=CALL_SECONDS, **fields):
        return self.stub.Forward(request or pb.ForwardRequest(**fields), timeout=timeout)

    def stream(self, requests, timeout=CALL_SECONDS):
        return self.stub.Stream(iter(requests), timeout=timeout)

    def raw(self, method, data, timeout=CALL_SECONDS, **options):
        """A unary call that sends and returns raw bytes."""
        call = self.channel.unary_unary(f"/expertd.v1.Experts/{method}", request_serializer=lambda b: b,
                                        response_deserializer=lambda b: b)
        return call(data, timeout=timeout, **options)
