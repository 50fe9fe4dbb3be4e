"""Counters of one disk, for metrics. Few threads update each; a lost increment does not matter."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class DiskStats:
    """Totals since the disk was opened, unless stated otherwise."""

    commits: int = 0
    committed_operations: int = 0
    commit_seconds: float = 0.0
    puts: int = 0
    put_bytes: int = 0
    deletes: int = 0
    fsyncs: int = 0
    fsync_seconds: float = 0.0
    io_errors: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    indexes_built: int = 0
    indexes_broken: int = 0
    indexed_members: int = 0
    indexes_rebuilt: int = 0
    orphans_found: int = 0
    orphans_deleted: int = 0
    orphan_alarm: int = 0  # 1: the sweep found too many orphans and moved none
    unsynced_rows: int = 0  # now
    quarantined_rows: int = 0  # now
    scrubbed_bytes: int = 0
    scrubbed_objects: int = 0
    scrub_errors: int = 0
    scrub_finished_s: float = 0.0  # when the last full pass ended, in seconds since 1970; 0: not yet
