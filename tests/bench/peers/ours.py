"""peer-ours as a process: the file that both sides see, and one repetition at a time."""

import os
import subprocess

import torch

PAGE = 4096


def padded(size):
    return (size + PAGE - 1) // PAGE * PAGE


class SharedFile:
    """Tensors one after another in a file in memory, each at a multiple of a page."""

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


class Ours:
    """A peer-ours, or a program with its manners. Its time is its own: what the pipe costs is not in it."""

    def __init__(self, program, *arguments):
        self.process = subprocess.Popen([program, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            raise RuntimeError(f"{program} did not start: see above")

    def seconds(self, number):
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline()) * 1e-9

    def close(self):
        self.process.stdin.close()
        self.process.wait()
