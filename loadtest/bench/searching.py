"""The row about searches: a key is looked up in a thousand shards, compared with reading the list of all their keys."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from urllib.parse import quote

from loadtest.bench.context import Bench
from loadtest.bench.row import Row, alternated, median
from loadtest.cluster import Cluster, cluster
from loadtest.connection import Connection
from loadtest.processes import ProcessFailed
from loadtest.scenarios import expect
from loadtest.tarstream import tar_of

SHARDS: Final = 1000
SAMPLES: Final = 100
TARGETS: Final = 2
UPLOADS_AT_ONCE: Final = 8
BUCKET: Final = "searched"
WANTED_S: Final = 0.5
SETTINGS: Final = {"DFC_SCRUB_INTERVAL_S": "0"}


def search(bench: Bench) -> list[Row]:
    """How long the look-up of a key takes, the first one after a start and those that follow."""
    directory = bench.directory / "search"
    try:
        with cluster(directory, targets=TARGETS, settings=SETTINGS) as started:
            _fill(started)
        # After a start no index is open, and nothing is in the caches of the targets; the page cache has the files.
        with cluster(directory, targets=TARGETS, settings=SETTINGS) as started:
            with contextlib.closing(started.connect()) as connection:
                expect(connection.request("GET", "/v1/health"), 200)  # the connection is open
                return _measure(connection, bench.pairs)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _measure(connection: Connection, pairs: int) -> list[Row]:
    draw = random.Random(14)

    def look_up() -> float:
        shard, sample = draw.randrange(SHARDS), draw.randrange(SAMPLES)
        return _asked(connection, f"key={_key(shard, sample)}", [(_name(shard), sample)])

    def look_through() -> float:
        shard = draw.randrange(SHARDS)
        key = quote(f"-{shard:04d}-", safe="")
        return _asked(connection, f"key_contains={key}", [(_name(shard), sample) for sample in range(SAMPLES)])

    first = look_up()
    ours, theirs = alternated(pairs, look_up, lambda: _listed(connection))
    through = [look_through() for _ in range(pairs)]
    reached = max(first, median(ours))
    return [
        Row(
            "search",
            f"a key looked up in {SHARDS:,} shards of {SAMPLES} samples in {TARGETS} targets: the first time, or the median",
            f"{reached:.2f} s",
            f"the list of all keys {median(theirs):.2f} s; keys that contain a text {median(through):.2f} s",
            reached,
            WANTED_S,
            "s",
            at_most=True,
            note=f"first {1000 * first:.0f} ms, then {1000 * median(ours):.0f} ms",
            samples={"first_s": [first], "look_up_s": ours, "list_s": theirs, "contains_s": through},
        )
    ]


def _key(shard: int, sample: int) -> str:
    return f"n-{shard:04d}-{sample:04d}"


def _name(shard: int) -> str:
    return f"train-{shard:06d}.tar"


def _tar(shard: int) -> bytes:
    return tar_of((f"{_key(shard, sample)}.{ext}", bytes(512)) for sample in range(SAMPLES) for ext in ("jpg", "cls"))


def _fill(started: Cluster) -> None:
    started.make_bucket(BUCKET, "relaxed")

    def put(first: int) -> None:
        with contextlib.closing(started.connect()) as connection:
            for shard in range(first, SHARDS, UPLOADS_AT_ONCE):
                expect(connection.request("PUT", f"/{BUCKET}/{_name(shard)}", body=_tar(shard)), 201)

    with ThreadPoolExecutor(UPLOADS_AT_ONCE) as threads:
        list(threads.map(put, range(UPLOADS_AT_ONCE)))


def _asked(connection: Connection, query: str, wanted: list[tuple[str, int]]) -> float:
    """How long a search takes, in seconds. ProcessFailed unless it finds what it should, in all shards."""
    begin = time.monotonic()
    answer = expect(connection.request("GET", f"/v1/buckets/{BUCKET}/samples?{query}"), 200)
    seconds = time.monotonic() - begin
    *lines, end = [json.loads(line) for line in answer.body.splitlines()]
    found = [(line["shard"], line["number"]) for line in lines]
    if found != wanted or end["end"]["searched"] != SHARDS or end["end"]["stopped"] is not None:
        raise ProcessFailed(f"{query} found {len(found)} samples instead of {len(wanted)}: {end}")
    return seconds


def _listed(connection: Connection) -> float:
    """How long the list of all keys takes, in seconds."""
    begin, lines = time.monotonic(), 0

    def take(piece: memoryview) -> None:
        nonlocal lines
        lines += bytes(piece).count(b"\n")

    expect(connection.download(f"/v1/buckets/{BUCKET}/samples?fields=key", take), 200)
    seconds = time.monotonic() - begin
    if lines != SHARDS * SAMPLES:
        raise ProcessFailed(f"{lines} keys were listed instead of {SHARDS * SAMPLES}")
    return seconds
