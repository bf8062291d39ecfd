"""Hosts as network namespaces, joined by veth pairs at a bridge. Needs root, ip and nft; `REASON` says why there are none."""

import itertools
import os
import shutil
import subprocess

counter = itertools.count()


def run(*words, check=True):
    return subprocess.run(list(map(str, words)), check=check, capture_output=True, text=True, timeout=30)


def _reason():
    for program in ("ip", "nft"):
        if not shutil.which(program):
            return f"{program} is not installed (deploy/install-deps --check installs it)"
    name = f"xp{os.getpid()}-probe"
    if run("ip", "netns", "add", name, check=False).returncode != 0:
        return "network namespaces are not permitted here (root is needed)"
    works = run("ip", "netns", "exec", name, "nft", "add", "table", "ip", "probe", check=False).returncode == 0
    run("ip", "netns", "del", name, check=False)
    return None if works else "nft does not work in a network namespace here"


REASON = _reason()


class Host:
    """One host: a namespace with an address on the network's bridge."""

    def __init__(self, network, number):
        self.network, self.number = network, number
        self.name = f"{network.name}-{number}"
        self.ip = f"10.77.{network.subnet}.{number}"
        self.outside = f"v{network.tag}-{number}"  # its end of the veth pair at the bridge
        run("ip", "netns", "add", self.name)
        run("ip", "-n", network.name, "link", "add", self.outside, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        run("ip", "-n", network.name, "link", "set", self.outside, "master", "br0", "up")
        run("ip", "-n", self.name, "address", "add", f"{self.ip}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            run("ip", "-n", self.name, "link", "set", device, "up")
        self.nft("add table ip faults")
        for hook in ("input", "output"):
            self.nft(f"add chain ip faults {hook} {{ type filter hook {hook} priority 0; }}")

    @property
    def prefix(self):
        """The command prefix for programs on this host."""
        return ["ip", "netns", "exec", self.name]

    def nft(self, command):
        run(*self.prefix, "nft", command)

    def drop_from(self, other):
        """Packets from the other host are lost."""
        self.nft(f"add rule ip faults input ip saddr {other.ip} drop")

    def drop_to(self, other):
        self.nft(f"add rule ip faults output ip daddr {other.ip} drop")

    def heal(self):
        for hook in ("input", "output"):
            self.nft(f"flush chain ip faults {hook}")

    def unplug(self):
        run("ip", "-n", self.network.name, "link", "set", self.outside, "down")

    def plug(self):
        run("ip", "-n", self.network.name, "link", "set", self.outside, "up")

    def limit(self, mbit):
        """Limits what this host sends."""
        run("ip", "netns", "exec", self.name, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", f"{mbit}mbit", "burst",
            "256kb", "latency", "100ms")


class Network:
    def __init__(self, hosts):
        self.tag = f"{os.getpid() % 100000}{next(counter) % 10}"
        self.subnet = int(self.tag) % 250
        self.name = f"xp{self.tag}"
        run("ip", "netns", "add", self.name)
        run("ip", "-n", self.name, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", self.name, "link", "set", "br0", "up")
        self.hosts = [Host(self, number) for number in range(1, hosts + 1)]

    def add_host(self):
        self.hosts.append(Host(self, len(self.hosts) + 1))
        return self.hosts[-1]

    def close(self):
        for host in self.hosts:
            run("ip", "netns", "del", host.name, check=False)
        run("ip", "netns", "del", self.name, check=False)
