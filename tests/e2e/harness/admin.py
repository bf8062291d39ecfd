"""The admin socket of a daemon, and placements as expertd.admin.v1 has them."""

import contextlib

import grpc

from .daemon import CALL_SECONDS, CHANNEL_OPTIONS
from .protos import admin_pb, admin_rpc


def admin_socket(daemon):
    return daemon.socket.replace("expertd.sock", "expertd-admin.sock")


class Admin:
    """A channel to an admin socket with the stub's calls and a deadline for each."""

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
        """The messages of the stream; its last one is the end."""
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
    """`experts`: for each expert the list of its ranks."""
    return admin_pb.Placement(layer=layer, epoch=epoch, ranks=ranks, copies=[len(holders) for holders in experts],
                              holders=[rank for holders in experts for rank in holders], rows=rows, imbalance=imbalance)


def experts_of(placement):
    """For each expert the list of its ranks."""
    experts, at = [], 0
    for copies in placement.copies:
        experts.append(list(placement.holders[at:at + copies]))
        at += copies
    assert at == len(placement.holders)
    return experts
