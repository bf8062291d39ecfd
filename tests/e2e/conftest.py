"""Fixtures and markers. EXPERTD_TEST_BUILD names the build folder under test (build, build-asan, build-tsan). With EXPERTD_TEST_FULL
the markers `release` and `share` have no effect."""

import collections
import functools
import os
import signal

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


def runs_in_sanitizer_builds(item, seen):
    """Applies the markers `release` and `share`. seen: the number of cases of each test so far."""
    share = item.get_closest_marker("share")
    if item.get_closest_marker("release"):
        return False
    seen[item.originalname] += 1
    return not share or (seen[item.originalname] - 1) % share.args[0] == 0


def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))
    if paths.SANITIZER and not os.environ.get("EXPERTD_TEST_FULL"):
        seen, taken = collections.Counter(), []
        for item in items:
            taken += [item] if runs_in_sanitizer_builds(item, seen) else []
        config.hook.pytest_deselected(items=[item for item in items if item not in taken])
        items[:] = taken


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
