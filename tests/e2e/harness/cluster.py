"""A front and its shards as processes, on this host or on hosts of their own (namespaces.py)."""

import os
import re
import signal
import sys

from .daemon import Daemon
from .namespaces import run
from .paths import SLOW
from .waiting import eventually

ON_CPU = ("--threads", "1")  # the machine has few cores, and tests run several processes
HEARTBEATS = ("--heartbeat-ms", 25 * SLOW) if SLOW > 1 else ()  # of fronts: a slow build does not look like a lost host


class Shard:
    """A shard's process, which can be started again on its address."""

    def __init__(self, model, *options, host=None, address=None, prefix=(), wait=True, env=None):
        self.model, self.options, self.host, self.prefix, self.env = model, options, host, prefix, env
        self.address = address
        self.daemon = None
        self.start(wait)

    def start(self, wait=True):
        listen = self.address or (f"{self.host.ip}:7421" if self.host else "127.0.0.1:0")
        insecure = ("--insecure",) if self.host and "--tls-cert" not in self.options else ()
        self.daemon = Daemon("--role", "shard", *ON_CPU, *insecure, *self.options, model=self.model, listen=[listen],
                             prefix=self.host.prefix if self.host else self.prefix, wait=wait, env=self.env)
        if wait:
            self.address = self.daemon.tcp

    @property
    def process(self):
        return self.daemon.process

    def pid(self):
        """The daemon's own process: `ip netns exec` replaces itself by it."""
        return self.process.pid

    def page(self, path):
        """The body of a page of the daemon's HTTP address, which on a host of its own only that host reaches."""
        if not self.host:
            return self.daemon.get(path)[1]
        program = "import sys, urllib.request; sys.stdout.write(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())"
        return run(*self.host.prefix, sys.executable, "-c", program, f"http://{self.daemon.http}{path}").stdout

    def metric(self, name):
        found = re.search(rf"^{name} (\S+)$", self.page("/metrics"), re.M)
        assert found, f"no metric {name}"
        return float(found.group(1))

    def experts(self):
        """The number of experts that it holds ready."""
        return self.metric("expertd_shard_experts")

    def kill(self):
        self.daemon.kill()

    def pause(self):
        os.kill(self.pid(), signal.SIGSTOP)

    def resume(self):
        os.kill(self.pid(), signal.SIGCONT)

    def restart(self, wait=True):
        self.start(wait)

    def end(self):
        if self.daemon and self.daemon.process.poll() is None:
            self.resume()
            self.daemon.stop()


class Cluster:
    def __init__(self, model, shards=2, local=0, copies=1, options=(), shard_options=(), network=None, wait=True, env=None, shard_env=None):
        """env, shard_env: variables of the first front, and of the shards."""
        self.model, self.network, self.shard_options = model, network, shard_options
        hosts = network.hosts if network else [None] * (shards + 1)
        self.shards, self.front, self.fronts = [], None, []
        try:
            for host in hosts[1:shards + 1]:
                self.shards.append(Shard(model, *shard_options, host=host, env=shard_env))
            self.options = ("--shards", local, "--copies", copies, *options)
            self.front = self.start_front(host=hosts[0], wait=wait, env=env)
        except BaseException:
            self.kill()
            raise

    def await_experts(self, *shards, count):
        """Waits until each of the shards holds so many experts."""
        eventually(lambda: all(shard.experts() == count for shard in shards or self.shards))

    def addresses(self):
        return ",".join(shard.address for shard in self.shards)

    def start_front(self, *options, host=None, wait=True, addresses=None, env=None):
        insecure = ("--insecure",) if self.network and "--tls-ca" not in self.options else ()
        front = Daemon("--shard-hosts", addresses or self.addresses(), *ON_CPU, *HEARTBEATS, *insecure, *self.options, *options, model=self.model,
                       tcp=False, prefix=host.prefix if host else (), wait=wait, env=env)
        self.fronts.append(front)
        return front

    def kill(self):
        for daemon in [*self.fronts, *(shard.daemon for shard in self.shards)]:
            if daemon:
                daemon.kill()

    def stop(self):
        """Ends every process and checks that each ends well."""
        try:
            for front in self.fronts:
                if front.process.poll() is None:
                    front.stop()
            for shard in self.shards:
                shard.end()
        finally:
            self.kill()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.kill() if kind else self.stop()
