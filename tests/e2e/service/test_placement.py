"""Live re-placement: experts move between shards during calls. No call fails, no bit changes, and an interrupted move leaves a valid
placement in force."""

import json
import signal
import subprocess
import threading
import time

import grpc
import numpy as np
import pytest

from harness.admin import Mover, admin_of, admin_socket, experts_of, moved, placement_of
from harness.daemon import Daemon, clean_environment, run_program
from harness.errors import raises
from harness.paths import BIN, SANITIZER, SLOW
from harness.protos import pb
from harness.tensors import rows_of, tensor

CASES = ("deepseek_v3", "gpt_oss")  # test_invariance_matrix.py moves the experts of every golden case
SHARDS = 3
CALLERS = {"": 4, "asan": 3, "tsan": 2}[SANITIZER]
SECONDS = 3  # of moves under load, in every build


@pytest.fixture(scope="module", params=CASES)
def placed(request, case):
    """(daemon, golden case). Skips the test if this build does not move experts."""
    golden = case(request.param)
    daemon = Daemon("--shards", SHARDS, model=golden.folder)
    try:
        with admin_of(daemon) as admin:
            admin.show()
    except grpc.RpcError as error:
        daemon.stop()
        if error.code() == grpc.StatusCode.UNIMPLEMENTED:
            pytest.skip(f"this build does not move experts: {error.details()}")
        raise
    yield daemon, golden
    daemon.stop()


def request_of(golden, layer, rows=slice(None)):
    return pb.ForwardRequest(layer=layer, hidden=tensor(golden.get(layer, "input")[rows].astype(np.float32)),
                             output_dtype=pb.F32)


# ---- moves under load


class Callers:
    """Threads that request ranges of the same rows until the `with` block ends, and compare each answer with the first."""

    def __init__(self, daemon, golden, layer):
        self.daemon, self.golden, self.layer = daemon, golden, layer
        self.stop, self.failures, self.answers, self.epochs = threading.Event(), [], 0, set()
        with daemon.client() as client:
            self.expected = rows_of(client.forward(request_of(golden, layer)).output)
        self.threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(CALLERS)]

    def _run(self, seed):
        random = np.random.default_rng(seed)
        try:
            with self.daemon.client() as client:
                while not self.stop.is_set():
                    first = int(random.integers(len(self.expected)))
                    last = int(random.integers(first, len(self.expected))) + 1
                    answer = client.forward(request_of(self.golden, self.layer, slice(first, last)))
                    assert rows_of(answer.output) == self.expected[first:last], f"bits of epoch {answer.placement_epoch}"
                    self.epochs.add(answer.placement_epoch)
                    self.answers += 1
        except Exception as error:  # any exception fails the test
            self.failures.append(error)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()


@pytest.mark.threads
def test_no_call_fails_and_no_bit_changes_while_experts_move(placed):
    daemon, golden = placed
    layer = golden.layers[-1]
    with Callers(daemon, golden, layer) as callers, Mover(daemon, layer, 7) as mover:
        ends = time.monotonic() + SECONDS
        while time.monotonic() < ends and not callers.failures:
            time.sleep(0.02)
    assert not callers.failures, callers.failures
    assert mover.moves >= 2 and callers.answers > 0
    assert len(callers.epochs) >= 2 and max(callers.epochs) <= mover.epoch, "answers must come from several placements"
    with daemon.client() as client:
        answer = client.forward(request_of(golden, layer))
        assert rows_of(answer.output) == callers.expected and answer.placement_epoch == mover.epoch


def test_a_call_in_pieces_goes_on_through_a_move_and_names_the_last_epoch(placed, random):
    _, golden = placed
    layer, tokens = golden.layers[-1], 3000
    rows = np.resize(np.arange(len(golden.get(layer, "input"))), tokens)
    daemon = Daemon("--shards", SHARDS, "--max-piece-tokens", 1, model=golden.folder)
    with admin_of(daemon) as admin, daemon.client() as client:
        alone = rows_of(client.forward(request_of(golden, layer)).output)
        shown, before = admin.show(layer)[0], daemon.metric("expertd_batches_total")
        call = client.stub.Forward.future(request_of(golden, layer, rows), timeout=60 * SLOW)
        while daemon.metric("expertd_batches_total") < before + 10:
            assert not call.done(), "the call ended before experts could move"
        moved_to = admin.apply(moved(random, shown))[-1].epoch
        assert not call.done(), "the call ended before experts could move"
        answer = call.result()
    daemon.stop()
    assert rows_of(answer.output) == [alone[row] for row in rows]
    assert answer.placement_epoch == moved_to > shown.epoch


def test_the_other_layers_stay_where_they_are(placed, random):
    daemon, golden = placed
    with admin_of(daemon) as admin:
        before = {shown.layer: shown for shown in admin.show()}
        layer = golden.layers[-1]
        admin.apply(moved(random, before[layer]))
        after = {shown.layer: shown for shown in admin.show()}
    assert set(before) == set(after) == set(golden.layers)
    for other in set(golden.layers) - {layer}:
        assert experts_of(after[other]) == experts_of(before[other])


# ---- plans and loads


def test_the_load_that_is_shown_is_that_of_the_calls(placed):
    daemon, golden = placed
    layer = golden.layers[-1]
    hidden = golden.get(layer, "input")[:1].astype(np.float32)
    routes = pb.Routes(ids=tensor(np.array([[1, 0, -1]]), "I32"), weights=tensor(np.ones((1, 3), np.float32)))
    with admin_of(daemon) as admin, daemon.client() as client:
        before = list(admin.load(layer)[0].rows)
        for _ in range(5):
            client.forward(layer=layer, hidden=tensor(hidden), routes=routes)
        load = admin.load(layer)[0]
        assert [after - was for was, after in zip(before, load.rows)] == [5, 5] + [0] * (len(before) - 2)
        shown = admin.show(layer)[0]
        assert list(shown.rows) == list(load.rows) and shown.epoch == load.epoch


def test_a_balanced_plan_is_more_even_and_applies(placed):
    daemon, golden = placed
    layer = golden.layers[-1]
    with admin_of(daemon) as admin:
        experts = len(admin.show(layer)[0].copies)
        contiguous = admin.plan(layer, policy="POLICY_CONTIGUOUS")[0].planned
        admin.apply(contiguous)
        rows = [1000 if expert in (0, 1) else 10 for expert in range(experts)]  # neighbours, which a contiguous placement puts on one rank
        plan = admin.plan(layer, policy="POLICY_BALANCED", replicas=SHARDS, counts=[{"layer": layer, "rows": rows}])[0]
        assert list(plan.planned.rows) == rows
        assert 1 <= plan.planned.imbalance < 1.5
        assert sum(plan.planned.copies) == experts + SHARDS
        assert plan.copies > 0 and plan.copy_bytes > 0
        steps = admin.apply(plan.planned)
        assert steps[-1].done and steps[-1].moved_bytes == plan.copy_bytes
        assert experts_of(admin.show(layer)[0]) == experts_of(plan.planned)


def test_a_move_that_only_drops_copies_needs_no_free_slot(start_daemon, tmp_path):
    (tmp_path / "counts.json").write_text('{"layers":{"0":[9,5,3,2]}}')
    daemon = start_daemon("--shards", 2, "--replicas", 1, "--move-bytes-max", 1, "--placement", "balanced", "--placement-counts",
                          tmp_path / "counts.json", model="synthetic:tiny,layers=1,experts=4")
    with admin_of(daemon) as admin, daemon.client() as client:
        rows = np.random.default_rng(1).standard_normal((9, 256)).astype(np.float32)
        before = client.forward(layer=0, hidden=tensor(rows)).output.data
        now = experts_of(admin.show(0)[0])
        held = [[next(rank for rank in ranks)] for ranks in now]  # the first copy of each expert
        assert sum(map(len, now)) == 5
        shown = admin.show(0)[0]
        steps = admin.apply(placement_of(0, shown.epoch, shown.ranks, held))
        assert steps[-1].done and steps[-1].moved_bytes == 0 and experts_of(admin.show(0)[0]) == held
        assert client.forward(layer=0, hidden=tensor(rows)).output.data == before


def test_expertctl_plans_and_applies(placed, tmp_path):
    daemon, golden = placed
    layer, plan = golden.layers[-1], tmp_path / "plan.json"
    ctl = lambda *arguments: run_program("expertctl", "--address", f"unix:{daemon.socket}", "placement", *arguments)
    counts = tmp_path / "counts.json"
    shown = json.loads(ctl("show", "--json").stdout)
    assert [entry["layer"] for entry in shown["layers"]] == golden.layers
    for entry in shown["layers"]:
        entry["rows"] = [1 + 100 * (expert % 2) for expert in range(len(entry["experts"]))]
    counts.write_text(json.dumps(shown))
    done = ctl("plan", "--layer", "all", "--counts", counts, "--output", plan)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 1 + len(golden.layers), done.stderr
    done = ctl("apply", plan, "--json")
    assert done.returncode == 0, done.stderr
    applied = {entry["layer"]: entry["epoch"] for entry in json.loads(done.stdout)["layers"]}
    now = {entry["layer"]: entry for entry in json.loads(ctl("show", "--json").stdout)["layers"]}
    for entry in json.loads(plan.read_text())["layers"]:
        assert now[entry["layer"]]["experts"] == entry["experts"] and now[entry["layer"]]["epoch"] >= applied[entry["layer"]]
    if all(entry["copies"] == 0 for entry in json.loads(plan.read_text())["layers"]):
        return  # nothing moved, so the plan's epoch is still the current one
    done = ctl("apply", plan)
    assert done.returncode != 0 and f"of {len(golden.layers)} layers are in force" in done.stderr, "a plan of an earlier epoch must be refused"


def test_the_output_of_show_serves_as_counts_for_the_next_start(placed, tmp_path):
    daemon, golden = placed
    shown = run_program("expertctl", "--address", f"unix:{daemon.socket}", "placement", "show", "--json")
    counts = tmp_path / "counts.json"
    counts.write_text(shown.stdout)
    after = Daemon("--shards", SHARDS, "--placement", "balanced", "--placement-counts", counts, model=golden.folder)
    try:
        with admin_of(after) as admin:
            assert [placement.layer for placement in admin.show()] == golden.layers
    finally:
        after.stop()


# ---- refused and interrupted moves


def test_invalid_placements_are_refused(placed, random):
    daemon, golden = placed
    layer = golden.layers[-1]
    with admin_of(daemon) as admin:
        shown = admin.show(layer)[0]
        experts = experts_of(shown)
        with raises("UNAVAILABLE"):
            admin.apply(placement_of(layer, shown.epoch + 1, shown.ranks, experts))
        with raises("INVALID_ARGUMENT"):
            admin.apply(placement_of(layer, shown.epoch, shown.ranks + 1, experts))
        with raises("INVALID_ARGUMENT"):
            admin.apply(placement_of(layer, shown.epoch, shown.ranks, experts[:-1]))
        with raises("INVALID_ARGUMENT"):
            admin.apply(placement_of(layer, shown.epoch, shown.ranks, [*experts, [0]]))
        with raises("NOT_FOUND", "LAYER_UNKNOWN"):
            admin.apply(placement_of(max(golden.layers) + 1, shown.epoch, shown.ranks, experts))
        now = admin.show(layer)[0]
        assert now.epoch == shown.epoch and experts_of(now) == experts


def test_nothing_moves_if_the_free_memory_is_unknown(placed, random):
    """Without descriptors the memory limits cannot be read. The daemon must not take this for unlimited memory."""
    daemon, golden = placed
    layer = golden.layers[0]
    with admin_of(daemon) as admin:
        shown = admin.show(layer)[0]
        wanted = moved(random, shown)
        with daemon.no_descriptors(), raises("RESOURCE_EXHAUSTED", "NOMEM") as raised:
            admin.apply(wanted)
        assert "/proc/meminfo cannot be read: Too many open files" in raised.failure.message
        now = admin.show(layer)[0]
        assert now.epoch == shown.epoch and experts_of(now) == experts_of(shown)
        assert admin.apply(wanted)[-1].done


@pytest.mark.threads
def test_a_client_killed_while_applying_leaves_a_valid_placement(placed, random, tmp_path):
    daemon, golden = placed
    layer, plan = golden.layers[-1], tmp_path / "plan.json"
    with Callers(daemon, golden, layer) as callers, admin_of(daemon) as admin:
        for wait in (0, 0.005, 0.02, 0.05):
            shown = admin.show(layer)[0]
            wanted = moved(random, shown)
            entry = {"layer": layer, "epoch": wanted.epoch, "ranks": wanted.ranks, "experts": experts_of(wanted)}
            plan.write_text(json.dumps({"layers": [entry]}))
            process = subprocess.Popen([BIN / "expertctl", "placement", "--admin", f"unix:{admin_socket(daemon)}", "apply", plan],
                                       env=clean_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(wait * SLOW)
            process.send_signal(signal.SIGKILL)
            process.wait()
            apply_when_idle(admin, random, layer)
    assert not callers.failures, callers.failures
    assert callers.answers > 0


def apply_when_idle(admin, random, layer):
    """Applies a move, and retries while the abandoned one is still running."""
    deadline = time.monotonic() + 20 * SLOW
    while True:
        try:
            return admin.apply(moved(random, admin.show(layer)[0]))
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNAVAILABLE and time.monotonic() < deadline, error
            time.sleep(0.02)


def test_a_daemon_stopped_while_experts_move_exits_cleanly(placed, case, random):
    _, golden = placed
    layer = golden.layers[-1]
    daemon = Daemon("--shards", SHARDS, model=golden.folder)
    with admin_of(daemon) as admin:
        stream = admin.start_apply(moved(random, admin.show(layer)[0]))
        daemon.stop()  # asserts exit status 0 and no sanitizer report
        try:
            for _ in stream:
                pass
        except grpc.RpcError as error:
            assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED), error
