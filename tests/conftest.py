"""Fixtures of all tests: clusters that are ended whatever happens, and real shards."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import DATA, RUNNING, Cluster, wait_for
from hypothesis import HealthCheck, settings
from leaks import leaks, leaks_of_module
from nodelogs import LOGS, dump_stacks

from dfc.wire import prepare_structs

__all__ = ["Cluster", "leaks", "leaks_of_module", "wait_for"]
pytest_plugins = ["crashed", "gate", "timings"]

# Hundreds of processes of these tests import NumPy, whose threads for linear algebra nobody wants.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Buffers of megabytes go back to the kernel as soon as they are freed. glibc would keep those that threads had, half a gigabyte
# in the end, of which each of the thousands of forks in these tests would copy the page tables.
M_MMAP_THRESHOLD = -3
if hasattr(ctypes.CDLL(None), "mallopt"):
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)

# A busy machine is no failure: how long an example takes says nothing about the code.
settings.register_profile("dfc", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dfc")

# Children inherit an ignored SIGINT, which is what a shell gives to commands that it runs in the background.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


StartCluster = Callable[..., Cluster]
OVER: list[Cluster] = []  # nobody needs them any more


def _started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartCluster]:
    started: list[Cluster] = []

    def start(
        targets: int = 2, disks: int = 1, environment: dict[str, str] | None = None, directory: Path | None = None
    ) -> Cluster:
        cluster = Cluster(directory or tmp_path_factory.mktemp("cluster"), targets, disks, environment)
        started.append(cluster)
        return cluster.start()

    yield start
    for cluster in started:
        cluster.end()
    OVER.extend(started)


@pytest.fixture(scope="session", autouse=True)
def ended_clusters() -> Iterator[None]:
    """Clusters end beside the tests that follow; the last ones are waited for here."""
    yield
    for cluster in list(RUNNING):
        cluster.stop()


@pytest.fixture(scope="module")
def start_cluster(ended_clusters: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartCluster]:
    """A function that starts clusters: `start_cluster(targets=2, disks=1, environment={…}, directory=…)`. They end with the
    module, so that they take no processor from other tests."""
    yield from _started(tmp_path_factory)


@pytest.fixture(scope="session")
def start_shared_cluster(ended_clusters: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartCluster]:
    """The same for clusters of several modules."""
    yield from _started(tmp_path_factory)


@pytest.fixture(scope="session")
def cluster(start_shared_cluster: StartCluster) -> Cluster:
    """One cluster of four targets with two disks each, shared by tests that only read and write objects of their own."""
    return start_shared_cluster(targets=4, disks=2)


@pytest.fixture(scope="session")
def data() -> Path:
    """Shards made by others."""
    return DATA


def pytest_collection_finish() -> None:
    """Nodes and clients in this process have threads, as in their own."""
    prepare_structs()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    LOGS.begin()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A test that fails prints what its nodes logged; of one that hung, the stacks of their threads are in there."""
    report = yield
    if report.failed:
        if "Timeout" in str(call.excinfo):
            dump_stacks([pid for cluster in RUNNING for pid in cluster.pids()], LOGS)
        if said := LOGS.tails():
            report.sections.append(("Logs of nodes during this test", said))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """After all fixtures of the test, and of its module when it is the last one: the logs of nodes tell of no leaks."""
    ended = [cluster for cluster in OVER if not cluster.process or cluster.process.poll() is not None]
    result = yield
    assert not (found := LOGS.leaks()), "leaks in the logs of nodes:\n" + "\n".join(found)
    for cluster in ended if not item.session.testsfailed else ():
        OVER.remove(cluster)
        shutil.rmtree(cluster.directory, ignore_errors=True)
    return result
