"""A caller's side of shared memory, with the standard library only: sockets, passed descriptors, mmap."""

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
    """OpenRegion's answer: a region whose descriptor is not fetched yet."""
    return client.stub.OpenRegion(pb.OpenRegionRequest(bytes=size), timeout=CALL_SECONDS)


def connect(path):
    lease = socket.socket(socket.AF_UNIX)
    lease.connect(path)  # blocking: with a timeout, a full backlog would be an immediate error
    lease.settimeout(CALL_SECONDS)
    return lease


def fetch(lease, token):
    """Sends the token and returns the descriptor, or None if the daemon closes the connection."""
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
    """Does the daemon close the connection within `seconds`?"""
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
        assert self.fd is not None, "the daemon sent no descriptor"
        self.map = mmap.mmap(self.fd, size)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()

    def release(self):
        """Closes the descriptor, the mapping and the lease without CloseRegion, as a caller that ends."""
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
    """Allocates consecutive extents of a region."""

    def __init__(self, region, offset=0):
        self.region, self.next = region, offset

    def take(self, length):
        at = self.next
        self.next += -(-length // ALIGN) * ALIGN
        assert self.next <= self.region.size
        return self.region.extent(at, length)

    def put(self, message):
        """Copies a Tensor's data into the region. Returns the Tensor with an extent instead."""
        extent = self.take(len(message.data))
        self.region.write(extent.offset, message.data)
        return pb.Tensor(dtype=message.dtype, shape=message.shape, extent=extent)
