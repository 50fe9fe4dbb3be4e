"""The rows about large objects: GET by one curl, by eight streams, relayed; PUT relaxed and PUT with fsync."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from loadtest.bench.context import BUCKET, OBJECT_BYTES, RELAXED_BUCKET, Bench
from loadtest.bench.curl import curl_get, curl_put
from loadtest.bench.row import Row, alternated, machine_note, rate_ratio_row
from loadtest.cluster import Cluster
from loadtest.processes import ProcessFailed, run
from loadtest.report import format_bytes
from loadtest.scenarios import expect

CURL_TRANSFERS = 4  # a sample of a single transfer is a tenth of a second: too short to be steady
DISCARD_ROUNDS = 2


def get_one(bench: Bench) -> list[Row]:
    """GET from a target by one curl, beside nginx sendfile of the same file."""
    paths = bench.objects[:1] * CURL_TRANSFERS
    direct, yardstick = bench.disk_cluster.targets[0], bench.disk_nginx.url
    ours, theirs = _compare(
        bench,
        lambda: curl_get([direct + path for path in paths], OBJECT_BYTES),
        lambda: curl_get([yardstick + path for path in paths], OBJECT_BYTES),
    )
    note = _machine(
        "a bare server that only calls sendfile", lambda: curl_get([bench.bare_disk + p for p in paths], OBJECT_BYTES)
    )
    return [rate_ratio_row("get1", "GET from a target, one curl", "nginx sendfile", ours, theirs, 0.95, note)]


def get_eight(bench: Bench) -> list[Row]:
    """Eight streams that are thrown away in the kernel, from one target process, beside nginx with two workers."""
    direct, yardstick = bench.disk_cluster.targets[0], bench.disk_nginx.url
    ours, theirs = _compare(
        bench,
        lambda: discard([direct + path for path in bench.objects]),
        lambda: discard([yardstick + p for p in bench.objects]),
    )
    note = _machine(
        "a bare server that only calls sendfile", lambda: discard([bench.bare_disk + path for path in bench.objects])
    )
    what = "GET from a target, 8 streams discarded in the kernel"
    return [rate_ratio_row("get8", what, "nginx, 2 workers", ours, theirs, 1.0, note)]


def discard(urls: list[str], rounds: int = DISCARD_ROUNDS) -> float:
    """Bytes a second over eight streams, read by a process of its own; the count must be exact to a footer a file."""
    argv = [sys.executable, "-m", "loadtest.discard", "--rounds", str(rounds), *urls]
    result = json.loads(run(argv, cwd=Path(__file__).parents[2]))
    if result["bytes"] < OBJECT_BYTES * len(urls) * rounds:
        raise ProcessFailed(f"8 streams gave {result['bytes']} bytes")
    return float(result["bytes"] / result["seconds"])


def relay(bench: Bench) -> list[Row]:
    """The same GET through the proxy and straight from the target."""
    paths = bench.objects[:1] * CURL_TRANSFERS
    proxy, direct = bench.disk_cluster.url, bench.disk_cluster.targets[0]
    ours, theirs = _compare(
        bench,
        lambda: curl_get([proxy + path for path in paths], OBJECT_BYTES),
        lambda: curl_get([direct + path for path in paths], OBJECT_BYTES),
    )
    return [rate_ratio_row("relay", "GET relayed by the proxy, one curl", "direct", ours, theirs, 0.5)]


def put_relaxed(bench: Bench) -> list[Row]:
    """`curl -T` of a tar to a target whose disk is memory, with hash and index, beside nginx DAV PUT without either."""
    started, beside = bench.memory_cluster, bench.memory_nginx
    put, names = dfc_put(started, RELAXED_BUCKET, bench.shard), itertools.count()

    def theirs(url: str = beside.url) -> float:
        return _plain_put(url, beside.root, bench.shard, f"relaxed-{next(names)}.tar", sync=False)

    row = rate_ratio_row(
        "put-relaxed",
        "PUT relaxed, memory-backed, hash and tar index",
        "nginx DAV PUT",
        *_compare(bench, put, theirs),
        0.9,
    )
    note = _machine("a bare server that only receives and writes", lambda: theirs(bench.bare_memory))
    if not bench.in_memory:
        note += "; no room in /dev/shm: a directory on disk was used"
    return [replace(row, note=note)]


def put_fsync(bench: Bench) -> list[Row]:
    """`curl -T` of a tar to a target's disk with durability fsync, beside nginx DAV PUT and then `sync` of that file."""
    put = _settled(dfc_put(bench.disk_cluster, BUCKET, bench.shard))
    names, nginx = itertools.count(), bench.disk_nginx

    def beside(url: str) -> Callable[[], float]:
        return _settled(lambda: _plain_put(url, nginx.root, bench.shard, f"fsync-{next(names)}.tar", sync=True))

    ours, theirs = _compare(bench, put, beside(nginx.url))
    note = _machine("a bare server that only receives and writes, and sync FILE", beside(bench.bare_disk))
    return [rate_ratio_row("put-fsync", "PUT fsync to the disk", "nginx DAV PUT + sync FILE", ours, theirs, 0.9, note)]


def _machine(what: str, measure: Callable[[], float]) -> str:
    return machine_note(what, measure, lambda rate: f"{format_bytes(rate)}/s")


def _compare(bench: Bench, ours: Callable[[], float], theirs: Callable[[], float]) -> tuple[list[float], list[float]]:
    """Alternated pairs after one unmeasured run of each, which warms the page cache and the connections."""
    ours()
    theirs()
    return alternated(bench.pairs, ours, theirs)


def _settled(measure: Callable[[], float]) -> Callable[[], float]:
    """Measure on a disk that has nothing left to write from the measurement before."""

    def settled() -> float:
        os.sync()
        return measure()

    return settled


def dfc_put(started: Cluster, bucket: str, file: Path) -> Callable[[], float]:
    """PUT to the target under a new name each time; the object is deleted outside of the measured time."""
    names = itertools.count()

    def put() -> float:
        path = f"/{bucket}/put-{next(names)}.tar"
        rate = curl_put(file, started.targets[0] + path)
        with contextlib.closing(started.connect(started.targets[0])) as connection:
            expect(connection.request("DELETE", path), 204)
        return rate

    return put


def _plain_put(url: str, root: Path, file: Path, name: str, *, sync: bool) -> float:
    """PUT to nginx, or to the bare server, which keep it below `root`."""
    stored = root / name
    rate = curl_put(file, f"{url}/{name}", sync=stored if sync else None)
    stored.unlink()
    return rate
