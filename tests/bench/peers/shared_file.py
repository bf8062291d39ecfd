"""A file in memory shared with peer-ours and with peers that are separate processes."""

import os

import torch

from ours import padded


class SharedFile:
    """A file in memory with consecutive tensors, each at a multiple of a page."""

    def __init__(self, path, parts):
        self.path = path
        self.size = sum(padded(count * dtype.itemsize) for count, dtype in parts)
        with open(path, "wb") as file:
            file.truncate(self.size)
        storage = torch.from_file(str(path), shared=True, size=self.size, dtype=torch.uint8)
        self.tensors, at = [], 0
        for count, dtype in parts:
            size = count * dtype.itemsize
            self.tensors.append(storage[at:at + size].view(dtype))
            at += padded(size)

    def close(self):
        self.tensors = []
        os.unlink(self.path)
