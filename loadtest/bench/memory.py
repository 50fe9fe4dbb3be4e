"""The rows about a target's memory: a crowd of readers and uploads at once, and a tar of ten million empty members.

What counts is VmHWM of the target's process, the most that was ever resident, with mapped files.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from loadtest.addresses import parse_base_url
from loadtest.bench.context import RELAXED_BUCKET, Bench
from loadtest.bench.row import Row
from loadtest.bodies import Body
from loadtest.cluster import Cluster, cluster
from loadtest.crowd import slow_readers, upload_at_once
from loadtest.processes import ProcessFailed, available_memory_bytes, memory_bytes, reset_peak
from loadtest.report import format_bytes
from loadtest.scenarios import expect, put_body
from loadtest.tarstream import empty_members, empty_members_size

READERS = 200
UPLOADS = 20
UPLOAD_BYTES = 1_000_000_000
SLOW_OBJECT_BYTES = 256 << 20
MEMBERS = 10_000_000
REQUIRED_MB = 150
SPARE_BYTES = 6 << 30  # left to the rest of the machine when uploads go to memory


def memory(bench: Bench) -> list[Row]:
    """Both rows, each on a target of its own, so that neither inherits the other's peak."""
    return [_crowd(bench), _members(bench)]


def _crowd(bench: Bench) -> Row:
    with _fresh_cluster(bench, "crowd", UPLOADS * UPLOAD_BYTES + SLOW_OBJECT_BYTES) as (started, where):
        address = parse_base_url(started.targets[0], allow_remote=False)
        with contextlib.closing(started.connect(started.targets[0])) as connection:
            put_body(connection, f"/{RELAXED_BUCKET}/slow.bin", Body(1, SLOW_OBJECT_BYTES))
        pid = started.pid_of(started.targets[0])
        idle, _ = memory_bytes(pid)
        reset_peak(pid)
        with slow_readers(address, f"/{RELAXED_BUCKET}/slow.bin", READERS) as readers:
            seconds = upload_at_once(address, f"/{RELAXED_BUCKET}/up-", UPLOADS, UPLOAD_BYTES)
            peak = memory_bytes(pid)[1]
            if readers.open != READERS:
                raise ProcessFailed(f"{READERS - readers.open} slow readers lost their connection")
        rate = UPLOADS * UPLOAD_BYTES / seconds
    return _row(
        "memory-crowd",
        f"target's memory, {READERS} slow readers and {UPLOADS} uploads of 1 GB",
        idle,
        peak,
        f"uploads to {where}, together {format_bytes(rate)}/s; readers took {format_bytes(readers.bytes_read)}",
    )


def _members(bench: Bench) -> Row:
    size = empty_members_size(MEMBERS)
    with _fresh_cluster(bench, "members", size) as (started, where):
        pid = started.pid_of(started.targets[0])
        idle, _ = memory_bytes(pid)
        reset_peak(pid)
        begin = time.monotonic()
        with contextlib.closing(started.connect(started.targets[0], timeout_s=600)) as connection:
            path = f"/{RELAXED_BUCKET}/many.tar"
            answer = expect(connection.request("PUT", path, body=empty_members(MEMBERS), size=size), 200, 201)
        seconds = time.monotonic() - begin
        peak = memory_bytes(pid)[1]
    stored = answer.json()
    if not isinstance(stored, dict) or stored["size"] != size:
        raise ProcessFailed(f"stored {stored!r} instead of {size} bytes")
    outcome = "; ".join(stored["warnings"]) or f"{stored['members']} members indexed"
    return _row(
        "memory-members",
        "target's memory, a tar of ten million empty members",
        idle,
        peak,
        f"{format_bytes(size)} to {where} in {seconds:.0f} s; {outcome}",
    )


@contextlib.contextmanager
def _fresh_cluster(bench: Bench, name: str, needed_bytes: int) -> Iterator[tuple[Cluster, str]]:
    """A cluster whose disk is memory when `needed_bytes` fit there with room to spare, and a real disk otherwise."""
    memory_fits = bench.in_memory and available_memory_bytes() >= needed_bytes + SPARE_BYTES
    parent: Path = bench.memory if memory_fits else bench.directory
    directory = parent / f"dfc-{name}"
    try:
        with cluster(directory) as started:
            started.make_bucket(RELAXED_BUCKET, "relaxed")
            yield started, "memory" if memory_fits else "disk"
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _row(name: str, what: str, idle: int, peak: int, note: str) -> Row:
    return Row(
        name=name,
        what=what,
        measured=f"{peak / 1e6:.0f} MB",
        beside=f"idle {idle / 1e6:.0f} MB",
        reached=peak / 1e6,
        required=REQUIRED_MB,
        unit="MB",
        at_most=True,
        note=note,
        samples={"idle_bytes": [idle], "peak_bytes": [peak]},
    )
