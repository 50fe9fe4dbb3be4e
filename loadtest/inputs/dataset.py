"""Datasets of the benchmark of the loaders: shards of one kind in a cluster of their own, named as a training script would."""

from __future__ import annotations

import contextlib
import gzip
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.cluster import Cluster, cluster
from loadtest.inputs.pictures import photographs
from loadtest.scenarios import expect
from loadtest.tarstream import sample_tar, tar_of

TARGETS = 2
BUCKET = "bench-inputs"
GZIP_LEVEL = 6


@dataclass(frozen=True, slots=True)
class Dataset:
    """Shards that lie in a cluster. `size` is that of all shards as they are stored, in bytes."""

    started: Cluster
    names: list[str]
    size: int
    ending: str

    @property
    def spec(self) -> str:
        """The shard spec of all of them, a count: `http://127.0.0.1:8080/bench-inputs/x-@000008.tar`."""
        return f"{self.started.url}/{BUCKET}/x-@{len(self.names):06d}.{self.ending}"

    @property
    def urls(self) -> list[str]:
        return [f"{self.started.url}/{BUCKET}/{name}" for name in self.names]

    def owners(self) -> list[str]:
        """The same shards at the targets that hold them, as the cluster redirects to them."""
        with contextlib.closing(self.started.connect()) as connection:
            answers = [expect(connection.request("GET", f"/v1/objects/{BUCKET}/{name}"), 307) for name in self.names]
        return [answer.headers["location"] for answer in answers]


@contextlib.contextmanager
def stored(
    directory: Path, bodies: Sequence[bytes], shards: int, ending: str = "tar", *, source: Path | None = None
) -> Iterator[Dataset]:
    """A cluster of two targets with `shards` shards, in which the bodies take turns; `source` as for `cluster`."""
    try:
        with cluster(directory, targets=TARGETS, source=source) as started:
            started.make_bucket(BUCKET, "relaxed")
            names = [f"x-{number:06d}.{ending}" for number in range(shards)]
            size = 0
            with contextlib.closing(started.connect(timeout_s=600)) as connection:
                for number, name in enumerate(names):
                    body = bodies[number % len(bodies)]
                    expect(connection.request("PUT", f"/{BUCKET}/{name}", body=body), 201)
                    size += len(body)
            yield Dataset(started, names, size, ending)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def plain_tar(samples: int, sample_bytes: int, alphabet: int = 256) -> bytes:
    """A shard of samples with a `.jpg` of so many pseudo-random bytes and a `.cls` each."""
    return b"".join(sample_tar(samples, sample_bytes, alphabet=alphabet))


def picture_tar(samples: int, different: int) -> bytes:
    """A shard of real JPEG files with a class each; so many of them are different pictures."""
    jpegs = list(photographs(different))

    def files() -> Iterator[tuple[str, bytes]]:
        for number in range(samples):
            yield f"n{number % 1000:04d}/{number:08d}.jpg", jpegs[number % different]
            yield f"n{number % 1000:04d}/{number:08d}.cls", b"%d" % (number % 1000)

    return tar_of(files())


def compress(body: bytes) -> bytes:
    """As `tar -z` does."""
    return gzip.compress(body, GZIP_LEVEL, mtime=0)
