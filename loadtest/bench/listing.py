"""The row about listings: a million objects in four targets, page after page through the proxy.

The objects are rows only: `loadtest.seed` writes them into the catalogs while the cluster is down, each where placement
wants it. A listing never looks at blobs, so nothing else would be measured with them, and a million PUTs take minutes.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from pathlib import Path
from urllib.parse import quote

import msgspec

from loadtest.bench.context import BUCKET, Bench
from loadtest.bench.row import Row, median
from loadtest.cluster import Cluster, cluster
from loadtest.connection import Connection
from loadtest.processes import ProcessFailed, memory_bytes, reset_peak, run
from loadtest.scenarios import expect
from loadtest.seed import object_name, seed_cluster

OBJECTS = 1_000_000
TARGETS = 4
PAGE = 10_000
MSGPACK_WALKS = 2
GROWTH_MB_MAX = 16
# Rows without blobs would be reported by the scrubber.
SETTINGS = {"DFC_SCRUB_INTERVAL_S": "0"}


class Page(msgspec.Struct):
    """A page of the listing with its objects left as they came."""

    objects: list[msgspec.Raw]
    next_token: str | None


class Named(msgspec.Struct):
    name: str


class NamedPage(msgspec.Struct):
    objects: list[Named]
    next_token: str | None


def listing(bench: Bench) -> list[Row]:
    """The rate of names as JSON (msgpack beside it), and the growth of the proxy while it gives them."""
    directory = bench.directory / "dfc-list"
    try:
        seed_objects(directory, OBJECTS)
        with cluster(directory, targets=TARGETS, settings=SETTINGS) as started:
            return _measure(started, bench.pairs)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def seed_objects(directory: Path, count: int, *, source: Path | None = None) -> None:
    """Start the cluster once, so that it makes its disks and the bucket, end it, and fill the catalogs.

    With `source`, the code of that source tree does it, in a process of its own.
    """
    with cluster(directory, targets=TARGETS, settings=SETTINGS, source=source) as started:
        started.make_bucket(BUCKET, "fsync")
        document = msgspec.json.encode(started.map())
    if source is None:
        seed_cluster(directory, document, BUCKET, count)
        return
    program = "import pathlib, sys; from loadtest.seed import seed_cluster as seed; a = sys.argv[1:]; "
    program += "seed(pathlib.Path(a[0]), a[1].encode(), a[2], int(a[3]))"
    run([sys.executable, "-c", program, str(directory), document.decode(), BUCKET, str(count)], cwd=source)


def _measure(started: Cluster, walks: int) -> list[Row]:
    pid = started.pid_of(started.url)
    with contextlib.closing(started.connect()) as connection:
        _check_names(connection)
        before, _ = memory_bytes(pid)
        reset_peak(pid)
        json_rates = [_walk(connection, "application/json", msgspec.json.Decoder(Page)) for _ in range(walks)]
        msgpack_rates = [_walk(connection, "application/msgpack", msgspec.msgpack.Decoder(Page)) for _ in range(MSGPACK_WALKS)]
        after, peak = memory_bytes(pid)
    growth = (peak - before) / 1e6
    return [
        Row(
            name="list",
            what="listing of 1,000,000 objects in 4 targets through the proxy",
            measured=f"{median(json_rates):,.0f} names/s (JSON)",
            beside=f"msgpack {median(msgpack_rates):,.0f}/s",
            reached=median(json_rates),
            required=150_000,
            unit="/s",
            note=f"pages of {PAGE:,}; the rows were written into the catalogs while the cluster was down",
            samples={"json_names_per_s": json_rates, "msgpack_names_per_s": msgpack_rates},
        ),
        Row(
            name="list-memory",
            what="the proxy's peak during these walks, over its size after the first",
            measured=f"{growth:+.1f} MB",
            beside=f"proxy {before / 1e6:.0f} MB, after {after / 1e6:.0f} MB",
            reached=growth,
            required=GROWTH_MB_MAX,
            unit="MB",
            at_most=True,
            samples={"before_bytes": [before], "peak_bytes": [peak], "after_bytes": [after]},
        ),
    ]


def _check_names(connection: Connection) -> None:
    """A walk that is not timed: every name is there, once and in order."""
    decoder, token, number = msgspec.json.Decoder(NamedPage), None, 0
    while True:
        page = decoder.decode(_page(connection, "application/json", token))
        for entry in page.objects:
            if entry.name != object_name(number):
                raise ProcessFailed(f"the listing has {entry.name!r} where {object_name(number)!r} belongs")
            number += 1
        token = page.next_token
        if token is None:
            break
    if number != OBJECTS:
        raise ProcessFailed(f"the listing ended after {number} names")


def walk_json(connection: Connection, count: int, bucket: str = BUCKET) -> float:
    """Names a second of a walk over so many objects as JSON."""
    return _walk(connection, "application/json", msgspec.json.Decoder(Page), count, bucket)


def _walk(
    connection: Connection,
    accept: str,
    decoder: msgspec.json.Decoder[Page] | msgspec.msgpack.Decoder[Page],
    names: int = OBJECTS,
    bucket: str = BUCKET,
) -> float:
    """All names, counted but not decoded (the client shares the machine): names a second."""
    begin, token, count = time.monotonic(), None, 0
    while True:
        page = decoder.decode(_page(connection, accept, token, bucket))
        count += len(page.objects)
        token = page.next_token
        if token is None:
            break
    if count != names:
        raise ProcessFailed(f"the listing ended after {count} names")
    return count / (time.monotonic() - begin)


def _page(connection: Connection, accept: str, token: str | None, bucket: str = BUCKET) -> bytes:
    path = f"/v1/buckets/{bucket}/objects?limit={PAGE}" + (f"&token={quote(token, safe='')}" if token else "")
    return expect(connection.request("GET", path, headers={"Accept": accept}), 200).body
