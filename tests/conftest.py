"""Fixtures of all tests: clusters that are ended whatever happens, and real shards."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import DATA, Cluster, wait_for
from hypothesis import HealthCheck, settings

__all__ = ["Cluster", "wait_for"]

# A busy machine is no failure: how long an example takes says nothing about the code.
settings.register_profile("dfc", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dfc")

# Children inherit an ignored SIGINT, which is what a shell gives to commands that it runs in the background.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def start_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Cluster]]:
    """A function that starts clusters: `start_cluster(targets=2, disks=1, environment={…}, directory=…)`."""
    started: list[Cluster] = []

    def start(
        targets: int = 2, disks: int = 1, environment: dict[str, str] | None = None, directory: Path | None = None
    ) -> Cluster:
        cluster = Cluster(directory or tmp_path_factory.mktemp("cluster"), targets, disks, environment)
        started.append(cluster)
        return cluster.start()

    yield start
    for cluster in started:
        if cluster.process is not None and cluster.process.poll() is None:
            cluster.stop()


@pytest.fixture(scope="session")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    """One cluster of four targets with two disks each, shared by tests that only read and write objects of their own."""
    return start_cluster(targets=4, disks=2)


@pytest.fixture(scope="session")
def data() -> Path:
    """Shards made by others."""
    return DATA
