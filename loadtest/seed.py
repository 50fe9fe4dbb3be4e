"""Write catalog rows without blobs, in bulk, for measuring listings. The cluster must be down; it cannot serve reads of them.

Each row goes into the catalogs of the disks where `dfc.placement` places the object and its copies, so that the cluster finds
it there.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from dfc.checksum import checksum_of
from dfc.placement.map import ClusterMap
from dfc.placement.mapped import placement_of
from dfc.placement.roles import roles
from dfc.storage.catalog.catalog import Catalog
from dfc.storage.identity import lock_disk, require_identity
from dfc.storage.layout import CATALOG_FILE, IDENTITY_FILE
from dfc.storage.rows import GOOD

Row = tuple[bytes, int, int, int]  # name, size in bytes, µs since 1970, rank of the disk among those that have the object


def object_name(number: int) -> str:
    """The name of an object, so that byte order is the order of the numbers, as in a dataset of many shards."""
    return f"train/{number:09d}.tar"


def seed_cluster(directory: Path, map_json: bytes, bucket: str, count: int) -> None:
    """Write `count` rows into the catalogs of all disks below `directory`; `map_json` is the answer to `GET /v1/cluster`.

    Raises LookupError if the bucket, a target or a disk is missing, DiskLocked if a node is still running.
    """
    cluster_map = ClusterMap.decode(map_json)
    entry = cluster_map.bucket(bucket)
    if entry is None:
        raise LookupError(f"bucket {bucket!r} does not exist")
    found = [path.parent for path in directory.rglob(IDENTITY_FILE)]
    disks = {require_identity(str(path), None).disk_id: path for path in found}
    rows: dict[str, list[Row]] = {disk_id: [] for disk_id in disks}
    now_us, placement = time.time_ns() // 1000, placement_of(cluster_map)
    for number in range(count):
        name = object_name(number)
        replicas = roles(placement, entry.id, name).replicas
        if not replicas:
            raise LookupError("the cluster map has no target in placement")
        for rank, disk_id in enumerate(replicas):
            rows[disk_id].append((name.encode(), 1024 + number % 1000, now_us - count + number, rank))
    for disk_id, of_disk in rows.items():
        _seed_disk(disks[disk_id], entry.id, of_disk)


def _seed_disk(path: Path, bucket_id: str, rows: list[Row]) -> None:
    """Write the rows and the bucket's counters of a disk in one transaction. Rows must be in byte order of their names."""
    lock = lock_disk(str(path))
    try:
        catalog = Catalog(str(path / CATALOG_FILE), require_identity(str(path), None).disk_id)
        try:
            writer = catalog.writer
            checksum = checksum_of(b"")
            writer.execute("BEGIN IMMEDIATE")
            writer.execute(
                "INSERT INTO buckets (id, objects, bytes) VALUES (?, 0, 0) ON CONFLICT (id) DO NOTHING", (bucket_id,)
            )
            number = writer.execute("SELECT number FROM buckets WHERE id = ?", (bucket_id,)).fetchone()[0]
            writer.executemany(
                "INSERT INTO objects (bucket, name, us, node, size, checksum, state, rank) VALUES (?, ?, ?, 1, ?, ?, ?, ?)",
                ((number, name, us, size, checksum, GOOD, rank) for name, size, us, rank in rows),
            )
            first, copies = [size for _, size, _, rank in rows if not rank], [size for _, size, _, rank in rows if rank]
            writer.execute(
                "UPDATE buckets SET objects = objects + ?, bytes = bytes + ?, copies = copies + ?, copy_bytes = copy_bytes + ?"
                " WHERE number = ?",
                (len(first), sum(first), len(copies), sum(copies), number),
            )
            writer.execute("COMMIT")
        finally:
            catalog.close()
    finally:
        os.close(lock)
