"""The log of a catalog that is damaged, and goes on behind that."""

from __future__ import annotations

import logging
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from calls import raising
from copying import V1, adopt

from dfc.errors import DiskRefused
from dfc.storage import Disk, identity
from dfc.storage.rows import Standing
from dfc.storage.upkeep import rebuild as rebuilding
from dfc.storage.upkeep.check import check
from dfc.storage.upkeep.rebuild import rebuild
from dfc.storage.upkeep.sweep import delete_old_orphans

COUNT = 20


def kill(disk: Disk, tmp_path: Path) -> None:
    """Leave the disk as it is at this moment."""
    shutil.copytree(disk.path, tmp_path / "killed")
    disk.close()
    shutil.rmtree(disk.path)
    shutil.copytree(tmp_path / "killed", disk.path)


def torn(open_disk: Any, tmp_path: Path, *, copies: bool = False) -> str:
    """The disk of a process that was killed, with a flipped bit in the middle of its log."""
    disk = open_disk()
    for number in range(COUNT):
        if copies:
            adopt(disk, f"o{number}", V1, b"x", Standing(1))
        else:
            disk.put_small("b", f"o{number}", b"x")
    path = str(disk.path)
    kill(disk, tmp_path)
    log = f"{path}/catalog.sqlite-wal"
    with open(log, "r+b") as file:
        file.seek(os.path.getsize(log) // 2)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    return path


def all_are_there(disk: Disk) -> None:
    assert [disk.lookup("b", f"o{number}").size for number in range(COUNT)] == [1] * COUNT


def test_in_the_same_boot_it_is_damage_and_refused(open_disk: Any, tmp_path: Path) -> None:
    path = torn(open_disk, tmp_path)
    for _ in range(2):
        with pytest.raises(DiskRefused, match=r"in its log is damaged, and \d+ commits behind that would be lost.*rebuild"):
            open_disk()
    report = check(path)  # which does not put what is left of the log into the catalog
    assert report.damaged
    assert "is damaged" in report.problems[0].detail
    with pytest.raises(DiskRefused, match="is damaged"):
        open_disk()
    all_are_there(open_disk.rebuilt())


@pytest.mark.parametrize("copies", [False, True])
def test_after_another_boot_the_disk_is_in_doubt(
    open_disk: Any, tmp_path: Path, copies: bool, caplog: pytest.LogCaptureFixture
) -> None:
    life = open_disk().incarnation
    open_disk.close()
    torn(open_disk, tmp_path, copies=copies)
    with caplog.at_level(logging.ERROR):
        disk = open_disk(boot_id="boot-2")
    assert "commits behind that are lost" in caplog.text
    assert (disk.has_torn_log, disk.is_rolled_back) == (True, False)
    assert disk.incarnation.startswith(f"{life}.")
    disk = open_disk.again(boot_id="boot-2")
    assert disk.has_torn_log, "until somebody accepts that"
    disk.accept()
    assert not disk.has_torn_log


def test_a_crash_while_it_is_opened_forgets_no_damage(open_disk: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an opening writes goes over what is left of the log."""
    life = open_disk().incarnation
    open_disk.close()
    torn(open_disk, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(identity, "write_opening", lambda *_: os._exit(1))  # the first thing after the catalog
        child = os.fork()
        if child == 0:
            open_disk(boot_id="boot-2")
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    disk = open_disk(boot_id="boot-2")
    assert (disk.has_torn_log, disk.incarnation.partition(".")[0]) == (True, life)


def test_what_may_be_lost_is_not_touched(open_disk: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """So the other way out than to accept it, which is to have it found, is open for as long as that."""
    path = torn(open_disk, tmp_path)
    disk = open_disk(boot_id="boot-2", orphan_keep_s=0)
    with caplog.at_level(logging.WARNING):
        report = disk.sweep()
    assert 0 < report.complete < COUNT
    assert f"{report.complete} complete blobs have no row" in caplog.text
    assert report.moved == 0
    Path(path, "orphans", "earlier").write_bytes(b"x")
    assert delete_old_orphans(disk.parts, time.time() + 10) == 0
    all_are_there(open_disk.rebuilt(boot_id="boot-2"))


def test_what_is_accepted_is_set_aside_and_deleted(open_disk: Any, tmp_path: Path) -> None:
    path = torn(open_disk, tmp_path)
    disk = open_disk(boot_id="boot-2", orphan_keep_s=0)
    disk.accept()
    report = disk.sweep()
    assert report.moved == report.complete > 0
    assert delete_old_orphans(disk.parts, time.time() + 10) == report.moved
    assert not any(os.path.isfile(each) for each in Path(path, "orphans").rglob("*@*"))


def test_a_rebuild_that_is_interrupted_forgets_no_damage(
    open_disk: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading the old catalog would put what is left of its log into it."""
    path = torn(open_disk, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(rebuilding._Rebuild, "run", raising(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            rebuild(path)
    with pytest.raises(DiskRefused, match="missing"):
        open_disk()
    all_are_there(open_disk.rebuilt())


def test_a_log_is_begun_anew_at_each_opening(disk: Disk, open_disk: Any, tmp_path: Path) -> None:
    """Else a commit that one process did not end would look like damage when the next one has written over half of it."""
    disk.put_small("b", "a", b"x" * 1000)
    kill(disk, tmp_path)
    assert os.path.getsize(f"{disk.path}/catalog.sqlite-wal")
    disk = open_disk()
    assert os.path.getsize(f"{disk.path}/catalog.sqlite-wal") == 0
    assert disk.lookup("b", "a").size == 1000
