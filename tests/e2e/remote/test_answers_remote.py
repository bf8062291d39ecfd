"""A front over shards in other processes answers with the bits of one process."""

import pytest

from harness.checkpoints import copy_case, read_header
from harness.cluster import Cluster, Shard
from harness.daemon import Daemon
from harness.paths import SANITIZER, SERVED_CASES
from harness.tensors import tensor
from harness.protos import pb


def answers(client, golden):
    """The bytes of every layer's answers: by the model's router, and by the caller's routes."""
    found = []
    for layer in golden.layers:
        hidden = tensor(golden.get(layer, "input"))
        found.append(client.forward(layer=layer, hidden=hidden).output.data)
        routes = pb.Routes(ids=tensor(golden.get(layer, "topk_ids"), "I32"), weights=tensor(golden.get(layer, "topk_weights")))
        found.append(client.forward(layer=layer, hidden=hidden, routes=routes).output.data)
    return found


@pytest.fixture(scope="module")
def wanted(case):
    """The answers of one process, by (case, dtype)."""
    cache = {}

    def get(name, dtype):
        if (name, dtype) not in cache:
            daemon = Daemon("--compute-dtype", dtype, model=case(name).folder)
            with daemon.client() as client:
                described = client.describe().models[0]
                cache[name, dtype] = (answers(client, case(name)), [layer.weights_id for layer in described.layers])
            daemon.stop()
        return cache[name, dtype]

    return get


# shards in other processes, shards of the front, copies, dtype
SHAPES = [(1, 0, 1, "bf16"), (2, 1, 1, "f32"), (3, 0, 2, "bf16"), (5, 2, 3, "bf16")]


@pytest.mark.share(5)
@pytest.mark.parametrize("name, shape", [(name, SHAPES[i % len(SHAPES)]) for i, name in enumerate(SERVED_CASES)] +
                         [("qwen3_moe_sharded", shape) for shape in SHAPES[:3]])
def test_the_bits_of_one_process(case, wanted, name, shape):
    shards, local, copies, dtype = shape
    outputs, ids = wanted(name, dtype)
    with Cluster(case(name).folder, shards, local, copies, ("--compute-dtype", dtype), ("--compute-dtype", dtype)) as cluster:
        with cluster.front.client() as client:
            assert answers(client, case(name)) == outputs
            assert [layer.weights_id for layer in client.describe().models[0].layers] == ids


def test_shards_that_start_later_are_awaited(case, wanted):
    golden = case("mixtral")
    with Cluster(golden.folder, shards=1) as cluster:
        address = cluster.shards[0].address
        cluster.front.stop()
        cluster.shards[0].end()
        front = cluster.start_front(wait=False)
        front.wait_for("waiting_for_shards")
        assert "connect_failed" in front.log or "refused" in front.log
        cluster.shards[0] = Shard(golden.folder, address=address)
        front.wait_for("ready")
        with front.client() as client:
            assert answers(client, golden) == wanted("mixtral", "bf16")[0]


def test_a_shard_of_another_model_is_refused_by_both_digests(case):
    golden = case("mixtral")
    with Cluster(golden.folder, shards=1) as cluster:
        stranger = Shard(case("olmoe").folder)
        front = cluster.start_front(addresses=f"{cluster.shards[0].address},{stranger.address}")
        refused = front.wait_for("shard_refused")
        assert refused["reason"] == "refuses_this_front" and refused["address"] == stranger.address, refused
        assert "the front's model has the digest" in refused["message"] and "same checkpoint and --layers" in refused["message"], refused
        with front.client() as client:
            answers(client, golden)
        stranger.end()


def test_an_expert_with_other_bytes_is_refused_by_both_digests(case, wanted, tmp_path):
    """The configurations and routers are equal: only the digests of the experts tell that one host has other weights."""
    golden = case("mixtral")
    altered = copy_case("mixtral", tmp_path)
    files = sorted(altered.glob("*.safetensors"))
    for file in files:
        header, start = read_header(file)
        for name, entry in header.items():
            if "experts" in name and name.endswith("weight"):
                data = bytearray(file.read_bytes())
                data[start + entry["data_offsets"][0]] ^= 1
                file.write_bytes(data)
    with Cluster(golden.folder, shards=2, copies=2) as cluster:
        address = cluster.shards[1].address
        cluster.shards[1].end()
        cluster.shards[1] = Shard(altered, address=address)
        refused = cluster.front.wait_for("shard_refused")
        assert refused["reason"] == "other_expert" and refused["address"] == address and {"layer", "expert"} <= set(refused), refused
        assert len(refused["theirs"]) == 16 and refused["theirs"] != refused["ours"] and "copy them anew" in refused["mend"], refused
        with cluster.front.client() as client:
            assert answers(client, golden) == wanted("mixtral", "bf16")[0]


def test_another_arithmetic_is_refused_by_both_values(case):
    golden = case("mixtral")
    with Cluster(golden.folder, shards=1, shard_options=("--compute-dtype", "f32"), options=("--compute-dtype", "bf16"),
                 wait=False) as cluster:
        refused = cluster.front.wait_for("shard_refused")
        assert "computes in bf16, this shard in f32" in refused["message"] and "--compute-dtype" in refused["message"], refused
        cluster.front.signal()
        cluster.front.wait_exit()


@pytest.mark.skipif(bool(SANITIZER), reason="the same code as in a release build, only slower")
def test_describe_and_status_of_a_front(case):
    golden = case("qwen2_moe")
    with Cluster(golden.folder, shards=2, local=1) as cluster:
        with cluster.front.client() as client:
            assert client.describe().models[0].layers
        assert cluster.front.get("/health/ready")[0] == 200
        assert cluster.front.get("/metrics")[0] == 200
