"""What operators see of a front's shards, and what they may change: expertctl shards, /api/status, /metrics, the status page, top."""

import json
import subprocess

import grpc
import pytest

from harness.cluster import Cluster, Shard
from harness.daemon import Daemon, clean_environment, run_program
from harness.load import Load, answers_of_one_process, requests_of
from harness.paths import BIN, SLOW
from harness.protos import pb
from harness.tensors import tensor
from harness.waiting import eventually

MODEL = "qwen3_moe_sharded"
REFUSED, USAGE = 70, 64


def shards(front, *arguments):
    return run_program("expertctl", "--address", f"unix:{front.socket}", "shards", *arguments)


def listed(front):
    """{address: shard} of expertctl shards --json."""
    done = shards(front, "--json")
    assert done.returncode == 0, done.stderr
    return {shard["address"]: shard for shard in json.loads(done.stdout)["shards"]}


def summary(front):
    return json.loads(shards(front, "--json").stdout)["summary"]


def holds(shard):
    return sum(shard["experts"][state] for state in ("ready", "loading", "retiring"))


def status(front):
    return json.loads(front.get("/api/status")[1])


@pytest.fixture(scope="module")
def golden(case):
    return case(MODEL)


@pytest.fixture(scope="module")
def wanted(golden):
    return answers_of_one_process(golden)


@pytest.fixture
def cluster(golden):
    with Cluster(golden.folder, shards=2, local=1, copies=1) as cluster:
        yield cluster


def load(cluster, golden, wanted):
    return Load(cluster.front, requests_of(golden), wanted, timeout=5.0 * SLOW)


# ---- what is shown


def test_every_view_shows_the_same_shards(cluster, golden, wanted):
    front = cluster.front
    with load(cluster, golden, wanted) as calls:
        calls.progress(200)
    calls.check()
    all_shards, experts = listed(front), summary(front)["experts"]
    assert list(all_shards) == ["local:0", *(shard.address for shard in cluster.shards)]
    assert sum(holds(shard) for shard in all_shards.values()) >= experts
    for shard in (all_shards[one.address] for one in cluster.shards):
        assert shard["state"] == "ready" and shard["live"] and not shard["local"] and not shard["draining"]
        assert 0 < shard["bytes"] <= shard["bytes_max"] and shard["round_trip_s"] > 0 and shard["heard_age_s"] >= 0
        assert shard["connections"] == 1 and shard["rows"] == shard["rows_answered"] and shard["errors"] == shard["refused"] == 0

    shown = status(front)
    assert shown["shards"] == 3  # not the slots
    assert [shard["address"] for shard in shown["shards_remote"]] == [shard.address for shard in cluster.shards]
    assert [shard["address"] for shard in shown["shards_local"]] == ["local:0"]
    assert shown["shards_summary"]["live"] == 3 and shown["shards_summary"]["uncovered"] == 0
    for shard in shown["shards_remote"]:
        label = f'address="{shard["address"]}"'
        assert front.metric("expertd_front_shard_up", label) == 1
        assert front.metric("expertd_front_shard_experts", label, 'state="ready"') == shard["experts"]["ready"]
        assert front.metric("expertd_front_shard_memory_bytes", label) == shard["bytes"]
        assert front.metric("expertd_front_shard_rows_total", label) == shard["rows"]
        assert shard["address"] in front.get("/")[1]
    assert front.metric("expertd_front_shards") == front.metric("expertd_front_shards_live") == 3
    assert front.metric("expertd_front_experts_uncovered") == 0
    assert sum(shard["rows"] for shard in shown["shards_remote"]) > 0

    done = shards(front)
    assert done.returncode == 0 and "3 of 3 shards take rows; each of the" in done.stdout
    assert done.stdout.splitlines()[0].split()[:5] == ["SHARD", "ADDRESS", "STATE", "EXPERTS", "MEMORY"]


def test_rows_per_second_follow_the_load(cluster, golden, wanted):
    remote = lambda: sum(shard["rows_per_s"] for shard in listed(cluster.front).values() if not shard["local"])
    with load(cluster, golden, wanted) as calls:
        eventually(lambda: remote() > 0)
    calls.check()
    eventually(lambda: remote() == 0)


def test_top_shows_the_shards_in_use_only(cluster):
    done = run_program("expertctl", "--address", f"unix:{cluster.front.socket}", "top", "--http", cluster.front.http, "--once",
                       "--interval", "0.05", "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)["shards"]
    assert [shard["address"] for shard in shown] == ["local:0", *(shard.address for shard in cluster.shards)]
    assert all(shard["state"] == "ready" and shard["experts"] > 0 for shard in shown)
    done = run_program("expertctl", "--address", f"unix:{cluster.front.socket}", "top", "--http", cluster.front.http, "--once",
                       "--interval", "0.05")
    assert cluster.shards[0].address in done.stdout and "3 of 3 shards take rows" in done.stdout


def test_a_lost_shard_has_its_cause(cluster):
    address = cluster.shards[0].address
    cluster.shards[0].kill()
    eventually(lambda: listed(cluster.front)[address]["state"] == "dead")
    shard = listed(cluster.front)[address]
    assert not shard["live"] and shard["message"] and shard["heard_age_s"] is None and shard["round_trip_s"] is None
    assert f"{address} is dead" in shards(cluster.front).stdout
    assert cluster.front.metric("expertd_front_shard_up", f'address="{address}"') == 0


def test_the_shards_are_shown_and_changed_while_the_front_waits_for_them(golden):
    shard = Shard(golden.folder)
    front = Daemon("--shard-hosts", "127.0.0.1:9", "--shards", 0, "--threads", 1, model=golden.folder, tcp=False, wait=False)
    try:
        front.wait_for("waiting_for_shards")
        assert front.get("/health/ready")[0] == 503
        assert listed(front)["127.0.0.1:9"]["state"] == "joining" and status(front)["state"] == "loading"
        assert summary(front)["uncovered"] == summary(front)["experts"] == front.metric("expertd_front_experts_uncovered") > 0
        assert shards(front, "add", shard.address).returncode == 0
        front.wait_for("ready")
        assert shards(front, "remove", "127.0.0.1:9").returncode == 0
        assert list(listed(front)) == [shard.address]
    finally:
        front.stop()
        shard.end()


# ---- what is changed


def test_a_drained_shard_leaves_without_a_failed_call(golden, wanted):
    with Cluster(golden.folder, shards=2) as cluster:
        front, address = cluster.front, cluster.shards[0].address
        with load(cluster, golden, wanted) as calls:
            calls.progress()
            done = shards(front, "drain", address, "--wait", "--json")
            assert done.returncode == 0, done.stderr
            shard = json.loads(done.stdout)["shard"]
            assert shard["drained"] and holds(shard) == 0 and shard["bytes"] == 0
            calls.progress()
            cluster.shards[0].end()
            calls.progress()
            assert shards(front, "remove", address).returncode == 0
            eventually(lambda: address not in listed(front))
            calls.progress()
        calls.check()


def test_a_cancelled_drain_lets_the_shard_hold_experts_again(golden):
    with Cluster(golden.folder, shards=2, copies=2) as cluster:
        front, address = cluster.front, cluster.shards[0].address
        shards(front, "drain", address)
        eventually(lambda: listed(front)[address]["draining"])
        done = shards(front, "drain", address, "--cancel")
        assert done.returncode == 0 and "cancelled" in done.stdout
        eventually(lambda: listed(front)[address]["state"] == "ready" and not listed(front)[address]["draining"])


def test_waiting_for_a_drain_ends_if_it_is_cancelled(golden):
    with Cluster(golden.folder, shards=1) as cluster:  # nothing else can hold the experts
        front, address = cluster.front, cluster.shards[0].address
        waiting = subprocess.Popen([str(BIN / "expertctl"), "--address", f"unix:{front.socket}", "shards", "drain", address, "--wait"],
                                   env=clean_environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        assert "experts left" in waiting.stderr.readline()
        eventually(lambda: listed(front)[address]["draining"])
        assert holds(listed(front)[address]) > 0
        assert shards(front, "drain", address, "--cancel").returncode == 0
        assert waiting.wait(60 * SLOW) == REFUSED
        assert "ended before the shard was empty" in waiting.stderr.read()


def test_mistakes_are_named(cluster):
    front = cluster.front
    for arguments, code, text in [
            (("drain", "127.0.0.1:1"), REFUSED, "no shard has the address 127.0.0.1:1"),
            (("drain", "local:0"), REFUSED, "is a shard of this process"),
            (("remove", "local:0"), REFUSED, "is a shard of this process"),
            (("add", "nonsense"), REFUSED, "has no port"),
            (("drain",), USAGE, "needs the address of a shard"),
            (("forget", "x"), USAGE, "it is one of list, drain, add, remove")]:
        done = shards(front, *arguments)
        assert done.returncode == code and text in done.stderr, (arguments, done.stderr)


def test_a_daemon_without_shards_in_other_processes_says_so(golden):
    daemon = Daemon(model=golden.folder)
    done = shards(daemon)
    assert done.returncode == REFUSED and "--shard-hosts" in done.stderr
    assert "shards_remote" not in status(daemon) and "expertd_front" not in daemon.get("/metrics")[1]
    daemon.stop()


# ---- errors of calls


def retry_of(front, request):
    """Whether the call's SHARD_LOST tells when to retry; None: another outcome."""
    with front.client() as client:
        try:
            client.forward(request, timeout=20 * SLOW)
            return None
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE or "shard" not in error.details():
                return None
            return any(key == "grpc-retry-pushback-ms" for key, _ in error.trailing_metadata())


def test_a_lost_call_is_told_to_retry_only_while_a_mend_is_under_way(golden):
    request = pb.ForwardRequest(layer=golden.layers[0], hidden=tensor(golden.get(golden.layers[0], "input")))
    with Cluster(golden.folder, shards=1) as cluster:
        front, shard = cluster.front, cluster.shards[0]
        shard.kill()
        eventually(lambda: listed(front)[shard.address]["state"] == "dead")
        assert retry_of(front, request) is True  # it is dialled again
        assert shards(front, "remove", shard.address).returncode == 0
        eventually(lambda: retry_of(front, request) is False)
        shard.restart()
        assert shards(front, "add", shard.address).returncode == 0
        eventually(lambda: retry_of(front, request) is None, 60 * SLOW)
