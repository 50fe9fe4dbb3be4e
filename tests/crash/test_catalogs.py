"""Empty, missing, stale, corrupt and foreign catalogs; foreign disks; two processes on one disk. Never: data thrown away."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from dfc.clock import HybridClock
from dfc.errors import DiskLocked, DiskRefused
from dfc.storage import Disk
from dfc.storage.upkeep.check import check
from dfc.storage.upkeep.rebuild import rebuild


def blobs(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in (path / "objects").rglob("*") if file.is_file()}


def empty(path: Path) -> None:
    (path / "catalog.sqlite").write_bytes(b"")


def missing(path: Path) -> None:
    (path / "catalog.sqlite").unlink()


def cut(path: Path) -> None:
    data = (path / "catalog.sqlite").read_bytes()
    (path / "catalog.sqlite").write_bytes(data[: len(data) // 2])


def garbled(path: Path) -> None:
    with open(path / "catalog.sqlite", "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(100)
        file.write(os.urandom(size - 100))


def of_somebody_else(path: Path) -> None:
    missing(path)
    connection = sqlite3.connect(path / "catalog.sqlite")
    connection.execute("CREATE TABLE objects (name TEXT)")
    connection.close()


def of_another_disk(path: Path) -> None:
    other = path.parent / f"{path.name}-other"
    Disk.format(str(other), "crash-cluster", "disk-2")
    shutil.copy(other / "catalog.sqlite", path / "catalog.sqlite")


def of_a_later_version(path: Path) -> None:
    connection = sqlite3.connect(path / "catalog.sqlite")
    connection.execute("PRAGMA user_version = 99")
    connection.close()


def no_text(path: Path, at: int = 3) -> None:
    """One bit of the schema: SQLite quotes it, and Python cannot decode that."""
    data = bytearray((path / "catalog.sqlite").read_bytes())
    data[data.index(b"CREATE TABLE") + at] ^= 0x80
    (path / "catalog.sqlite").write_bytes(data)


HARMS = [empty, missing, cut, garbled, of_somebody_else, of_another_disk, of_a_later_version, no_text]


@pytest.mark.parametrize("harm", HARMS)
def test_a_catalog_that_is_not_right_refuses_the_disk_and_is_left_alone(lab: Any, harm: Any) -> None:
    path = lab.fresh()
    harm(path)
    before = {file: file.read_bytes() for file in path.glob("catalog.sqlite*")}, blobs(path)
    with pytest.raises(DiskRefused):
        lab.open(path)
    assert ({file: file.read_bytes() for file in path.glob("catalog.sqlite")}, blobs(path)) == before
    rebuild(str(path))
    lab.expect(path, {name: [content] for name, content in lab.before.items()})


def test_wherever_a_bit_of_the_schema_flips_the_disk_is_refused_checked_and_rebuilt(lab: Any) -> None:
    for at in (*range(30), *range(30, 900, 41)):
        path = lab.fresh()
        no_text(path, at)
        with pytest.raises(DiskRefused):
            lab.open(path)
        assert check(str(path)).counts["catalog"] == 1
    rebuild(str(path))
    assert not check(str(path)).damaged
    lab.expect(path, {name: [content] for name, content in lab.before.items()})


def test_a_catalog_put_back_from_a_copy_is_refused_and_can_be_rebuilt(lab: Any) -> None:
    path = lab.fresh()
    shutil.copy(path / "catalog.sqlite", path.parent / "copy")
    disk = lab.open(path)
    disk.put_small(lab.bucket, "new-small", lab.new_small)
    disk.close()
    shutil.copy(path.parent / "copy", path / "catalog.sqlite")
    with pytest.raises(DiskRefused, match="older than the disk"):
        lab.open(path)
    rebuild(str(path))
    lab.expect(path, {**{name: [content] for name, content in lab.before.items()}, "new-small": [lab.new_small]})


def test_too_many_complete_blobs_without_rows_stop_the_sweep(lab: Any) -> None:
    path = lab.fresh()
    disk = lab.open(path)
    for number in range(11):
        disk.put_small(lab.bucket, f"more-{number}", b"x")
    disk.close()
    connection = sqlite3.connect(path / "catalog.sqlite")
    connection.execute("DELETE FROM objects WHERE CAST(name AS TEXT) LIKE 'more%'")
    connection.commit()
    connection.close()
    before = blobs(path)
    disk = lab.open(path)
    report = disk.sweep()
    assert (report.alarm, report.complete, report.moved) == (True, 11, 0)
    assert disk.stats.orphan_alarm == 1
    disk.close()
    assert blobs(path) == before
    assert rebuild(str(path)).objects == 13


def test_a_disk_of_another_cluster_or_without_identity_is_refused(lab: Any) -> None:
    path = lab.fresh()
    with pytest.raises(DiskRefused, match="belongs to cluster"):
        Disk.open(str(path), "another", HybridClock(1), lab.options())
    with pytest.raises(DiskRefused, match="already"):
        Disk.format(str(path), "another")
    (path / "dfc-disk.json").write_text("{}")
    with pytest.raises(DiskRefused, match="cannot be read"):
        lab.open(path)
    (path / "dfc-disk.json").unlink()
    with pytest.raises(DiskRefused, match="no identity"):
        lab.open(path)
    with pytest.raises(DiskRefused, match="holds objects"):
        Disk.format(str(path), lab.cluster)
    with pytest.raises(DiskRefused, match="mounted"):
        lab.open(path.parent / "nowhere")
    assert len(blobs(path)) == 3


def test_two_processes_cannot_have_one_disk(lab: Any) -> None:
    path = lab.fresh()
    disk = lab.open(path)

    def action(acknowledge: Any) -> None:
        try:
            lab.open(path)
        except DiskLocked:
            acknowledge("locked")
        try:
            rebuild(str(path))
        except DiskLocked:
            acknowledge("locked")

    assert lab.run(action).acknowledged == ["locked", "locked"]
    disk.close()

    def again(acknowledge: Any) -> None:
        lab.open(path).close()
        acknowledge("opened")

    assert lab.run(again).acknowledged == ["opened"]
    lab.expect(path, {name: [content] for name, content in lab.before.items()})


def test_the_lock_ends_with_the_process(lab: Any) -> None:
    path = lab.fresh()

    def action(acknowledge: Any) -> None:
        lab.open(path)
        acknowledge("opened")
        os.kill(os.getpid(), 9)

    assert lab.run(action).killed
    lab.expect(path, {name: [content] for name, content in lab.before.items()})
