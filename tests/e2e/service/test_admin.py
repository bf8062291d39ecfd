"""The admin socket: permissions, its methods, drain, and the expertctl commands that use it."""

import concurrent.futures
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time

import grpc
import pytest

from harness import slow
from harness.admin import admin_of, admin_socket, placement_of
from harness.daemon import clean_environment, run_program
from harness.errors import raises
from harness.paths import BIN, SANITIZER, SLOW
from harness.protos import admin_pb, admin_rpc

ADMIN_METHODS = ("ShowPlacement", "PlanPlacement", "ApplyPlacement", "Drain", "GetLoad")
# Takes a second or more to load on current machines.
LARGE = "synthetic:qwen3-30b-a3b," + {"": "layers=2", "asan": "layers=1,experts=64", "tsan": "layers=1,experts=16"}[SANITIZER]


# ---- the socket


def test_the_socket_is_for_its_owner_alone_and_gone_afterwards(case, start_daemon):
    daemon = start_daemon("--allow-uids", "any", model=case("mixtral").folder)
    mode = os.stat(admin_socket(daemon)).st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600, oct(mode)
    assert daemon.events("admin")[0]["address"] == f"unix:{admin_socket(daemon)}"
    with daemon.client() as client:
        assert f"admin:unix:{admin_socket(daemon)}" in client.describe().features
    daemon.stop()
    assert not os.path.exists(admin_socket(daemon)) and not os.path.exists(admin_socket(daemon) + ".lock")


FOREIGN = """
import os, socket, sys
os.setgid(65534)
os.setuid(65534)
with socket.socket(socket.AF_UNIX) as peer:
    peer.settimeout(10)
    try:
        peer.connect(sys.argv[1])
        peer.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + b"\\0\\0\\0\\4\\0\\0\\0\\0\\0")
        print("closed" if peer.recv(1) == b"" else "served")
    except PermissionError:
        print("no permission")
    except (BrokenPipeError, ConnectionResetError):
        print("closed")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused_by_the_file_and_by_the_daemon(case, start_daemon):
    daemon = start_daemon("--allow-uids", "any", model=case("mixtral").folder)
    os.chmod(daemon.folder.name, 0o755)

    def foreign(path):
        return subprocess.run([sys.executable, "-c", FOREIGN, path], text=True, stdout=subprocess.PIPE, timeout=60).stdout.strip()

    assert foreign(daemon.socket) == "served", "any user may connect to the public socket"
    assert foreign(admin_socket(daemon)) == "no permission"
    os.chmod(admin_socket(daemon), 0o666)  # as an operator might do by mistake
    assert foreign(admin_socket(daemon)) == "closed"
    with admin_of(daemon) as admin, raises("UNIMPLEMENTED"):
        admin.raw("Nothing")  # the daemon's own user is still served


def test_without_a_unix_socket_or_when_switched_off_there_is_none(case, start_daemon):
    daemon = start_daemon("--admin", "off", model=case("mixtral").folder)
    assert not [name for name in os.listdir(daemon.folder.name) if "admin" in name]
    with daemon.client() as client:
        assert not [feature for feature in client.describe().features if feature.startswith("admin")]
    tcp = start_daemon(model=case("mixtral").folder, listen=["127.0.0.1:0"])
    assert not tcp.events("admin")


def test_the_socket_is_found_from_any_folder(case, tmp_path, start_daemon):
    """The daemon was started with a relative socket path."""
    daemon = start_daemon(model=case("mixtral").folder, listen=["unix:d.sock"], prefix=("env", "-C", tmp_path))
    done = run_program("expertctl", "--address", f"unix:{tmp_path}/d.sock", "placement", "show", "--json")
    assert done.returncode == 0, done.stderr
    done = run_program("expertctl", "--address", "unix:d.sock", "drain", "--wait", cwd=tmp_path)
    assert done.returncode == 0 and daemon.wait_exit() == 0, done.stderr


def test_two_daemons_in_one_folder_have_separate_sockets(case, start_daemon, tmp_path):
    for name in ("one", "two"):
        start_daemon(model=case("mixtral").folder, listen=[f"unix:{tmp_path}/{name}.sock"])
    assert (tmp_path / "one-admin.sock").is_socket() and (tmp_path / "two-admin.sock").is_socket()


def test_an_admin_socket_in_use_exits_69_and_leaves_the_other_alone(case, start_daemon, tmp_path):
    first = start_daemon(model=case("mixtral").folder)
    done = run_program("expertd", "--model", "synthetic:tiny", "--http", "off", "--listen", f"unix:{tmp_path}/x.sock", "--admin",
                       f"unix:{admin_socket(first)}")
    assert done.returncode == 69 and admin_socket(first) in done.stderr
    with admin_of(first) as admin, raises("UNIMPLEMENTED"):
        admin.raw("Nothing")


# ---- methods of each address


@pytest.mark.parametrize("method", ADMIN_METHODS)
def test_the_public_addresses_have_no_admin_methods(served, method):
    for tcp in (False, True):
        with served.client(tcp=tcp) as client, raises("UNIMPLEMENTED") as raised:
            call = client.channel.unary_unary(f"/expertd.admin.v1.Admin/{method}", request_serializer=lambda b: b,
                                              response_deserializer=lambda b: b)
            call(b"", timeout=10)
        assert "unknown method" in raised.failure.message


@pytest.mark.parametrize("service, method", [("expertd.v1.Experts", "Describe"), ("expertd.v1.Experts", "Forward"),
                                             ("grpc.health.v1.Health", "Check")])
def test_the_admin_socket_has_no_public_methods(served, service, method):
    with admin_of(served) as admin, raises("UNIMPLEMENTED") as raised:
        admin.raw(method, service=service)
    assert "admin socket" in raised.failure.message


def test_requests_that_are_wrong_are_refused_with_the_field(served):
    with admin_of(served) as admin:
        with raises("INVALID_ARGUMENT", "UNKNOWN_FIELD"):
            admin.raw("Drain", b"\x10\x01")
        with raises("INVALID_ARGUMENT", "UNKNOWN_FIELD", "reason"):
            admin.raw("Drain", b"\x0a\x01a\x0a\x01b")
        with raises("INVALID_ARGUMENT", "MALFORMED", "reason"):
            admin.raw("Drain", b"\x0a\x01\xff")
        with raises("INVALID_ARGUMENT", "INVALID", "reason"):
            admin.raw("Drain", admin_pb.DrainRequest(reason="x" * 257).SerializeToString())
        with raises("RESOURCE_EXHAUSTED", "TOO_LARGE"):
            admin.raw("Drain", bytes(5 << 20))
    assert not served.events("drain_asked")


# ---- drain


@pytest.mark.threads
def test_drain_answers_and_then_ends_the_daemon_as_sigterm_does(start_daemon):
    daemon = start_daemon(*slow.OPTIONS, model=slow.MODEL)
    with daemon.client() as client, admin_of(daemon) as admin, concurrent.futures.ThreadPoolExecutor(1) as pool:
        layer = slow.SlowLayer(client)
        running = pool.submit(client.forward, layer.lasting(2))
        daemon.wait_queued(1)
        assert admin.drain(reason='a "new" version').active == 1
        while daemon.get("/health/ready")[1].strip() != "draining":
            time.sleep(0.02)
        assert admin.drain().active == 1, "a second drain is answered and does not end the running request"
        with raises("UNAVAILABLE"):
            client.forward(layer.request(1))
        assert running.result().output.data, "what ran is answered"
    assert daemon.wait_exit() == 0
    assert daemon.events("drain_asked")[0]["reason"].replace("\\", "") == 'a "new" version'
    assert not daemon.events("drain_cancelled")


def test_drain_while_loading_answers_and_exits_0(start_daemon):
    daemon = start_daemon(model=LARGE, wait=False)
    daemon.wait_for("admin")
    with admin_of(daemon) as admin:
        with raises("UNAVAILABLE", "LOADING"):
            admin.show()
        admin.drain(reason="wrong model")
    assert daemon.wait_exit() == 0
    assert not daemon.events("ready")


def test_an_idle_admin_connection_and_a_call_without_a_message_do_not_delay_the_exit(case, start_daemon):
    daemon = start_daemon(model=case("mixtral").folder)
    with admin_of(daemon) as idle, admin_of(daemon) as admin:
        grpc.channel_ready_future(idle.channel).result(10 * SLOW)
        never = threading.Event()
        call = admin.channel.stream_unary("/expertd.admin.v1.Admin/ShowPlacement", request_serializer=lambda b: b,
                                          response_deserializer=lambda b: b)
        waiting = call.future(iter(lambda: never.wait() or b"", None))  # a call that sends no message
        time.sleep(0.3)
        begun = time.monotonic()
        daemon.stop()
        assert time.monotonic() - begun < 10 * SLOW
        never.set()
        assert waiting.exception() is not None


# ---- expertctl


def ctl(daemon, *arguments, **options):
    return run_program("expertctl", "--address", f"unix:{daemon.socket}", *arguments, **options)


def test_expertctl_drain_finds_the_admin_socket_and_waits(case, start_daemon):
    daemon = start_daemon(model=case("mixtral").folder)
    done = ctl(daemon, "drain", "--reason", "upgrade", "--wait", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"address": f"unix:{admin_socket(daemon)}", "active": 0, "ended": True}
    assert daemon.process.wait(5) == 0, "expertctl returns after the daemon has ended"
    assert daemon.events("drain_asked")[0]["reason"] == "upgrade"


def test_expertctl_drain_names_what_is_wrong(case, start_daemon, tmp_path):
    daemon = start_daemon("--admin", "off", model=case("mixtral").folder)
    done = ctl(daemon, "drain")
    assert done.returncode == 69 and "no admin socket" in done.stderr
    done = run_program("expertctl", "--address", daemon.tcp, "drain")
    assert done.returncode == 69 and "no admin socket" in done.stderr
    other = start_daemon(model=case("mixtral").folder)
    done = run_program("expertctl", "--address", other.tcp, "drain")
    assert done.returncode == 64 and f"give --admin {other.events('admin')[0]['address']}" in done.stderr
    done = ctl(daemon, "drain", "--admin", f"unix:{tmp_path}/none.sock", "--timeout", "2")
    assert done.returncode == 69 and f"{tmp_path}/none.sock" in done.stderr
    done = ctl(daemon, "drain", "--admin", f"unix:{daemon.socket}", "--timeout", "5")
    assert done.returncode == 70 and "unknown method" in done.stderr, "the public socket has no Drain"
    assert daemon.process.poll() is None


# Answers like a daemon with two MoE layers, three experts and two ranks.
class FakeAdmin(admin_rpc.AdminServicer):
    def __init__(self):
        self.plans, self.applied, self.cancelled = [], [], threading.Event()
        self.hold = False

    def ShowPlacement(self, request, context):
        layers = list(request.layers) or [1, 5]
        return admin_pb.ShowPlacementResponse(
            placements=[placement_of(layer, 7, 2, [[0], [0], [1]], [90, 10, 20], 1.667) for layer in layers])

    def PlanPlacement(self, request, context):
        self.plans.append(request)
        now = placement_of(5, 7, 2, [[0], [0], [1]], [90, 10, 20], 1.667)
        planned = placement_of(5, 7, 2, [[0, 1], [0], [1]], [90, 10, 20], 1.083)
        return admin_pb.PlanPlacementResponse(plans=[admin_pb.Plan(now=now, planned=planned, copies=1, copy_bytes=3 << 20)])

    def ApplyPlacement(self, request, context):
        self.applied.append(request.placement)
        context.add_callback(self.cancelled.set)
        if request.placement.epoch != 7:
            context.abort(grpc.StatusCode.UNAVAILABLE, "planned from another epoch")
        yield admin_pb.ApplyPlacementResponse(moved_bytes=1 << 20, all_bytes=3 << 20, moved_experts=1, all_experts=3)
        while self.hold and context.is_active():
            time.sleep(0.01)
        yield admin_pb.ApplyPlacementResponse(moved_bytes=3 << 20, all_bytes=3 << 20, moved_experts=3, all_experts=3, done=True,
                                              epoch=8)


@pytest.fixture
def fake(tmp_path):
    servicer = FakeAdmin()
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    admin_rpc.add_AdminServicer_to_server(servicer, server)
    servicer.address = f"unix:{tmp_path}/admin.sock"
    server.add_insecure_port(servicer.address)
    server.start()
    yield servicer
    server.stop(0).wait()


def placement(fake, *arguments):
    return run_program("expertctl", "placement", "--admin", fake.address, *arguments)


def test_placement_show_prints_layers_and_one_layers_ranks(fake):
    done = placement(fake, "show")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["LAYER", "EPOCH", "RANKS", "EXPERTS", "REPLICAS", "ROWS", "IMBALANCE"]
    assert [line.split() for line in lines[1:]] == [["1", "7", "2", "3", "0", "120", "1.667"], ["5", "7", "2", "3", "0", "120", "1.667"]]
    done = placement(fake, "show", "--layer", "5")
    assert "0-1" in done.stdout and "83.3 %" in done.stdout
    shown = json.loads(placement(fake, "show", "--json").stdout)["layers"]
    assert [layer["layer"] for layer in shown] == [1, 5] and shown[0]["experts"] == [[0], [0], [1]]
    assert shown[0]["rows"] == [90, 10, 20] and shown[0]["epoch"] == 7


def test_placement_plan_writes_a_plan_that_apply_reads(fake, tmp_path):
    counts, plan = tmp_path / "counts.json", tmp_path / "plan.json"
    counts.write_text(placement(fake, "show", "--json").stdout)
    done = placement(fake, "plan", "--layer", "5", "--policy", "balanced", "--replicas", "1", "--counts", counts, "--output", plan)
    assert done.returncode == 0, done.stderr
    request = fake.plans[-1]
    assert list(request.layers) == [5] and request.replicas == 1 and request.policy == admin_pb.POLICY_BALANCED
    assert [(c.layer, list(c.rows)) for c in request.counts] == [(1, [90, 10, 20]), (5, [90, 10, 20])]
    row = done.stdout.splitlines()[1]
    assert all(figure in row for figure in ("1.667", "1.083", "3.0 MiB")), done.stdout
    done = placement(fake, "apply", plan)
    assert done.returncode == 0, done.stderr
    assert fake.applied[-1] == placement_of(5, 7, 2, [[0, 1], [0], [1]])
    assert "layer 5: 3 of 3 experts, 3.0 MiB of 3.0 MiB" in done.stderr and done.stdout.splitlines()[1].split()[:3] == ["5", "8", "3"]
    applied = json.loads(placement(fake, "apply", plan, "--json").stdout)["layers"]
    assert applied == [{"layer": 5, "epoch": 8, "moved_experts": 3, "moved_bytes": 3 << 20}]


def test_placement_apply_reports_the_layers_in_force(fake, tmp_path):
    plan = tmp_path / "plan.json"
    layers = [{"layer": layer, "epoch": epoch, "ranks": 2, "experts": [[0], [1]]} for layer, epoch in ((1, 7), (5, 6))]
    plan.write_text(json.dumps({"layers": layers}))
    done = placement(fake, "apply", plan)
    assert done.returncode != 0 and "layer 5 (1 of 2 layers are in force)" in done.stderr
    plan.write_text('{"layers": [{"layer": 1}]}')
    done = placement(fake, "apply", plan)
    assert done.returncode == 65 and "layers[0]: epoch" in done.stderr
    assert placement(fake, "apply", tmp_path / "none.json").returncode == 65


def test_a_killed_placement_apply_cancels_its_call(fake, tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"layers": [{"layer": 1, "epoch": 7, "ranks": 2, "experts": [[0], [1]]}]}))
    fake.hold = True
    process = subprocess.Popen([BIN / "expertctl", "placement", "--admin", fake.address, "apply", plan], env=clean_environment(),
                               stderr=subprocess.PIPE, text=True)
    assert "1 of 3 experts" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == -signal.SIGINT
    assert fake.cancelled.wait(20), "the call was not cancelled"
    process.stderr.close()
