"""peer-ours as a process: one repetition at a time on the file that both sides see."""

import subprocess

PAGE = 4096


def padded(size):
    return (size + PAGE - 1) // PAGE * PAGE


class Ours:
    """A peer-ours, or a program with its manners. Its time is its own: what the pipe costs is not in it."""

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
            pass  # it has ended: the next line says so
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.program} ended with status {self.process.wait()}: see above")
        return int(line) * 1e-9

    def close(self):
        self.process.stdin.close()
        self.process.wait()
