"""The daemon's life: binding, loading, readiness, drain, exit codes, the log, and the HTTP listener."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time

import grpc
import numpy as np
import pytest

from harness import slow
from harness.checkpoints import copy_case
from harness.daemon import CALL_SECONDS, Client, Daemon, Feed, clean_environment, run_program
from harness.errors import check, failure_of_call, raises
from harness.paths import BIN, ROOT, SANITIZER, SLOW
from harness.protos import pb
from harness.tensors import tensor
from harness.waiting import eventually

# Takes a second or more to load on current machines.
LARGE = "synthetic:qwen3-30b-a3b," + {"": "layers=2", "asan": "layers=1,experts=64", "tsan": "layers=1,experts=16"}[SANITIZER]


def small(layer=1, hidden=96):
    return pb.ForwardRequest(layer=layer, hidden=tensor(np.ones((1, hidden))))


# ---- addresses


def test_a_second_daemon_on_a_live_socket_fails_at_once(served, client):
    begun = time.monotonic()
    done = run_program("expertd", "--model", "synthetic:tiny", "--listen", f"unix:{served.socket}", "--http", "off")
    assert done.returncode == 69 and time.monotonic() - begun < 10 * SLOW
    assert served.socket in done.stderr
    assert client.forward(small()).output.data, "the first daemon no longer serves"
    with served.client() as fresh:
        assert fresh.forward(small()).output.data, "the socket no longer leads to the first daemon"


def test_a_second_daemon_on_a_live_port_fails_at_once(served):
    done = run_program("expertd", "--model", "synthetic:tiny", "--listen", served.tcp, "--http", "off")
    assert done.returncode == 69 and served.tcp in done.stderr


def test_an_http_port_in_use_exits_69(served):
    done = run_program("expertd", "--model", "synthetic:tiny", "--listen", "127.0.0.1:0", "--http", served.http)
    assert done.returncode == 69 and served.http in done.stderr


def test_a_stale_socket_is_replaced(case, tmp_path, start_daemon):
    path = tmp_path / "stale.sock"
    daemon = start_daemon(model=case("mixtral").folder, listen=[f"unix:{path}"])
    daemon.process.kill()
    daemon.process.wait()
    assert path.exists(), "a killed daemon must have left its socket"
    again = start_daemon(model=case("mixtral").folder, listen=[f"unix:{path}"])
    with grpc.insecure_channel(f"unix:{path}") as channel:
        from harness.protos import rpc
        assert rpc.ExpertsStub(channel).Describe(pb.DescribeRequest(), timeout=10).models
    again.stop()
    assert not path.exists()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path):
    path = tmp_path / "precious"
    path.write_text("keep me")
    done = run_program("expertd", "--model", "synthetic:tiny", "--listen", f"unix:{path}", "--http", "off")
    assert done.returncode == 69 and str(path) in done.stderr and path.read_text() == "keep me"


def test_a_socket_in_no_folder_exits_69(tmp_path):
    done = run_program("expertd", "--model", "synthetic:tiny", "--listen", f"unix:{tmp_path}/none/x.sock", "--http", "off")
    assert done.returncode == 69 and f"{tmp_path}/none/x.sock" in done.stderr


def test_a_socket_path_that_is_too_long_is_refused():
    done = run_program("expertd", "--model", "synthetic:tiny", "--listen", "unix:/tmp/" + "x" * 200, "--http", "off")
    assert done.returncode in (64, 69) and "xxx" in done.stderr


FOREIGN_CLIENT = """
import os, sys
sys.path.insert(0, sys.argv[1])
from harness.protos import pb, rpc
import grpc
os.setgid(65534)
channel = grpc.insecure_channel("unix:" + sys.argv[2])  # imports modules while it has the permission; connects at the first call
os.setuid(65534)
try:
    rpc.ExpertsStub(channel).Describe(pb.DescribeRequest(), timeout=5)
    print("served")
except grpc.RpcError as error:
    print(error.code().name)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("allow, expected", [("self", {"UNAVAILABLE", "PERMISSION_DENIED"}), ("any", {"served"}),
                                             ("0,65534", {"served"}), ("0,1", {"UNAVAILABLE", "PERMISSION_DENIED"})])
def test_peers_of_the_unix_socket_are_checked(allow, expected, case, start_daemon):
    daemon = start_daemon("--allow-uids", allow, model=case("mixtral").folder)
    os.chmod(daemon.folder.name, 0o755)
    done = subprocess.run([sys.executable, "-c", FOREIGN_CLIENT, str(ROOT / "tests" / "e2e"), daemon.socket], text=True,
                          stdout=subprocess.PIPE, timeout=60)
    assert done.stdout.strip() in expected
    with daemon.client() as client:
        assert client.describe().models, "the daemon's own user is not served"


def test_the_socket_is_a_socket_and_gone_afterwards(case, start_daemon):
    daemon = start_daemon(model=case("mixtral").folder)
    assert stat.S_ISSOCK(os.stat(daemon.socket).st_mode)
    daemon.stop()  # asserts that the socket is gone


# ---- loading


def served_after_refusals(client, seconds):
    """Calls without pauses, so that some arrive just as loading ends. Each must be answered or fail with LOADING."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            return client.forward(small(0, 2048))
        except grpc.RpcError as error:
            check(failure_of_call(error), "UNAVAILABLE", "LOADING")
    raise AssertionError(f"still refused after {seconds} s")


@pytest.mark.threads
def test_calls_while_loading_are_answered_loading(start_daemon):
    daemon = start_daemon(model=LARGE, wait=False)
    daemon.wait_for("listening", count=2)
    daemon.wait_for("http")
    with daemon.client() as client:
        with raises("UNAVAILABLE", "LOADING") as raised:
            client.forward(small(0, 2048))
        assert raised.failure.retry_seconds > 0
        assert daemon.get("/health/live")[0] == 200
        assert daemon.get("/health/ready")[0] == 503
        assert not daemon.events("ready"), "the model was loaded too soon for this test"
        assert served_after_refusals(client, 120 * SLOW).output.data
        daemon.wait_for("ready", seconds=120 * SLOW)
        assert daemon.get("/health/ready")[0] == 200
        layer = client.describe().models[0].layers[0].layer
        assert client.forward(small(layer, 2048)).output.data


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_loading_ends_it_at_once(start_daemon, number):
    daemon = start_daemon(model=LARGE, wait=False)
    daemon.wait_for("listening")
    begun = time.monotonic()
    daemon.signal(number)
    assert daemon.wait_exit() == 0
    assert time.monotonic() - begun < 10 * SLOW


# ---- drain


def start_slow(start_daemon, *arguments, **options):
    daemon = start_daemon(*slow.OPTIONS, "--max-message-bytes", 32 << 20, *arguments, model=slow.MODEL, **options)
    client = daemon.client()
    return daemon, client, slow.SlowLayer(client)


@pytest.mark.threads
def test_sigterm_lets_a_running_call_finish_and_refuses_new_ones(start_daemon):
    daemon, client, layer = start_slow(start_daemon)
    expected = client.forward(layer.request(2)).output.data
    running = client.stub.Forward.future(layer.lasting(2.0), timeout=60 * SLOW)
    feed = Feed()
    idle_stream = client.stream(feed, timeout=120 * SLOW)
    daemon.wait_queued(1)
    daemon.signal()
    daemon.wait_metric("expertd_draining", 1)
    with raises("UNAVAILABLE") as raised:
        client.forward(layer.request(1))
    # gRPC may have sent GOAWAY, so that the call fails before the daemon sees it.
    assert raised.failure.reason in ("DRAINING", None)
    assert running.result().output.data[:len(expected)] == expected, "the running call must be answered correctly"
    assert daemon.wait_exit() == 0
    with pytest.raises(grpc.RpcError) as caught:
        next(idle_stream)
    assert failure_of_call(caught.value).code == "UNAVAILABLE"
    feed.close()
    client.channel.close()


@pytest.mark.threads
def test_a_drain_ends_while_streams_keep_sending(start_daemon):
    """Each stream sends a request, which is refused at once, after each answer."""
    for _ in range(4):
        daemon = start_daemon(model="synthetic:tiny")
        with daemon.client() as client:
            feeds = [Feed() for _ in range(8)]

            def run(feed):
                try:
                    feed.send(pb.ForwardRequest(layer=999))
                    for _ in client.stream(feed):
                        feed.send(pb.ForwardRequest(layer=999))
                except grpc.RpcError:
                    pass

            threads = [threading.Thread(target=run, args=(feed,)) for feed in feeds]
            for thread in threads:
                thread.start()
            time.sleep(0.2)
            daemon.signal()
            assert daemon.wait_exit() == 0, daemon.log
            for feed, thread in zip(feeds, threads):
                feed.close()
                thread.join()


@pytest.mark.threads
def test_callers_of_an_idle_daemon_get_unavailable_in_a_drain(start_daemon):
    """The drain of an idle daemon is short. Calls must not fail with another code while gRPC shuts down."""
    codes = []
    for _ in range(4):
        daemon = start_daemon(model="synthetic:tiny")
        request = pb.ForwardRequest(layer=0, hidden=tensor(np.ones((1, 256))), routes=pb.Routes(
            ids=tensor(np.full((1, 1), -1), "I32"), weights=tensor(np.zeros((1, 1)))))

        def run():
            with daemon.client() as client:
                try:
                    while True:
                        client.forward(request)
                except grpc.RpcError as error:
                    codes.append(error.code())

        threads = [threading.Thread(target=run) for _ in range(8)]
        for thread in threads:
            thread.start()
        time.sleep(0.2)
        daemon.signal()
        assert daemon.wait_exit() == 0
        for thread in threads:
            thread.join()
    assert codes == [grpc.StatusCode.UNAVAILABLE] * 32


@pytest.mark.threads
def test_callers_who_retry_get_unavailable_to_the_end_of_a_drain(start_daemon):
    """Unary calls and streams. A call that arrives while gRPC shuts down must not be CANCELLED, which clients do not retry."""
    codes, ended = set(), threading.Event()

    def run(daemon, tcp, streams):
        with daemon.client(tcp=tcp) as client:
            while not ended.is_set():
                try:
                    answers = client.stream([small(0, 256)] * 3) if streams else [client.forward(small(0, 256))]
                    for _ in answers:
                        pass
                except grpc.RpcError as error:
                    codes.add(error.code())
                    time.sleep(0.003)

    for _ in range(4):
        daemon = start_daemon(model="synthetic:tiny")
        ended.clear()
        threads = [threading.Thread(target=run, args=(daemon, number % 2 == 1, number > 3)) for number in range(6)]
        for thread in threads:
            thread.start()
        time.sleep(0.2)
        daemon.signal()
        assert daemon.wait_exit() == 0, daemon.log
        ended.set()
        for thread in threads:
            thread.join()
    assert codes == {grpc.StatusCode.UNAVAILABLE}


def test_an_ignored_sighup_stays_ignored(start_daemon):
    daemon = start_daemon(model="synthetic:tiny", prefix=("nohup",))
    daemon.signal(signal.SIGHUP)
    time.sleep(0.2)
    assert daemon.process.poll() is None and not daemon.events("signal")


@pytest.mark.threads
def test_a_drain_ends_at_its_timeout(start_daemon):
    daemon, client, layer = start_slow(start_daemon, "--drain-timeout-ms", 200)
    running = client.stub.Forward.future(layer.lasting(3.0), timeout=120 * SLOW)
    daemon.wait_queued(1)
    daemon.signal()
    with pytest.raises(grpc.RpcError) as caught:
        running.result()
    assert failure_of_call(caught.value).code in ("UNAVAILABLE", "CANCELLED")
    assert daemon.wait_exit(60 * SLOW) == 0
    client.channel.close()


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.mark.parametrize("sent", [b"", PREFACE[:9], PREFACE, PREFACE + b"\0\0\0\4\0\0\0\0\0"])
def test_silent_connections_do_not_delay_the_exit(case, start_daemon, sent):
    daemon = start_daemon("--drain-timeout-ms", 60000, model=case("mixtral").folder)
    host, port = daemon.tcp.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.connect(daemon.socket)
        tcp.sendall(sent)
        unix.sendall(sent)
        time.sleep(0.2)
        begun = time.monotonic()
        daemon.signal()
        assert daemon.wait_exit() == 0
        assert time.monotonic() - begun < 10 * SLOW
    assert not daemon.events("drain_cancelled"), "no call was running, so none may be cancelled"


def test_repeated_signals_do_not_change_the_exit_status(case, start_daemon):
    """Signals arrive until the process has ended: systemd, a shell and a user may each send one."""
    for _ in range(5):
        daemon = start_daemon(model=case("mixtral").folder)
        while daemon.process.poll() is None:
            daemon.signal()
            daemon.signal(signal.SIGINT)
            time.sleep(0.0002)
        assert daemon.wait_exit() == 0, daemon.log


@pytest.mark.threads
def test_the_deadline_of_a_call_ends_it(start_daemon):
    daemon, client, layer = start_slow(start_daemon)
    with raises("DEADLINE_EXCEEDED"):
        client.forward(layer.lasting(2.0), timeout=0.3)
    daemon.wait_metric("expertd_open_calls", 0)
    assert client.forward(layer.request(1)).output.data
    client.channel.close()


# ---- overload


@pytest.mark.threads
def test_a_full_queue_refuses_at_once_with_a_retry_delay(start_daemon):
    daemon, client, layer = start_slow(start_daemon, "--max-queue", 2)
    running = [client.stub.Forward.future(layer.lasting(1.5), timeout=60 * SLOW) for _ in range(2)]
    daemon.wait_queued(2)
    with raises("RESOURCE_EXHAUSTED", "QUEUE_FULL") as raised:
        client.forward(layer.request(1))
    assert raised.failure.retry_seconds > 0
    assert not running[1].done(), "the refusal came only after a wait"
    assert all(future.result().output.data for future in running)
    assert client.forward(layer.request(1)).output.data
    client.channel.close()


@pytest.mark.threads
def test_cancelled_calls_are_not_computed(start_daemon):
    batch = 64  # each call is a multiple of it, so that no batch has rows of two calls
    daemon, client, layer = start_slow(start_daemon, "--max-batch-tokens", batch, "--max-piece-tokens", batch)
    before = daemon.metric("expertd_tokens_total")
    running, later = (layer.request(max(layer.tokens_in(seconds) // batch, 1) * batch) for seconds in (2.0, 1.0))
    first = client.stub.Forward.future(running, timeout=60 * SLOW)
    daemon.wait_queued(1)
    waiting = [client.stub.Forward.future(later, timeout=60 * SLOW) for _ in range(4)]
    daemon.wait_queued(5)
    for call in waiting:
        call.cancel()
    assert first.result().output.data
    assert client.forward(layer.request(1)).output.data
    # One of them may have started before it was cancelled.
    computed = daemon.metric("expertd_tokens_total") - before
    assert computed <= running.hidden.shape[0] + later.hidden.shape[0] + 1, "cancelled calls were computed"
    client.channel.close()


# ---- systemd


@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
def test_systemd_is_told_ready_and_stopping(case, tmp_path, start_daemon, abstract):
    address = f"\0expertd-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(address)
        notify.settimeout(20 * SLOW)
        daemon = start_daemon(model=case("mixtral").folder, env={"NOTIFY_SOCKET": address.replace("\0", "@")})
        messages = []
        while not any("READY=1" in message for message in messages):
            messages.append(notify.recv(4096).decode())
        assert not any("STOPPING=1" in message for message in messages)
        daemon.signal()
        while not any("STOPPING=1" in message for message in messages):
            messages.append(notify.recv(4096).decode())
        assert daemon.wait_exit() == 0


# ---- the log and HTTP


def test_the_start_up_log_names_the_model_kernels_and_numerics(served):
    for event in ("listening", "http", "ready"):
        assert served.events(event), served.log
    for word in ("qwen2_moe", "kernels=", "numerics"):
        assert word in served.log, word
    assert all("event=" in line for line in served.log.splitlines()), "a line has no event key"


def test_a_name_with_spaces_cannot_forge_log_fields(tmp_path, start_daemon):
    model = copy_case("mixtral", tmp_path).rename(tmp_path / "m level=error event=load_failed x")
    folder = tmp_path / "a event=ready model=z"
    folder.mkdir()
    daemon = start_daemon(model=model, listen=[f"unix:{folder}/d.sock"])
    for event, key, value in (("loaded", "model", model.name), ("ready", "model", model.name),
                              ("listening", "address", f"unix:{folder}/d.sock"), ("admin", "address", f"unix:{folder}/d-admin.sock")):
        assert [pairs[key] for pairs in daemon.events(event)] == [value], daemon.log
    assert not daemon.events("load_failed")


def test_a_full_log_file_does_not_stop_the_daemon(tmp_path):
    """As on a full disk. The file size limit of this test also raises SIGXFSZ, which must not end the process."""
    address, log = f"unix:{tmp_path}/s", tmp_path / "log"
    limit = ("prlimit", "--fsize=300")
    with open(log, "w") as file:
        process = subprocess.Popen([*limit, str(BIN / "expertd"), "--model", "synthetic:tiny", "--listen", address, "--http", "off"],
                                   env=clean_environment(), stderr=file)
    try:
        with Client(grpc.insecure_channel(address)) as client:
            def answers():
                with contextlib.suppress(grpc.RpcError):
                    layer = client.describe().models[0].layers[0]
                    return client.forward(small(layer.layer, layer.hidden_size)).output.data
            grpc.channel_ready_future(client.channel).result(CALL_SECONDS)
            eventually(answers)
        process.terminate()
        assert process.wait(60 * SLOW) == 0
    finally:
        process.kill()
        process.wait()
    assert log.stat().st_size == 300 and "event=ready" not in log.read_text()


def test_http_listens_on_every_address_of_its_name(case, start_daemon):
    daemon = start_daemon(model=case("mixtral").folder, http="localhost:0")
    port = daemon.http.rsplit(":", 1)[1]
    addresses = {found[4][0] for found in socket.getaddrinfo("localhost", None, type=socket.SOCK_STREAM)}
    for address in addresses:
        connection = http.client.HTTPConnection(address, int(port), timeout=CALL_SECONDS)
        connection.request("GET", "/health/live")
        assert connection.getresponse().status == 200, addresses
        connection.close()


def test_http_pages(served, client):
    client.forward(small())
    assert served.get("/health/live")[0] == 200 and served.get("/health/ready")[0] == 200
    status = json.loads(served.get("/api/status")[1])
    assert "qwen2_moe" in json.dumps(status)
    assert [layer["weights"] for layer in status["layers"]] == ["BF16"] and "device" not in status
    assert "<td>BF16, shared bf16<td>" in served.get("/")[1]
    assert served.get("/nothing")[0] == 404
    assert served.get("/metrics", method="POST")[0] == 405
    assert served.get("/health/live", method="HEAD")[1] == ""


def test_every_call_is_counted_by_its_method_and_code(served, client):
    stub = client.stub
    calls = lambda method, code: served.metric("expertd_calls_total", f'method="{method}"', f'code="{code}"')
    counted = [("Describe", "OK"), ("Describe", "NOT_FOUND"), ("OpenRegion", "OK"), ("OpenRegion", "INVALID_ARGUMENT"),
               ("CloseRegion", "NOT_FOUND")]
    before = [calls(*labels) for labels in counted]
    client.describe()
    stub.OpenRegion(pb.OpenRegionRequest(bytes=4096), timeout=CALL_SECONDS)
    for call, code in ((lambda: client.describe("another"), "NOT_FOUND"),
                       (lambda: client.raw("OpenRegion", b"\xff"), "INVALID_ARGUMENT"),
                       (lambda: stub.CloseRegion(pb.CloseRegionRequest(region=1), timeout=CALL_SECONDS), "NOT_FOUND")):
        with raises(code):
            call()
    assert [calls(*labels) for labels in counted] == [count + 1 for count in before]


@pytest.mark.parametrize("refused, status", ((b"HEAD /%b HTTP/1.1\r\n" % (b"x" * 2000), 414),
                                             (b"HEAD / HTTP/1.1\r\nContent-Length: 3\r\n", 413)))
def test_the_answer_to_a_refused_head_has_no_body(served, refused, status):
    host, port = served.http.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=CALL_SECONDS) as connection:
        connection.sendall(refused + b"Host: a\r\n\r\n")
        answer = b""
        while part := connection.recv(4096):
            answer += part
    assert answer.startswith(b"HTTP/1.1 %d " % status) and b"\r\nContent-Length: " in answer
    assert answer.endswith(b"\r\n\r\n") and answer.count(b"\r\n\r\n") == 1, answer


def test_metrics_count_tokens_and_calls(served, client):
    before = served.metric("expertd_tokens_total")
    client.forward(layer=1, hidden=tensor(np.ones((7, 96))))
    with raises("NOT_FOUND"):
        client.forward(layer=9)
    text = served.get("/metrics")[1]
    assert served.metric("expertd_tokens_total") == before + 7
    assert served.metric("expertd_calls_total", 'method="Forward"', 'code="NOT_FOUND"') >= 1
    for line in text.splitlines():
        assert line.startswith("#") or len(line.rsplit(" ", 1)) == 2 and float(line.rsplit(" ", 1)[1]) is not None
    for name in ("expertd_calls_total", "expertd_tokens_total", "expertd_open_calls", "expertd_queue_requests", "expertd_stage_seconds"):
        assert f"# TYPE {name} " in text


def test_process_metrics_are_correct_without_descriptors(served):
    """A connected monitor reads the process metrics while the daemon cannot open a file."""
    host, port = served.http.rsplit(":", 1)
    with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=CALL_SECONDS)) as monitor:

        def metric(name):
            monitor.request("GET", "/metrics")
            return int(re.search(rf"^expertd_{name} (\d+)$", monitor.getresponse().read().decode(), re.M).group(1))

        def agrees():
            memory = served.memory()
            return metric("open_fds") == memory["fds"] and metric("threads") == memory["threads"]

        eventually(agrees)
        with served.no_descriptors():
            eventually(agrees)
            assert metric("resident_memory_bytes") > 1 << 20
            monitor.request("GET", "/api/status")
            assert json.loads(monitor.getresponse().read())["resident_bytes"] > 1 << 20


def test_http_withstands_slow_and_malformed_requests(served):
    host, port = served.http.rsplit(":", 1)
    malformed = [b"GARBAGE\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"a" * 100000 + b"\r\n\r\n", b"\0" * 1000, b"GET /\r\n\r\n",
            b"GET " + b"/" * 50000 + b" HTTP/1.1\r\n\r\n"]
    held = [socket.create_connection((host, int(port))) for _ in range(100)]
    try:
        for data in malformed:
            with socket.create_connection((host, int(port))) as connection:
                connection.settimeout(15 * SLOW)
                try:
                    connection.sendall(data)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):
                        pass
                except OSError:
                    pass
    finally:
        for connection in held:
            connection.close()
    deadline = time.monotonic() + 15 * SLOW
    while True:
        try:
            if served.get("/health/live")[0] == 200:
                return
        except OSError:
            pass  # refused: the connections held above are still being closed
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_http_may_be_off(case, start_daemon):
    daemon = start_daemon(model=case("mixtral").folder, http="off")
    assert not daemon.events("http")


# ---- the hub cache


def test_org_name_is_found_in_the_local_cache(case, tmp_path, start_daemon):
    """A snapshot holds links to blobs, as in the hub's cache. Nothing is downloaded."""
    repository = tmp_path / "models--acme--tiny-moe"
    snapshot = repository / "snapshots" / "abc123"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc123")
    for file in case("mixtral").folder.iterdir():
        if file.name != "golden.safetensors":
            (repository / "blobs" / f"blob-{file.name}").write_bytes(file.read_bytes())
            (snapshot / file.name).symlink_to(f"../../blobs/blob-{file.name}")
    daemon = start_daemon(model="acme/tiny-moe", env={"HF_HUB_CACHE": str(tmp_path)})
    with daemon.client() as client:
        assert client.describe().models[0].name in ("acme/tiny-moe", "tiny-moe")


def test_an_org_name_that_is_not_cached_is_refused_with_the_cache_folder(tmp_path):
    done = run_program("expertd", "--model", "acme/none", "--listen", "127.0.0.1:0", "--http", "off",
                       env={"HF_HUB_CACHE": str(tmp_path)})
    assert done.returncode == 65 and str(tmp_path) in done.stderr


@pytest.mark.threads
def test_many_daemons_start_and_stop_at_once(case):
    """Each daemon has its own socket; they must not share state."""
    faults = []

    def one(index):
        try:
            daemon = Daemon(model=case("mixtral").folder, tcp=bool(index % 2))
            with daemon.client() as client:
                client.forward(small(0, 64))
            daemon.stop()
        except BaseException as error:
            faults.append(repr(error))

    case("mixtral")
    threads = [threading.Thread(target=one, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


def test_the_daemon_needs_no_environment(case, tmp_path):
    """Without XDG_RUNTIME_DIR and RUNTIME_DIRECTORY the daemon listens on TCP only. The default port may be in use on this machine."""
    process = subprocess.Popen([str(BIN / "expertd"), "--model", str(case("mixtral").folder), "--http", "off"],
                               env={key: value for key, value in clean_environment().items() if key.endswith("OPTIONS")},
                               stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "event=ready" in line:
                break
        process.terminate()
        lines += process.stderr.readlines()
        text = "".join(lines)
        assert process.wait(30 * SLOW) in (0, 69), text
        assert "unix:" not in "".join(line for line in lines if "event=listening" in line)
        assert "127.0.0.1:7411" in text
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
