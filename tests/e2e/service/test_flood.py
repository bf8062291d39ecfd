"""Floods of connections, silent and speaking, to every address: who is there stays, new callers come in, and all is well afterwards."""

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
            with contextlib.suppress(OSError):  # it may be closed already
                connections[-1].sendall(sends)
        yield connections


def stub_of(address, stack):
    channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)])
    stack.callback(channel.close)
    return channel.unary_unary("/expertd.v1.Experts/Forward", request_serializer=pb.ForwardRequest.SerializeToString,
                               response_deserializer=pb.ForwardResponse.FromString)


def is_served(address, timeout=5 * SLOW):
    """Whether a new connection is."""
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
def test_silent_connections_keep_nobody_out(daemon_of, family, sends):
    """They are more than there is room for, and stay open: the oldest goes for each newcomer."""
    daemon = daemon_of("--max-connections", 50)
    address = daemon.addresses[family]
    with contextlib.ExitStack() as stack:
        old = stub_of(address, stack)
        assert old(REQUEST).output.data
        with flood(address, 300, sends):
            eventually(lambda: turned_away(daemon) >= 250)
            assert is_served(address), "a new caller, in the midst of it"
            assert old(REQUEST).output.data, "who is there stays"
            assert daemon.metric("expertd_open_connections") <= 50
            assert is_served(daemon.addresses[1 - family]), "the other address has room of its own"
        eventually(lambda: daemon.metric("expertd_open_connections") <= 2)
        assert daemon.events("connections_full")


@pytest.mark.threads
@pytest.mark.parametrize("family", [0, 1], ids=["ipv4", "ipv6"])
def test_speaking_connections_fill_their_address_and_no_more(daemon_of, family):
    daemon = daemon_of("--max-connections", 20)
    address = daemon.addresses[family]
    with contextlib.ExitStack() as stack:
        old = stub_of(address, stack)
        assert old(REQUEST).output.data
        with flood(address, 60, PREFACE) as connections:
            eventually(lambda: turned_away(daemon) >= 41)
            assert sum(is_closed(connection) for connection in connections) == 41, "at once, rather than left waiting"
            assert not is_served(address, timeout=1 * SLOW)
            assert old(REQUEST).output.data, "who is there stays"
        eventually(lambda: is_served(address, timeout=1 * SLOW))


@pytest.mark.threads
def test_a_drain_forgets_neither_who_is_there_nor_who_was_turned_away(daemon_of):
    """It lasts as long as somebody does not read his answers, which are more than a connection holds on its way."""
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
def test_without_descriptors_it_goes_on_and_comes_back(daemon_of):
    """The limit falls under the daemon's feet, as when files elsewhere in the process take them all."""
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
            assert all(stub(REQUEST).output.data for stub in old), "who is there stays"
        for address in daemon.addresses:
            eventually(lambda: is_served(address, timeout=1 * SLOW))
        assert daemon.get("/health/ready")[0] == 200
        done = run_program("expertctl", "--address", unix, "placement", "show")
        assert done.returncode == 0, done.stderr


@pytest.mark.threads
def test_connections_are_bounded_by_the_descriptors_there_are(daemon_of):
    daemon = daemon_of(prefix=("prlimit", "--nofile=300:300"))
    (lowered,) = daemon.events("max_connections_lowered")
    assert lowered["from"] == "1024" and int(lowered["to"]) == 75  # of half of them, for two addresses
    with flood(daemon.addresses[0], 400, PREFACE), flood(daemon.addresses[1], 400, PREFACE):
        eventually(lambda: turned_away(daemon) >= 650)
        assert daemon.get("/health/ready")[0] == 200, "HTTP has descriptors of its own"
    assert not daemon.events("accept_failed")
    for address in daemon.addresses:
        eventually(lambda: is_served(address, timeout=1 * SLOW))


def test_a_probe_is_answered_among_http_connections_that_say_nothing(daemon_of):
    daemon = daemon_of()
    host, port = daemon.http.rsplit(":", 1)
    with contextlib.ExitStack() as silent:
        for _ in range(64):
            silent.enter_context(socket.create_connection((host, int(port))))
        eventually(lambda: daemon.get("/health/live")[0] == 200, seconds=5 * SLOW)  # before they are closed for being slow


@pytest.mark.threads
def test_floods_of_http_and_admin_connections_pass(daemon_of):
    daemon = daemon_of(listen=(BOTH[0], "unix:{folder}/s.sock"))
    admin = daemon.events("admin")[0]["address"]
    show = lambda: run_program("expertctl", "--address", daemon.addresses[1], "placement", "show").returncode == 0
    with flood(daemon.http, 200), flood(admin, 100):
        assert show(), "the silent ones go first"
        assert all(is_served(address) for address in daemon.addresses)
    eventually(lambda: daemon.get("/health/ready")[0] == 200)
    assert show()


def test_peers_are_known_by_their_addresses(daemon_of):
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
