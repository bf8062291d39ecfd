"""What comes to hold in a while, or does not."""

import time

from .paths import SLOW


def eventually(condition, seconds=20 * SLOW):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.02)


def is_closed(connection, seconds=0.2):
    """Has the daemon hung up on this socket? What it sent before is read over."""
    connection.settimeout(seconds)
    try:
        while connection.recv(4096):
            pass
        return True
    except TimeoutError:
        return False
    except OSError:
        return True
