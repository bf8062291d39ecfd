"""TLS on the TCP addresses: refusals at the start, who may do what, new certificates under load, and peers that do something else."""

import contextlib
import os
import pathlib
import socket
import ssl
import subprocess
import threading
import time

import grpc
import numpy as np
import pytest

from grpc_health.v1 import health_pb2, health_pb2_grpc
from harness.certificates import LOCAL, Authority, openssl
from harness.daemon import CALL_SECONDS, CHANNEL_OPTIONS, Client, run_program
from harness.errors import failure_of_call
from harness.paths import SLOW
from harness.protos import pb
from harness.tensors import error_per_token, tensor, values_of
from harness.waiting import eventually, is_closed

REQUEST = pb.ForwardRequest(layer=1, hidden=tensor(np.ones((2, 96))))
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


class Pki:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.ca, self.stranger_ca = Authority(folder, "ca"), Authority(folder, "stranger")
        self.server = self.ca.issue(f"{LOCAL},DNS:front.example", name="server")
        self.engine = self.ca.issue("URI:spiffe://example/engine/7,DNS:7.engines.example", name="engine")
        self.operator = self.ca.issue("URI:spiffe://example/operator", name="operator")
        self.nameless = self.ca.issue(None, name="nameless")
        self.stranger = self.stranger_ca.issue("URI:spiffe://example/engine/7", name="stranger")


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture
def serve(start_daemon, case):
    return lambda *arguments, **options: start_daemon(*arguments, model=case("qwen2_moe").folder, **options)


def credentials(ca, own=None):
    key, crt = own.bytes() if own else (None, None)
    return grpc.ssl_channel_credentials(ca.crt.read_bytes(), key, crt)


def dial(daemon, ca, own=None, name=None, address=None):
    """grpcio's client: a TLS implementation (BoringSSL) and an HTTP/2 stack other than the daemon's."""
    options = CHANNEL_OPTIONS + ([("grpc.ssl_target_name_override", name)] if name else [])
    return Client(grpc.secure_channel(address or daemon.tcp, credentials(ca, own), options))


def answer(client, **options):
    with client:
        return client.stub.Forward(REQUEST, timeout=CALL_SECONDS, **options)


def failure(client):
    with client, pytest.raises(grpc.RpcError) as raised:
        client.forward(REQUEST)
    return failure_of_call(raised.value)


# ---- the start

@pytest.mark.parametrize("flags, words", [
    (["--listen", "0.0.0.0:0"], ["listen is 0.0.0.0:0 (flag --listen)", "TLS is off", "set tls_cert and tls_key", "--insecure"]),
    (["--listen", "[::]:0"], ["listen is [::]:0"]),
    (["--listen", "some.host.example:0"], ["which other machines can reach"]),
    (["--http", "0.0.0.0:0"], ["http is 0.0.0.0:0", "neither TLS nor authentication", "--insecure"]),
    (["--admin", "127.0.0.1:0"], ["tls_allow_admins is not set"]),
])
def test_nothing_plain_leaves_the_machine(flags, words):
    done = run_program("expertd", "--model", "synthetic:tiny", *flags)
    assert done.returncode == 78 and all(word in done.stderr for word in words), done.stderr


def test_insecure_allows_it_with_a_warning(serve):
    daemon = serve("--insecure", listen=["0.0.0.0:0", "127.0.0.1:0"], http="0.0.0.0:0")
    warnings = daemon.events("insecure")
    assert [(w["level"], w["option"], w["address"]) for w in warnings] == [
        ("warning", "listen", "0.0.0.0:0"), ("warning", "http", "0.0.0.0:0")]
    with Client(grpc.insecure_channel(f"127.0.0.1:{daemon.tcp.rsplit(':')[-1]}")) as client:
        assert client.forward(REQUEST).output.data


def test_an_insecure_daemon_with_a_certificate_still_speaks_tls(serve, pki):
    daemon = serve("--insecure", *pki.server.flags(), listen=["0.0.0.0:0"], http="0.0.0.0:0")
    assert [w["option"] for w in daemon.events("insecure")] == ["http"]
    assert daemon.events("listening")[0]["tls"] == "true"
    assert answer(dial(daemon, pki.ca, address=f"localhost:{daemon.tcp.rsplit(':')[-1]}")).output.data


def bad_files(pki, folder):
    garbage, encrypted, half = (folder / name for name in ("garbage.pem", "encrypted.key", "half.crt"))
    garbage.write_text("no certificate\n")
    openssl("pkey", "-in", pki.server.key, "-aes128", "-passout", "pass:secret", "-out", encrypted)
    half.write_bytes(pki.server.crt.read_bytes()[:300])
    crt, key, ca = pki.server.crt, pki.server.key, pki.ca.crt
    past, future, client = pki.ca.issue(begins=-86400, expires=-60), pki.ca.issue(begins=86400, expires=2 * 86400), pki.ca.issue(
        usage="clientAuth")
    yield [crt, "/nowhere/tls.key", None], "/nowhere/tls.key: No such file"
    yield [garbage, key, None], f"{garbage} has no certificate"
    yield [half, key, None], f"{half} is damaged or not completely written"
    yield [crt, garbage, None], f"{garbage} has no private key"
    yield [crt, encrypted, None], f"{encrypted} is encrypted"
    yield [crt, pki.engine.key, None], "does not belong to the certificate"
    yield [past.crt, past.key, None], "expired on"
    yield [future.crt, future.key, None], "check the clock"
    yield [client.crt, client.key, None], "lacks serverAuth"
    yield [crt, key, key], f"{key} has no certificate"
    yield [crt, key, ca], None


def test_wrong_files_are_named_at_the_start(pki, tmp_path):
    for (crt, key, client_ca), expected in bad_files(pki, tmp_path):
        flags = ["--tls-cert", crt, "--tls-key", key] + (["--tls-client-ca", client_ca] if client_ca else [])
        checked = run_program("expertd", "--check-config", "--model", "synthetic:tiny", *flags)
        if expected is None:
            assert checked.returncode == 0, checked.stderr
            continue
        assert checked.returncode == 78 and expected in checked.stderr, checked.stderr
        started = run_program("expertd", "--model", "synthetic:tiny", "--listen", "127.0.0.1:0", "--http", "off", *flags)
        assert started.returncode == 78 and "event=start_failed" in started.stderr and expected in started.stderr, started.stderr


# ---- who may do what

def test_tls_gives_the_bits_of_the_golden_layer(serve, case, pki):
    golden = case("qwen2_moe")
    daemon = serve(*pki.server.flags())
    assert [event.get("tls") for event in daemon.events("listening")] == [None, "true"]
    layer = golden.layers[0]
    request = pb.ForwardRequest(id=3, layer=layer, hidden=tensor(golden.get(layer, "input")))
    with dial(daemon, pki.ca) as secure, daemon.client() as local:
        got = secure.forward(request)
        assert error_per_token(values_of(got.output), golden.get(layer, "output")).max() <= golden.bound("bf16")
        assert got.output.data == local.forward(request).output.data
        large = pb.ForwardRequest(layer=layer, hidden=tensor(np.random.default_rng(1).standard_normal((20000, 96))))
        assert secure.forward(large).output.data == local.forward(large).output.data
        assert [a.output.data for a in secure.stream([request] * 3)] == [got.output.data] * 3


def test_expertd_verify_agrees_over_mutual_tls(serve, case, pki):
    daemon = serve(*pki.server.flags(), "--tls-client-ca", pki.ca.crt)
    done = run_program("expertd-verify", "--address", daemon.tcp, "--model", case("qwen2_moe").folder, "--tls-ca", pki.ca.crt,
                       *pki.engine.flags())
    assert done.returncode == 0 and "equal bits" in done.stdout, done.stdout + done.stderr


def test_the_servers_name_and_ca_are_checked_by_clients(serve, pki):
    daemon = serve(*pki.server.flags())
    assert answer(dial(daemon, pki.ca)).output.data  # 127.0.0.1 is in the certificate
    assert answer(dial(daemon, pki.ca, name="front.example")).output.data
    assert failure(dial(daemon, pki.ca, name="other.example")).code == "UNAVAILABLE"
    assert failure(dial(daemon, pki.stranger_ca)).code == "UNAVAILABLE"


def test_mutual_tls_admits_certificates_of_its_ca_only(serve, pki):
    daemon = serve(*pki.server.flags(), "--tls-client-ca", pki.ca.crt)
    assert daemon.events("listening")[1]["tls"] == "mutual"
    for own in (pki.engine, pki.operator, pki.nameless):
        assert answer(dial(daemon, pki.ca, own)).output.data
    for own in (None, pki.stranger):
        assert failure(dial(daemon, pki.ca, own)).code == "UNAVAILABLE"
    with daemon.client() as local:  # Unix sockets stay plain
        assert local.forward(REQUEST).output.data


def health(client, service=""):
    return health_pb2_grpc.HealthStub(client.channel).Check(health_pb2.HealthCheckRequest(service=service), timeout=CALL_SECONDS)


@pytest.mark.parametrize("names, allowed", [
    ("spiffe://example/engine/7", True),
    ("spiffe://example/engine/*", True),
    ("spiffe://example/*/7", True),
    ("other.example,*.engines.example", True),
    ("7.ENGINES.example", True),
    ("spiffe://example/engine/8", False),
    ("spiffe://example/*", False),
    ("*.example", False),
    ("spiffe://other/engine/7,engines.example", False),
])
def test_callers_need_a_listed_name(serve, pki, names, allowed):
    daemon = serve(*pki.server.flags(), "--tls-client-ca", pki.ca.crt, "--tls-allow-callers", names)
    with dial(daemon, pki.ca, pki.engine) as client:
        assert health(client).status == health_pb2.HealthCheckResponse.SERVING  # needs no listed name
    if allowed:
        assert answer(dial(daemon, pki.ca, pki.engine)).output.data
        return
    refused = failure(dial(daemon, pki.ca, pki.engine))
    assert (refused.code, refused.reason) == ("PERMISSION_DENIED", "PERMISSION")
    assert "spiffe://example/engine/7,7.engines.example" in refused.message and "tls_allow_callers" in refused.message
    logged = daemon.wait_for("identity_refused")
    assert (logged["level"], logged["method"]) == ("warning", "expertd.v1.Experts/Forward")
    assert logged["names"] == "spiffe://example/engine/7,7.engines.example"
    refused = failure(dial(daemon, pki.ca, pki.nameless))
    assert "has no DNS name and no URI" in refused.message
    with dial(daemon, pki.ca, pki.engine) as client, pytest.raises(grpc.RpcError) as raised:
        client.describe()
    assert failure_of_call(raised.value).code == "PERMISSION_DENIED"


def test_operators_drain_over_tcp_with_a_listed_name(serve, pki):
    daemon = serve(*pki.server.flags(), "--tls-client-ca", pki.ca.crt, "--tls-allow-admins", "spiffe://example/operator", "--admin",
                   "127.0.0.1:0")
    address = daemon.events("admin")[0]["address"]
    run = lambda own, *rest: run_program("expertctl", "--tls-ca", pki.ca.crt, *own.flags(), *rest)
    refused = run(pki.engine, "--admin", address, "placement", "show")
    assert refused.returncode == 70 and "tls_allow_admins" in refused.stderr and "spiffe://example/engine/7" in refused.stderr
    shown = run(pki.operator, "--admin", address, "placement", "show")
    assert shown.returncode == 0, shown.stderr
    callers = run_program("expertctl", "--tls-ca", pki.ca.crt, *pki.operator.flags(), "--address", daemon.tcp, "status")
    assert callers.returncode == 0, callers.stderr  # without a list every certificate of the CA may call
    assert run(pki.operator, "--admin", address, "drain").returncode == 0
    assert daemon.wait_exit() == 0


# ---- the programs

def test_the_variables_of_expertctl_are_those_of_the_daemon(serve, pki):
    daemon = serve(*pki.server.flags(), "--tls-client-ca", pki.ca.crt)
    variables = {"EXPERTD_ADDRESS": daemon.tcp, "EXPERTD_TLS_CA": str(pki.ca.crt), "EXPERTD_TLS_CERT": str(pki.engine.crt),
                 "EXPERTD_TLS_KEY": str(pki.engine.key)}
    assert run_program("expertctl", "status", env=variables).returncode == 0
    assert run_program("expertctl", "bench", "--duration", "0.3s", "--json", env=variables).returncode in (0, 2)
    assert run_program("expertctl", "models", env=variables | {"EXPERTD_TLS_SERVER_NAME": "front.example"}).returncode == 0
    local = run_program("expertctl", "status", env=variables | {"EXPERTD_ADDRESS": f"unix:{daemon.socket}"})
    assert local.returncode == 0, local.stderr  # a Unix socket is plain, whatever the variables say


def explain(daemon, *flags):
    done = run_program("expertctl", "--address", daemon.tcp, "--timeout", "20", *flags, "status")
    assert done.returncode == 69, done.stderr
    assert "E1" not in done.stderr and "ssl_transport" not in done.stderr  # gRPC's own log lines
    return done.stderr


def test_expertctl_names_cause_and_mend_of_a_failed_handshake(serve, pki):
    daemon = serve(*pki.server.flags(), "--tls-client-ca", pki.ca.crt)
    ca = ["--tls-ca", pki.ca.crt]
    own = pki.engine.flags()
    assert "speaks TLS, and this side plain text: give the CA" in explain(daemon)
    assert "issued by a CA that is not trusted here" in explain(daemon, "--tls-ca", pki.stranger_ca.crt, *own)
    assert "issued by a CA that is not trusted here" in explain(daemon, "--tls", *own)  # the system's CAs
    assert "demands a certificate of its clients" in explain(daemon, *ca)
    assert "did not take the client's certificate" in explain(daemon, *ca, *pki.stranger.flags())
    wrong = explain(daemon, *ca, *own, "--tls-server-name", "back.example")
    assert "names localhost,127.0.0.1,::1,front.example, not back.example" in wrong, wrong
    plain = serve()
    assert "speaks plain text, and this side TLS" in explain(plain, *ca)
    missing = run_program("expertctl", "--address", daemon.tcp, "--tls-ca", "/nowhere/ca.crt", "status")
    assert missing.returncode == 65 and "/nowhere/ca.crt: No such file" in missing.stderr


def test_expertctl_names_an_expired_certificate(serve, pki):
    daemon = serve(*pki.ca.issue(expires=8 * SLOW).flags())
    assert daemon.wait_for("tls_certificate_expired")["level"] == "error"
    assert "has expired" in explain(daemon, "--tls-ca", pki.ca.crt)
    assert daemon.metric("expertd_tls_certificate_expires_seconds") <= 0


# ---- new certificates

def served_serial(address):
    """The serial number of the certificate that a new connection gets."""
    host, port = address.rsplit(":", 1)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, int(port)), 10) as plain, context.wrap_socket(plain) as secure:
        crt = secure.getpeercert(binary_form=True)
    text = subprocess.run(["openssl", "x509", "-inform", "der", "-noout", "-serial"], input=crt, capture_output=True, check=True).stdout
    return text.decode().strip()


def serial_of(issued):
    return subprocess.run(["openssl", "x509", "-in", issued.crt, "-noout", "-serial"], capture_output=True, check=True,
                          text=True).stdout.strip()


class Load:
    """Threads that call on a connection of their own, some on a new one for each call. Counts answers and failures."""

    def __init__(self, daemon, pki, own=None):
        self.stop, self.answers, self.failures = threading.Event(), [0] * 4, []
        self.make = lambda: dial(daemon, pki.ca, own)
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(4)]
        for thread in self.threads:
            thread.start()

    def run(self, index):
        client = self.make()
        while not self.stop.is_set():
            try:
                client.forward(REQUEST)
                self.answers[index] += 1
            except grpc.RpcError as error:
                self.failures.append(str(error))
            if index % 2:
                client.channel.close()
                client = self.make()
        client.channel.close()

    def wait(self, more):
        before = list(self.answers)
        eventually(lambda: all(now >= was + more for now, was in zip(self.answers, before)), 60 * SLOW)

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join(60 * SLOW)
        assert not self.failures, self.failures[:3]


@pytest.mark.threads
def test_new_certificates_are_taken_under_load_without_a_failed_call(serve, pki):
    installed = pki.ca.issue(name="rotating")
    daemon = serve(*installed.flags(), "--tls-client-ca", pki.ca.crt)
    load = Load(daemon, pki, pki.engine)
    load.wait(3)
    for round in range(1, 4):
        new = pki.ca.issue()
        installed.install(new)
        daemon.wait_for("tls_replaced", count=round)
        assert served_serial(daemon.tcp) == serial_of(new)
        load.wait(3)
    load.end()
    assert not daemon.events("tls_broken")
    assert [e["generation"] for e in daemon.events("tls_replaced")] == ["2", "3", "4"]


def test_a_link_that_kubernetes_swaps_is_noticed(serve, pki, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        issued = pki.ca.issue()
        (tmp_path / name / "tls.crt").write_bytes(issued.crt.read_bytes())
        (tmp_path / name / "tls.key").write_bytes(issued.key.read_bytes())
        last = serial_of(issued)
    (tmp_path / "..data").symlink_to("one")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    daemon = serve("--tls-cert", tmp_path / "tls.crt", "--tls-key", tmp_path / "tls.key")
    assert served_serial(daemon.tcp) != last
    (tmp_path / "..new").symlink_to("two")
    os.replace(tmp_path / "..new", tmp_path / "..data")
    daemon.wait_for("tls_replaced")
    assert served_serial(daemon.tcp) == last


def test_wrong_new_files_are_reported_and_the_old_ones_serve_on(serve, pki):
    installed = pki.ca.issue(name="fragile")
    first = serial_of(installed)
    good = installed.crt.read_bytes()
    daemon = serve(*installed.flags())
    expired, other = pki.ca.issue(begins=-7200, expires=-60), pki.ca.issue()
    for count, (write, words) in enumerate([
            (lambda: installed.crt.write_bytes(good[:200]), "damaged or not completely written"),
            (lambda: installed.crt.write_bytes(other.crt.read_bytes()), "does not belong to the certificate"),
            (lambda: installed.install(expired), "expired on"),
            (installed.crt.unlink, "No such file"),
    ], 1):
        write()
        event = daemon.wait_for("tls_broken", count=count)
        assert event["level"] == "error" and words in event["message"]
        assert served_serial(daemon.tcp) == first
        assert answer(dial(daemon, pki.ca)).output.data
    installed.install(other)
    daemon.wait_for("tls_replaced")
    assert served_serial(daemon.tcp) == serial_of(other)
    assert len(daemon.events("tls_broken")) == 4


def test_a_new_client_ca_applies_to_new_connections(serve, pki, tmp_path):
    clients = tmp_path / "clients.crt"
    clients.write_bytes(pki.ca.crt.read_bytes())
    daemon = serve(*pki.server.flags(), "--tls-client-ca", clients)
    with dial(daemon, pki.ca, pki.engine) as old:
        assert old.forward(REQUEST).output.data
        clients.write_bytes(pki.stranger_ca.crt.read_bytes())
        daemon.wait_for("tls_replaced")
        assert old.forward(REQUEST).output.data
        assert failure(dial(daemon, pki.ca, pki.engine)).code == "UNAVAILABLE"
        assert answer(dial(daemon, pki.ca, pki.stranger)).output.data


def test_the_end_of_a_certificate_is_announced(serve, pki):
    daemon = serve(*pki.ca.issue(begins=-88 * 86400, expires=2 * 86400).flags())
    event = daemon.wait_for("tls_certificate_expires")
    assert event["level"] == "warning" and 86400 < int(event["seconds_left"]) <= 2 * 86400 and "without a restart" in event["mend"]
    assert 86400 < daemon.metric("expertd_tls_certificate_expires_seconds") <= 2 * 86400
    assert not serve(*pki.server.flags()).events("tls_certificate_expires")


# ---- peers that do something else

def connect(address):
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), 10)


def client_hello():
    """The first message of a handshake, from Python's own TLS."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2"])
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


def test_other_protocols_on_either_port_leave_the_daemon_well(serve, pki):
    secure, plain = serve(*pki.server.flags()), serve()
    for daemon, sent in ((secure, PREFACE), (secure, b"GET / HTTP/1.1\r\nHost: expertd\r\n\r\n"), (secure, os.urandom(4096)),
                         (secure, client_hello()[:50] + os.urandom(4000)), (plain, client_hello())):
        with connect(daemon.tcp) as peer:
            peer.sendall(sent)
            eventually(lambda: is_closed(peer), 20 * SLOW)
    with Client(grpc.insecure_channel(secure.tcp)) as client, pytest.raises(grpc.RpcError) as raised:
        client.forward(REQUEST)
    assert failure_of_call(raised.value).code == "UNAVAILABLE"
    assert failure(dial(plain, pki.ca)).code == "UNAVAILABLE"
    assert answer(dial(secure, pki.ca)).output.data
    with plain.client(tcp=True) as client:
        assert client.forward(REQUEST).output.data


@pytest.mark.threads
def test_half_open_handshakes_keep_nobody_out(serve, pki):
    """1,000 clients, more than there are connections, begin a handshake and go silent. Callers are served meanwhile; new ones may have to
    connect twice, which gRPC does by itself."""
    most = 64
    daemon = serve(*pki.server.flags(), "--max-connections", most)
    hello = client_hello()
    fds = daemon.memory()["fds"]
    with dial(daemon, pki.ca) as old, contextlib.ExitStack() as stack:
        old.forward(REQUEST)
        for i in range(1000):
            peer = stack.enter_context(connect(daemon.tcp))
            with contextlib.suppress(OSError):
                peer.sendall(hello if i % 2 else hello[:len(hello) // 2])
            if i % 100 == 99:
                assert answer(dial(daemon, pki.ca), wait_for_ready=True).output.data
                old.forward(REQUEST)
        assert daemon.memory()["fds"] <= fds + 2 * most
        assert daemon.metric("expertd_refused_total", 'reason="connections"') >= 1000 - 2 * most
        # gRPC ends the handshakes that are left, although their clients stay.
        eventually(lambda: daemon.metric("expertd_open_connections") <= 1, 30 * SLOW)
        old.forward(REQUEST)
    assert answer(dial(daemon, pki.ca)).output.data


def test_a_drain_ends_tls_connections_too(serve, pki):
    daemon = serve(*pki.server.flags())
    with dial(daemon, pki.ca) as client, connect(daemon.tcp) as half_open:
        client.forward(REQUEST)
        half_open.sendall(client_hello())
        time.sleep(0.2)
        begin = time.monotonic()
        daemon.signal()
        assert daemon.wait_exit() == 0
        assert time.monotonic() - begin < 8 * SLOW
