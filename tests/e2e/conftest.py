"""Fixtures and markers. EXPERTD_TEST_BUILD names the build folder under test (build, build-asan, build-tsan). With EXPERTD_TEST_SHARE=N
a test of at least four cases runs one in N, but at least two; EXPERTD_TEST_SEED selects which. With EXPERTD_TEST_FULL neither that
nor the markers `release` and `share` have any effect."""

import collections
import functools
import os
import signal
import zlib

import numpy as np
import pytest

from harness import paths
from harness.checkpoints import Case
from harness.daemon import Daemon


def pytest_configure(config):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background shells ignore SIGINT, and the daemons would inherit that
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores SIGHUP, and the daemons would inherit that
    config.addinivalue_line("markers", "threads: uses several threads or connections; also runs under ThreadSanitizer")
    config.addinivalue_line("markers", "release: slow, and other tests run the same code; left out of sanitizer builds")
    config.addinivalue_line("markers", "share(n): all cases run the same code; sanitizer builds run one case in n")


# The longest test files, by their time under AddressSanitizer. They start first, so that no worker runs one alone at the end.
LONGEST = ("test_overload", "test_device", "test_device_faults", "test_tuning", "test_stream", "test_memory", "test_regions",
           "test_lifecycle", "test_invariance_matrix", "test_placement")


def takes_case(test, number, share):
    """Does the case with this number run? One of each `share` cases does, which depends on the seed."""
    seed = os.environ.get("EXPERTD_TEST_SEED", "0")
    return number % share == zlib.crc32(f"{seed} {test} {number // share}".encode()) % share


def share_of(item, cases):
    """N: one in N of the test's cases runs."""
    share = min(int(os.environ.get("EXPERTD_TEST_SHARE", "1")), max(cases // 2, 1))
    marker = item.get_closest_marker("share")
    return max(share, marker.args[0]) if paths.SANITIZER and marker else share


def runs(item, cases, seen):
    """Applies EXPERTD_TEST_SHARE, and in sanitizer builds the markers `release` and `share`. cases, seen: the number of cases of each
    test in all, and of those before this one."""
    test = item.nodeid.split("[")[0]
    if paths.SANITIZER and item.get_closest_marker("release"):
        return False
    seen[test] += 1
    return takes_case(test, seen[test] - 1, share_of(item, cases[test]))


def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))
    if not os.environ.get("EXPERTD_TEST_FULL"):
        cases, seen = collections.Counter(item.nodeid.split("[")[0] for item in items), collections.Counter()
        taken = {item: runs(item, cases, seen) for item in items}
        config.hook.pytest_deselected(items=[item for item in items if not taken[item]])
        items[:] = [item for item in items if taken[item]]


def pytest_report_header():
    return f"expertd under test: {paths.BIN / 'expertd'}"


@functools.cache
def load_case(name):
    return Case(name)


@pytest.fixture(scope="session")
def case():
    return load_case


@pytest.fixture
def start_daemon():
    """start(*arguments, **options) starts a Daemon. Each must stop cleanly when the test ends."""
    running = []

    def start(*arguments, **options):
        daemon = Daemon(*arguments, **options)
        running.append(daemon)
        return daemon

    yield start
    for daemon in running:
        if daemon.process.poll() is None:
            daemon.stop()
        daemon.kill()


@pytest.fixture(scope="module")
def served(request):
    """One daemon per module. Its model has a dense layer 0 and an MoE layer 1 with a gated shared expert, unless the module sets MODEL."""
    options = getattr(request.module, "DAEMON_OPTIONS", ())
    daemon = Daemon(*options, model=load_case(getattr(request.module, "MODEL", "qwen2_moe")).folder)
    yield daemon
    daemon.stop()


@pytest.fixture
def client(served):
    with served.client() as client:
        yield client


@pytest.fixture
def random():
    return np.random.default_rng(7)
