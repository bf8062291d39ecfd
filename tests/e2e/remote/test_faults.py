"""Shards that die, stop, restart and are cut off, under load: with each expert on two hosts no call fails and no bit changes."""

import json

import pytest

from harness import namespaces
from harness.cluster import Cluster
from harness.load import Load, answers_of_one_process, requests_of
from harness.paths import SLOW
from harness.waiting import eventually

MODEL = "qwen3_moe_sharded"
FASTER = ("--rereplicate-after", "3600")  # copies of a lost shard are not made anew in these tests


@pytest.fixture(scope="module")
def wanted(case):
    return answers_of_one_process(case(MODEL))


def load(cluster, case, wanted, front=None, **options):
    return Load(front or cluster.front, requests_of(case(MODEL)), wanted, timeout=5.0 * SLOW, **options)


def experts_of(case):
    """All experts of all layers of the model."""
    config = json.loads((case(MODEL).folder / "config.json").read_text())
    return config["num_experts"] * len(case(MODEL).layers)


def states(front, shard):
    return [event["state"] for event in front.events("shard") if event["address"] == shard.address]


def lost(front, shard):
    return states(front, shard)[-1:] in (["dead"], ["suspect"])


def back(front, shard):
    return states(front, shard)[-1:] == ["ready"]


@pytest.fixture
def pair(case):
    """A front over two shards that both hold every expert."""
    with Cluster(case(MODEL).folder, shards=2, copies=2, options=FASTER) as cluster:
        cluster.await_experts(count=experts_of(case))
        yield cluster


@pytest.mark.threads
def test_a_killed_shard_costs_no_call_and_comes_back(pair, case, wanted):
    with load(pair, case, wanted) as calls:
        calls.progress()
        pair.shards[0].kill()
        eventually(lambda: lost(pair.front, pair.shards[0]))
        calls.progress()
        pair.shards[0].restart()
        pair.await_experts(pair.shards[0], count=experts_of(case))
        eventually(lambda: back(pair.front, pair.shards[0]))
        calls.progress()
        pair.shards[1].kill()  # all rows now go to the one that came back
        eventually(lambda: lost(pair.front, pair.shards[1]))
        calls.progress()
    calls.check()


@pytest.mark.threads
def test_a_stopped_shard_costs_no_call_and_returns_with_its_experts(pair, case, wanted):
    with load(pair, case, wanted) as calls:
        calls.progress()
        read = [shard.metric("expertd_shard_read_bytes_total") for shard in pair.shards]
        pair.shards[1].pause()
        eventually(lambda: lost(pair.front, pair.shards[1]))
        calls.progress()
        pair.shards[1].resume()
        eventually(lambda: back(pair.front, pair.shards[1]))
        calls.progress()
        pair.shards[0].kill()
        eventually(lambda: lost(pair.front, pair.shards[0]))
        calls.progress()
        assert pair.shards[1].metric("expertd_shard_read_bytes_total") == read[1]
    calls.check()


def test_a_front_that_is_killed_serves_again_over_ready_shards(pair, case, wanted):
    read = [shard.metric("expertd_shard_read_bytes_total") for shard in pair.shards]
    pair.front.kill()
    front = pair.start_front()
    with load(pair, case, wanted, front=front) as calls:
        calls.progress()
    calls.check()
    assert [shard.metric("expertd_shard_read_bytes_total") for shard in pair.shards] == read
    assert not front.events("shard_load_failed")


def test_without_a_copy_calls_fail_at_once_and_service_returns(case, wanted):
    """The experts of the lost shard are loaded by the other one, which has memory for them."""
    with Cluster(case(MODEL).folder, shards=2, options=FASTER) as cluster:
        with load(cluster, case, wanted) as calls:
            calls.progress()
            assert all(shard.experts() > 0 for shard in cluster.shards)
            cluster.shards[0].kill()
            cluster.await_experts(cluster.shards[1], count=experts_of(case))
            calls.progress()  # those under way while it loaded
            failed = len(calls.failures)
            calls.progress()
            assert len(calls.failures) == failed
            cluster.shards[1].kill()
            eventually(lambda: len(calls.failures) > failed + 200)
        assert len(cluster.front.events("request_failed")) < (len(calls.failures) - failed) / 2  # the log is not flooded
        assert all("SHARD_LOST" in failure or failure.startswith("UNAVAILABLE") for failure in calls.failures), calls.failures[:3]


@pytest.mark.threads
def test_two_fronts_share_their_shards(pair, case, wanted):
    second = pair.start_front()
    with load(pair, case, wanted) as one, load(pair, case, wanted, front=second) as two:
        one.progress()
        two.progress()
        pair.shards[0].kill()
        one.progress()
        two.progress()
    one.check()
    two.check()


def test_lost_copies_are_made_anew_on_other_shards(case, wanted):
    with Cluster(case(MODEL).folder, shards=3, copies=2, options=("--rereplicate-after", "1")) as cluster:
        eventually(lambda: sum(shard.experts() for shard in cluster.shards) == 2 * experts_of(case))
        with load(cluster, case, wanted) as calls:
            calls.progress()
            cluster.shards[0].kill()
            cluster.await_experts(*cluster.shards[1:], count=experts_of(case))
            cluster.shards[1].kill()  # every expert has a copy on the last one
            calls.progress()
        calls.check()


def test_a_shard_that_never_answers_holds_up_nobody(pair, case, wanted):
    pair.shards[0].pause()
    front = pair.start_front()
    with load(pair, case, wanted, front=front) as calls:
        calls.progress()
    calls.check()
    pair.shards[0].resume()
    eventually(lambda: back(front, pair.shards[0]))


# ---- hosts

needs_hosts = pytest.mark.skipif(bool(namespaces.REASON), reason=f"hosts: {namespaces.REASON}")


@pytest.fixture
def hosts(case):
    network = namespaces.Network(3)
    try:
        with Cluster(case(MODEL).folder, shards=2, copies=2, options=FASTER, network=network) as cluster:
            cluster.await_experts(count=experts_of(case))
            yield cluster
    finally:
        network.close()


@needs_hosts
@pytest.mark.share(4)
@pytest.mark.parametrize("fault", ["to the shard", "from the shard", "both", "unplugged"])
def test_a_partition_costs_no_call_and_heals(hosts, case, wanted, fault):
    front, host, shard = hosts.network.hosts[0], hosts.network.hosts[1], hosts.shards[0]
    with load(hosts, case, wanted) as calls:
        calls.progress()
        if fault in ("to the shard", "both"):
            front.drop_to(host)
        if fault in ("from the shard", "both"):
            front.drop_from(host)
        if fault == "unplugged":
            host.unplug()
        eventually(lambda: lost(hosts.front, shard))
        calls.progress()
        front.heal()
        host.plug()
        eventually(lambda: back(hosts.front, shard), 60)
        calls.progress()
    calls.check()
