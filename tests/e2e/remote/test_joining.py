"""Shards that join and leave under load: by DNS names, by TLS identities."""

import pathlib

import pytest

from harness import namespaces
from harness.certificates import Authority
from harness.cluster import HEARTBEATS, Cluster, Shard
from harness.daemon import Daemon
from harness.load import Load, answers_of_one_process, requests_of
from harness.paths import SLOW
from harness.waiting import eventually

MODEL = "qwen3_moe_sharded"


@pytest.fixture(scope="module")
def wanted(case):
    return answers_of_one_process(case(MODEL))


def load(front, case, wanted):
    return Load(front, requests_of(case(MODEL)), wanted, timeout=5.0 * SLOW)


# ---- names


@pytest.fixture
def names():
    """A network of hosts, and a function that sets the addresses of shards.test on the first one."""
    if namespaces.REASON:
        pytest.skip(f"hosts: {namespaces.REASON}")
    network = namespaces.Network(4)
    folder = pathlib.Path("/etc/netns") / network.hosts[0].name  # `ip netns exec` mounts its files over those in /etc
    folder.mkdir(parents=True)

    def resolve(*hosts, name="shards.test"):
        (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{host.ip} {name}\n" for host in hosts))

    resolve()
    yield network, resolve
    network.close()
    (folder / "hosts").unlink()
    folder.rmdir()


@pytest.mark.release
def test_a_name_gains_and_loses_addresses_under_load(names, case, wanted):
    network, resolve = names
    model = case(MODEL).folder
    shards = [Shard(model, host=host) for host in network.hosts[1:]]
    resolve(*network.hosts[1:3])
    front = Daemon("--insecure", "--shards", 0, "--copies", 2, "--shard-hosts", "dns:shards.test:7421", "--threads", 1, *HEARTBEATS, model=model,
                   tcp=False, prefix=network.hosts[0].prefix)
    try:
        with load(front, case, wanted) as calls:
            calls.progress()
            assert shards[2].experts() == 0
            resolve(*network.hosts[1:])
            eventually(lambda: shards[2].experts() > 0, 60 * SLOW)
            eventually(lambda: all(shard.experts() > 0 for shard in shards))
            calls.progress()
            resolve()  # a name without an address is no news
            calls.progress()
            resolve(*network.hosts[2:])
            eventually(lambda: any(event["address"] == shards[0].address for event in front.events("shard_unlisted")), 60 * SLOW)
            shards[0].kill()
            eventually(lambda: sum(shard.experts() for shard in shards[1:]) == 2 * 16, 60 * SLOW)
            calls.progress()
        calls.check()
        front.stop()
        for shard in shards[1:]:
            shard.end()
    finally:
        front.kill()
        for shard in shards:
            shard.daemon.kill()


# ---- TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls"))


def shard_flags(authority, names="DNS:localhost,IP:127.0.0.1", *more):
    return (*authority.issue(names).flags(), "--tls-client-ca", authority.crt, *more)


def test_an_absolute_name_is_that_of_the_certificate(names, authority, case, wanted):
    network, resolve = names
    model = case(MODEL).folder
    shard = Shard(model, *authority.issue("DNS:shards.test").flags(), host=network.hosts[1])
    resolve(network.hosts[1], name="shards.test.")
    front = Daemon("--shards", 0, "--shard-hosts", "dns:shards.test.:7421", "--tls-ca", authority.crt, "--threads", 1, model=model,
                   tcp=False, prefix=network.hosts[0].prefix)
    with load(front, case, wanted) as calls:
        calls.progress()
    calls.check()
    front.stop()
    shard.end()


def test_a_name_that_no_certificate_can_have_costs_nothing_but_itself(names, authority, case):
    network, resolve = names
    resolve(network.hosts[1], name="shards..test")
    front = Daemon("--shards", 1, "--shard-hosts", "dns:shards..test:7421", "--tls-ca", authority.crt, "--threads", 1,
                   model=case(MODEL).folder, tcp=False, prefix=network.hosts[0].prefix)
    front.wait_for("shard", count=2)
    front.stop()


@pytest.mark.threads
def test_mutual_tls_between_a_front_and_its_shards(authority, case, wanted):
    front = (*authority.issue("DNS:front.example").flags(), "--tls-ca", authority.crt)
    with Cluster(case(MODEL).folder, 2, copies=2, options=front,
                 shard_options=shard_flags(authority, "IP:127.0.0.1", "--tls-allow-fronts", "front.example")) as cluster:
        with load(cluster.front, case, wanted) as calls:
            calls.progress()
        calls.check()


def test_a_front_whose_name_is_not_allowed_is_refused_by_name(authority, case):
    front = (*authority.issue("DNS:engine.example").flags(), "--tls-ca", authority.crt)
    with Cluster(case(MODEL).folder, 1, options=front, wait=False,
                 shard_options=shard_flags(authority, "IP:127.0.0.1", "--tls-allow-fronts", "front.example")) as cluster:
        refused = cluster.front.wait_for("shard_refused")
        assert refused["reason"] == "refuses_this_front" and "engine.example" in refused["message"], refused
        assert cluster.shards[0].daemon.wait_for("identity_refused")["names"] == "engine.example"
        cluster.front.signal()
        cluster.front.wait_exit()


@pytest.mark.release
def test_a_shard_with_another_name_gets_no_rows(authority, case):
    front = ("--tls-ca", authority.crt, "--tls-allow-shards", "*.shards.example")
    with Cluster(case(MODEL).folder, 1, options=front, wait=False, shard_options=authority.issue("IP:127.0.0.1").flags()) as cluster:
        waits = cluster.front.wait_for("waiting_for_shards", count=2)
        assert "shards.example" in waits["message"] or "name" in waits["message"], waits
        cluster.front.signal()
        cluster.front.wait_exit()


@pytest.mark.release
def test_a_plain_front_learns_that_the_shard_speaks_tls(authority, case):
    with Cluster(case(MODEL).folder, 1, wait=False, shard_options=authority.issue("IP:127.0.0.1").flags()) as cluster:
        waits = cluster.front.wait_for("waiting_for_shards", count=2)
        assert "TLS" in waits["message"], waits
        cluster.front.signal()
        cluster.front.wait_exit()
