"""The rows about small requests: GET of 1 KiB, 307, PUT of 1 KiB, a member by index. wrk is the client."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import replace

import xxhash

from loadtest.bench.context import BUCKET, Bench
from loadtest.bench.row import Row, alternated, machine_note, median, median_ratio
from loadtest.bodies import Body
from loadtest.cluster import Cluster
from loadtest.processes import ProcessFailed
from loadtest.report import format_seconds
from loadtest.scenarios import check_stored, expect, put_body
from loadtest.tarstream import member_tar_bytes
from loadtest.wrk import WrkResult, wrk_get, wrk_put

CONNECTIONS = 32
SECONDS = 2
SMALL_BYTES = 1024
SMALL_OBJECTS = 1000
MEMBERS = 1000
MEMBER_BYTES = 10_000


def small_get(bench: Bench) -> list[Row]:
    """Kept-alive GETs of 1 KiB from one target process, access log and metrics on."""
    paths, url = small_objects(bench.disk_cluster), bench.disk_cluster.targets[0]
    nginx_paths = _nginx_small_objects(bench)
    yardstick = bench.disk_nginx.url
    results = _runs(bench, url, paths)
    theirs = [_get(bench, yardstick, nginx_paths).requests_per_s for _ in range(2)]
    row = _rate_row("small-get", "GET of 1 KiB objects, a target process", results, 12_000, f"nginx {median(theirs):,.0f}/s")
    return [replace(row, note=_machine(bench, paths))]


def redirect(bench: Bench) -> list[Row]:
    """Kept-alive 307 answers of one proxy process."""
    paths = [f"/v1/objects{path}" for path in small_objects(bench.disk_cluster)]
    with contextlib.closing(bench.disk_cluster.connect()) as connection:
        expect(connection.request("GET", paths[0]), 307)
    results = _runs(bench, bench.disk_cluster.url, paths)
    return [_rate_row("redirect", "307 from the proxy, a proxy process", results, 15_000, "")]


def small_put(bench: Bench) -> list[Row]:
    """PUTs of 1 KiB with fsync, new names: what 32 connections reach over one shows the group commit."""
    url, runs = bench.disk_cluster.targets[0], itertools.count()

    def put(connections: int) -> float:
        prefix = f"/{BUCKET}/small-put/{next(runs)}-"
        return wrk_put(url, prefix, SMALL_BYTES, bench.directory, connections=connections, seconds=SECONDS).requests_per_s

    put(CONNECTIONS)
    many, one = alternated(bench.pairs, lambda: put(CONNECTIONS), lambda: put(1))
    return [
        Row(
            name="small-put",
            what="PUT of 1 KiB objects, fsync, 32 connections",
            measured=f"{median(many):,.0f}/s",
            beside=f"1 connection {median(one):,.0f}/s",
            reached=median_ratio(many, one),
            required=4.0,
            unit="x",
            samples={"connections_32": many, "connections_1": one},
        )
    ]


def member(bench: Bench) -> list[Row]:
    """Kept-alive GETs of 10 kB members by index, beside GETs of 1 KiB objects."""
    small, url = small_objects(bench.disk_cluster), bench.disk_cluster.targets[0]
    members = member_paths(bench.disk_cluster)
    _get(bench, url, members)
    ours, theirs = alternated(
        bench.pairs, lambda: _get(bench, url, members).requests_per_s, lambda: _get(bench, url, small).requests_per_s
    )
    return [
        Row(
            name="member",
            what="member by index, 10 kB",
            measured=f"{median(ours):,.0f}/s",
            beside=f"GET of 1 KiB {median(theirs):,.0f}/s",
            reached=median_ratio(ours, theirs),
            required=0.8,
            unit="x",
            note=_machine(bench, small),
            samples={"member": ours, "small": theirs},
        )
    ]


def _machine(bench: Bench, paths: Sequence[str]) -> str:
    what = "a bare server that looks at no request"
    return machine_note(what, lambda: _get(bench, bench.bare_answers, paths).requests_per_s, lambda rate: f"{rate:,.0f}/s")


def _get(bench: Bench, url: str, paths: Sequence[str]) -> WrkResult:
    return wrk_get(url, paths, bench.directory, connections=CONNECTIONS, seconds=SECONDS)


def _runs(bench: Bench, url: str, paths: Sequence[str]) -> list[WrkResult]:
    _get(bench, url, paths)
    return [_get(bench, url, paths) for _ in range(bench.pairs)]


def _rate_row(name: str, what: str, results: Sequence[WrkResult], required: float, beside: str) -> Row:
    rates = [result.requests_per_s for result in results]
    p99 = median(result.p99_s for result in results)
    return Row(
        name=name,
        what=what,
        measured=f"{median(rates):,.0f}/s, p99 {format_seconds(p99)}",
        beside=beside,
        reached=median(rates),
        required=required,
        unit="/s",
        samples={"requests_per_s": rates},
    )


def small_objects(started: Cluster) -> list[str]:
    """Paths of the 1 KiB objects, stored by the first row that needs them and checked by reading one back."""
    paths = [f"/{BUCKET}/small/{number:06d}" for number in range(SMALL_OBJECTS)]
    with contextlib.closing(started.connect(started.targets[0])) as connection:
        if connection.request("HEAD", paths[-1]).status == 404:
            for number, path in enumerate(paths):
                put_body(connection, path, Body(number, SMALL_BYTES))
        if expect(connection.request("GET", paths[0]), 200).body != Body(0, SMALL_BYTES).read():
            raise ProcessFailed(f"{paths[0]} came back with other bytes")
    return paths


def _nginx_small_objects(bench: Bench) -> list[str]:
    folder = bench.disk_nginx.root / "small"
    folder.mkdir(exist_ok=True)
    for number in range(SMALL_OBJECTS):
        (folder / f"{number:06d}").write_bytes(Body(number, SMALL_BYTES).read())
    return [f"/small/{number:06d}" for number in range(SMALL_OBJECTS)]


def member_paths(started: Cluster) -> list[str]:
    """Store a shard and give the paths of its members, one of them read and compared."""
    shard, path = member_tar_bytes(MEMBERS, MEMBER_BYTES), f"/{BUCKET}/members.tar"
    paths = [f"{path}?member=train/{number:08d}.jpg" for number in range(MEMBERS)]
    with contextlib.closing(started.connect(started.targets[0])) as connection:
        answer = expect(connection.request("PUT", path, body=shard), 200, 201)
        check_stored(answer, len(shard), xxhash.xxh3_128_hexdigest(shard))
        if expect(connection.request("GET", paths[7]), 200).body != Body(7, MEMBER_BYTES).read():
            raise ProcessFailed(f"{paths[7]} came back with other bytes")
    return paths
