"""Input of the rows about jobs: shards of one kind in a cluster of their own, and jobs over all of them."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.cluster import Cluster, cluster
from loadtest.jobclient import run_job
from loadtest.scenarios import expect
from loadtest.tarstream import sample_tar, sample_tar_size

TARGETS = 2


@dataclass
class JobInput:
    """Shards in a cluster of their own, all of one size."""

    started: Cluster
    bucket: str
    shards: int
    samples: int
    size: int
    durability: str
    runs: Iterator[int] = field(default_factory=itertools.count)

    def job(self, operation: str, ending: str, options: dict[str, Any]) -> tuple[dict[str, Any], float]:
        """Run one over the whole dataset into a bucket of its own, which goes before this returns."""
        bucket = f"out-{next(self.runs)}"
        with contextlib.closing(self.started.connect(timeout_s=600)) as connection:
            self.started.make_bucket(bucket, self.durability)
            spec = {
                "operation": operation,
                "input": {"bucket": self.bucket, "shards": "**"},
                "output": {"bucket": bucket, "pattern": ending},
                "options": options,
            }
            try:
                return run_job(connection, spec)
            finally:
                expect(connection.request("DELETE", f"/v1/buckets/{bucket}?force=1"), 204)


@contextlib.contextmanager
def job_input(
    directory: Path,
    durability: str,
    shards: int,
    make: Callable[[int], tuple[Iterator[memoryview], int]],
    samples: int,
    *,
    source: Path | None = None,
) -> Iterator[JobInput]:
    """A cluster with the shards `x-000000.tar` …; `make(number)` gives a shard's pieces and its size.

    `source` is the source tree whose code the cluster runs, by default our own.
    """
    try:
        with cluster(directory, targets=TARGETS, source=source) as started:
            started.make_bucket("in", durability)
            total = 0
            with contextlib.closing(started.connect(timeout_s=600)) as connection:
                for number in range(shards):
                    pieces, size = make(number)
                    path = f"/in/x-{number:06d}.tar"
                    expect(connection.request("PUT", path, body=pieces, size=size), 201)
                    total += size
            os.sync()
            yield JobInput(started, "in", shards, samples, total, durability)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def sample_input(
    directory: Path,
    durability: str,
    samples: int,
    sample_bytes: int,
    shards: int,
    alphabet: int = 256,
    *,
    source: Path | None = None,
) -> contextlib.AbstractContextManager[JobInput]:
    """The same with so many samples in all, spread evenly over the shards; their bytes are of so many different values."""
    each = samples // shards

    def make(number: int) -> tuple[Iterator[memoryview], int]:
        pieces = sample_tar(each, sample_bytes, first=number * each, alphabet=alphabet)
        return map(memoryview, pieces), sample_tar_size(each, sample_bytes)

    return job_input(directory, durability, shards, make, samples, source=source)
