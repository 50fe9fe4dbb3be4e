"""The row about comparing copies: a million rows on each of two targets, which nobody changes meanwhile."""

from __future__ import annotations

import shutil
import time
from typing import Any, Final

import msgspec

from loadtest.bench.context import Bench
from loadtest.bench.moves import SETTINGS, oldest_heartbeat_s
from loadtest.bench.row import Row
from loadtest.cluster import Cluster, cluster
from loadtest.processes import ProcessFailed, memory_bytes, processor_seconds, reset_peak
from loadtest.report import format_bytes
from loadtest.seed import seed_cluster

BUCKET: Final = "compared"
ROWS: Final = 1_000_000  # on each target, since each has one of two copies
TARGETS: Final = 2
DISKS: Final = 8  # of each target
CHECK_S_MAX: Final = 600.0
QUIET_S: Final = 3.0
LOOK_S: Final = 0.2


def digests(bench: Bench) -> list[Row]:
    """The processor time of one of two targets for `dfc cluster check` when all copies are alike."""
    directory = bench.directory / "compare"
    try:
        with cluster(directory, targets=TARGETS, disks=DISKS, settings=SETTINGS) as started:
            started.make_bucket(BUCKET, "fsync", 2)
            document = msgspec.json.encode(started.map())
        seed_cluster(directory, document, BUCKET, ROWS)
        with cluster(directory, targets=TARGETS, disks=DISKS, settings=SETTINGS) as started:
            pids = [started.pid_of(url) for url in started.targets]
            _until_calm(started)
            idle, used = [memory_bytes(pid)[0] for pid in pids], [processor_seconds(pid) for pid in pids]
            for pid in pids:
                reset_peak(pid)
            begin_s = time.monotonic()
            found, late_s = _check(started)
            took_s = time.monotonic() - begin_s
            used_s = max(processor_seconds(pid) - before for pid, before in zip(pids, used, strict=True))
            grown = max(memory_bytes(pid)[1] - before for pid, before in zip(pids, idle, strict=True))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    totals = found["totals"]
    if (totals["rows"], totals["differing"], totals["pairs_compared"]) != (ROWS, 0, totals["pairs"]):
        raise ProcessFailed(f"not everything was compared: {totals}")
    what = f"processor time to compare {ROWS:,} rows of a target with their copies, {TARGETS * DISKS} disks in the map"
    memory = f"{took_s:.0f} s; memory grew by {format_bytes(grown)}; the oldest heartbeat was {late_s:.1f} s old"
    return [Row("compare-digests", what, f"{used_s:.1f} s", "", used_s, 40.0, "s", at_most=True, note=memory)]


def _check(started: Cluster) -> tuple[dict[str, Any], float]:
    """Compare all; what was found, and the age of the oldest heartbeat meanwhile."""
    begun, late_s = started.ask("POST", "/v1/cluster/check", {})["check"], 0.0
    until_s = time.monotonic() + CHECK_S_MAX
    while time.monotonic() < until_s:
        late_s = max(late_s, oldest_heartbeat_s(started))
        found = dict(started.ask("GET", "/v1/cluster/check"))
        if found["check"] == begun and found["state"] == "done":
            return found, late_s
        time.sleep(LOOK_S)
    raise ProcessFailed(f"not compared after {CHECK_S_MAX:.0f} s")


def _until_calm(started: Cluster) -> None:
    """Until all disks are up and lack nothing."""
    until_s = time.monotonic() + CHECK_S_MAX
    while time.monotonic() < until_s:
        disks = [disk for node in started.map()["nodes"] for disk in node["disks"]]
        if all(disk["state"] == "up" and not disk["down_step"] and not disk["out_of_sync_with"] for disk in disks):
            time.sleep(QUIET_S)
            return
        time.sleep(LOOK_S)
    raise ProcessFailed("the disks do not catch up with each other")
