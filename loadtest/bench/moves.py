"""The rows about moving: a fifth target gets its share of the objects of four, on one machine whose processors all share.

The speed is compared with `cp -r` and `sync` of the same files on the same disk. A move has more to do: it checks every byte,
writes two catalogs, syncs each object, hands 256 slices over in three phases each, and removes what has moved.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec

from dfc.placement.map import ClusterMap
from loadtest.bench.context import Bench
from loadtest.bench.row import Row, rate_ratio_row
from loadtest.cluster import Cluster, cluster
from loadtest.connection import Connection
from loadtest.processes import ProcessFailed, memory_bytes, processor_seconds, reset_peak
from loadtest.report import format_bytes
from loadtest.scenarios import expect
from loadtest.seed import seed_cluster

TARGETS: Final = 4
BUCKET: Final = "moved"
LARGE_OBJECTS: Final = 10_000
LARGE_BYTES: Final = 1_000_000
SMALL_OBJECTS: Final = 200_000
SMALL_BYTES: Final = 1000
UPLOADS_AT_ONCE: Final = 8
READERS: Final = 4
READ_S: Final = 10.0
SLOW_RATE: Final = 16 << 20
MOVE_S_MAX: Final = 1800.0
LOOK_S: Final = 0.2
PLAN_ROWS: Final = 1_000_000
PLAN_DISKS: Final = 16
PLAN_S_MAX: Final = 300.0
COUNTED_S: Final = 25.0
QUIET_S: Final = 3.0  # without a change, after which there will be none: heartbeats come every second
SETTINGS: Final = {"DFC_REBALANCE": "manual", "DFC_SCRUB_INTERVAL_S": "0"}


def large(bench: Bench) -> list[Row]:
    """10,000 objects of 1 MB: the speed without a limit, and what readers keep under one."""
    directory = bench.directory / "moves"
    try:
        with _filled(directory, LARGE_OBJECTS, LARGE_BYTES) as started:
            new = _new_disk(started)
            quiet = _read_rate(started, READ_S)
            _set_rate(started, 0)
            begin = time.monotonic()
            _activate(started, new)
            _until_moved(started, new)
            seconds = time.monotonic() - begin
            files = next((directory / f"target-{TARGETS}").glob("disk-*")) / "objects"
            size = sum(path.stat().st_size for path in files.rglob("*") if path.is_file())
            copied = _copy_rate(files, directory / "copied", size)
            _activate(started, new, "draining")
            _until(started, lambda _: _objects_of(started, new) == 0, "the move back")
            _set_rate(started, SLOW_RATE)
            _activate(started, new)
            _until(started, lambda state: _hints(state) > 0, "the move to begin")
            time.sleep(QUIET_S)
            beside = _read_rate(started, READ_S)
            if _state(started)["rebalance"] is None:
                raise ProcessFailed("the move was over before the reads were")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    what = f"move of {size // LARGE_BYTES:,} of {LARGE_OBJECTS:,} objects of 1 MB from {TARGETS} to {TARGETS + 1} targets"
    reads = f"GET of 1 MB by {READERS} connections while each disk sends {format_bytes(SLOW_RATE)}/s"
    return [
        rate_ratio_row("move", what, "cp -r and sync", [size / seconds], [copied], 0.5),
        rate_ratio_row("move-get", reads, "no move", [beside], [quiet], 0.7),
    ]


def small(bench: Bench) -> list[Row]:
    """200,000 objects of 1 kB, durability fsync."""
    directory = bench.directory / "moves"
    try:
        with _filled(directory, SMALL_OBJECTS, SMALL_BYTES) as started:
            new = _new_disk(started)
            _set_rate(started, 0)
            pids = [started.pid_of(url) for url in started.targets]
            before = [memory_bytes(pid)[0] for pid in pids]
            for pid in pids:
                reset_peak(pid)
            begin = time.monotonic()
            _activate(started, new)
            _until_moved(started, new)
            seconds = time.monotonic() - begin
            time.sleep(QUIET_S)  # heartbeats bring the number
            moved = _objects_of(started, new)
            grown = max(memory_bytes(pid)[1] - idle for pid, idle in zip(pids, before, strict=True))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return [
        Row(
            name="move-small",
            what=f"move of {moved:,} of {SMALL_OBJECTS:,} objects of 1 kB, fsync, from {TARGETS} to {TARGETS + 1} targets",
            measured=f"{moved / seconds:,.0f}/s",
            beside="",
            reached=moved / seconds,
            required=1500,
            unit="/s",
            note=f"the targets' memory grew by {format_bytes(grown)} at most",
        )
    ]


def plan(bench: Bench) -> list[Row]:
    """The walk over a million rows of one disk, by which it is noted what 15 disks that join are to get. The rows have no
    blobs, and next to nothing is sent."""
    directory = bench.directory / "plan"
    try:
        with cluster(directory, targets=1, settings=SETTINGS) as started:
            started.make_bucket(BUCKET, "fsync", 1)
            document = msgspec.json.encode(started.map())
        seed_cluster(directory, document, BUCKET, PLAN_ROWS)
        with cluster(directory, targets=1, disks=PLAN_DISKS, settings=SETTINGS) as started:
            pid = started.pid_of(started.targets[0])
            _set_rate(started, 1)
            time.sleep(QUIET_S)
            idle, used_s = memory_bytes(pid)[0], processor_seconds(pid)
            reset_peak(pid)
            for disk in _new_disks(started):
                _activate(started, disk)
            hints, done_s, late_s = _until_planned(started, pid)
            used_s, grown = done_s - used_s, memory_bytes(pid)[1] - idle
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    what = f"processor time to make hints for {hints:,} of {PLAN_ROWS:,} rows of a disk, {PLAN_DISKS} disks in the map"
    memory = f"the target's memory grew by {format_bytes(grown)}; its oldest heartbeat was {late_s:.1f} s old"
    return [Row("move-plan", what, f"{used_s:.1f} s", "", used_s, 10.0, "s", at_most=True, note=memory)]


def _until_planned(started: Cluster, pid: int) -> tuple[int, float, float]:
    """Wait until no more is noted: how much is, the processor time of the target when that was seen, and the age of the oldest
    heartbeat meanwhile. Notes are counted now and then, so that it is seen late."""
    hints, used_s, since_s, late_s, deadline_s = 0, 0.0, time.monotonic(), 0.0, time.monotonic() + PLAN_S_MAX
    while not hints or time.monotonic() < since_s + COUNTED_S:
        now = _hints(_state(started))
        if now != hints:
            hints, used_s, since_s = now, processor_seconds(pid), time.monotonic()
        late_s = max(late_s, oldest_heartbeat_s(started))
        if time.monotonic() > deadline_s:
            raise ProcessFailed(f"not planned after {PLAN_S_MAX:.0f} s")
        time.sleep(LOOK_S)
    return hints, used_s, late_s


# --- a cluster with objects, and a target that joins it


@contextlib.contextmanager
def _filled(directory: Path, count: int, size: int) -> Iterator[Cluster]:
    """Store objects on four targets; a fifth one is there, and holds nothing yet."""
    with cluster(directory, targets=TARGETS, settings=SETTINGS) as started:
        started.make_bucket(BUCKET, "fsync", 1)
        _upload(started, count, size)
    with cluster(directory, targets=TARGETS + 1, settings=SETTINGS) as started:
        _until(started, lambda state: len(_new_disks(started)) == 1, "the new target to join")
        yield started


def _name(number: int) -> str:
    return f"{number:07d}"


def _upload(started: Cluster, count: int, size: int) -> None:
    """To the targets that the objects belong to, by some connections at once."""
    found = ClusterMap.decode(msgspec.json.encode(started.map()))
    bucket = found.bucket(BUCKET)
    assert bucket is not None

    def upload(first: int) -> None:
        with contextlib.ExitStack() as stack:
            connections: dict[str, Connection] = {}
            for number in range(first, count, UPLOADS_AT_ONCE):
                owner = found.owner(bucket, _name(number))
                assert owner is not None
                if owner.node.url not in connections:
                    connections[owner.node.url] = stack.enter_context(contextlib.closing(started.connect(owner.node.url)))
                body = number.to_bytes(8) * (size // 8)
                expect(connections[owner.node.url].request("PUT", f"/{BUCKET}/{_name(number)}", body=body), 201)

    with ThreadPoolExecutor(UPLOADS_AT_ONCE) as threads:
        list(threads.map(upload, range(UPLOADS_AT_ONCE)))


def _state(started: Cluster) -> dict[str, Any]:
    return dict(started.ask("GET", "/v1/cluster/status"))


def _hints(state: dict[str, Any]) -> int:
    return int((state["rebalance"] or {}).get("hints") or 0)


def _set_rate(started: Cluster, rate_bytes_per_s: int) -> None:
    started.ask("POST", "/v1/cluster/rebalance", {"rate_bytes_per_s": rate_bytes_per_s})


def _disks(started: Cluster) -> list[dict[str, Any]]:
    return [disk for node in started.map()["nodes"] for disk in node["disks"]]


def _new_disks(started: Cluster) -> list[str]:
    return [str(disk["id"]) for disk in _disks(started) if disk["use"] == "new"]


def _new_disk(started: Cluster) -> str:
    (found,) = _new_disks(started)
    return found


def _objects_of(started: Cluster, disk: str) -> int:
    return next(int(each["objects"]) for each in _disks(started) if each["id"] == disk)


def _activate(started: Cluster, disk: str, state: str = "active") -> None:
    started.ask("PATCH", f"/v1/cluster/disks/{disk}", {"state": state})


def _until_moved(started: Cluster, disk: str) -> None:
    """Until the disk holds all that it is to have, and nothing moves any more."""

    def has_moved(state: dict[str, Any]) -> bool:
        layouts = started.map()["layouts"]
        return state["rebalance"] is None and len(layouts) == 1 and disk in layouts[0]["disks"]

    _until(started, has_moved, "the move")


def _until(started: Cluster, holds: Callable[[dict[str, Any]], bool], what: str) -> None:
    deadline_s = time.monotonic() + MOVE_S_MAX
    while not holds(_state(started)):
        if time.monotonic() > deadline_s:
            raise ProcessFailed(f"waited {MOVE_S_MAX:.0f} s for {what}")
        time.sleep(LOOK_S)


def oldest_heartbeat_s(started: Cluster) -> float:
    """How long ago the target was heard that was heard last, by the proxy; in seconds."""
    with contextlib.closing(started.connect()) as connection:
        lines = expect(connection.request("GET", "/metrics"), 200).body.decode().splitlines()
    ages = [line.rpartition(" ")[2] for line in lines if line.startswith("dfc_heartbeat_age_seconds{")]
    return max(map(float, ages), default=0.0)


# --- what it is compared with


def _copy_rate(files: Path, to: Path, size: int) -> float:
    """`cp -r` of the files and `sync`, in bytes a second. They are in the page cache before, as what was moved had been."""
    for path in files.rglob("*"):
        if path.is_file():
            path.read_bytes()
    os.sync()
    begin = time.monotonic()
    subprocess.run(["cp", "-r", str(files), str(to)], check=True)
    os.sync()
    return size / (time.monotonic() - begin)


def _read_rate(started: Cluster, seconds: float) -> float:
    """Objects read by some connections, through the redirects of the proxy once and then of whom it names; bytes a second."""
    found = ClusterMap.decode(msgspec.json.encode(started.map()))
    bucket = found.bucket(BUCKET)
    assert bucket is not None
    until_s = time.monotonic() + seconds

    def read(first: int) -> int:
        total = 0
        with contextlib.ExitStack() as stack:
            connections: dict[str, Connection] = {}
            for number in range(first, LARGE_OBJECTS, READERS):
                if time.monotonic() >= until_s:
                    break
                owner = found.owner(bucket, _name(number))
                assert owner is not None
                if owner.node.url not in connections:
                    connections[owner.node.url] = stack.enter_context(contextlib.closing(started.connect(owner.node.url)))
                total += _read_one(connections[owner.node.url], f"/{BUCKET}/{_name(number)}")
        return total

    begin = time.monotonic()
    with ThreadPoolExecutor(READERS) as threads:
        total = sum(threads.map(read, range(READERS)))
    return total / (time.monotonic() - begin)


def _read_one(connection: Connection, path: str) -> int:
    total = 0

    def count(piece: memoryview) -> None:
        nonlocal total
        total += len(piece)

    expect(connection.download(path, count), 200)
    return total
