"""Disks in format 3: opening upgrades them in place, and nothing else changes them."""

from __future__ import annotations

import errno
import json
import logging
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from faulty_filesystem import FaultyFileSystem, fail_with

from dfc.clock import HybridClock
from dfc.database import read_header
from dfc.errors import DiskRefused, ObjectCorrupt
from dfc.filesystem import FileSystem
from dfc.storage import Disk, DiskOptions
from dfc.storage.__main__ import REFUSED, main
from dfc.storage.blobs.staging import StagedName
from dfc.storage.catalog.catalog import Catalog
from dfc.storage.catalog.schema import SCHEMA_VERSION
from dfc.storage.identity import give_to_node, read_identity
from dfc.storage.upkeep.check import check
from dfc.storage.upkeep.rebuild import rebuild

EMPTY = "0" * 32


def open_disk(path: Path, filesystem: FileSystem | None = None, **changes: Any) -> Disk:
    values = {"reserve_bytes": 0, "ballast_bytes": 0, "maintenance": False, "boot_id": "boot-1", **changes}
    return Disk.open(str(path), "cluster-1", HybridClock(7), DiskOptions(**values), filesystem)


def contents(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def format_of(path: Path) -> int:
    found: int = json.loads((path / "dfc-disk.json").read_text())["format"]
    return found


def expect_everything(disk: Disk) -> None:
    """What the fixture has, whatever became of its format."""
    assert disk.read_small(disk.lookup("b", "plain")) == b"plain"
    assert disk.open_index(disk.lookup("b", "x.tar")).sample_count == 2
    assert disk.read_small(disk.lookup("b", "replaced")) == b"after"
    with pytest.raises(ObjectCorrupt):
        disk.lookup("b", "bad")
    state = disk.copies.state("b", "deleted")
    assert state is not None
    assert state.row is None
    assert disk.staging.find("b", "staged", StagedName("job-1")).row.size == 6
    assert [row.name for row in disk.list("b", limit=9)] == ["bad", "plain", "replaced", "x.tar"]
    assert disk.counts("b") == disk.totals() == (4, 3 + 5 + 5 + 4096)
    assert disk.bucket_ids() == ["b"]
    assert set(disk.parts.catalog.removed_buckets()) == {"removed"}


def test_opening_a_disk_in_format_3_upgrades_it_in_place(format_3: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert format_of(format_3) == 3
    with caplog.at_level(logging.INFO, "dfc.storage"):
        disk = open_disk(format_3)
    assert [record.message for record in caplog.records] == ["disk disk-1: upgraded in place to disk format 4"]
    expect_everything(disk)
    assert disk.stats.unsynced_rows == 1
    incarnation = disk.incarnation
    assert len(incarnation) == 16
    assert disk.copies.ranked_layout == 1
    assert (disk.copies.has_pending, disk.copies.owed_disks()) == (False, {})
    assert disk.copies.pending() == ([], None)
    disk.close()
    assert format_of(format_3) == 4
    assert read_identity(str(format_3)).node_id == "target-1"
    caplog.clear()
    with caplog.at_level(logging.INFO, "dfc.storage"):
        disk = open_disk(format_3)
    assert caplog.records == []
    assert disk.incarnation == incarnation
    expect_everything(disk)
    assert disk.stats.unsynced_rows == 0
    disk.close()
    assert set(check(str(format_3), full=True).counts) == {"quarantined", "damaged_blob"}


def test_an_upgraded_catalog_has_the_tables_of_a_new_one(format_3: Path, tmp_path: Path) -> None:
    open_disk(format_3).close()
    Catalog.create(str(tmp_path / "new.sqlite"), "d", FileSystem())
    found = []
    for path in (format_3 / "catalog.sqlite", tmp_path / "new.sqlite"):
        with closing(sqlite3.connect(path)) as connection:
            tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master ORDER BY name")]
            columns = {name: connection.execute(f"PRAGMA table_info({name})").fetchall() for name in tables}
            found.append({name: [column[1:] for column in of] for name, of in columns.items()})
    assert found[0] == found[1]


def test_after_the_first_step_an_old_program_refuses_the_disk(format_3: Path) -> None:
    """It reads the format of the identity before the catalog, and the version in the catalog's header before its log."""
    seen = []

    class Watching(FileSystem):
        def commit(self, connection: sqlite3.Connection) -> None:
            seen.append((format_of(format_3), connection.execute("PRAGMA user_version").fetchone()[0]))
            super().commit(connection)

    open_disk(format_3, Watching()).close()
    # The count of openings, then the upgrade. The second pair is from inside its transaction.
    assert seen[:2] == [(3, 3), (4, SCHEMA_VERSION)]
    header = read_header(str(format_3 / "catalog.sqlite"))
    assert header is not None
    assert header.user_version == SCHEMA_VERSION


@pytest.mark.parametrize("identity_first", [True, False])
def test_half_an_upgrade_is_finished_by_the_next_opening(format_3: Path, identity_first: bool) -> None:
    """The second half is never first; that is for disks whose identity was restored from a copy."""
    if not identity_first:
        before = (format_3 / "dfc-disk.json").read_bytes()
        open_disk(format_3).close()
    else:
        before = (format_3 / "dfc-disk.json").read_bytes().replace(b'"format": 3', b'"format": 4')
    (format_3 / "dfc-disk.json").write_bytes(before)
    with pytest.raises(DiskRefused, match=r"Start the target with this disk once"):
        check(str(format_3))
    disk = open_disk(format_3)
    expect_everything(disk)
    disk.close()
    assert format_of(format_3) == 4
    assert read_header(str(format_3 / "catalog.sqlite")).user_version == SCHEMA_VERSION


def test_a_check_changes_nothing_and_says_what_to_do(format_3: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(format_3)
    assert main(["check", str(format_3)]) == REFUSED
    assert "Start the target with this disk once, which upgrades it in place" in capsys.readouterr().err
    with pytest.raises(DiskRefused, match="Start the target with this disk once"):
        Catalog.open(str(format_3), "disk-1")
    assert contents(format_3) == before


def test_a_disk_in_format_3_can_be_released_and_stays_what_it_is(format_3: Path) -> None:
    assert give_to_node(str(format_3), "", FileSystem()) == "target-1"
    assert format_of(format_3) == 3
    disk = open_disk(format_3)
    expect_everything(disk)
    disk.close()
    assert read_identity(str(format_3)).node_id == ""


@pytest.mark.parametrize("full", [False, True])
def test_a_disk_in_format_3_can_be_rebuilt(format_3: Path, full: bool) -> None:
    report = rebuild(str(format_3), full=full)
    assert (report.objects, report.tombstones, report.staged, report.older_versions) == (4, 1, 1, 1)
    assert format_of(format_3) == 4
    disk = open_disk(format_3)
    assert disk.copies.ranked_layout == 1  # with one copy, every row is of rank 0
    expect_everything(disk)
    disk.close()


def test_a_rebuild_without_a_catalog_does_not_know_the_ranks(format_3: Path) -> None:
    for file in format_3.glob("catalog.sqlite*"):
        file.unlink()
    rebuild(str(format_3))
    disk = open_disk(format_3)
    assert disk.copies.ranked_layout == 0
    assert disk.counts("b") == (4, 3 + 5 + 5 + 4096)
    disk.close()


def test_an_upgrade_gives_up_the_ballast_where_there_is_no_room(format_3: Path) -> None:
    (format_3 / "ballast").write_bytes(b"\0" * 4096)
    filesystem = FaultyFileSystem(fail_with(errno.ENOSPC))
    with tempfile.TemporaryDirectory() as copy:
        filesystem.arm()
        open_disk(Path(shutil.copytree(format_3, f"{copy}/disk")), filesystem).close()
    upgrade = [at for at, name in enumerate(filesystem.names) if name == "commit"][1]
    filesystem.arm(upgrade)
    disk = open_disk(format_3, filesystem)
    assert filesystem.names[upgrade : upgrade + 3] == ["commit", "unlink", "commit"]
    assert not (format_3 / "ballast").exists()
    expect_everything(disk)
    disk.close()


@pytest.fixture
def large(tmp_path: Path) -> str:
    """A catalog of schema 3 with many rows."""
    path = str(tmp_path / "catalog.sqlite")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(
            "PRAGMA journal_mode = WAL; PRAGMA user_version = 3; PRAGMA application_id = 0x44464331;"
            "CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID; INSERT INTO meta VALUES ('disk_id', 'd');"
            "CREATE TABLE buckets (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, objects INTEGER NOT NULL, bytes INTEGER"
            " NOT NULL); CREATE TABLE unsynced (sequence INTEGER); CREATE TABLE quarantine (bucket INTEGER, name BLOB);"
            "CREATE TABLE objects (bucket INTEGER NOT NULL, name BLOB NOT NULL, us INTEGER NOT NULL, node INTEGER NOT NULL,"
            " size INTEGER NOT NULL, checksum TEXT NOT NULL, samples INTEGER, members INTEGER, state INTEGER NOT NULL, warnings"
            " TEXT, attributes BLOB, drawn TEXT, PRIMARY KEY (bucket, name)) WITHOUT ROWID;"
        )
        connection.execute("BEGIN")
        connection.executemany(
            "INSERT INTO objects VALUES (1, ?, 1, 1, 1, ?, NULL, NULL, 0, NULL, NULL, NULL)",
            ((b"%07d" % number, EMPTY) for number in range(100_000)),
        )
        connection.execute("COMMIT")
    return path


def test_many_rows_do_not_make_an_upgrade_longer(large: str) -> None:
    catalog = Catalog(large, "d", upgrades=True)
    writes: list[int] = []
    catalog.writer.set_progress_handler(lambda: writes.append(1) and 0, 1000)
    catalog.upgrade(FileSystem())
    assert len(writes) < 20, "it goes over the rows"
    assert [row.name for row in catalog.list_rows("b", prefix="", start_after="", after_prefix=False, limit=1)] == []
    catalog.close()
