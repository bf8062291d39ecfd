"""Waiting for conditions."""

import time

from .paths import SLOW


def eventually(condition, seconds=20 * SLOW):
    """Waits until condition() is true; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not hold within {seconds} s"
        time.sleep(0.02)


def is_closed(connection, seconds=0.2):
    """Has the daemon closed this connection? Skips the data that it sent before."""
    connection.settimeout(seconds)
    try:
        while connection.recv(4096):
            pass
        return True
    except TimeoutError:
        return False
    except OSError:
        return True
