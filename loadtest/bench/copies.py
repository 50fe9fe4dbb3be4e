"""The rows about copies: what two of each object cost beside one, in the same cluster, whose nodes share the machine.

Everything is done twice by the same processors and disks: where they are busy all the time with one copy, half the rate is the
most that two can reach. Requests go to the target that decides about the object, as from a client that knows the cluster map.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from dfc.placement.map import ClusterMap
from dfc.placement.mapped import placement_of
from dfc.placement.roles import roles
from loadtest.bench.context import Bench
from loadtest.bench.curl import curl_put
from loadtest.bench.listing import SETTINGS, walk_json
from loadtest.bench.row import Row, alternated, rate_ratio_row
from loadtest.bench.small import CONNECTIONS, SECONDS, SMALL_BYTES
from loadtest.cluster import Cluster, cluster
from loadtest.processes import ProcessFailed
from loadtest.scenarios import expect
from loadtest.seed import seed_cluster
from loadtest.wrk import wrk_put_names

TARGETS = 3
DISKS = 2
LISTED = 200_000
NAMES_A_RUN = 6000  # more than are put in a run
BUCKETS = {1: "one", 2: "two"}  # copies: bucket
AGREED_S_MAX = 30.0  # for all targets to be up and to know the buckets


def put(bench: Bench) -> list[Row]:
    """`curl -T` of 256 MiB in memory, durability relaxed, with two copies and with one."""
    with cluster(bench.memory / "copies", targets=TARGETS, disks=DISKS) as started:
        _make_buckets(started, "relaxed")

        def puts(copies: int) -> Callable[[], float]:
            names = _names(started, copies)

            def once() -> float:
                path = next(names)
                rate = curl_put(bench.shard, started.targets[0] + path)
                with contextlib.closing(started.connect(started.targets[0])) as connection:
                    _check_copies(started, path, copies)
                    expect(connection.request("DELETE", path), 204)
                return rate

            return once

        two, one = puts(2), puts(1)
        two(), one()
        ours, theirs = alternated(bench.pairs, two, one)
    note = "both copies share the processors and the memory: 0.5 x if those were busy all the time with one"
    return [rate_ratio_row("copies-put", "PUT of 256 MiB with 2 copies, in memory", "1 copy", ours, theirs, 0.4, note)]


def small_put(bench: Bench) -> list[Row]:
    """PUT of 1 KiB by 32 connections, durability fsync, with two copies and with one."""
    with cluster(bench.directory / "copies", targets=TARGETS, disks=DISKS) as started:
        _make_buckets(started, "fsync")

        def puts(copies: int) -> Callable[[], float]:
            names = _names(started, copies)

            def once() -> float:
                paths = list(itertools.islice(names, NAMES_A_RUN))
                options = {"connections": CONNECTIONS, "seconds": SECONDS}
                found = wrk_put_names(started.targets[0], paths, SMALL_BYTES, bench.directory, **options)
                _check_copies(started, paths[0], copies)
                return found.requests_per_s

            return once

        two, one = puts(2), puts(1)
        two(), one()
        ours, theirs = alternated(bench.pairs, two, one)
    what = f"PUT of 1 KiB, fsync, {CONNECTIONS} connections, with 2 copies"
    return [rate_ratio_row("copies-small-put", what, "1 copy", ours, theirs, 0.3, show="{:,.0f}/s".format)]


def listing(bench: Bench) -> list[Row]:
    """Pages of a bucket with two copies of each object, and of one with one. The rows are written into the catalogs."""
    directory = bench.directory / "copies-list"
    try:
        with cluster(directory, targets=TARGETS, disks=DISKS, settings=SETTINGS) as started:
            _make_buckets(started, "fsync")
            document = msgspec.json.encode(started.map())
        for bucket in BUCKETS.values():
            seed_cluster(directory, document, bucket, LISTED)
        with cluster(directory, targets=TARGETS, disks=DISKS, settings=SETTINGS) as started:
            _until_up(started)
            with contextlib.closing(started.connect()) as connection:

                def walk(copies: int) -> float:
                    return walk_json(connection, LISTED, BUCKETS[copies])

                walk(2), walk(1)
                ours, theirs = alternated(bench.pairs, lambda: walk(2), lambda: walk(1))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    what = f"listing of {LISTED:,} objects with 2 copies"
    return [rate_ratio_row("copies-list", what, "1 copy", ours, theirs, 0.8, show="{:,.0f} names/s".format)]


def _make_buckets(started: Cluster, durability: str) -> None:
    _until_up(started)
    for copies, bucket in BUCKETS.items():
        started.make_bucket(bucket, durability, copies)


def _until_up(started: Cluster) -> None:
    """Wait until every target is up and lacks nothing: only then has each object as many copies as it should have."""
    deadline_s = time.monotonic() + AGREED_S_MAX
    while not all(
        node["state"] == "up" and not any(disk["out_of_sync_with"] for disk in node["disks"])
        for node in started.map()["nodes"]
        if node["role"] == "target"
    ):
        if time.monotonic() > deadline_s:
            raise ProcessFailed(f"not all targets are up and in sync after {AGREED_S_MAX:.0f} s")
        time.sleep(0.1)


def _names(started: Cluster, copies: int) -> Iterator[str]:
    """Paths of new objects of which the first target decides."""
    found = ClusterMap.decode(msgspec.json.encode(started.map()))
    bucket, placement = found.bucket(BUCKETS[copies]), placement_of(found)
    first = next(node for node in found.nodes if node.url == started.targets[0])
    own = {disk.id for disk in first.disks}
    if bucket is None:
        raise ProcessFailed(f"there is no bucket {BUCKETS[copies]}")
    for number in itertools.count():
        name = f"{number:07d}"
        if roles(placement, bucket.id, name).primary in own:
            yield f"/{bucket.name}/{name}"


def _check_copies(started: Cluster, path: str, copies: int) -> None:
    """Overwrite an object with a small one, and see of how many copies the answer speaks."""
    with contextlib.closing(started.connect(started.targets[0])) as connection:
        told: Any = expect(connection.request("PUT", path, body=b"x" * SMALL_BYTES), 200, 201).json()
    if told["copies"] != copies:
        raise ProcessFailed(f"{path} has {told['copies']} copies instead of {copies}")
