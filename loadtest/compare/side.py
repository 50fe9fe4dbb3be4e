"""One of the two versions that are compared: its source tree, its clusters, and the processor time that they take."""

from __future__ import annotations

import contextlib
import functools
import resource
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from loadtest.bench.context import BUCKET, RELAXED_BUCKET
from loadtest.cluster import Cluster, cluster
from loadtest.inputs.dataset import Dataset, stored
from loadtest.processes import processor_seconds

T = TypeVar("T")
Work = Callable[[], tuple[float, float]]
"""Do something once: (operations, seconds). What an operation is, the measure says."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One run: operations a second, and seconds of processor time that each operation took of the code compared."""

    rate: float
    processor_s: float


class Side:
    """A version. `disk` and `memory` are directories of its own; whatever it starts ends with `close`."""

    def __init__(self, name: str, source: Path, disk: Path, memory: Path) -> None:
        self.name = name
        self.source = source
        self.disk = disk
        self.memory = memory
        self._stack = contextlib.ExitStack()
        self._roots: list[int] = []
        disk.mkdir()
        memory.mkdir()

    def close(self) -> None:
        """End the clusters and remove their directories."""
        self._stack.close()
        shutil.rmtree(self.disk, ignore_errors=True)
        shutil.rmtree(self.memory, ignore_errors=True)

    def watch(self, started: Cluster) -> None:
        """Count the processor time of this cluster, too."""
        self._roots.append(started.child.pid)

    def enter(self, context: contextlib.AbstractContextManager[T]) -> T:
        """Keep a context open until `close`."""
        return self._stack.enter_context(context)

    @functools.cached_property
    def disk_cluster(self) -> Cluster:
        """One proxy and one target with one disk, with the buckets `bench` (fsync) and `bench-relaxed`."""
        return self.cluster(self.disk / "dfc")

    @functools.cached_property
    def memory_cluster(self) -> Cluster:
        """The same in memory."""
        return self.cluster(self.memory / "dfc")

    def cluster(self, directory: Path, *, targets: int = 1) -> Cluster:
        """A cluster of this version, until `close`."""
        started = self.enter(cluster(directory, targets=targets, source=self.source))
        started.make_bucket(BUCKET, "fsync")
        started.make_bucket(RELAXED_BUCKET, "relaxed")
        self.watch(started)
        return started

    def dataset(self, bodies: list[bytes], shards: int, ending: str = "tar") -> Dataset:
        """A dataset in a cluster of its own in memory, until `close`."""
        found = self.enter(stored(self.memory / "inputs", bodies, shards, ending, source=self.source))
        self.watch(found.started)
        return found

    def run(self, work: Work, *, readers: bool) -> Sample:
        """Do it once, and count the processor time of the clusters and, with `readers`, of children that end meanwhile."""
        before = self.processor_s(readers=readers)
        operations, seconds = work()
        return Sample(operations / seconds, (self.processor_s(readers=readers) - before) / operations)

    def processor_s(self, *, readers: bool = False) -> float:
        """Processor time that the clusters have taken so far; with `readers` and that of children that have ended."""
        total = sum(processor_seconds(root) for root in self._roots)
        if readers:
            children = resource.getrusage(resource.RUSAGE_CHILDREN)
            total += children.ru_utime + children.ru_stime
        return total
