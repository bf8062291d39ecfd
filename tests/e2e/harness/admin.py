"""A client of the daemon's admin socket, and placements as messages of expertd.admin.v1."""

import contextlib
import threading

import grpc
import numpy as np

from .daemon import CALL_SECONDS, CHANNEL_OPTIONS
from .protos import admin_pb, admin_rpc


def admin_socket(daemon):
    return daemon.socket.replace("expertd.sock", "expertd-admin.sock")


class Admin:
    """A client of an admin socket. Every call has a deadline."""

    def __init__(self, path):
        self.channel = grpc.insecure_channel(f"unix:{path}", options=CHANNEL_OPTIONS)
        self.stub = admin_rpc.AdminStub(self.channel)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()

    def show(self, *layers):
        return self.stub.ShowPlacement(admin_pb.ShowPlacementRequest(layers=layers), timeout=CALL_SECONDS).placements

    def load(self, *layers):
        return self.stub.GetLoad(admin_pb.GetLoadRequest(layers=layers), timeout=CALL_SECONDS).loads

    def plan(self, *layers, **fields):
        return self.stub.PlanPlacement(admin_pb.PlanPlacementRequest(layers=layers, **fields), timeout=CALL_SECONDS).plans

    def apply(self, placement):
        """Returns the messages of the stream. The last one reports the end."""
        return list(self.start_apply(placement))

    def start_apply(self, placement):
        return self.stub.ApplyPlacement(admin_pb.ApplyPlacementRequest(placement=placement), timeout=10 * CALL_SECONDS)

    def drain(self, reason=""):
        return self.stub.Drain(admin_pb.DrainRequest(reason=reason), timeout=CALL_SECONDS)

    def raw(self, method, data=b"", service="expertd.admin.v1.Admin"):
        call = self.channel.unary_unary(f"/{service}/{method}", request_serializer=lambda b: b, response_deserializer=lambda b: b)
        return call(data, timeout=CALL_SECONDS)


@contextlib.contextmanager
def admin_of(daemon):
    with Admin(admin_socket(daemon)) as admin:
        yield admin


def placement_of(layer, epoch, ranks, experts, rows=(), imbalance=0.0):
    """A Placement. experts[e]: the list of ranks that hold expert e."""
    return admin_pb.Placement(layer=layer, epoch=epoch, ranks=ranks, copies=[len(holders) for holders in experts],
                              holders=[rank for holders in experts for rank in holders], rows=rows, imbalance=imbalance)


def experts_of(placement):
    """experts[e] of a Placement: the list of ranks that hold expert e."""
    experts, at = [], 0
    for copies in placement.copies:
        experts.append(list(placement.holders[at:at + copies]))
        at += copies
    assert at == len(placement.holders)
    return experts


def random_placement(random, shown):
    """Each expert on one or more ranks, and at least one expert on each rank."""
    experts = [sorted(random.choice(shown.ranks, random.integers(1, shown.ranks + 1), replace=False).tolist())
               for _ in shown.copies]
    for rank in range(shown.ranks):
        if not any(rank in holders for holders in experts):
            experts[rank] = sorted({*experts[rank], rank})
    return placement_of(shown.layer, shown.epoch, shown.ranks, experts)


def moved(random, shown):
    """A random placement that differs from the current one."""
    while True:
        placement = random_placement(random, shown)
        if experts_of(placement) != experts_of(shown):
            return placement


class Mover:
    """Applies random placements with replicas to a layer, one after the other, until the `with` block ends."""

    def __init__(self, daemon, layer, seed):
        self.daemon, self.layer, self.random = daemon, layer, np.random.default_rng(seed)
        self.moves, self.replicas, self.epoch, self.failure = 0, 0, 0, None
        self.stop, self.thread = threading.Event(), threading.Thread(target=self._run)

    def _run(self):
        try:
            with admin_of(self.daemon) as admin:
                while not self.stop.is_set():
                    wanted = moved(self.random, admin.show(self.layer)[0])
                    last = admin.apply(wanted)[-1]
                    assert last.done and last.epoch > self.epoch and last.moved_experts == last.all_experts
                    now = admin.show(self.layer)[0]
                    assert now.epoch == last.epoch and experts_of(now) == experts_of(wanted)
                    self.moves, self.replicas, self.epoch = (self.moves + 1, self.replicas + sum(wanted.copies) - len(wanted.copies),
                                                             last.epoch)
                    self.stop.wait(0.02)
        except Exception as error:  # any exception fails the test
            self.failure = error

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
        if self.failure:
            raise AssertionError(f"move {self.moves + 1} of layer {self.layer} failed") from self.failure
