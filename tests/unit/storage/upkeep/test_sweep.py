from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dfc.storage import ObjectRow, layout
from dfc.storage.upkeep.relaxed import keep_house
from dfc.storage.upkeep.sweep import delete_old_orphans

OLD = "0000000000000a0001"


def plant(root: Path, name: str, *, footer: bool, version: str = OLD, bucket: str = "b") -> Path:
    path = Path(layout.blob_path(str(root), bucket, name, version))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"body" + (layout.row_footer(ObjectRow(bucket, name, version, 4, "0" * 32)) if footer else b""))
    return path


def test_files_without_a_row_are_set_aside_by_what_they_are(open_disk: Any, tar_of: Callable[..., bytes]) -> None:
    disk, root = open_disk(), open_disk.root
    long = "n" * 300
    kept = [disk.put_small("b", name, b"x").row for name in ("a", long)] + [disk.put_small("b", "s.tar", tar_of(2)).row]
    disk.put_small("b", "gone", b"x")
    disk.delete("b", "gone")
    plant(root, "torn", footer=False)
    plant(root, long + "torn", footer=False)
    plant(root, "complete", footer=True)
    plant(root, "a", footer=True)
    plant(root, "gone", footer=True)
    plant(root, "new", footer=False, version="f" * 18)
    Path(disk.index_path(kept[0])).write_bytes(b"of a blob that has none")
    lone = plant(root, "lone.tar", footer=False)
    lone.rename(str(lone) + ".idx")
    (root / "objects" / "b" / "00").mkdir(exist_ok=True)
    (root / "objects" / "b" / "00" / "notes.txt").write_text("not ours")
    report = disk.sweep()
    assert (report.found, report.complete, report.moved, report.alarm) == (6, 1, 6, False)
    left = {file.split("/")[-1] for file in open_disk.files()}
    assert {file for file in left if OLD in file} == set()
    assert {"notes.txt", f"new@{'f' * 18}"} < left
    assert sorted(os.listdir(root / "orphans" / "b")) == sorted(
        f"{layout.blob_stem(name)}@{OLD}" for name in ("torn", long + "torn", "complete", "a", "gone")
    )
    for row in kept:
        os.close(disk.open_blob(row))
    assert (disk.stats.orphans_found, disk.sweep().found) == (6, 0)


def test_a_footer_with_a_flipped_bit_does_not_make_an_orphan(disk: Any) -> None:
    for name in ("short", "n" * 300):
        os.truncate(disk.blob_path(disk.put_small("b", name, b"x").row), 30)
    disk._opened_at = "f" * 18
    assert disk.sweep().found == 0


def test_uploads_that_are_under_way_are_left_alone(disk: Any) -> None:
    writer = disk.begin_put("b", "a.tar", size=5)
    writer.write(b"12345")
    assert disk.sweep().found == 0
    writer.finish()
    writer.commit()


def test_orphans_are_deleted_when_their_time_has_come(open_disk: Any) -> None:
    disk = open_disk(orphan_keep_s=100)
    os.utime(plant(open_disk.root, "a", footer=True), (0, 0))
    disk.sweep()
    assert delete_old_orphans(disk.parts) == 0
    assert delete_old_orphans(disk.parts, time.time() + 101) == 1
    assert os.listdir(open_disk.root / "orphans" / "b") == []
    assert disk.stats.orphans_deleted == 1


def test_what_a_removal_of_a_bucket_left_is_no_alarm(open_disk: Any) -> None:
    disk = open_disk(orphan_alarm=3)
    rows = [disk.put_small("gone", f"{number}{'n' * 200 * (number % 2)}", b"x").row for number in range(10)]
    kept = disk.put_small("b", "a", b"x").row
    blobs = {path: path.read_bytes() for path in map(Path, map(disk.blob_path, rows))}
    assert disk.remove_bucket("gone") == 10
    for path, content in blobs.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    plant(open_disk.root, "complete", footer=True)
    disk = open_disk.again(orphan_alarm=3)
    report = disk.sweep()
    assert (report.found, report.complete, report.moved, report.alarm) == (11, 1, 11, False)
    assert os.listdir(open_disk.root / "orphans") == ["b"]
    assert os.listdir(open_disk.root / "objects") == ["b"]
    os.close(disk.open_blob(kept))


def test_a_removed_bucket_is_forgotten_when_nothing_is_left_of_it(open_disk: Any) -> None:
    disk = open_disk(tombstone_keep_s=0)
    for bucket in ("gone", "left"):
        disk.put_small(bucket, "a", b"x")
        disk.remove_bucket(bucket)
    assert disk.remove_bucket("never") == 0
    left = plant(open_disk.root, "a", footer=True, bucket="left")
    assert set(disk.parts.catalog.removed_buckets()) == {"gone", "left"}
    keep_house(disk.parts)
    assert set(disk.parts.catalog.removed_buckets()) == {"left"}
    assert disk.sweep().moved == 1
    assert not left.parent.parent.exists()
    keep_house(disk.parts)
    assert disk.parts.catalog.removed_buckets() == {}
