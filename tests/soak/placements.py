"""Moves experts during the load: applies random placements through the daemon's admin service, one after the other."""

import random
import threading

import grpc
from harness.protos import compile_proto

# Errors of the admin service that are not faults: not enough memory for the placement, or another move is running.
REFUSALS = ("RESOURCE_EXHAUSTED", "UNAVAILABLE")
APPLY_SECONDS = 60


def admin_address(description):
    """unix:PATH from Describe's features, or None if the daemon has no admin socket."""
    return next((feature[len("admin:"):] for feature in description.features if feature.startswith("admin:")), None)


class Mover(threading.Thread):
    def __init__(self, address, every_seconds):
        super().__init__()
        self.pb, rpc = compile_proto("admin.proto")
        self.channel = grpc.insecure_channel(address)
        self.stub = rpc.AdminStub(self.channel)
        self.every_seconds, self.rng = every_seconds, random.Random(5)
        self.applied, self.refused, self.faults, self.stop = 0, 0, [], threading.Event()

    def scattered(self, placement):
        """A random placement: each expert on one rank, some on two, and at least one expert on each rank."""
        ranks, experts = placement.ranks, len(placement.copies)
        order = self.rng.sample(range(experts), experts)
        holders = [set() for _ in range(experts)]
        for turn, expert in enumerate(order):
            holders[expert].add(turn % ranks if turn < ranks else self.rng.randrange(ranks))
        for expert in self.rng.sample(range(experts), max(1, experts // 8)):
            holders[expert].add(self.rng.randrange(ranks))
        return self.pb.Placement(layer=placement.layer, epoch=placement.epoch, ranks=ranks, copies=[len(h) for h in holders],
                                 holders=[rank for held in holders for rank in sorted(held)])

    def move(self):
        shown = self.stub.ShowPlacement(self.pb.ShowPlacementRequest(), timeout=APPLY_SECONDS).placements
        now = self.rng.choice(list(shown))
        wanted = self.scattered(now)
        steps = list(self.stub.ApplyPlacement(self.pb.ApplyPlacementRequest(placement=wanted), timeout=APPLY_SECONDS))
        after = self.stub.ShowPlacement(self.pb.ShowPlacementRequest(layers=[now.layer]), timeout=APPLY_SECONDS).placements[0]
        if not steps[-1].done or after.epoch <= now.epoch or after.holders != wanted.holders:
            self.faults.append(f"ApplyPlacement of layer {now.layer} succeeded, but the placement is not in force")
        self.applied += 1

    def run(self):
        while not self.stop.wait(self.every_seconds) and not self.faults:
            try:
                self.move()
            except grpc.RpcError as error:
                self.refused += 1
                if error.code().name not in REFUSALS:
                    self.faults.append(f"moving experts: {error.code().name} {error.details()}")
            except Exception as error:  # a fault of the test itself counts too
                self.faults.append(f"moving experts: {error!r}")

    def finish(self):
        self.stop.set()
        self.join()
        self.channel.close()
        if self.applied == 0 and not self.faults:
            self.faults.append(f"no placement was applied, {self.refused} were refused")
