from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dfc.errors import DiskLocked, DiskRefused, ObjectCorrupt, ObjectNotFound
from dfc.storage import layout
from dfc.storage.__main__ import main
from dfc.storage.upkeep.check import check
from dfc.storage.upkeep.rebuild import rebuild


def lose_catalog(root: Path) -> None:
    for path in root.glob("catalog.sqlite*"):
        path.unlink()


def copy_of(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (root / "objects").rglob("*") if path.is_file()}


def test_a_sound_disk_has_no_problems_and_nothing_is_changed(disk: Any, open_disk: Any, tar_of: Callable[..., bytes]) -> None:
    disk.put_small("b", "a", b"hello")
    disk.put_small("b", "n" * 300, b"hello")
    disk.put_small("c", "s.tar", tar_of(4))
    disk.put_small("c", "r", b"relaxed", durability="relaxed")
    disk.put_small("c", "gone", b"x")
    disk.delete("c", "gone")
    with pytest.raises(DiskLocked):
        check(str(open_disk.root))
    disk.close()
    before = copy_of(open_disk.root)
    for full in (False, True):
        report = check(str(open_disk.root), full=full)
        assert (report.counts, report.objects, report.disk_id) == ({}, 4, "disk-1")
        assert not report.damaged
    assert copy_of(open_disk.root) == before


def test_check_names_everything_that_does_not_fit(disk: Any, open_disk: Any) -> None:
    rows = {name: disk.put_small("b", name, b"hello").row for name in ("gone", "footer", "body", "cut", "fine", "quarantined")}
    paths = {name: Path(disk.blob_path(row)) for name, row in rows.items()}
    os.truncate(paths["quarantined"], 1)
    with pytest.raises(ObjectCorrupt):
        disk.open_blob(rows["quarantined"])
    disk.close()
    paths["gone"].unlink()
    os.truncate(paths["cut"], 30)
    for name, at in (("footer", 10), ("body", 2)):
        data = bytearray(paths[name].read_bytes())
        data[at] ^= 1
        paths[name].write_bytes(data)
    shutil.copy(paths["fine"], str(paths["fine"]).replace(rows["fine"].version, "0" * 17 + "1"))
    (paths["fine"].parent / "notes").write_text("x")
    other = layout.blob_path(str(open_disk.root), "b", "torn", "0" * 17 + "2")
    Path(other).parent.mkdir(exist_ok=True)
    Path(other).write_bytes(b"x")
    Path(other + ".idx").write_bytes(b"x")
    report = check(str(open_disk.root))
    expected = {
        "row_without_blob": 1,
        "damaged_blob": 3,
        "quarantined": 1,
        "superseded_blob": 1,
        "torn_blob": 1,
        "index_without_blob": 1,
        "foreign_file": 1,
    }
    assert report.counts == expected
    assert report.damaged
    assert check(str(open_disk.root), full=True).counts == {**expected, "damaged_blob": 4}


def test_a_lost_catalog_is_made_anew_from_the_blobs(disk: Any, open_disk: Any, tar_of: Callable[..., bytes]) -> None:
    disk.put_small("b", "a/ü", b"hello")
    disk.put_small("b", "n" * 300, b"long")
    disk.put_small("b", "s.tar", tar_of(4))
    disk.put_small("b", "t.tar", tar_of(5))
    disk.put_small("b", "broken.tar", tar_of(5)[:3000])
    os.unlink(disk.index_path(disk.lookup("b", "t.tar")))
    rows = disk.list("b", limit=10)
    disk.close()
    lose_catalog(open_disk.root)
    report = rebuild(str(open_disk.root))
    assert (report.objects, report.damaged, report.old_catalog) == (5, [], "")
    disk = open_disk()
    assert [disk.lookup("b", row.name) for row in rows] == rows
    assert disk.counts("b") == (5, sum(row.size for row in rows))
    assert disk.open_index(disk.lookup("b", "t.tar")).sample_count == 5
    assert disk.put_small("b", "a/ü", b"again").row.version > max(row.version for row in rows)


def test_bytes_behind_a_sound_footer_are_verified_before_they_are_served(disk: Any, open_disk: Any) -> None:
    paths = {name: disk.blob_path(disk.put_small("b", name, b"hello").row) for name in ("torn", "fine")}
    disk.close()
    with open(paths["torn"], "r+b") as file:
        file.write(bytes(3))
    lose_catalog(open_disk.root)
    assert rebuild(str(open_disk.root)).objects == 2
    disk = open_disk()
    assert disk.read_small(disk.lookup("b", "fine")) == b"hello"
    with pytest.raises(ObjectCorrupt):
        disk.lookup("b", "torn")
    disk.close()
    lose_catalog(open_disk.root)
    assert len(rebuild(str(open_disk.root), full=True).damaged) == 1
    disk = open_disk()
    assert [found.name for found in disk.quarantined()] == ["torn"]


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_the_newest_version_counts_unless_it_is_torn(disk: Any, open_disk: Any, torn: bool, full: bool) -> None:
    """As after a power loss in an upload: the old blob is there, the new one has a footer, its bytes may not be there."""
    kept = disk.blob_path(disk.put_small("b", "a", b"old").row)
    shutil.copy(kept, str(open_disk.root / "kept"))
    new = disk.put_small("b", "a", b"new").row
    if torn:
        with open(disk.blob_path(new), "r+b") as file:
            file.write(bytes(3))
    disk.close()
    shutil.move(str(open_disk.root / "kept"), kept)
    lose_catalog(open_disk.root)
    report = rebuild(str(open_disk.root), full=full)
    assert (report.objects, report.older_versions) == (1, 1)
    disk = open_disk()
    assert disk.read_small(disk.lookup("b", "a")) == (b"old" if torn else b"new")
    disk.sweep()
    assert len(open_disk.files()) == 1


def test_deletes_that_the_old_catalog_remembers_are_honoured(disk: Any, open_disk: Any) -> None:
    """As after a crash between a delete's commit and its unlink."""
    row = disk.put_small("b", "a", b"x").row
    disk.put_small("b", "stays", b"y")
    data = Path(disk.blob_path(row)).read_bytes()
    disk.delete("b", "a")
    disk.close()
    Path(disk.blob_path(row)).write_bytes(data)
    report = rebuild(str(open_disk.root))
    assert (report.objects, report.deleted, report.tombstones) == (1, 1, 1)
    assert report.old_catalog.startswith("catalog.sqlite.before-")
    assert (open_disk.root / report.old_catalog).exists()
    disk = open_disk()
    with pytest.raises(ObjectNotFound):
        disk.lookup("b", "a")
    assert disk.sweep().moved == 1


def test_blobs_without_a_footer_are_set_aside_for_good(disk: Any, open_disk: Any) -> None:
    row = disk.put_small("b", "a", b"hello").row
    moved = disk.put_small("b", "moved", b"hello").row
    disk.close()
    os.truncate(disk.blob_path(row), 40)
    wrong = disk.blob_path(moved).replace("moved@", "other@")
    os.rename(disk.blob_path(moved), wrong)
    report = rebuild(str(open_disk.root))
    assert (report.objects, len(report.damaged)) == (0, 2)
    assert len(os.listdir(open_disk.root / "damaged" / "b")) == 2
    assert open_disk.files() == set()


def test_an_interrupted_rebuild_is_simply_run_again(disk: Any, open_disk: Any) -> None:
    disk.put_small("b", "a", b"hello")
    disk.close()
    (open_disk.root / "catalog.sqlite.new").write_bytes(b"half")
    os.rename(open_disk.root / "catalog.sqlite", open_disk.root / "catalog.sqlite.before-1")
    with pytest.raises(DiskRefused):
        open_disk()
    rebuild(str(open_disk.root))
    disk = open_disk()
    assert disk.read_small(disk.lookup("b", "a")) == b"hello"


def test_the_command_reports_and_exits_by_what_it_found(open_disk: Any, capsys: Any) -> None:
    root = str(open_disk.root)
    disk = open_disk()
    row = disk.put_small("b", "a", b"hello").row
    assert main(["check", root]) == 2
    assert "in use" in capsys.readouterr().err
    disk.close()
    assert main(["check", root]) == 0
    assert "1 objects, 5 bytes" in capsys.readouterr().out
    assert main(["check", root, "--full", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["objects"] == 1
    with open(disk.blob_path(row), "r+b") as file:
        file.write(b"J")
    assert main(["check", root]) == 0
    assert main(["check", root, "--full"]) == 1
    assert "damaged_blob: objects/b/" in capsys.readouterr().out
    assert main(["rebuild", root]) == 0
    assert "the old catalog is kept as" in capsys.readouterr().out
    assert main(["rebuild", root, "--full", "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["damaged"]) == 1
    assert main(["check", root + "-absent"]) == 2
    (open_disk.root / "catalog.sqlite").write_bytes(b"")
    assert main(["check", root]) == 1
    with pytest.raises(SystemExit):
        main(["paint", root])
