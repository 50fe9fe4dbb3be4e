"""The rows about the tar index: headers a second, and what indexing adds to a PUT of 100 kB members."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import time
from collections.abc import Sequence

from dfc.limits import RECEIVE_BUFFER_BYTES
from dfc.tar.index.builder import IndexBuilder
from loadtest.bench.context import OBJECT_BYTES, RELAXED_BUCKET, Bench
from loadtest.bench.curl import curl_put
from loadtest.bench.row import Row, alternated, median
from loadtest.processes import ProcessFailed
from loadtest.scenarios import expect
from loadtest.tarstream import empty_members

HEADERS = 400_000


def index(bench: Bench) -> list[Row]:
    """Both rows. The builder is fed as a PUT feeds it: pieces of one receive buffer, header checksums verified."""
    return [_header_rate(bench), _cost(bench)]


def _header_rate(bench: Bench) -> Row:
    pieces = _cut(b"".join(empty_members(HEADERS)))
    feeds, totals = [], []
    for _ in range(bench.pairs):
        feed_s, total_s = _build(bench, pieces, HEADERS)
        feeds.append(HEADERS / feed_s)
        totals.append(HEADERS / total_s)
    return Row(
        name="index",
        what="index of a shard during PUT, empty members",
        measured=f"{median(totals):,.0f} headers/s",
        beside="",
        reached=median(totals),
        required=300_000,
        unit="/s",
        note=f"parsing alone {median(feeds):,.0f}/s; the figure includes the tables at the end",
        samples={"headers_per_s": totals, "parse_headers_per_s": feeds},
    )


def _cost(bench: Bench) -> Row:
    """Time of the builder over the time of a relaxed PUT of the same bytes, the fastest there is."""
    pieces = _cut(bench.shard.read_bytes())
    started, names = bench.memory_cluster, itertools.count()

    def put(ending: str) -> float:
        path = f"/{RELAXED_BUCKET}/index-{next(names)}{ending}"
        rate = curl_put(bench.shard, started.targets[0] + path)
        with contextlib.closing(started.connect(started.targets[0])) as connection:
            expect(connection.request("DELETE", path), 204)
        return bench.shard.stat().st_size / rate

    put(".tar")
    with_index, without = alternated(bench.pairs, lambda: put(".tar"), lambda: put(".bin"))
    builder_s = [_build(bench, pieces, None)[1] for _ in range(bench.pairs)]
    percent = 100 * median(builder_s) / median(with_index)
    difference = 100 * (median(a / b for a, b in zip(with_index, without, strict=True)) - 1)
    return Row(
        name="index-cost",
        what="index, share of a relaxed PUT at 100 kB members",
        measured=f"{1000 * median(builder_s):.1f} ms of {1000 * median(with_index):.0f} ms",
        beside="",
        reached=percent,
        required=5.0,
        unit="%",
        at_most=True,
        note=f"the same {OBJECT_BYTES >> 20} MiB as .tar and as .bin, in pairs: {difference:+.1f} %",
        samples={"builder_s": builder_s, "put_tar_s": with_index, "put_bin_s": without},
    )


def _cut(data: bytes) -> list[memoryview]:
    view = memoryview(data)
    return [view[start : start + RECEIVE_BUFFER_BYTES] for start in range(0, len(view), RECEIVE_BUFFER_BYTES)]


def _build(bench: Bench, pieces: Sequence[memoryview], members: int | None) -> tuple[float, float]:
    """Index an archive: (seconds of feeding it, seconds altogether)."""
    size = sum(len(piece) for piece in pieces)
    with tempfile.TemporaryFile(dir=bench.memory) as file:
        begin = time.perf_counter()
        builder = IndexBuilder(file, str(bench.memory))
        for piece in pieces:
            builder.feed(piece)
        fed = time.perf_counter()
        summary = builder.finish("0" * 18, size, "0" * 32)
        end = time.perf_counter()
    if members is not None and summary.members != members:
        raise ProcessFailed(f"{summary.members} members in the index of {members}")
    return fed - begin, end - begin
