"""Floods of connections to every address, with and without an HTTP/2 preface: existing connections stay, new callers are served where
possible, and the daemon recovers."""

import contextlib
import resource
import socket

import grpc
import numpy as np
import pytest

from harness.daemon import Feed, run_program
from harness.errors import failure_of_call
from harness.paths import SLOW
from harness.protos import pb, rpc
from harness.tensors import tensor
from harness.waiting import eventually, is_closed

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
REQUEST = pb.ForwardRequest(layer=1, hidden=tensor(np.ones((2, 96))))
BOTH = ("127.0.0.1:0", "[::1]:0")


@pytest.fixture(autouse=True, scope="module")
def descriptors():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def daemon_of(start_daemon, case):
    def start(*arguments, listen=BOTH, **options):
        daemon = start_daemon(*arguments, model=case("qwen2_moe").folder, listen=[*listen], **options)
        daemon.addresses = [event["address"] for event in daemon.events("listening")]
        return daemon

    return start


def dial(address):
    if address.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address[len("unix:"):])
        return connection
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host.strip("[]"), int(port)))


@contextlib.contextmanager
def flood(address, count, sends=b""):
    with contextlib.ExitStack() as stack:
        connections = []
        for _ in range(count):
            connections.append(stack.enter_context(dial(address)))
            with contextlib.suppress(OSError):  # the daemon may have closed it
                connections[-1].sendall(sends)
        yield connections


def stub_of(address, stack):
    channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)])
    stack.callback(channel.close)
    return channel.unary_unary("/expertd.v1.Experts/Forward", request_serializer=pb.ForwardRequest.SerializeToString,
                               response_deserializer=pb.ForwardResponse.FromString)


def is_served(address, timeout=5 * SLOW):
    """Is a call on a new connection answered?"""
    with contextlib.ExitStack() as stack:
        try:
            return bool(stub_of(address, stack)(REQUEST, timeout=timeout).output.data)
        except grpc.RpcError as error:
            assert failure_of_call(error).code in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
            return False


def turned_away(daemon):
    return daemon.metric("expertd_refused_total", 'reason="connections"')


@pytest.mark.threads
@pytest.mark.parametrize("sends", [b"", PREFACE[:23]], ids=["silent", "half a preface"])
@pytest.mark.parametrize("family", [0, 1], ids=["ipv4", "ipv6"])
def test_silent_connections_keep_no_caller_out(daemon_of, family, sends):
    """More silent connections than --max-connections: for each new connection the oldest silent one is closed."""
    daemon = daemon_of("--max-connections", 50)
    address = daemon.addresses[family]
    with contextlib.ExitStack() as stack:
        old = stub_of(address, stack)
        assert old(REQUEST).output.data
        with flood(address, 300, sends):
            eventually(lambda: turned_away(daemon) >= 250)
            assert is_served(address), "a new caller is not served during the flood"
            assert old(REQUEST).output.data, "an existing connection is no longer served"
            assert daemon.metric("expertd_open_connections") <= 50
            assert is_served(daemon.addresses[1 - family]), "the other address is not served: its limit must be separate"
        eventually(lambda: daemon.metric("expertd_open_connections") <= 2)
        assert daemon.events("connections_full")


@pytest.mark.threads
@pytest.mark.parametrize("family", [0, 1], ids=["ipv4", "ipv6"])
def test_http2_connections_fill_only_their_address(daemon_of, family):
    daemon = daemon_of("--max-connections", 20)
    address = daemon.addresses[family]
    with contextlib.ExitStack() as stack:
        old = stub_of(address, stack)
        assert old(REQUEST).output.data
        with flood(address, 60, PREFACE) as connections:
            eventually(lambda: turned_away(daemon) >= 41)
            assert sum(is_closed(connection) for connection in connections) == 41, "connections over the limit must be closed at once"
            assert not is_served(address, timeout=1 * SLOW)
            assert old(REQUEST).output.data, "an existing connection is no longer served"
        eventually(lambda: is_served(address, timeout=1 * SLOW))


@pytest.mark.threads
def test_a_drain_keeps_the_counts_of_open_and_refused_connections(daemon_of):
    """The drain lasts as long as a client does not read its answers, which are more than a connection buffers."""
    daemon = daemon_of("--max-connections", 2, "--send-timeout-ms", 600_000, "--drain-timeout-ms", 600_000,
                       listen=("127.0.0.1:0", "unix:{folder}/s.sock"))
    options = [("grpc.http2.lookahead_bytes", 65536), ("grpc.http2.bdp_probe", 0)]
    counts = lambda: (turned_away(daemon), daemon.metric("expertd_open_connections"))
    with grpc.insecure_channel(daemon.addresses[1], options=options) as lazy:
        large = pb.ForwardRequest(layer=1, hidden=tensor(np.ones((4000, 96))))
        call = rpc.ExpertsStub(lazy).Stream(iter(Feed(*[large] * 6)))
        eventually(lambda: daemon.metric("expertd_calls_total", 'method="Stream"') > 0)
        with flood(daemon.addresses[0], 6, PREFACE):
            eventually(lambda: counts() == (4, 3))
            daemon.signal()
            eventually(lambda: daemon.metric("expertd_draining") == 1)
            assert counts() == (4, 3)
        eventually(lambda: counts() == (4, 1))
        call.cancel()
        assert daemon.wait_exit() == 0


@pytest.mark.threads
def test_the_daemon_survives_without_descriptors_and_recovers(daemon_of):
    """The descriptor limit falls while the daemon serves, as if other files had used all descriptors."""
    daemon = daemon_of(listen=(*BOTH, "unix:{folder}/s.sock"))
    unix = daemon.addresses[2]
    with contextlib.ExitStack() as stack:
        old = [stub_of(address, stack) for address in daemon.addresses]
        assert all(stub(REQUEST).output.data for stub in old)
        _, hard = resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (daemon.memory()["fds"] + 8, hard))
        with contextlib.ExitStack() as floods:
            for address in daemon.addresses:
                floods.enter_context(flood(address, 100, PREFACE))
            daemon.wait_for("accept_failed")
            assert all(stub(REQUEST).output.data for stub in old), "an existing connection is no longer served"
        for address in daemon.addresses:
            eventually(lambda: is_served(address, timeout=1 * SLOW))
        assert daemon.get("/health/ready")[0] == 200
        done = run_program("expertctl", "--address", unix, "placement", "show")
        assert done.returncode == 0, done.stderr


@pytest.mark.threads
def test_connections_are_bounded_by_the_descriptor_limit(daemon_of):
    daemon = daemon_of(prefix=("prlimit", "--nofile=300:300"))
    (lowered,) = daemon.events("max_connections_lowered")
    assert lowered["from"] == "1024" and int(lowered["to"]) == 75  # half of the 300 descriptors, shared by two addresses
    with flood(daemon.addresses[0], 400, PREFACE), flood(daemon.addresses[1], 400, PREFACE):
        eventually(lambda: turned_away(daemon) >= 650)
        assert daemon.get("/health/ready")[0] == 200, "HTTP is not served: its descriptors must be reserved"
    assert not daemon.events("accept_failed")
    for address in daemon.addresses:
        eventually(lambda: is_served(address, timeout=1 * SLOW))


def test_a_probe_is_answered_among_silent_http_connections(daemon_of):
    daemon = daemon_of()
    host, port = daemon.http.rsplit(":", 1)
    with contextlib.ExitStack() as silent:
        for _ in range(64):
            silent.enter_context(socket.create_connection((host, int(port))))
        eventually(lambda: daemon.get("/health/live")[0] == 200, seconds=5 * SLOW)  # before the silent connections time out


@pytest.mark.threads
def test_the_daemon_recovers_from_floods_of_http_and_admin_connections(daemon_of):
    daemon = daemon_of(listen=(BOTH[0], "unix:{folder}/s.sock"))
    admin = daemon.events("admin")[0]["address"]
    show = lambda: run_program("expertctl", "--address", daemon.addresses[1], "placement", "show").returncode == 0
    with flood(daemon.http, 200), flood(admin, 100):
        assert show(), "silent connections must be closed first"
        assert all(is_served(address) for address in daemon.addresses)
    eventually(lambda: daemon.get("/health/ready")[0] == 200)
    assert show()


def test_the_log_names_the_peers_addresses(daemon_of):
    daemon = daemon_of("--log-level", "debug", listen=(*BOTH, "unix:{folder}/s.sock"))
    assert all(is_served(address) for address in daemon.addresses)
    daemon.wait_for("connected", count=3)
    peers = [event["peer"] for event in daemon.events("connected")]
    assert [peer.rsplit(":", 1)[0] for peer in peers[:2]] == ["ipv4:127.0.0.1", "ipv6:[::1]"]
    assert peers[2].startswith("unix:uid=")


@pytest.mark.parametrize("family", [0, 1], ids=["ipv4", "ipv6"])
def test_an_address_in_use_is_refused_with_69(daemon_of, start_daemon, case, family):
    taken = daemon_of().addresses[family]
    second = start_daemon(model=case("qwen2_moe").folder, listen=[taken], wait=False)
    assert second.wait_exit() == 69
    assert f"cannot listen on {taken}: another program listens there" in second.log
