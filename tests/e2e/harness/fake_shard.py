"""A shard of expertd.shard.v1 in Python, which a front dials: it says that it holds every expert, and misbehaves where a test wants it to.

    with FakeShard(truth_of(shard, layers, experts)) as fake:
        fake.rows = lambda fake, requests, context: ...     # replaces the answers of the rows stream

Without changes it greets, reports every expert as ready, grants the lease, echoes heartbeats and computes nothing: `rows` answers no
piece. Handlers yield messages, or bytes that are sent as they are.
"""

import concurrent.futures
import secrets
import threading
import time

import grpc

from .shard_front import Front, identity_of, shard_pb

SERVICE = "expertd.shard.v1.Shard"


class Truth:
    """What a correct shard says: its identity, its layers, and the digest of each (layer, expert)."""

    def __init__(self, identity, layers, digests):
        self.identity, self.layers, self.digests = identity, layers, digests


def truth_of(shard, count):
    """From a real shard that holds all `count` experts ready. shard: its Daemon."""
    with grpc.insecure_channel(shard.tcp) as channel:
        identity = identity_of(channel)
        with Front(channel, identity, lease=False) as front:
            digests = {cell: digest for cell, (state, digest) in front.states().items() if state == "READY"}
            assert len(digests) == count, (len(digests), count)
            return Truth(identity, list(front.hello.layers), digests)


def reply(**fields):
    return shard_pb.ControlReply(**fields)


class FakeShard:
    def __init__(self, truth):
        self.truth, self.instance, self.token = truth, secrets.randbits(63) + 1, secrets.token_bytes(16)
        self.greetings = self.rows_streams = self.pieces = 0  # so far
        self.control, self.rows = FakeShard.behave, FakeShard.answer_nothing
        self.more = threading.Condition()
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(32), options=[("grpc.max_send_message_length", -1),
                                                                                      ("grpc.max_receive_message_length", -1)])
        methods = {"Control": self._handler(self._control, shard_pb.ControlRequest), "Rows": self._handler(self._rows, shard_pb.RowsRequest)}
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    @staticmethod
    def _handler(behaviour, request):
        return grpc.stream_stream_rpc_method_handler(behaviour, request_deserializer=request.FromString,
                                                     response_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString())

    def _control(self, requests, context):
        with self.more:
            self.greetings += 1
            self.more.notify_all()
        yield from self.control(self, requests, context) or ()

    def _rows(self, requests, context):
        with self.more:
            self.rows_streams += 1
            self.more.notify_all()
        yield from self.rows(self, requests, context) or ()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.server.stop(0).wait()

    # ---- a correct control stream

    def hello(self, **changes):
        usual = {"identity": self.truth.identity, "instance": self.instance, "version": "fake", "rows_token": self.token,
                 "layers": self.truth.layers, "bytes_max": 1 << 40}
        return reply(hello=shard_pb.ShardHello(**(usual | changes)))

    def copies(self):
        """All experts, ready."""
        layers = sorted({layer for layer, _ in self.truth.digests})
        cells = {layer: sorted(expert for l, expert in self.truth.digests if l == layer) for layer in layers}
        return [shard_pb.Copies(layer=layer, state=shard_pb.COPY_STATE_READY, experts=cells[layer],
                                digests=[self.truth.digests[layer, expert] for expert in cells[layer]]) for layer in layers]

    def inventory(self, sequence=1, copies=None, complete=True, **fields):
        return reply(inventory=shard_pb.Inventory(sequence=sequence, complete=complete, copies=self.copies() if copies is None else copies,
                                                  **fields))

    def behave(self, requests, context, *more):
        """Correct, but for `more`: messages after the inventory."""
        front = next(requests).hello
        yield self.hello()
        yield self.inventory()
        yield reply(lease=shard_pb.Lease(granted=front.asks_lease, owner=front.instance))
        yield from more
        yield from self.echo(requests)

    @staticmethod
    def echo(requests, sequence=1):
        for request in requests:
            if request.HasField("heartbeat"):
                yield reply(echo=shard_pb.Heartbeat(number=request.heartbeat.number))
            elif request.HasField("assign") or request.HasField("retire"):
                sequence += 1
                command = request.assign if request.HasField("assign") else request.retire
                yield reply(inventory=shard_pb.Inventory(sequence=sequence, commands_seen=command.number, complete=True))

    # ---- rows

    def take(self, requests):
        """Pieces as they arrive, but the message with the token."""
        for request in requests:
            if request.batch:
                with self.more:
                    self.pieces += 1
                    self.more.notify_all()
                yield request

    def answer_nothing(self, requests, context):
        for _ in self.take(requests):
            pass
        return ()

    def wait(self, found, seconds=60):
        """Waits until found(self)."""
        with self.more:
            assert self.more.wait_for(lambda: found(self), seconds), (self.greetings, self.rows_streams, self.pieces)


def rows_of(piece):
    return len(piece.hidden_rows)


def answer(piece, rows=None, **changes):
    """An answer with zeros to a piece."""
    rows = rows_of(piece) if rows is None else rows
    usual = {"batch": piece.batch, "epoch": piece.epoch, "first_row": piece.first_row, "rows": rows,
             "results": bytes(rows * piece.row_bytes)}
    return shard_pb.RowsReply(**(usual | changes))


def sleep_until_over(context):
    while context.is_active():
        time.sleep(0.01)
