"""Faults of a cluster with two copies of each expert, one at a time: none of them may cost a call.

A fault is a method of Faults that begins it, waits for a random time and ends it; a second front serves on where the first one is
restarted. `HOSTS` are those that need hosts of their own (harness/namespaces.py).
"""

import json
import time

import grpc

from harness.admin import admin_of, admin_pb
from harness.daemon import CALL_SECONDS
from harness.paths import SLOW

HOLD_SECONDS = (0.1, 3.0)  # of a fault; some are longer than the cluster's --rereplicate-after
COMPLETE_SECONDS = 60 * SLOW
HOSTS = ("partition", "partition_of_one_front", "unplug")
PROCESSES = ("kill", "stop", "restart", "drain", "second_front", "front_restart")


class Faults:
    def __init__(self, cluster, callers, random, experts, elder, message_bytes):
        """elder: the shard that is not killed, so that one shard lives through the whole run."""
        self.cluster, self.callers, self.random, self.experts, self.elder = cluster, callers, random, experts, elder
        self.options = ("--max-message-bytes", message_bytes)
        self.hosts = cluster.network.hosts if cluster.network else [None] * 5
        self.shards_killed = 0

    # ---- what the cluster says

    def shards(self, front):
        with admin_of(front) as admin:
            return admin.stub.ListShards(admin_pb.ListShardsRequest(), timeout=CALL_SECONDS)

    def is_complete(self, front):
        """Is every shard connected, and has each expert at least two copies? A shard that was lost several times is out of use for a while
        ("back"), but a front uses it at once if it has the only copy; until then there may be a third copy elsewhere."""
        listed = self.shards(front).shards
        steady = len(listed) == len(self.cluster.shards) and all(
            shard.state in ("ready", "back") and not shard.loading + shard.retiring + shard.failed + shard.draining for shard in listed)
        if not steady or sum(shard.ready for shard in listed) < 2 * self.experts:
            return False
        with admin_of(front) as admin:
            return all(copies >= 2 for placement in admin.show() for copies in placement.copies)

    def fronts(self):
        return [front for front in self.cluster.fronts if front.process.poll() is None]

    def await_complete(self):
        until = time.monotonic() + COMPLETE_SECONDS
        for front in self.fronts():
            while not self.is_complete(front):
                assert time.monotonic() < until, f"not every expert has two copies after {COMPLETE_SECONDS} s:\n{self.shards(front)}"
                assert self.callers.run(), "a process of callers ended"
                time.sleep(0.05)

    # ---- helpers

    def hold(self):
        time.sleep(self.random.uniform(*HOLD_SECONDS))

    def shard(self, but=None):
        return self.random.choice([shard for shard in self.cluster.shards if shard is not but])

    def host_of(self, shard):
        return self.hosts[1 + self.cluster.shards.index(shard)]

    def start_front(self, host):
        return self.cluster.start_front(host=host)

    def forget(self, front):
        self.cluster.fronts.remove(front)
        if front is self.cluster.front:
            self.cluster.front = None

    # ---- shards

    def kill(self):
        shard = self.shard(but=self.elder)
        shard.kill()
        self.hold()
        shard.restart()
        self.shards_killed += 1
        return shard.address

    def stop(self):
        shard = self.shard()
        shard.pause()
        self.hold()
        shard.resume()
        return shard.address

    def restart(self):
        """SIGTERM: the shard hands over its experts, and ends."""
        shard = self.shard(but=self.elder)
        shard.daemon.stop()
        self.hold()
        shard.restart()
        self.shards_killed += 1
        return shard.address

    def drain(self):
        shard = self.shard()
        with admin_of(self.cluster.front) as admin:
            for change in (admin_pb.SHARD_CHANGE_DRAIN, admin_pb.SHARD_CHANGE_KEEP):
                admin.stub.ChangeShard(admin_pb.ChangeShardRequest(address=shard.address, change=change), timeout=CALL_SECONDS)
                if change == admin_pb.SHARD_CHANGE_DRAIN:
                    self.hold()
        return shard.address

    # ---- hosts

    def cut(self, shard, front_host):
        host, direction = self.host_of(shard), self.random.choice(("to the shard", "from the shard", "both"))
        if direction != "from the shard":
            host.drop_from(front_host)
        if direction != "to the shard":
            host.drop_to(front_host)
        self.hold()
        host.heal()
        return f"{shard.address} {direction}"

    def partition(self):
        return self.cut(self.shard(), self.hosts[0])

    def partition_of_one_front(self):
        """The other front uses the shard all the time."""
        return self.with_second_front(lambda: self.cut(self.shard(), self.hosts[0]))

    def unplug(self):
        shard = self.shard()
        self.host_of(shard).unplug()
        self.hold()
        self.host_of(shard).plug()
        return shard.address

    # ---- fronts

    def with_second_front(self, action):
        """A front joins, half of the callers use it, and it ends without them."""
        front = self.start_front(self.hosts[4])
        self.callers.move(f"unix:{front.socket}", only=0)
        what = action()
        self.await_complete()
        self.callers.move(f"unix:{self.cluster.front.socket}", only=0)
        self.forget(front)
        kills = self.random.random() < 0.7
        front.kill() if kills else front.stop()
        return f"{what or ''} {'killed' if kills else 'ended'}".strip()

    def second_front(self):
        return self.with_second_front(self.hold)

    def front_restart(self):
        old, other = self.cluster.front, self.start_front(self.hosts[4])
        self.callers.move(f"unix:{other.socket}")
        kills = self.random.random() < 0.7
        self.forget(old)
        old.kill() if kills else old.stop()
        self.hold()
        self.cluster.front = self.start_front(self.hosts[0])
        self.callers.move(f"unix:{self.cluster.front.socket}")
        self.forget(other)
        other.stop()
        return "killed" if kills else "ended"


def experts_of(folder, layers):
    """All experts of all layers of a checkpoint."""
    return json.loads((folder / "config.json").read_text())["num_experts"] * layers
