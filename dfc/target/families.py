"""Prometheus metrics of a target's disks. Names and meanings: docs/metrics.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dfc.errors import DfcError
from dfc.storage.disk import Disk
from dfc.storage.health import DiskState
from dfc.storage.rows import DiskSpace
from dfc.storage.stats import DiskStats

# family, attribute of DiskStats, help
_COUNTERS: Final = (
    ("dfc_catalog_commits", "commits", "Transactions committed"),
    ("dfc_catalog_operations", "committed_operations", "Puts and deletes committed; divided by commits: the mean group size"),
    ("dfc_catalog_commit_seconds", "commit_seconds", "Time spent in commits"),
    ("dfc_catalog_cache_hits", "cache_hits", "Rows found in memory"),
    ("dfc_catalog_cache_misses", "cache_misses", "Rows read from the catalog"),
    ("dfc_disk_puts", "puts", "Objects stored"),
    ("dfc_disk_put_bytes", "put_bytes", "Bytes of objects stored"),
    ("dfc_disk_deletes", "deletes", "Objects deleted"),
    ("dfc_disk_fsyncs", "fsyncs", "Calls of fsync and fdatasync"),
    ("dfc_disk_fsync_seconds", "fsync_seconds", "Time spent in fsync and fdatasync"),
    ("dfc_disk_io_errors", "io_errors", "I/O errors that count against the disk's budget"),
    ("dfc_index_shards", "indexes_built", "Shards indexed while they were uploaded"),
    ("dfc_index_members", "indexed_members", "Members of these shards"),
    ("dfc_index_broken_shards", "indexes_broken", "Uploads named like a shard that are not a valid tar"),
    ("dfc_index_rebuilds", "indexes_rebuilt", "Tar indexes rebuilt because they were missing or damaged"),
    ("dfc_orphans_found", "orphans_found", "Unreferenced files moved to orphans/"),
    ("dfc_orphans_deleted", "orphans_deleted", "Orphans deleted after orphan_keep_s"),
    ("dfc_scrub_bytes", "scrubbed_bytes", "Bytes read and checked by the scrubber"),
    ("dfc_scrub_objects", "scrubbed_objects", "Objects read and checked by the scrubber"),
    ("dfc_scrub_errors", "scrub_errors", "Objects that the scrubber found damaged"),
)
_GAUGES: Final = (
    ("dfc_orphan_alarm", "orphan_alarm", "1: too many orphans were found, so none was moved; see docs/operations.md"),
    ("dfc_catalog_unsynced_rows", "unsynced_rows", "Objects of relaxed durability that are not synced yet"),
    ("dfc_catalog_quarantined_rows", "quarantined_rows", "Objects whose stored bytes are gone or wrong"),
    ("dfc_scrub_finished_timestamp_seconds", "scrub_finished_s", "When the last complete pass ended; 0: none yet"),
)


class DiskReport(NamedTuple):
    """A disk's report on itself. `space` is None when its file system could not be measured."""

    disk_id: str
    state: DiskState
    stats: DiskStats
    objects: int
    space: DiskSpace | None


def report_on(disk: Disk) -> DiskReport:
    """Make a disk's report from its catalog and file system. Blocking."""
    try:
        return DiskReport(disk.id, disk.state, replace(disk.stats), disk.totals()[0], disk.space())
    except DfcError:
        return DiskReport(disk.id, "failed", replace(disk.last_stats), 0, None)


def disk_families(map_version: int, reports: Sequence[DiskReport]) -> Iterable[Metric]:
    """Make the metric families. A disk that does not answer is shown as in its last report, but not up."""
    yield GaugeMetricFamily("dfc_map_version", "Version of the cluster map", map_version)
    stats = {report.disk_id: report.stats for report in reports}
    for name, attribute, about in _COUNTERS:
        counter = CounterMetricFamily(name, about, labels=("disk",))
        for disk_id, values in stats.items():
            counter.add_metric((disk_id,), getattr(values, attribute))
        yield counter
    for name, attribute, about in _GAUGES:
        gauge = GaugeMetricFamily(name, about, labels=("disk",))
        for disk_id, values in stats.items():
            gauge.add_metric((disk_id,), getattr(values, attribute))
        yield gauge
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
