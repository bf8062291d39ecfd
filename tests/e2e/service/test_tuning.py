"""--tuning: schedules are saved and used again, damaged files are reported and ignored, and no answer depends on schedules."""

import numpy as np
import pytest

from harness.daemon import READY_SECONDS, Daemon
from harness.protos import pb
from harness.tensors import tensor

MODEL = "synthetic:tiny,layers=1,experts=4"
KERNELS = ("--kernels", "scalar", "--compute-dtype", "f32")  # a tuning file belongs to one backend; auto might choose another one next time


def start(start_daemon, *arguments):
    daemon = start_daemon(*KERNELS, "--threads", 2, *map(str, arguments), model=MODEL)
    with daemon.client() as client:
        layer = client.describe().models[0].layers[0]
        rows = np.random.default_rng(1).standard_normal((40, layer.hidden_size)).astype(np.float32)
        answer = client.forward(pb.ForwardRequest(layer=layer.layer, hidden=tensor(rows), output_dtype=pb.F32)).output.data
    return daemon, answer


@pytest.fixture
def untuned(start_daemon):
    return start(start_daemon)[1]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """(tuned events, tuning file, answer while tuning). Once per module: tuning takes a second for each kind of matrix."""
    def patient(*arguments, **options):
        daemon = Daemon(*arguments, wait=False, **options)
        daemon.wait_for("ready", 2 * READY_SECONDS)
        return daemon

    folder = tmp_path_factory.mktemp("tuned")
    # One more shard than experts: the first shard holds none.
    daemon, answer = start(patient, "--tuning", "tune", "--tuning-cache", folder / "tuning", "--shards", 5)
    daemon.stop()
    return daemon.events("tuned"), folder / "tuning", answer


def test_tune_saves_schedules_and_cached_uses_them(start_daemon, tuned, untuned):
    found, cache, answer = tuned
    assert answer == untuned
    assert len(found) == 8  # two matrices with m = 1, 4, 16 and 64
    assert len(cache.read_text().splitlines()) == 3 + len(found) + 1
    assert [path.name for path in cache.parent.iterdir()] == ["tuning"]
    for policy in ("cached", "tune"):
        again, answer = start(start_daemon, "--tuning", policy, "--tuning-cache", cache)
        assert answer == untuned
        assert not again.events("tuned")
        assert [event["schedules"] for event in again.events("tuning")] == [str(len(found))]


def test_devices_are_not_tuned(start_daemon, tmp_path):
    """Device kernels have no schedules, and the host has freed the weights."""
    daemon = start_daemon("--device", "sim:2", "--tuning", "tune", "--tuning-cache", tmp_path / "tuning", model=MODEL)
    assert not daemon.events("tuned") and not list(tmp_path.iterdir())
    assert [event["schedules"] for event in daemon.events("tuning")] == ["0"]


@pytest.mark.parametrize("damage, word", [
    (lambda text: text[:-9], "cut short"),
    (lambda text: text.replace("threads=2", "threads=1"), "damaged"),
    (lambda text: "\0" * 100, "not text"),
    (None, "No such file"),
])
def test_an_unusable_file_is_reported_and_ignored(start_daemon, tmp_path, tuned, untuned, damage, word):
    cache = tmp_path / "tuning"
    if damage:
        cache.write_text(damage(tuned[1].read_text()))
    daemon, answer = start(start_daemon, "--tuning", "cached", "--tuning-cache", cache)
    assert answer == untuned
    reason, summary = daemon.events("tuning")
    assert word in reason["not_used"] and str(cache) in reason["not_used"]
    assert summary["schedules"] == "0"
