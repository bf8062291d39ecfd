"""A front of expertd.shard.v1 in Python, independent of the project's own: plays either well-behaved or hostile fronts against a shard.

    with Front(shard.channel(tcp=True), identity) as front:      # hello, and the complete inventory
        front.assign({0: [1, 2]}); front.wait_ready({0: [1, 2]})
        rows = front.compute(layer=0, rows={1: [0, 2], 2: [1]}, hidden=bits)   # result rows as bytes, in the order of the groups

`identity` is a shard_pb.Identity. A front cannot compute the model's digest: `identity_of(channel)` reads it from a shard's answer, whose
status names both values, and fills in the rest."""

import queue
import re
import secrets
import threading
import time

import grpc

from .daemon import CALL_SECONDS
from .paths import SLOW
from .protos import compile_proto, pb, rpc

shard_pb, shard_rpc = compile_proto("shard.proto")
WAIT_SECONDS = 60 * SLOW


class Sender:
    """An iterator of requests that a stream reads until close()."""

    def __init__(self):
        self.queue = queue.Queue()

    def send(self, message):
        self.queue.put(message)

    def close(self):
        self.queue.put(None)

    def __iter__(self):
        return iter(self.queue.get, None)


class Stream:
    """One bidirectional stream: messages in the background, the status at its end."""

    def __init__(self, method):
        self.sender = Sender()
        self.call = method(iter(self.sender))
        self.messages, self.code, self.details = [], None, None
        self.more = threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        try:
            for message in self.call:
                with self.more:
                    self.messages.append(message)
                    self.more.notify_all()
            code, details = self.call.code(), self.call.details()
        except grpc.RpcError as error:
            code, details = error.code(), error.details()
        with self.more:
            self.code, self.details = code, details
            self.more.notify_all()

    def send(self, message):
        self.sender.send(message)

    def wait(self, found, seconds=WAIT_SECONDS):
        """Waits until found(messages) is true, and returns it. Fails if the stream ends first."""
        with self.more:
            self.more.wait_for(lambda: found(self.messages) or self.code is not None, seconds)
            value = found(self.messages)
            assert value, f"the stream ended with {self.code}: {self.details}" if self.code else f"not within {seconds} s"
            return value

    def ended(self, seconds=WAIT_SECONDS):
        """(status code, details) of the stream's end."""
        with self.more:
            assert self.more.wait_for(lambda: self.code is not None, seconds), f"the stream did not end within {seconds} s"
            return self.code, self.details

    def close(self):
        self.sender.close()
        self.call.cancel()
        self.reader.join(WAIT_SECONDS)


def identity_of(channel, numerics_id=None):
    """The shard's identity, which it does not keep secret: the status of a refused hello names both values."""
    described = rpc.ExpertsStub(channel).Describe(pb.DescribeRequest(), timeout=CALL_SECONDS)
    numerics = described.models[0].layers[0].numerics_id
    identity = shard_pb.Identity(protocol=1, numerics_id=numerics_id or numerics, compute_dtype=numerics.split("/")[1], model_digest=bytes(16))
    stream = Stream(shard_rpc.ShardStub(channel).Control)
    stream.send(hello(identity))
    code, details = stream.ended()
    assert code == grpc.StatusCode.INVALID_ARGUMENT, (code, details)
    identity.model_digest = bytes.fromhex(re.search(r"this shard's ([0-9a-f]{32})", details).group(1))
    return identity


def hello(identity, instance=None, lease=True, rows=0, hidden=0):
    return shard_pb.ControlRequest(hello=shard_pb.FrontHello(identity=identity, instance=instance or secrets.randbits(63) + 1, version="test",
                                                             asks_lease=lease, max_batch_rows=rows, max_batch_hidden=hidden))


def lists(experts):
    """{layer: experts} as messages."""
    return [shard_pb.Experts(layer=layer, experts=list(numbers)) for layer, numbers in experts.items()]


class Front:
    def __init__(self, channel, identity, instance=None, lease=True, rows_channel=None, beats=True):
        self.instance = instance or secrets.randbits(63) + 1
        self.control = Stream(shard_rpc.ShardStub(channel).Control)
        self.control.send(hello(identity, self.instance, lease))
        self.hello = self.control.wait(lambda messages: messages[0].hello if messages else None)
        self.rows = Stream(shard_rpc.ShardStub(rows_channel or channel).Rows)
        self.rows.send(shard_pb.RowsRequest(token=self.hello.rows_token))
        self.commands = self.batch = 0
        self.taken = 0  # answers of the rows stream that compute() has read
        self.beats = 0
        self._end = threading.Event()
        self._heart = threading.Thread(target=self._beat, daemon=True)
        if beats:
            self._heart.start()
        self.control.wait(lambda messages: [m for m in messages if m.inventory.complete])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._end.set()
        self.rows.close()
        self.control.close()

    def _beat(self):
        while not self._end.wait(0.025):
            self.beats += 1
            self.control.send(shard_pb.ControlRequest(heartbeat=shard_pb.Heartbeat(number=self.beats)))

    # ---- experts

    def assign(self, experts):
        self.commands += 1
        self.control.send(shard_pb.ControlRequest(assign=shard_pb.Command(number=self.commands, experts=lists(experts))))

    def retire(self, experts):
        self.commands += 1
        self.control.send(shard_pb.ControlRequest(retire=shard_pb.Command(number=self.commands, experts=lists(experts))))

    def release(self, experts):
        sequence = max(message.inventory.sequence for message in self.control.messages)
        self.control.send(shard_pb.ControlRequest(release=shard_pb.Release(sequence=sequence, experts=lists(experts))))

    @staticmethod
    def _states(messages):
        found = {}
        for message in messages:
            for copies in message.inventory.copies:
                for i, expert in enumerate(copies.experts):
                    digest = copies.digests[i] if copies.digests else None
                    found[copies.layer, expert] = shard_pb.CopyState.Name(copies.state)[len("COPY_STATE_"):], digest
        return found

    def states(self):
        """{(layer, expert): (state, digest)} as of the last inventory message; UNSPECIFIED: not held any more."""
        with self.control.more:
            return self._states(self.control.messages)

    def wait_states(self, state, experts):
        wanted = [(layer, expert) for layer, numbers in experts.items() for expert in numbers]
        self.control.wait(lambda messages: all(self._states(messages).get(cell, (None,))[0] == state for cell in wanted))

    def wait_ready(self, experts):
        self.wait_states("READY", experts)

    # ---- rows

    def piece(self, layer, groups, hidden_rows, hidden=b"", row_bytes=2, batch=None, epoch=1, **fields):
        numbers = [number for expert, rows in groups for number in (expert, rows)]
        return shard_pb.RowsRequest(batch=self.batch if batch is None else batch, epoch=epoch, layer=layer, groups=numbers,
                                    hidden_rows=hidden_rows, row_bytes=row_bytes, hidden=hidden, **fields)

    def answers(self, batch, rows):
        """The answers to a batch: until all rows are there, or an error."""
        def complete(messages):
            mine = [m for m in messages[self.taken:] if m.batch == batch]
            return mine if sum(m.rows for m in mine) >= rows or any(m.HasField("error") for m in mine) else None
        found = self.rows.wait(complete)
        assert [m.first_row for m in found if m.rows] == [sum(o.rows for o in found[:i]) for i, m in enumerate(found) if m.rows]
        return found

    def send_batch(self, layer, rows, hidden, pieces=1, epoch=1):
        """Sends a batch: rows[expert] are the indices of its hidden rows, hidden a 2-D array of bf16 bits (or float32). Returns the
        number of its rows. pieces: at most so many, each of whole groups."""
        self.batch += 1
        groups = sorted((expert, list(indices)) for expert, indices in rows.items() if len(indices))
        sent, order = {}, []
        first_row = first_hidden = 0
        size = -(-len(groups) // pieces)
        for at in range(0, len(groups), size):
            part, references, new = groups[at:at + size], [], []
            for _, indices in part:
                for index in indices:
                    if index not in sent:
                        sent[index] = len(sent)
                        new.append(index)
                    references.append(sent[index])
            self.rows.send(self.piece(layer, [(expert, len(indices)) for expert, indices in part], references,
                                      hidden[new].tobytes(), hidden.shape[1] * hidden.itemsize, epoch=epoch, first_row=first_row,
                                      first_hidden=first_hidden))
            first_row += len(references)
            first_hidden += len(new)
            order += references
        return first_row

    def compute(self, layer, rows, hidden, pieces=1, epoch=1):
        """Result rows as bytes each, in the order of the experts and then of rows[expert]. An error of the shard is raised."""
        count = self.send_batch(layer, rows, hidden, pieces, epoch)
        found = self.answers(self.batch, count)
        for answer in found:
            if answer.HasField("error"):
                raise ShardError(answer.error.reason, answer.error.message)
            assert answer.epoch == epoch
        data = b"".join(answer.results for answer in found)
        width = hidden.shape[1] * hidden.itemsize
        assert len(data) == count * width
        return [data[i * width:(i + 1) * width] for i in range(count)]


class ShardError(Exception):
    def __init__(self, reason, message):
        super().__init__(f"{reason}: {message}")
        self.reason, self.message = reason, message


def round_trips(front, count):
    """Seconds of `count` heartbeats and their echoes, one after the other. The front was started with beats=False."""
    spent = []
    for number in range(1, count + 1):
        began = time.monotonic()
        front.control.send(shard_pb.ControlRequest(heartbeat=shard_pb.Heartbeat(number=number)))
        front.control.wait(lambda messages, number=number: [m for m in messages if m.echo.number == number])
        spent.append(time.monotonic() - began)
    return spent
