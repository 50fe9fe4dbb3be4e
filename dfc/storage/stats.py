"""Counters of one disk, and the metrics that they are. Few threads update each; a lost increment does not matter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple


class MetricOf(NamedTuple):
    """The metric of a field; `counts`: it is a counter, else a gauge. docs/metrics.md has a row for each."""

    name: str
    help: str
    counts: bool


def _counter(name: str, help: str) -> Any:
    """A field that counts from 0 since the disk was opened. On the page its name ends in `_total`."""
    return field(default=0, metadata={"metric": MetricOf(name, help, counts=True)})


def _gauge(name: str, help: str) -> Any:
    """A field that says how things are now."""
    return field(default=0, metadata={"metric": MetricOf(name, help, counts=False)})


@dataclass(slots=True)
class DiskStats:
    """What one disk counts."""

    commits: int = _counter("dfc_catalog_commits", "Transactions committed")
    committed_operations: int = _counter("dfc_catalog_operations", "Puts and deletes committed; per commit: the group size")
    commit_seconds: float = _counter("dfc_catalog_commit_seconds", "Time spent in commits")
    puts: int = _counter("dfc_disk_puts", "Objects stored")
    put_bytes: int = _counter("dfc_disk_put_bytes", "Bytes of objects stored")
    deletes: int = _counter("dfc_disk_deletes", "Objects deleted")
    fsyncs: int = _counter("dfc_disk_fsyncs", "Calls of fsync and fdatasync")
    fsync_seconds: float = _counter("dfc_disk_fsync_seconds", "Time spent in fsync and fdatasync")
    io_errors: int = _counter("dfc_disk_io_errors", "I/O errors that count against the disk's budget")
    cache_hits: int = _counter("dfc_catalog_cache_hits", "Rows found in memory")
    cache_misses: int = _counter("dfc_catalog_cache_misses", "Rows read from the catalog")
    indexes_built: int = _counter("dfc_index_shards", "Shards indexed while they were uploaded")
    indexes_broken: int = _counter("dfc_index_broken_shards", "Uploads named like a shard that are not a valid tar")
    indexed_members: int = _counter("dfc_index_members", "Members of these shards")
    indexes_rebuilt: int = _counter("dfc_index_rebuilds", "Tar indexes rebuilt because they were missing or damaged")
    orphans_found: int = _counter("dfc_orphans_found", "Unreferenced files moved to orphans/")
    orphans_deleted: int = _counter("dfc_orphans_deleted", "Orphans deleted after orphan_keep_s")
    orphan_alarm: int = _gauge("dfc_orphan_alarm", "1: too many orphans were found, so none was moved; see docs/operations.md")
    unsynced_rows: int = _gauge("dfc_catalog_unsynced_rows", "Objects of relaxed durability that are not synced yet")
    quarantined_rows: int = _gauge("dfc_catalog_quarantined_rows", "Objects whose stored bytes are gone or wrong")
    mended_rows: int = _counter("dfc_disk_mended", "Damaged objects whose bytes were fetched from another disk")
    compared_rows: int = _counter("dfc_compare_rows", "Objects compared with their copies on another disk")
    divergences: int = _counter("dfc_compare_divergences", "Objects whose copies were not what the primary has")
    divergences_repaired: int = _counter("dfc_compare_repairs", "Of these, copies that get what the primary has")
    set_aside_rows: int = _counter("dfc_compare_set_aside", "Copies here that no primary knew, moved to orphans/")
    divergence_alarms: int = _gauge("dfc_compare_alarms", "Copies elsewhere that contradict this disk, left as they are")
    scrubbed_bytes: int = _counter("dfc_scrub_bytes", "Bytes read and checked by the scrubber")
    scrubbed_objects: int = _counter("dfc_scrub_objects", "Objects read and checked by the scrubber")
    scrub_errors: int = _counter("dfc_scrub_errors", "Objects that the scrubber found damaged")
    scrub_finished_s: float = _gauge("dfc_scrub_finished_timestamp_seconds", "When the last complete pass ended; 0: none yet")
