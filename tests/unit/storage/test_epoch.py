"""How far a disk has come: what it has said once is never less later, unless the disk was put back to an earlier state."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dfc.storage.identity import accept, last_opening


def test_each_opening_counts(open_disk: Any) -> None:
    told = [open_disk.again().tell_epoch() for _ in range(3)]
    assert told == sorted(set(told))


def test_what_is_synced_after_it_was_told_has_a_later_one(disk: Any) -> None:
    first = disk.tell_epoch()
    assert disk.tell_epoch() == first, "nothing has happened"
    disk.put_small("b", "a", b"x")
    disk.put_small("b", "b", b"x")
    assert disk.tell_epoch() == first + 1
    disk.delete("b", "a")
    assert disk.tell_epoch() == first + 2


def test_what_a_power_loss_may_cost_does_not_count(disk: Any) -> None:
    first = disk.tell_epoch()
    disk.put_small("b", "a", b"x", durability="relaxed")
    assert disk.tell_epoch() == first
    disk.sync_relaxed()
    assert disk.tell_epoch() > first


@pytest.mark.parametrize("runs", [False, True])
def test_one_that_is_put_back_says_less(disk: Any, open_disk: Any, tmp_path: Path, runs: bool) -> None:
    """Another process has opened it since, or the one that ran has gone on: either is seen."""
    disk.put_small("b", "a", b"x")
    disk.tell_epoch()
    if not runs:
        disk.close()
    shutil.copytree(disk.path, tmp_path / "kept")
    if not runs:
        disk = open_disk()
    disk.put_small("b", "a", b"y")
    told = disk.tell_epoch()
    disk.close()
    shutil.rmtree(disk.path)
    shutil.copytree(tmp_path / "kept", disk.path)
    assert open_disk().tell_epoch() <= told


def test_a_disk_in_doubt_has_come_further_than_it_was_known_to_have(disk: Any, open_disk: Any) -> None:
    life = disk.incarnation
    disk.doubt(70, loses_alone=True)
    doubted = disk.incarnation
    assert (doubted.partition(".")[0], disk.tell_epoch()) == (life, 71)
    assert doubted != life
    assert disk.is_rolled_back
    disk.doubt(5, loses_alone=False)
    assert disk.tell_epoch() == 72, "never less"
    assert disk.needs_accepting, "that is not over"
    last = disk.incarnation
    disk = open_disk.again()
    assert (disk.incarnation, disk.tell_epoch(), disk.is_rolled_back, disk.needs_accepting) == (last, 73, True, True)
    assert last_opening(disk.path).epoch == 73
    disk.accept()
    assert not disk.is_rolled_back
    assert not open_disk.again().is_rolled_back


def test_it_is_accepted_while_no_target_runs(disk: Any, open_disk: Any) -> None:
    disk.doubt(7, loses_alone=True)
    command = [sys.executable, "-m", "dfc.storage", "accept", disk.path]
    busy = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (busy.returncode, busy.stdout) == (2, "")
    assert "in use by another process" in busy.stderr
    disk.close()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"{disk.path}: what it has lost is accepted\n"
    assert not accept(disk.path, disk.parts.filesystem)
    disk = open_disk()
    assert (disk.is_rolled_back, disk.tell_epoch()) == (False, 9)


def test_what_others_have_is_not_to_be_accepted(disk: Any) -> None:
    disk.doubt(7, loses_alone=False)
    assert (disk.is_rolled_back, disk.needs_accepting) == (True, False)


def test_a_new_catalog_keeps_what_is_to_be_accepted(disk: Any, open_disk: Any) -> None:
    disk.put_small("b", "a", b"x")
    disk.doubt(7, loses_alone=True)
    disk = open_disk.rebuilt()
    assert disk.needs_accepting
    assert disk.lookup("b", "a").size == 1
