"""Starts peer-ours and runs one repetition at a time, on a file that both sides share."""

import subprocess

PAGE = 4096


def padded(size):
    return (size + PAGE - 1) // PAGE * PAGE


class Ours:
    """A process of peer-ours, or of a program with the same protocol. It measures its time itself, without the cost of the pipe."""

    def __init__(self, program, *arguments):
        self.program = program
        self.process = subprocess.Popen([program, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            raise RuntimeError(f"{program} did not start: see above")

    def seconds(self, number):
        try:
            self.process.stdin.write(f"{number}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, which is reported below
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.program} ended with status {self.process.wait()}: see above")
        return int(line) * 1e-9

    def close(self):
        self.process.stdin.close()
        self.process.wait()
