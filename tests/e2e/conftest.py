"""Fixtures. EXPERTD_BUILD names the build folder under test (build, build-asan, build-tsan)."""

import collections
import functools
import signal

import numpy as np
import pytest

from harness import paths
from harness.checkpoints import Case
from harness.daemon import Daemon


def pytest_configure(config):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it, and its children's children would
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as nohup does
    config.addinivalue_line("markers", "threads: several threads or connections at once; also run under ThreadSanitizer")
    config.addinivalue_line("markers", "release: dear, and what other tests do too: in a release build alone")
    config.addinivalue_line("markers", "share(n): its cases run the same code on other numbers: under a sanitizer one in n")


# Files that take longest, by what they take under AddressSanitizer: begun first, so that no worker has one to itself at the end.
LONGEST = ("test_overload", "test_device", "test_device_faults", "test_tuning", "test_stream", "test_memory", "test_regions",
           "test_lifecycle", "test_invariance_matrix", "test_placement")


def takes(item, seen):
    """Whether a sanitizer's build tries it: the marks `release` and `share`."""
    share = item.get_closest_marker("share")
    if item.get_closest_marker("release"):
        return False
    seen[item.originalname] += 1
    return not share or (seen[item.originalname] - 1) % share.args[0] == 0


def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))
    if paths.SANITIZER:
        seen, taken = collections.Counter(), []
        for item in items:
            taken += [item] if takes(item, seen) else []
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
    """Starts daemons that must end cleanly when the test ends."""
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
    """One daemon for a module: a gated shared expert, a dense first layer, one MoE layer (1). MODEL in the module changes it."""
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
