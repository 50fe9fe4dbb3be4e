"""Prometheus metrics of a target and its disks. Names and meanings: docs/metrics.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dfc.errors import DfcError
from dfc.storage.disk import Disk
from dfc.storage.health import DiskState
from dfc.storage.rows import DiskSpace
from dfc.storage.stats import DiskStats, MetricOf


class CopiesCounted(NamedTuple):
    """What a disk has counted by one step: objects of which it is the primary and there is one copy left, or fewer than wanted;
    and what it has noted that other disks lack, by their ids; apart from that, what they are to have `later`."""

    step: int
    one_left: int
    missing: int
    owed: Mapping[str, int]


class DiskReport(NamedTuple):
    """A disk's report on itself. `space` is None when its file system could not be measured. `incarnation` names what is on
    it. `first`: by bucket id, the objects whose first home it is. The rest: see `Disk`."""

    disk_id: str
    state: DiskState
    stats: DiskStats
    objects: int
    space: DiskSpace | None
    incarnation: str = ""
    first: Mapping[str, int] = {}
    epoch: int = 0
    is_rolled_back: bool = False
    needs_accepting: bool = False
    has_torn_log: bool = False


def report_on(disk: Disk) -> DiskReport:
    """Make a disk's report from its catalog and file system. Blocking."""
    try:
        counts = disk.totals()[0], disk.space(), disk.incarnation, disk.first_counts()
        how_far = disk.tell_epoch(), disk.is_rolled_back, disk.needs_accepting, disk.has_torn_log
        return DiskReport(disk.id, disk.state, replace(disk.stats), *counts, *how_far)
    except DfcError:
        return DiskReport(disk.id, "failed", replace(disk.last_stats), 0, None)


class Membered(NamedTuple):
    """A target's part in the cluster, for its metrics."""

    map_version: int
    decides_by: int
    lease_left_s: float
    lease_refusals: int
    fenced_writes: int


def membership_families(now: Membered) -> Iterable[Metric]:
    """Make the metric families of a target's part in the cluster."""
    yield GaugeMetricFamily("dfc_map_version", "Version of the cluster map", now.map_version)
    yield GaugeMetricFamily("dfc_decides_by_step", "Step by which this target decides, and by no older one", now.decides_by)
    yield GaugeMetricFamily("dfc_lease_left_seconds", "Time for which this target may still act", now.lease_left_s)
    yield CounterMetricFamily("dfc_lease_refusals", "Answers refused because there was no lease", now.lease_refusals)
    yield CounterMetricFamily("dfc_fenced_writes", "Writes refused in their commit without a lease", now.fenced_writes)


def copy_families(counted: Mapping[str, CopiesCounted]) -> Iterable[Metric]:
    """Make the metric families of what each disk has counted of copies."""
    one_left = GaugeMetricFamily("dfc_copies_one_left", "Objects with one copy left that should have more", labels=("disk",))
    missing = GaugeMetricFamily("dfc_copies_missing", "Objects with fewer copies than wanted", labels=("disk",))
    owed = GaugeMetricFamily("dfc_owed_rows", "Objects and deletes that other disks lack, by notes here", labels=("disk",))
    for disk, numbers in counted.items():
        one_left.add_metric((disk,), numbers.one_left)
        missing.add_metric((disk,), numbers.missing)
        owed.add_metric((disk,), sum(numbers.owed.values()))
    return (one_left, missing, owed)


def disk_families(reports: Sequence[DiskReport]) -> Iterable[Metric]:
    """Make the metric families of disks. A disk that does not answer is shown as in its last report, but not up."""
    stats = {report.disk_id: report.stats for report in reports}
    for each in fields(DiskStats):
        described: MetricOf = each.metadata["metric"]
        kind = CounterMetricFamily if described.counts else GaugeMetricFamily
        family = kind(described.name, described.help, labels=("disk",))
        for disk_id, values in stats.items():
            family.add_metric((disk_id,), getattr(values, each.name))
        yield family
    yield from _space(reports)


def _space(reports: Sequence[DiskReport]) -> Iterable[Metric]:
    up = GaugeMetricFamily("dfc_disk_up", "1: the disk accepts writes", labels=("disk",))
    capacity = GaugeMetricFamily("dfc_disk_capacity_bytes", "Size of the disk's file system", labels=("disk",))
    used = GaugeMetricFamily("dfc_disk_used_bytes", "Bytes used on the disk's file system", labels=("disk",))
    free = GaugeMetricFamily("dfc_disk_free_bytes", "Bytes that uploads may still use", labels=("disk",))
    old = GaugeMetricFamily("dfc_disk_rolled_back", "1: the disk was put back to an earlier state", labels=("disk",))
    torn = GaugeMetricFamily("dfc_disk_log_torn", "1: the log of its catalog was torn by a power loss", labels=("disk",))
    objects = GaugeMetricFamily("dfc_catalog_objects", "Objects in the catalog", labels=("disk",))
    for report in reports:
        label = (report.disk_id,)
        up.add_metric(label, 1 if report.state == "up" else 0)
        old.add_metric(label, 1 if report.is_rolled_back else 0)
        torn.add_metric(label, 1 if report.has_torn_log else 0)
        objects.add_metric(label, report.objects)
        if report.space is not None:
            capacity.add_metric(label, report.space.capacity)
            used.add_metric(label, report.space.used)
            free.add_metric(label, report.space.free)
    return (up, old, torn, capacity, used, free, objects)
