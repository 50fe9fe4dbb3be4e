"""Prometheus metrics of a target and its disks. Names and meanings: docs/metrics.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dfc.errors import DfcError
from dfc.storage.disk import Disk
from dfc.storage.health import DiskState
from dfc.storage.rows import DiskSpace
from dfc.storage.stats import DiskStats, MetricOf


class DiskReport(NamedTuple):
    """A disk's report on itself. `space` is None when its file system could not be measured. `incarnation` names what is on
    it."""

    disk_id: str
    state: DiskState
    stats: DiskStats
    objects: int
    space: DiskSpace | None
    incarnation: str = ""


def report_on(disk: Disk) -> DiskReport:
    """Make a disk's report from its catalog and file system. Blocking."""
    try:
        return DiskReport(disk.id, disk.state, replace(disk.stats), disk.totals()[0], disk.space(), disk.incarnation)
    except DfcError:
        return DiskReport(disk.id, "failed", replace(disk.last_stats), 0, None)


def membership_families(map_version: int, lease_left_s: float, refusals: int) -> Iterable[Metric]:
    """Make the metric families of a target's part in the cluster."""
    yield GaugeMetricFamily("dfc_map_version", "Version of the cluster map", map_version)
    yield GaugeMetricFamily("dfc_lease_left_seconds", "Time for which this target may still act", lease_left_s)
    yield CounterMetricFamily("dfc_lease_refusals", "Answers refused because there was no lease", refusals)


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
    objects = GaugeMetricFamily("dfc_catalog_objects", "Objects in the catalog", labels=("disk",))
    for report in reports:
        label = (report.disk_id,)
        up.add_metric(label, 1 if report.state == "up" else 0)
        objects.add_metric(label, report.objects)
        if report.space is not None:
            capacity.add_metric(label, report.space.capacity)
            used.add_metric(label, report.space.used)
            free.add_metric(label, report.space.free)
    return (up, capacity, used, free, objects)
