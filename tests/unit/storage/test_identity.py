from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from calls import raising

from dfc.clock import HybridClock
from dfc.errors import DiskLocked, DiskRefused
from dfc.filesystem import APPLICATION_ID_BEFORE, FileSystem
from dfc.storage import Disk, identity
from dfc.storage.__main__ import REFUSED, SOUND, main
from dfc.storage.catalog import catalog
from dfc.storage.catalog.catalog import Catalog
from dfc.storage.upkeep.check import check
from dfc.storage.upkeep.rebuild import rebuild


def test_a_disk_says_what_it_is(tmp_path: Path) -> None:
    path = str(tmp_path / "d")
    assert identity.read_identity(str(tmp_path)) is None
    Disk.format(path, "cluster")
    found = identity.read_identity(path)
    assert (found.cluster_id, found.format, len(found.disk_id)) == ("cluster", 1, 32)
    Disk.format(path, "cluster")
    Disk.format(path, "cluster", found.disk_id)
    assert identity.read_identity(path) == found
    for cluster, disk_id in (("other", None), ("cluster", "another")):
        with pytest.raises(DiskRefused, match="already"):
            Disk.format(path, cluster, disk_id)
    assert sorted(os.listdir(path)) == ["catalog-epoch", "catalog.sqlite", "dfc-disk.json", "objects", "orphans", "temporary"]


def test_a_directory_becomes_a_disk_that_another_one_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Empty, and of no node; a second time changes nothing. Not one that has anything on it."""
    path = str(tmp_path / "d")
    asked = ["format", path, "--cluster", "c", "--disk", "lost"]
    assert (main(asked), main(asked)) == (SOUND, SOUND)
    found = identity.read_identity(path)
    assert (found.cluster_id, found.disk_id, found.node_id) == ("c", "lost", "")
    assert main([*asked[:-1], "another"]) == REFUSED
    assert "is already disk lost of cluster c" in capsys.readouterr().err
    (tmp_path / "used" / "objects" / "x").mkdir(parents=True)
    (tmp_path / "used" / "objects" / "x" / "blob").write_bytes(b"x")
    assert main(["format", str(tmp_path / "used"), *asked[2:]]) == REFUSED


@pytest.mark.parametrize("change", [{"format": 5}, {"format": 0}, {"format": "1"}, {"more": 1}, {"node_id": "a/b"}])
def test_an_identity_of_another_form_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    Disk.format(str(tmp_path), "cluster")
    file = tmp_path / "dfc-disk.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(DiskRefused):
        Disk.open(str(tmp_path), "cluster", HybridClock(1))
    with pytest.raises(DiskRefused):
        Disk.format(str(tmp_path), "cluster")


def test_formatting_throws_nothing_away(tmp_path: Path) -> None:
    blob = tmp_path / "objects" / "b" / "00" / "a@000000000000000001"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"x")
    with pytest.raises(DiskRefused, match="holds objects"):
        Disk.format(str(tmp_path), "cluster")
    blob.unlink()
    (tmp_path / "catalog.sqlite").write_bytes(b"not a database, but who knows what")
    with pytest.raises(DiskRefused, match="holds objects"):
        Disk.format(str(tmp_path), "cluster")
    (tmp_path / "catalog.sqlite").unlink()
    Catalog.create(str(tmp_path / "catalog.sqlite"), "half-formatted", FileSystem())
    Disk.format(str(tmp_path), "cluster", "d")
    Disk.open(str(tmp_path), "cluster", HybridClock(1)).close()


def test_the_lock_is_exclusive(tmp_path: Path) -> None:
    lock = identity.lock_disk(str(tmp_path))
    with pytest.raises(DiskLocked):
        identity.lock_disk(str(tmp_path))
    os.close(lock)
    os.close(identity.lock_disk(str(tmp_path)))


def test_the_last_opening_is_in_a_file_of_fixed_length(tmp_path: Path) -> None:
    """Which is overwritten in place."""
    assert identity.last_opening(str(tmp_path)) == (0, "")
    for opening in (identity.Opening(10**15, "boot-1"), identity.Opening(1, "x" * 36), identity.Opening(2, "b")):
        identity.write_opening(str(tmp_path), opening, FileSystem())
        assert identity.last_opening(str(tmp_path)) == opening
        assert (tmp_path / "catalog-epoch").stat().st_size == 17 + 37
    (tmp_path / "catalog-epoch").write_bytes(b"%016d\n" % 7)  # of the version before
    assert identity.last_opening(str(tmp_path)) == (7, "")
    (tmp_path / "catalog-epoch").write_bytes(b"rubbish")
    assert identity.last_opening(str(tmp_path)) == (0, "")


def test_each_opening_is_counted(tmp_path: Path) -> None:
    Disk.format(str(tmp_path), "cluster")
    for count in (1, 2, 3):
        disk = Disk.open(str(tmp_path), "cluster", HybridClock(1))
        assert disk.parts.catalog.meta("epoch") == count == identity.last_opening(str(tmp_path)).epoch
        disk.close()


def test_a_disk_names_its_node_and_can_be_released(tmp_path: Path) -> None:
    path = str(tmp_path)
    Disk.format(path, "cluster", node_id="target-1")
    found = identity.read_identity(path)
    assert found.node_id == "target-1"
    assert identity.give_to_node(path, "", FileSystem()) == "target-1"
    assert identity.read_identity(path) == msgspec.structs.replace(found, node_id="")
    assert identity.give_to_node(path, "target-2", FileSystem()) == ""
    disk = Disk.open(path, "cluster", HybridClock(1))
    with pytest.raises(DiskLocked):
        identity.give_to_node(path, "target-3", FileSystem())
    disk.close()
    assert identity.read_identity(path) == msgspec.structs.replace(found, node_id="target-2")


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("form", [2, 3, 4])
def test_a_disk_of_another_format_is_refused_and_left_as_it_is(tmp_path: Path, form: int) -> None:
    Disk.format(str(tmp_path), "cluster", "d")
    file = tmp_path / "dfc-disk.json"
    file.write_text(json.dumps({"format": form, "cluster_id": "cluster", "disk_id": "d"}))
    before = contents(tmp_path)
    for use in (
        lambda: Disk.open(str(tmp_path), "cluster", HybridClock(1)),
        lambda: Disk.format(str(tmp_path), "cluster", "d"),
        lambda: identity.give_to_node(str(tmp_path), "target-1", FileSystem()),
        lambda: check(str(tmp_path)),
        lambda: rebuild(str(tmp_path)),
    ):
        with pytest.raises(DiskRefused, match=f"in format {form}, and this version of DFC reads format 1. Nothing was changed"):
            use()
    assert contents(tmp_path) == before


def test_a_disk_from_before_any_release_is_refused_whatever_its_number(tmp_path: Path) -> None:
    """With a log beside the catalog, which SQLite would put into it."""
    root = tmp_path / "disk"
    Disk.format(str(root), "cluster", "d")
    copy = tmp_path / "copy"
    with closing(sqlite3.connect(root / "catalog.sqlite")) as database:
        database.execute(f"PRAGMA application_id = {APPLICATION_ID_BEFORE}")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.execute("CREATE TABLE later (x)")
        shutil.copytree(root, copy)
    before = contents(copy)
    assert before[copy / "catalog.sqlite-wal"]
    for use in (
        lambda: Disk.open(str(copy), "cluster", HybridClock(1)),
        lambda: identity.give_to_node(str(copy), "target-1", FileSystem()),
        lambda: identity.accept(str(copy), FileSystem()),
        lambda: check(str(copy)),
        lambda: rebuild(str(copy)),
    ):
        with pytest.raises(DiskRefused, match=r"a disk of DFC before 0\.1\.0\. Nothing was changed"):
            use()
    assert contents(copy) == before


def test_a_catalog_that_cannot_be_read_is_said_to_be_so_and_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Disk.format(str(tmp_path), "cluster", "d")
    disk = Disk.open(str(tmp_path), "cluster", HybridClock(1))
    disk.put_small("b", "x", b"x")
    disk.close()
    fail = raising(OSError(errno.EIO, "Input/output error"))
    monkeypatch.setattr(identity, "read_header", fail)
    monkeypatch.setattr(catalog, "read_header", fail)
    assert check(str(tmp_path)).counts == {"catalog": 1}
    with pytest.raises(DiskRefused, match="Input/output error"):
        Disk.open(str(tmp_path), "cluster", HybridClock(1))
    monkeypatch.setattr(catalog, "read_header", lambda _path: None)  # of the new one
    assert rebuild(str(tmp_path)).objects == 1


def test_a_disk_that_does_not_say_whose_it_is_is_nobodys_until_it_is_given_to_one(tmp_path: Path) -> None:
    """As one whose identity was written anew by hand."""
    Disk.format(str(tmp_path), "cluster", "d")
    file = tmp_path / "dfc-disk.json"
    file.write_text('{"format": 1, "cluster_id": "cluster", "disk_id": "d"}')
    assert identity.read_identity(str(tmp_path)).node_id is None
    Disk.open(str(tmp_path), "cluster", HybridClock(1)).close()
    assert identity.give_to_node(str(tmp_path), "target-1", FileSystem()) is None
    assert json.loads(file.read_text())["node_id"] == "target-1"


@pytest.mark.parametrize("left", [b"", b"\0" * 120, b'{"format": 2, "cluster', b"x" * 70_000])
def test_a_damaged_identity_says_how_to_write_it_again(tmp_path: Path, left: bytes) -> None:
    Disk.format(str(tmp_path), "cluster", "the-disk")
    file = tmp_path / "dfc-disk.json"
    file.write_bytes(left)
    with pytest.raises(DiskRefused) as caught:
        Disk.open(str(tmp_path), "cluster", HybridClock(1))
    assert str(file) in caught.value.message
    # The message has the line that is to be written, but for the cluster's id.
    line = caught.value.message.partition("write it again: ")[2]
    file.write_text(line.replace("(from /v1/cluster)", "cluster"))
    disk = Disk.open(str(tmp_path), "cluster", HybridClock(1))
    assert disk.id == "the-disk"
    disk.close()
