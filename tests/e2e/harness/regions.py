"""Shared memory from a caller's side, with nothing but the standard library: sockets, passed descriptors, mmap."""

import mmap
import os
import socket

import numpy as np

from .daemon import CALL_SECONDS
from .paths import SLOW
from .protos import pb
from .tensors import encode

ALIGN = 64


def offer(client, size):
    """OpenRegion's answer: a region that nobody has fetched yet."""
    return client.stub.OpenRegion(pb.OpenRegionRequest(bytes=size), timeout=CALL_SECONDS)


def connect(path):
    lease = socket.socket(socket.AF_UNIX)
    lease.connect(path)  # blocking: with a timeout a full backlog is an error at once
    lease.settimeout(CALL_SECONDS)
    return lease


def fetch(lease, token):
    """The descriptor for the token; None where the daemon hangs up instead."""
    try:
        lease.sendall(token)
        data, fds, _, _ = socket.recv_fds(lease, 16, 4)
    except (ConnectionResetError, BrokenPipeError):
        return None
    if not data:
        return None
    assert data == b"\0" and len(fds) == 1
    return fds[0]


def is_cut(lease, seconds=2 * SLOW):
    """Does the daemon hang up within so long?"""
    lease.settimeout(seconds)
    try:
        return lease.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


class Region:
    def __init__(self, client, size):
        self.client, self.size = client, size
        self.offer = offer(client, size)
        self.id = self.offer.region
        self.lease = connect(self.offer.socket)
        self.fd = fetch(self.lease, self.offer.token)
        assert self.fd is not None, "the daemon kept the descriptor"
        self.map = mmap.mmap(self.fd, size)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()

    def release(self):
        """As a caller that ends: the descriptor, the mapping and the lease go; nobody says CloseRegion."""
        if self.fd is not None:
            os.close(self.fd)
            self.map.close()
            self.lease.close()
            self.fd = None

    def close(self):
        return self.client.stub.CloseRegion(pb.CloseRegionRequest(region=self.id), timeout=CALL_SECONDS)

    def extent(self, offset, length):
        return pb.Extent(region=self.id, offset=offset, length=length)

    def write(self, offset, data):
        self.map[offset:offset + len(data)] = data
        return self.extent(offset, len(data))

    def tensor(self, offset, values, dtype="F32"):
        values = np.asarray(values)
        return pb.Tensor(dtype=pb.DType.Value(dtype), shape=values.shape, extent=self.write(offset, encode(values, dtype)))

    def at(self, extent):
        return bytes(self.map[extent.offset:extent.offset + extent.length])


class Layout:
    """Places for tensors in a region, one after the other."""

    def __init__(self, region, offset=0):
        self.region, self.next = region, offset

    def take(self, length):
        at = self.next
        self.next += -(-length // ALIGN) * ALIGN
        assert self.next <= self.region.size
        return self.region.extent(at, length)

    def put(self, message):
        """A Tensor with data as one with an extent; an absent one stays absent."""
        extent = self.take(len(message.data))
        self.region.write(extent.offset, message.data)
        return pb.Tensor(dtype=message.dtype, shape=message.shape, extent=extent)
