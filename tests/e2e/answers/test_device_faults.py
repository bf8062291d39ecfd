"""Failures of one of several devices: the batch fails with SHARD_LOST, the next batch is answered correctly through a new communicator, and
nothing leaks. A preloaded library (planter.c) injects failures into simulated devices."""

import os
import socket
import tempfile
import threading
import time

import grpc
import pytest

from harness.admin import admin_of, random_placement
from harness.daemon import Daemon
from harness.errors import raises
from harness.paths import BUILD, SANITIZER, SLOW
from harness.tensors import tensor

LAYER, HIDDEN, TIMEOUT_MS = 1, 96, 1000 * SLOW
ROUNDS = 210 if not SANITIZER else 30


class Planter:
    """A daemon on simulated devices with injected failures. hangs: do not report leaks, since a hanging device's memory cannot be freed."""

    def __init__(self, model, *arguments, hangs=False):
        self.folder = tempfile.TemporaryDirectory(prefix="expertd-planter-")
        self.path = os.path.join(self.folder.name, "socket")
        env = {"LD_PRELOAD": str(BUILD / "tests/planter.so"), "EXPERTD_TEST_PLANTER": self.path}
        if SANITIZER == "asan":
            env["ASAN_OPTIONS"] = f"exitcode=99:detect_leaks={int(not hangs)}:verify_asan_link_order=0"
        self.daemon = Daemon("--exchange-timeout-ms", TIMEOUT_MS, *arguments, model=model, env=env)

    def ask(self, line):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(self.path)
            s.sendall(f"{line}\n".encode())
            return s.recv(128).decode().strip()

    def plant(self, call, after=0):
        assert self.ask(f"{call} {after}") == "ok"

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self.daemon.stop()
        finally:
            self.daemon.kill()
            self.folder.cleanup()


@pytest.fixture
def golden(case):
    return case("qwen2_moe")


def request_of(golden, tokens=2):
    return {"layer": LAYER, "hidden": tensor(golden.get(LAYER, "input")[:tokens])}


def lost(client, **fields):
    with raises("UNAVAILABLE") as raised:
        client.forward(**fields)
    assert raised.failure.reason == "SHARD_LOST"
    return raised.failure.message


@pytest.mark.parametrize("device", ("sim:2", "sim:3"))
def test_a_failed_or_silent_rank_costs_its_batch_and_nothing_else(golden, device):
    fields = request_of(golden)
    with Planter(golden.folder, "--device", device) as planter, planter.daemon.client() as client:
        right = client.forward(**fields).output.data
        rebuilds = 0
        for call, after, says in (("ncclTransfer", 0, "NCCL"), ("ncclTransfer", 2, "NCCL"), ("ncclStuck", 0, f"{TIMEOUT_MS} ms"),
                                  ("ncclStuck", 2, f"{TIMEOUT_MS} ms"), ("ncclSend", 0, "ncclSend"), ("ncclRecv", 1, "ncclRecv"),
                                  ("ncclGroupEnd", 1, "ncclGroupEnd")):
            planter.plant(call, after)
            assert says in lost(client, **fields), call
            assert client.forward(**fields).output.data == right, call
            rebuilds += 1
            assert planter.daemon.metric("expertd_exchange_rebuilds_total") == rebuilds
        assert len(planter.daemon.events("shard_lost")) == rebuilds
        assert planter.daemon.get("/health/ready")[0] == 200


@pytest.mark.threads
def test_a_rank_is_lost_while_metrics_are_read(golden):
    """The HTTP thread reads the exchange's state while the computing thread changes it."""
    fields, over, seen = request_of(golden), threading.Event(), []
    with Planter(golden.folder, "--device", "sim:2") as planter, planter.daemon.client() as client:

        def look():
            while not over.is_set():
                seen.append(planter.daemon.metric("expertd_exchange_rebuilds_total"))

        monitor = threading.Thread(target=look)
        monitor.start()
        try:
            for number in range(10):
                planter.plant("ncclTransfer", number % 4)
                lost(client, **fields)
                client.forward(**fields)
        finally:
            over.set()
            monitor.join()
        assert planter.daemon.metric("expertd_exchange_rebuilds_total") == 10
        assert seen == sorted(seen) and len(seen) > 1


def test_a_late_rank_is_waited_for(golden):
    fields = request_of(golden)
    with Planter(golden.folder, "--device", "sim:2") as planter, planter.daemon.client() as client:
        right = client.forward(**fields).output.data
        planter.plant("ncclLate", 1)
        assert client.forward(**fields).output.data == right
        assert planter.daemon.metric("expertd_exchange_rebuilds_total") == 0


def test_a_communicator_that_cannot_be_made_is_tried_again(golden):
    fields = request_of(golden)
    with Planter(golden.folder, "--device", "sim:2") as planter, planter.daemon.client() as client:
        right = client.forward(**fields).output.data
        planter.plant("ncclTransfer")
        lost(client, **fields)
        planter.plant("ncclJoin")
        assert "a new communicator" in lost(client, **fields)
        assert client.forward(**fields).output.data == right
        assert planter.daemon.metric("expertd_exchange_rebuilds_total") == 1


def test_callers_outside_the_lost_batch_are_answered(golden):
    """Eight callers while ranks stop: each call gets a correct answer or UNAVAILABLE."""
    fields = request_of(golden)
    with Planter(golden.folder, "--device", "sim:2", "--max-batch-tokens", "4") as planter, planter.daemon.client() as client:
        right = client.forward(**fields).output.data
        answers, failures = [], []

        def call():
            for _ in range(6):
                try:
                    answers.append(client.forward(**fields).output.data)
                except grpc.RpcError as error:
                    failures.append(error)

        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            planter.plant("ncclStuck")
            time.sleep(0.05 * SLOW)
        for thread in threads:
            thread.join()
        assert len(answers) + len(failures) == 48 and set(answers) == {right}
        assert failures and all(error.code() == grpc.StatusCode.UNAVAILABLE for error in failures)
        assert client.forward(**fields).output.data == right


@pytest.mark.parametrize("call,reason", (("damage", "digest"), ("cudaMemcpyAsync", "copying")))
def test_a_move_that_fails_leaves_the_placement_in_force(golden, random, call, reason):
    fields = request_of(golden)
    with Planter(golden.folder, "--device", "sim:2") as planter, planter.daemon.client() as client, admin_of(planter.daemon) as admin:
        right = client.forward(**fields)
        target = random_placement(random, admin.show(LAYER)[0])
        planter.plant(call, 4)
        with raises() as raised:
            admin.apply(target)
        assert reason in raised.failure.message, raised.failure
        after = client.forward(**fields)
        assert after.output.data == right.output.data and after.placement_epoch == right.placement_epoch
        assert admin.apply(target)[-1].epoch > target.epoch
        assert client.forward(**fields).output.data == right.output.data


def test_hundreds_of_communicators_leave_nothing_behind(golden):
    fields = request_of(golden, tokens=1)
    with Planter(golden.folder, "--device", "sim:2") as planter, planter.daemon.client() as client:
        right = client.forward(**fields).output.data

        def rounds():
            for number in range(ROUNDS // 3):
                planter.plant("ncclTransfer", number % 4)
                lost(client, **fields)
                assert client.forward(**fields).output.data == right

        rounds()
        first = planter.daemon.memory()
        rounds(), rounds()
        last = planter.daemon.memory()
        assert planter.daemon.metric("expertd_exchange_rebuilds_total") == ROUNDS // 3 * 3
        assert last["fds"] <= first["fds"] and last["threads"] <= first["threads"] + 2
        assert SANITIZER or last["rss"] <= first["rss"] + (2 << 20), (first, last)


def test_serving_makes_no_cuda_call_that_allocates_or_synchronises(golden):
    """After READY, no request makes a CUDA call that allocates memory or blocks a device."""
    calls = ("cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaHostRegister", "cudaStreamCreate", "cudaStreamSynchronize")
    with Planter(golden.folder, "--device", "sim:3") as planter, planter.daemon.client() as client:
        before = {call: planter.ask(f"calls {call}") for call in calls}
        assert int(before["cudaMalloc"]) > 0 and int(before["cudaHostRegister"]) > 0
        copies = int(planter.ask("calls cudaMemcpyAsync"))
        for tokens in (1, 5, 2):
            client.forward(**request_of(golden, tokens))
        assert {call: planter.ask(f"calls {call}") for call in calls} == before
        assert int(planter.ask("calls cudaMemcpyAsync")) > copies


def test_a_device_that_is_lost_for_good_takes_the_service_out(golden):
    fields = request_of(golden)
    with Planter(golden.folder, "--device", "sim:2") as planter, planter.daemon.client() as client:
        client.forward(**fields)
        planter.plant("launch", 1)
        assert "sim device" in lost(client, **fields)
        planter.daemon.wait_for("device_lost")
        assert planter.daemon.get("/health/ready") == (503, "device lost\n")
        assert "sim device" in lost(client, **fields)
        assert planter.daemon.metric("expertd_ready") == 0
        assert len(planter.daemon.events("device_lost")) == 1


@pytest.mark.parametrize("device", ("sim", "sim:2"))
@pytest.mark.parametrize("after", (1, 3, 5))
def test_a_kernel_that_does_not_end_takes_the_service_out(golden, device, after):
    """Nothing can abort such a kernel, nor a communicator that waits for it. The batch fails within the exchange timeout, later ones fail at
    once, and the daemon still stops on SIGTERM."""
    fields = request_of(golden)
    with Planter(golden.folder, "--device", device, hangs=True) as planter, planter.daemon.client() as client:
        client.forward(**fields)
        planter.plant("hang", after)
        assert f"{TIMEOUT_MS} ms" in lost(client, **fields)
        planter.daemon.wait_for("device_lost")
        assert planter.daemon.get("/health/ready") == (503, "device lost\n")
        seconds = []
        for _ in range(5):
            begun = time.monotonic()
            assert "does not end" in lost(client, **fields)
            seconds.append(time.monotonic() - begun)
        assert min(seconds) < TIMEOUT_MS / 1000  # at once: a busy machine delays some, a wait for the timeout all
