"""What a call costs through remote shards: allocations of the project's own code, and copies of rows, counted on front and shards by a
preloaded library (counter.c). The table in docs/notes/remote.md is what `-s` prints."""

import struct

import numpy as np
import pytest

from harness.admin import admin_of, admin_pb
from harness.cluster import Cluster
from harness.daemon import Daemon
from harness.paths import BUILD, SANITIZER
from harness.protos import pb
from harness.tensors import bf16_bits, tensor

pytestmark = pytest.mark.skipif(bool(SANITIZER), reason="sanitizers have a malloc of their own")

MODEL = "synthetic:tiny"
CALLS = 1000
SIZES = (1, 64, 512)  # tokens
SELDOM = ("--heartbeat-ms", "1000")  # the control streams allocate for each heartbeat


class Counter:
    """Counts of one process."""

    def __init__(self, folder, name):
        assert (BUILD / "tests" / "counter.so").exists(), "build the target counter"
        self.path = folder / name
        self.path.write_bytes(bytes(48))
        self.env = {"LD_PRELOAD": str(BUILD / "tests" / "counter.so"), "EXPERTD_TEST_COUNTER": str(self.path)}

    def read(self):
        names = ("allocations", "allocated", "copied", "library allocations", "library allocated", "library copied")
        return dict(zip(names, struct.unpack("<6Q", self.path.read_bytes())))


def difference(after, before):
    return {name: (after[name] - before[name]) / CALLS for name in after}


def make_calls(client, layer, width, tokens, calls=CALLS):
    hidden = tensor(bf16_bits(np.random.default_rng(5).standard_normal((tokens, width))))
    request = pb.ForwardRequest(layer=layer, hidden=hidden)
    for _ in range(calls):
        client.forward(request)


def measure(daemon, counters, tokens):
    """The counts of each process per call."""
    with daemon.client() as client:
        layer = client.describe().models[0].layers[0]
        make_calls(client, layer.layer, layer.hidden_size, tokens, 50)
        before = [counter.read() for counter in counters]
        assert all(counts["allocations"] > 0 and counts["library copied"] > 0 for counts in before), before
        make_calls(client, layer.layer, layer.hidden_size, tokens)
        return [difference(counter.read(), old) for counter, old in zip(counters, before)]


def exchanged(front):
    with admin_of(front) as admin:
        shards = admin.stub.ListShards(admin_pb.ListShardsRequest()).shards
        return sum(shard.bytes_sent for shard in shards), sum(shard.bytes_received for shard in shards)


@pytest.fixture(scope="module")
def in_process(tmp_path_factory):
    """By tokens: the counts of a daemon without remote shards."""
    counter = Counter(tmp_path_factory.mktemp("counter"), "alone")
    daemon = Daemon("--threads", 1, model=MODEL, env=counter.env)
    found = {tokens: measure(daemon, [counter], tokens)[0] for tokens in SIZES}
    daemon.stop()
    return found


@pytest.fixture(scope="module")
def remote(tmp_path_factory):
    """By tokens: the counts of a front, of its shard, and the bytes exchanged."""
    folder, found = tmp_path_factory.mktemp("counter"), {}
    front, shard = Counter(folder, "front"), Counter(folder, "shard")
    with Cluster(MODEL, shards=1, options=SELDOM, env=front.env, shard_env=shard.env) as cluster:
        for tokens in SIZES:
            before = exchanged(cluster.front)
            of_front, of_shard = measure(cluster.front, [front, shard], tokens)
            after = exchanged(cluster.front)
            found[tokens] = of_front, of_shard, [(a - b) / (CALLS + 50) for a, b in zip(after, before)]
    return found


@pytest.mark.parametrize("tokens", SIZES)
def test_the_project_allocates_nothing_per_call(in_process, remote, tokens):
    """Heartbeats and inventories allocate: a few per second."""
    front, shard, _ = remote[tokens]
    print(f"{tokens} tokens: own allocations per call: in process {in_process[tokens]['allocations']:.2f}, front "
          f"{front['allocations']:.2f}, shard {shard['allocations']:.2f}; of libraries: {in_process[tokens]['library allocations']:.1f}, "
          f"{front['library allocations']:.1f}, {shard['library allocations']:.1f}")
    assert front["allocations"] - in_process[tokens]["allocations"] < 0.5
    assert shard["allocations"] < 0.5


@pytest.mark.parametrize("tokens", SIZES)
def test_rows_are_copied_as_often_as_stated(in_process, remote, tokens):
    """The front gathers hidden rows, and puts result rows in place; the shard copies hidden rows, and sends result rows from where they
    were computed. Messages of at most 16 KiB are copied once more on each side."""
    front, shard, (sent, received) = remote[tokens]
    own = front["copied"] - in_process[tokens]["copied"]
    print(f"{tokens} tokens: bytes per call: to the shard {sent:.0f}, back {received:.0f}; copied per exchanged byte: front "
          f"{own / (sent + received):.2f}, shard {shard['copied'] / (sent + received):.2f}, in libraries: front "
          f"{(front['library copied'] - in_process[tokens]['library copied']) / (sent + received):.2f}, shard "
          f"{shard['library copied'] / (sent + received):.2f}")
    is_small = max(sent, received) < 16 << 10
    assert own < (2.2 if is_small else 1.1) * (sent + received)
    assert shard["copied"] < (1.4 if is_small else 0.4) * (sent + received)
