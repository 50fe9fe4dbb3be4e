"""Bits flip on disks while objects are read. Reads give the right bytes all the same, one pass of the scrubber finds all that
is damaged, and afterwards each disk gives the right bytes of everything that belongs on it."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from dfc.storage.catalog.schema import version_text
from dfc.storage.layout import IDENTITY_FILE
from failures.fixed import metrics
from failures.found import Found, looked_into
from failures.kills import check_replicas
from failures.nodes import CatalogRow, Nodes

BUCKET = "flips"
LARGE_EVERY, LARGE_BYTES, SMALL_BYTES = 50, 400_000, 3_000
TIMEOUT_S = 60.0
HOW: Final = ("a bit of the bytes", "a bit of the footer", "cut short", "gone")
SHARES: Final = (85, 5, 5, 5)  # percent


@dataclass(frozen=True)
class Plan:
    """How many objects there are, and of how many one of the two copies is damaged. `read`: that share of them is read before
    the scrubber gets there."""

    objects: int = 10_000
    damaged: int = 1000
    read: float = 0.3
    targets: int = 3
    scrub_s_max: float = 300.0


def run(directory: Path, plan: Plan, seed: int, say: Callable[[str], None] = print) -> Found:
    """Fill a cluster, damage a part of it, read, scrub, and look at everything."""
    found = Found()
    nodes = Nodes(directory, plan.targets, 1, scrub_interval_s=0, scrub_rate_bytes_per_s=0, drain_timeout_s=5)
    with looked_into(nodes, found):
        nodes.start_all()
        nodes.ask(f"/v1/buckets/{BUCKET}", "PUT", b'{"copies": 2}')
        names = [f"n{number:06}" for number in range(plan.objects)]
        with httpx.Client(timeout=TIMEOUT_S, params={"relay": "1"}, verify=False) as http:
            _fill(http, nodes, names, seed)
            nodes.until_calm(60.0)
            damaged = _damage(nodes, random.Random(seed).sample(names, plan.damaged), seed, found)
            say(f"{len(damaged):,} of {2 * len(names):,} copies are damaged")
            _read_and_scrub(http, nodes, damaged, plan, seed, found)
        _check_counts(nodes, damaged, found)
        found.problems += check_replicas(nodes, 2)
        found.problems += _check_disks(nodes, names, seed, found)
    return found


def _body(seed: int, name: str) -> bytes:
    number = int(name[1:])
    return random.Random(f"{seed} {name}").randbytes(LARGE_BYTES if number % LARGE_EVERY == 0 else SMALL_BYTES)


def _fill(http: httpx.Client, nodes: Nodes, names: list[str], seed: int) -> None:
    def put(name: str) -> None:
        answer = http.put(f"{nodes.url}/v1/objects/{BUCKET}/{name}", content=_body(seed, name))
        assert (answer.status_code, answer.json()["copies"]) == (201, 2), answer.text

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(put, names))


def _damage(nodes: Nodes, names: list[str], seed: int, found: Found) -> list[str]:
    """Damage one copy of each object, on any of its disks; the names."""
    draw = random.Random(seed)
    disks = [disk for name in nodes.targets for disk in nodes.disks_of(name)]
    blobs: dict[str, list[Path]] = {name: [] for name in names}
    for disk in disks:
        for path in (disk / "objects").glob("*/??/n*@*"):
            name = path.name.partition("@")[0]
            if name in blobs and path.suffix != ".idx":
                blobs[name].append(path)
    for name, paths in blobs.items():
        assert len(paths) == 2, (name, paths)
        how = draw.choices(HOW, SHARES)[0]
        found.counts[f"damage: {how}"] += 1
        _damage_file(draw.choice(sorted(paths)), how, len(_body(seed, name)), draw)
    return sorted(names)


def _damage_file(path: Path, how: str, size: int, draw: random.Random) -> None:
    if how == "gone":
        path.unlink()
    elif how == "cut short":
        os.truncate(path, draw.randrange(size))
    else:
        with path.open("r+b") as file:
            at = draw.randrange(size) if how == HOW[0] else draw.randrange(size, path.stat().st_size)
            file.seek(at)
            [byte] = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 1 << draw.randrange(8)]))


def _read_and_scrub(http: httpx.Client, nodes: Nodes, damaged: list[str], plan: Plan, seed: int, found: Found) -> None:
    """Read some of what is damaged, then all that is small, again and again, while the scrubber goes over the disks.

    What is large is sent unread, and verified by the client: only the scrubber finds its flipped bits.
    """
    small = [name for name in damaged if int(name[1:]) % LARGE_EVERY]

    def read(name: str) -> None:
        answer = http.get(f"{nodes.url}/v1/objects/{BUCKET}/{name}")
        found.counts["reads of damaged objects"] += 1
        if (answer.status_code, answer.content) != (200, _body(seed, name)):
            found.problems.append(f"{name}: {answer.status_code}, {len(answer.content)} bytes {answer.text[:100]!r}")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(read, random.Random(seed).sample(small, int(plan.read * len(small)))))
    found.counts["repaired by reads"] = _metric(nodes, "dfc_disk_repaired_total")
    begun, begun_at, stopping = time.monotonic(), time.time(), threading.Event()

    def has_scrubbed() -> bool:
        return all(at > begun_at for at in metrics(nodes, "dfc_scrub_finished_timestamp_seconds"))

    def read_on(worker: int) -> None:
        draw = random.Random(worker)
        while not stopping.is_set():
            read(draw.choice(small))

    with ThreadPoolExecutor(2) as threads:
        reading = [threads.submit(read_on, worker) for worker in range(2)]
        try:
            nodes.ask("/v1/cluster/scrub", "POST", b"")
            nodes.until(has_scrubbed, "the scrubber to have read everything", plan.scrub_s_max)
            found.counts["ms for a pass of the scrubber"] = int((time.monotonic() - begun) * 1000)
            nodes.until(lambda: not any(nodes.count("quarantine")), "all damage to be repaired", 30.0)
            found.counts["ms until all was repaired"] = int((time.monotonic() - begun) * 1000)
        finally:
            stopping.set()
        for each in reading:
            each.result()


def _metric(nodes: Nodes, name: str) -> int:
    """The sum of a metric over all disks."""
    return int(sum(metrics(nodes, name)))


def _check_counts(nodes: Nodes, damaged: list[str], found: Found) -> None:
    found.counts["found by the scrubber"] = _metric(nodes, "dfc_scrub_errors_total")
    found.counts["repaired"] = _metric(nodes, "dfc_disk_repaired_total")
    found.counts["objects damaged"] = len(damaged)
    if found.counts["repaired"] != len(damaged):
        found.problems.append(f"{found.counts['repaired']} objects were repaired, {len(damaged)} were damaged")


def _check_disks(nodes: Nodes, names: list[str], seed: int, found: Found) -> list[str]:
    """Every disk, asked itself, gives the right bytes of each object that its catalog has."""
    disks = {
        f"{name}/{disk.name}": (nodes.url_of(name), _id_of(disk)) for name in nodes.targets for disk in nodes.disks_of(name)
    }
    problems: list[str] = []
    rows = nodes.rows()
    with httpx.Client(timeout=TIMEOUT_S, verify=False) as http, ThreadPoolExecutor(4) as threads:

        def check(row: CatalogRow) -> None:
            version = version_text(*row.version)
            url, disk = disks[row.disk]
            answer = http.get(f"{url}/v1/node/copies/{disk}/{row.bucket_id}/{row.name}", params={"version": version})
            if (answer.status_code, answer.content) != (200, _body(seed, row.name)):
                problems.append(f"{row.name} on {row.disk}: {answer.status_code} {len(answer.content)} bytes")

        list(threads.map(check, rows))
    found.counts["copies read from their disks"] = len(rows)
    if len(rows) != 2 * len(names):
        problems.append(f"there are {len(rows)} copies instead of {2 * len(names)}")
    return problems


def _id_of(disk: Path) -> str:
    return str(json.loads((disk / IDENTITY_FILE).read_text())["disk_id"])
