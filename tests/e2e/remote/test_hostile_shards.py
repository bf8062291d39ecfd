"""A front beside a shard that says what no correct shard says: that connection ends, its fault is logged, and the other shards serve."""

import itertools
import json
import os
import time

import pytest

from harness.admin import admin_of, admin_pb
from harness.cluster import Cluster
from harness.fake_shard import FakeShard, answer, reply, rows_of, sleep_until_over, truth_of
from harness.load import Load, answers_of_one_process, requests_of
from harness.paths import SANITIZER, SLOW
from harness.shard_front import shard_pb
from harness.waiting import eventually

MODEL = "qwen3_moe_sharded"
LARGE, ENDLESS = 40 << 20, 100 << 20  # below and above what a connection may have under way
BUFFERS_FULL = "Buffers full"  # gRPC's own words
GROWTH_BYTES = 192 << 20  # gRPC receives a message before its size can be refused
GRPC_THREADS = 2 * os.cpu_count()


@pytest.fixture(scope="module")
def golden(case):
    return case(MODEL)


@pytest.fixture(scope="module")
def wanted(golden):
    return answers_of_one_process(golden)


@pytest.fixture(scope="module")
def pair(golden):
    """Two shards that both hold every expert; each test starts a front of its own over them and a fake one."""
    with Cluster(golden.folder, shards=2, copies=2, options=("--rereplicate-after", 3600)) as cluster:
        count = json.loads((golden.folder / "config.json").read_text())["num_experts"] * len(golden.layers)
        cluster.await_experts(count=count)
        cluster.truth = truth_of(cluster.shards[0].daemon, count)
        yield cluster


class Victim:
    """A front over the two shards, to which a fake one is added under load."""

    def __init__(self, pair, golden, wanted, control=None, rows=None):
        self.pair, self.fake = pair, FakeShard(pair.truth)
        self.fake.control, self.fake.rows = control or self.fake.control, rows or self.fake.rows
        self.front = pair.start_front("--placement-owner", "false")
        self.calls = Load(self.front, requests_of(golden), wanted, timeout=5.0 * SLOW)

    def __enter__(self):
        eventually(lambda: {event["address"] for event in self.front.events("shard") if event["state"] == "ready"}
                   == {shard.address for shard in self.pair.shards})
        self.calls.__enter__()
        self.calls.progress()
        self.before = self.front.memory()
        with admin_of(self.front) as admin:
            admin.stub.ChangeShard(admin_pb.ChangeShardRequest(address=self.fake.address, change=admin_pb.SHARD_CHANGE_ADD))
        return self

    def events(self, name):
        return [event for event in self.front.events(name) if event.get("address") == self.fake.address]

    def why(self):
        """The messages of the lines about the fake shard."""
        return " | ".join(event.get("message", "") for name in ("shard", "shard_refused", "control_refused", "rows_refused")
                          for event in self.events(name))

    def await_words(self, words):
        eventually(lambda: words in self.why() or f"reason={words}" in self.front.log, 30 * SLOW)

    def __exit__(self, kind, *rest):
        self.calls.__exit__(kind, *rest)
        try:
            if not kind:
                print(f"longest gap between answers: {self.calls.longest_gap():.2f} s")
                self.calls.check()
                after = self.front.memory()
                assert SANITIZER or after["rss"] < self.before["rss"] + GROWTH_BYTES, (self.before, after)
                assert after["threads"] <= self.before["threads"] + GRPC_THREADS, (self.before, after)
                self.front.stop()
        finally:
            print("\n".join(line for line in self.front.log.splitlines() if "event=option" not in line))
            self.fake.close()
            self.front.kill()
            self.pair.fronts.remove(self.front)


@pytest.fixture
def victim(pair, golden, wanted):
    return lambda **options: Victim(pair, golden, wanted, **options)


def copies_of(layer, expert, state=shard_pb.COPY_STATE_READY):
    return [shard_pb.Copies(layer=layer, state=state, experts=[expert], digests=[1])]


# ---- the control stream: what is sent after the inventory of a correct shard

def after_inventory(*messages):
    return lambda fake, requests, context: fake.behave(requests, context, *[m(fake) if callable(m) else m for m in messages])


def instead_of_hello(message):
    def control(fake, requests, context):
        next(requests)
        yield message(fake)
        yield from fake.echo(requests)
    return control


FUTURE = 1 << 62
CONTROL = {
    "no hello first": (instead_of_hello(lambda fake: fake.inventory()), "first message is no hello"),
    "bytes that are no message": (instead_of_hello(lambda fake: b"\xff" * 40), "not a valid ControlReply"),
    "nothing in the message": (instead_of_hello(lambda fake: b""), "control message of the shard"),
    "no layers": (instead_of_hello(lambda fake: fake.hello(layers=[])), "the shard has 0 layers"),
    "a layer twice": (instead_of_hello(lambda fake: fake.hello(layers=fake.truth.layers[:1] * len(fake.truth.layers))), "twice"),
    "other experts": (instead_of_hello(lambda fake: fake.hello(layers=[shard_pb.Layer(layer=layer.layer, num_experts=3)
                                                                         for layer in fake.truth.layers])), "has 3 experts on the shard"),
    "a short token": (instead_of_hello(lambda fake: fake.hello(rows_token=b"short")), "token"),
    "instance 0": (instead_of_hello(lambda fake: fake.hello(instance=0)), "instance"),
    "a second hello": (after_inventory(lambda fake: fake.hello()), "second hello"),
    "a layer that is not served": (after_inventory(lambda fake: fake.inventory(2, copies_of(77, 0))), "names layer 77"),
    "an expert out of range": (after_inventory(lambda fake: fake.inventory(2, copies_of(fake.truth.layers[0].layer, 16))),
                               "names expert 16"),
    "the largest expert": (after_inventory(lambda fake: fake.inventory(2, copies_of(fake.truth.layers[0].layer, 0xffffffff))),
                           "names expert 4294967295"),
    "an echo from the future": (after_inventory(reply(echo=shard_pb.Heartbeat(number=FUTURE))), f"heartbeat {FUTURE}"),
    "an echo from the past": (after_inventory(reply(echo=shard_pb.Heartbeat(number=1))), "heartbeat 1,"),
    "an echo of the greatest number": (after_inventory(reply(echo=shard_pb.Heartbeat(number=(1 << 64) - 1))), "heartbeat 1844674"),
    "a gap in the inventory": (after_inventory(lambda fake: fake.inventory(3, [])), "broken_message"),
    "a sequence beyond 32 bits": (after_inventory(lambda fake: fake.inventory((1 << 32) + 2, [])), "sequence"),
    "another digest": (after_inventory(lambda fake: fake.inventory(2, copies_of(fake.truth.layers[0].layer, 0))), "other_expert"),
    "a message that is too long": (after_inventory(reply(failure=shard_pb.LoadFailure(message="x" * (65 << 10)))), "bytes"),
    "a message of 40 MB": (after_inventory(bytes(LARGE)), "bytes"),
}


@pytest.mark.threads
@pytest.mark.share(10)
@pytest.mark.parametrize("name", CONTROL)
def test_a_wrong_control_message_ends_the_connection(victim, name):
    control, words = CONTROL[name]
    with victim(control=control) as v:
        v.await_words(words)
        v.calls.progress()


@pytest.mark.release
def test_a_shard_that_ends_its_streams_at_once_is_dialled_in_growing_pauses(victim):
    def end(fake, requests, context):
        next(requests)
        return iter([fake.hello()])

    with victim(control=end) as v:
        v.fake.wait(lambda fake: fake.greetings >= 4)
        v.calls.progress()
        began, greetings = time.monotonic(), v.fake.greetings
        v.calls.progress(200)
        assert v.fake.greetings - greetings < 5 + 5 * (time.monotonic() - began)


@pytest.mark.release
def test_a_shard_that_never_greets_holds_up_nobody(victim):
    with victim(control=lambda fake, requests, context: sleep_until_over(context)) as v:
        v.fake.wait(lambda fake: fake.greetings >= 2)
        v.calls.progress()


@pytest.mark.release
def test_failures_without_end_do_not_fill_the_log(victim):
    flood = [reply(failure=shard_pb.LoadFailure(layer=1, expert=1, message=f"no. {i}\n\x1b[31m")) for i in range(2000)]
    with victim(control=after_inventory(*flood, lambda fake: fake.hello())) as v:
        v.await_words("second hello")
        v.calls.progress()
        assert 0 < len(v.events("shard_load_failed")) < 200
        assert "\x1b" not in v.front.log


@pytest.mark.release
def test_states_that_change_without_end_cost_the_shard_alone(victim):
    """Neither the log nor the thread that hears the other shards."""
    def flood(fake, requests, context):
        yield from itertools.islice(fake.behave(requests, context), 3)
        for number in itertools.count():
            yield reply(draining=shard_pb.Draining(drains=number % 2 == 0))

    with victim(control=flood) as v:
        eventually(lambda: len(v.events("shard")) > 20)
        v.calls.progress(500)
        assert len(v.events("shard")) < 1000
        assert {event["state"] for shard in v.pair.shards for event in v.front.events("shard")
                if event["address"] == shard.address} <= {"joining", "ready", "loading"}


@pytest.mark.release
def test_a_message_without_end_costs_its_connection_alone(victim):
    with victim(control=after_inventory(bytes(8 * ENDLESS))) as v:
        v.await_words(BUFFERS_FULL)
        v.calls.progress(500)
        assert {event["state"] for shard in v.pair.shards for event in v.front.events("shard")
                if event["address"] == shard.address} <= {"joining", "ready", "loading", "suspect"}  # none is lost


# ---- the rows stream

def each_piece(make):
    """Answers each piece with make(piece), messages."""
    def rows(fake, requests, context):
        for piece in fake.take(requests):
            yield from make(piece)
    return rows


def never_reads(fake, requests, context):
    sleep_until_over(context)
    return ()


ROWS = {
    "a later batch": (each_piece(lambda piece: [answer(piece, batch=piece.batch + 1)]), "no rows were sent"),
    "batch 0": (each_piece(lambda piece: [answer(piece, batch=0)]), "without the number of its batch"),
    "another epoch": (each_piece(lambda piece: [answer(piece, epoch=piece.epoch + 1)]), "with epoch"),
    "too many rows": (each_piece(lambda piece: [answer(piece, rows_of(piece) + 1)] + [answer(piece, 4096)]), "rows from row"),
    "rows that were answered": (each_piece(lambda piece: [answer(piece, 1)] * 2 if rows_of(piece) > 1 else []), "rows from row 0"),
    "rows out of order": (each_piece(lambda piece: [answer(piece, first_row=piece.first_row + 1)]), "rows from row"),
    "half a row": (each_piece(lambda piece: [answer(piece, results=bytes(rows_of(piece) * piece.row_bytes // 2))]), "bytes for"),
    "no rows": (each_piece(lambda piece: [answer(piece, 0)]), "neither rows nor an error"),
    "2^32 rows": (each_piece(lambda piece: [answer(piece, rows=0xffffffff, results=b"")]), "rows"),
    "bytes that are no message": (each_piece(lambda piece: [b"\xff" * 40]), "refused"),
    "40 MB": (each_piece(lambda piece: [answer(piece, results=bytes(LARGE))]), "bytes"),
    "a stream that ends at once": (lambda fake, requests, context: iter(()), "ended the stream of rows"),
    "an error for each batch": (each_piece(lambda piece: [answer(piece, 0, error=shard_pb.RowsError(reason="SHARD_LOST", message="no\n"))]), ""),
}


@pytest.mark.threads
@pytest.mark.share(6)
@pytest.mark.parametrize("name", ROWS)
def test_a_wrong_answer_ends_the_connection_and_costs_no_call(victim, name):
    rows, words = ROWS[name]
    with victim(rows=rows) as v:
        v.fake.wait(lambda fake: fake.pieces > 0 or name == "a stream that ends at once")
        v.await_words(words)
        v.calls.progress()


def test_answers_to_a_batch_that_has_ended_are_ignored(victim):
    """And more of them than rows were sent end the connection."""
    with victim(rows=each_piece(lambda piece: [answer(piece, batch=1, rows=1, results=bytes(piece.row_bytes))] * 100)) as v:
        v.await_words("are answered")
        v.calls.progress()


SILENT = {"nothing is answered": FakeShard.answer_nothing, "nothing is read": never_reads,
          "half of the rows": each_piece(lambda piece: [answer(piece, max(1, rows_of(piece) // 2))] if rows_of(piece) > 1 else [])}


@pytest.mark.threads
@pytest.mark.share(3)
@pytest.mark.parametrize("name", SILENT)
def test_a_shard_that_answers_heartbeats_but_no_rows_costs_no_call(victim, name):
    """Its rows are computed by the others in time, and it is dropped."""
    with victim(rows=SILENT[name]) as v:
        v.fake.wait(lambda fake: fake.rows_streams > 0)
        v.calls.progress(100, 60 * SLOW)
        eventually(lambda: v.fake.rows_streams > 1 or v.events("shard")[-1]["state"] in ("dead", "suspect"), 60 * SLOW)
        v.calls.progress()
