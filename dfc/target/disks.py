"""Open the disks of a target, describe them to the registry, and scrub them."""

from __future__ import annotations

import asyncio
import math
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from dfc.clock import HybridClock
from dfc.config import Settings
from dfc.filesystem import FileSystem
from dfc.http.node import DiskInfo
from dfc.http.shutdown import in_time
from dfc.limits import GIB
from dfc.placement.map import ClusterMap, DiskEntry
from dfc.registry.messages import HINTED_DISKS_MAX, DiskNumbers
from dfc.storage.disk import Disk
from dfc.storage.identity import require_identity
from dfc.storage.rows import DiskOptions
from dfc.storage.upkeep.scrub import Scrubber
from dfc.target.local import TargetState
from dfc.target.threads import CopiesCounted, DiskReport

RESERVE_FRACTION: Final = 0.05  # the maximum reserve, as a fraction of the disk


@dataclass(frozen=True)
class QuarantinedName:
    """An object whose bytes are gone or wrong."""

    bucket: str
    object: str
    version: str
    reason: str


@dataclass(frozen=True)
class DiskScrub:
    """The progress of a disk's current or last pass, how many damaged objects were repaired since its target started, and all
    objects now in quarantine."""

    disk: str
    node: str
    state: str
    bytes_done: int
    bytes_total: int
    errors: int
    repaired: int
    quarantined: list[QuarantinedName]


class Scrubbers:
    """The scrubbers of a target, one for each disk."""

    def __init__(self, local: TargetState) -> None:
        self._local = local
        self._of: dict[str, Scrubber] = {}

    def start(self, disk: Disk, settings: Settings) -> None:
        """Start scrubbing a disk."""
        scrubber = Scrubber(disk, bytes_per_s=settings.scrub_rate_bytes_per_s, interval_s=settings.scrub_interval_s or math.inf)
        scrubber.start()
        self._of[disk.id] = scrubber

    def request_pass(self) -> None:
        """Start a pass over every disk that has none running."""
        for scrubber in self._of.values():
            scrubber.request_pass()

    async def status(self) -> list[DiskScrub]:
        """Return the scrub status of each disk. StorageFailed when a disk does not answer."""
        return await self._local.of_each(self._status)

    def _status(self, disk: Disk) -> DiskScrub:
        names = {bucket.id: bucket.name for bucket in self._local.map.buckets}
        progress = self._of[disk.id].progress
        quarantined = [
            QuarantinedName(names.get(found.bucket_id, found.bucket_id), found.name, found.version, found.reason)
            for found in disk.quarantined()
        ]
        return DiskScrub(
            disk.id,
            self._local.node_id,
            progress.state,
            progress.bytes_done,
            progress.bytes_total,
            progress.errors,
            disk.stats.repaired_rows,
            quarantined,
        )

    async def about(self) -> list[DiskInfo]:
        """Describe all disks, also those that do not answer."""
        return [self._about(self._local.disks[report.disk_id], report) for report in await self._local.reports()]

    def _about(self, disk: Disk, report: DiskReport) -> DiskInfo:
        """What is known of a disk without asking it."""
        progress, stats, space = self._of[disk.id].progress, report.stats, report.space
        return DiskInfo(
            id=disk.id,
            path=disk.path,
            state=report.state,
            failure=disk.failure or "",
            capacity=space.capacity if space else None,
            used=space.used if space else None,
            objects=report.objects,
            io_errors=stats.io_errors,
            quarantined=stats.quarantined_rows,
            repaired=stats.repaired_rows,
            scrub_state=progress.state,
            scrub_bytes_done=progress.bytes_done,
            scrub_bytes_total=progress.bytes_total,
            scrub_errors=progress.errors,
        )

    async def stop(self) -> None:
        """Stop all scrubbers; one that hangs is abandoned."""
        await asyncio.gather(*(in_time(scrubber.stop, "a scrubber") for scrubber in self._of.values()))


def open_disks(
    local: TargetState, scrubbers: Scrubbers, settings: Settings, cluster_id: str, clock: HybridClock, filesystem: FileSystem
) -> None:
    """Open the disks of the settings and start scrubbing them. Blocking. Raises like `Disk.open`."""
    for path in settings.disks:
        disk = Disk.open(path, cluster_id, clock, _disk_options(settings, path), filesystem)
        local.add(disk)
        scrubbers.start(disk, settings)


def _disk_options(settings: Settings, path: str) -> DiskOptions:
    capacity = _capacity(path)
    return DiskOptions(
        reserve_bytes=min(settings.disk_reserve_bytes, int(capacity * RESERVE_FRACTION)),
        ballast_bytes=settings.disk_ballast_bytes,
        error_budget=settings.disk_error_budget,
        sync_relaxed_s=settings.sync_relaxed_s,
        orphan_keep_s=settings.orphan_keep_s,
        object_bytes_max=settings.object_size_max_bytes,
        row_cache_rows=settings.row_cache_rows,
    )


def _capacity(path: str) -> int:
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize


def weight_of(capacity_bytes: int) -> float:
    """Return a new disk's weight: its capacity in GiB to two significant digits, so that equal disks get equal weights."""
    gib = max(capacity_bytes / GIB, 0.01)
    return float(f"{gib:.2g}")


def describe_unopened(paths: tuple[str, ...]) -> tuple[DiskEntry, ...]:
    """Describe the disks for the first registration, before they are open."""
    entries = []
    for path in paths:
        identity, capacity = require_identity(path, None), _capacity(path)
        entries.append(DiskEntry(id=identity.disk_id, weight=weight_of(capacity), capacity=capacity))
    return tuple(entries)


def describe(reports: Iterable[DiskReport], known: ClusterMap, node_id: str) -> tuple[DiskEntry, ...]:
    """Describe the disks for a heartbeat; a disk keeps its weight from the map."""
    weights = {disk.id: disk.weight for node in known.nodes if node.id == node_id for disk in node.disks}
    entries = []
    for report in reports:
        weight = weights.get(report.disk_id, 1.0)
        entry = DiskEntry(
            id=report.disk_id, weight=weight, state=report.state, objects=report.objects, incarnation=report.incarnation
        )
        if (space := report.space) is not None:
            entry = msgspec.structs.replace(entry, capacity=space.capacity, used=space.used, file_system=space.file_system)
        entries.append(entry)
    return tuple(entries)


def numbers_of(
    reports: Iterable[DiskReport], known: ClusterMap, counted: Mapping[str, CopiesCounted]
) -> tuple[DiskNumbers, ...]:
    """What a heartbeat says about the disks for the state of the cluster."""
    several = {bucket.id for bucket in known.buckets if bucket.copies > 1}  # until then, only the first replica is read
    return tuple(_numbers(report, several, counted.get(report.disk_id)) for report in reports)


def _numbers(report: DiskReport, several: Collection[str], counted: CopiesCounted | None) -> DiskNumbers:
    with_copies = sum(count for bucket_id, count in report.first.items() if bucket_id in several)
    numbers = DiskNumbers(
        id=report.disk_id,
        alone=sum(report.first.values()) - with_copies,
        first=with_copies,
        quarantined=report.stats.quarantined_rows,
        is_full=report.space is not None and report.space.free <= 0,
        orphan_alarm=bool(report.stats.orphan_alarm),
        log_torn=report.has_torn_log,
        divergence_alarms=report.stats.divergence_alarms,
    )
    if counted is None:
        return numbers
    return msgspec.structs.replace(numbers, counted_step=counted.step, one_left=counted.one_left, missing=counted.missing)


def hints_by_disk(counted: Mapping[str, CopiesCounted]) -> dict[str, int]:
    """How many rows other disks lack, or are to have `later`, by the hints of these disks: those that lack most."""
    total: Counter[str] = Counter()
    for each in counted.values():
        total.update(each.hints)
    return dict(total.most_common(HINTED_DISKS_MAX))
