"""kill -9 at every file-system call: before it is made, and after it (a write: when half of it has been made)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from crash.conftest import SCENARIOS
from faulty_filesystem import FAULTS, PARTS, Fault, FaultyFileSystem, in_parts, kill, places

from dfc.clock import HybridClock
from dfc.errors import DiskRefused
from dfc.storage import Disk
from dfc.storage.upkeep.check import check
from dfc.storage.upkeep.rebuild import rebuild

KILLED = [scenario for scenario in SCENARIOS if scenario != "deposit tar"]  # test_staging.py kills deposits


@in_parts
@FAULTS
@pytest.mark.parametrize("scenario", KILLED)
def test_nothing_acknowledged_is_lost_torn_or_resurrected(lab: Any, scenario: str, fault: Fault, part: int) -> None:
    calls = lab.calls_in(scenario)
    assert "commit" in calls
    for number in places(calls, fault)[part::PARTS]:
        path = lab.fresh()
        done = lab.die(fault, number, lab.scenarios[scenario].act, partial(lab.open, path))
        lab.expect(path, lab.scenarios[scenario].allowed(done))


@pytest.mark.parametrize("scenario", KILLED)
def test_an_acknowledged_change_outlives_the_process(lab: Any, scenario: str) -> None:
    path = lab.fresh()

    def action(acknowledge: Any) -> None:
        lab.scenarios[scenario].act(lab.open(path))
        acknowledge("done")
        kill("", lambda: None)

    assert lab.run(action).acknowledged == ["done"]
    lab.expect(path, lab.scenarios[scenario].allowed(True))


def opened(lab: Any, path: Path, filesystem: FaultyFileSystem) -> None:
    lab.open(path, filesystem, ballast_bytes=4096).close()


@FAULTS
def test_a_disk_can_be_opened_again_wherever_opening_and_closing_were_killed(lab: Any, fault: Fault) -> None:
    for number in places(lab.calls_of(partial(opened, lab, lab.fresh())), fault):
        path = lab.fresh()
        lab.die(fault, number, partial(opened, lab, path))
        lab.expect(path, {name: [content] for name, content in lab.before.items()})


@FAULTS
def test_formatting_can_be_done_again_wherever_it_was_killed(lab: Any, tmp_path: Path, fault: Fault) -> None:
    for number in places(lab.calls_of(partial(Disk.format, str(tmp_path / "whole"), lab.cluster, "d")), fault):
        path = str(tmp_path / f"half-{number}")
        lab.die(fault, number, partial(Disk.format, path, lab.cluster, "d"))
        try:
            Disk.open(path, lab.cluster, HybridClock(1), lab.options()).close()
        except DiskRefused:
            Disk.format(path, lab.cluster, "d")
            Disk.open(path, lab.cluster, HybridClock(1), lab.options()).close()


@FAULTS
def test_syncing_relaxed_objects_can_be_killed_anywhere(lab: Any, fault: Fault) -> None:
    def prepare(path: Path, filesystem: FaultyFileSystem) -> Disk:
        disk: Disk = lab.open(path, filesystem)
        lab.put(disk, "old.tar", lab.new_tar, "relaxed")
        lab.put(disk, "new-small", lab.new_small, "relaxed")
        return disk

    allowed = {**{n: [c] for n, c in lab.before.items()}, "old.tar": [lab.new_tar], "new-small": [lab.new_small]}
    for number in places(lab.calls_of(Disk.sync_relaxed, partial(prepare, lab.fresh())), fault):
        path = lab.fresh()
        lab.die(fault, number, Disk.sync_relaxed, partial(prepare, path))
        lab.expect(path, allowed)


@FAULTS
@pytest.mark.parametrize("catalog", ["sound", "missing", "with a log"])
def test_a_rebuild_can_be_killed_anywhere_and_run_again(lab: Any, fault: Fault, catalog: str) -> None:
    def prepare() -> Path:
        path: Path = lab.fresh()
        if catalog == "missing":
            (path / "catalog.sqlite").unlink()
        elif catalog == "with a log":

            def action(acknowledge: Any) -> None:
                lab.scenarios["delete small"].act(lab.open(path))
                kill("", lambda: None)

            lab.run(action)
        return path

    calls = lab.calls_of(lambda filesystem: rebuild(str(prepare()), filesystem=filesystem))
    allowed = {name: [content] for name, content in lab.before.items()}
    if catalog == "with a log":
        allowed["old-small"] = [None]
    for number in places(calls, fault):
        path = prepare()
        lab.die(fault, number, lambda filesystem, path=path: rebuild(str(path), filesystem=filesystem))
        try:
            lab.open(path).close()
        except DiskRefused:
            rebuild(str(path))
        lab.expect(path, allowed)


@pytest.mark.parametrize("left", [300, 1])
@FAULTS
def test_a_bucket_of_many_objects_whose_removal_was_killed(lab: Any, fault: Fault, left: int) -> None:
    """Their rows are gone with one commit, their blobs one by one: the sweep ends the work, whatever else a crash left."""
    path, many = lab.fresh(), 300
    disk = lab.open(path)
    for number in range(many):
        disk.put_small("doomed", f"{number:04d}", b"x", durability="relaxed")
    disk.close()
    torn = path / "objects" / lab.bucket / "00" / ("torn@" + "0" * 18)
    torn.parent.mkdir(exist_ok=True)
    torn.write_bytes(b"half of an upl")
    lab.die(fault, 1 + many - left, lambda disk: disk.remove_bucket("doomed"), partial(lab.open, path))  # after the commit
    blobs = [file for file in (path / "objects" / "doomed").rglob("*") if file.is_file()]
    assert len(blobs) in (left, left - 1)
    assert set(check(str(path)).counts) <= {"removed_blob", "torn_blob"}
    for _ in range(2):
        disk = lab.open(path)
        assert disk.counts("doomed") == (0, 0)
        assert not disk.sweep().alarm
        assert disk.stats.orphan_alarm == 0
        assert disk.remove_bucket("doomed") == 0
        disk.close()
        assert not torn.exists()
        assert not (path / "objects" / "doomed").exists()
    lab.expect(path, {name: [content] for name, content in lab.before.items()})


def test_a_rebuilt_catalog_brings_no_removed_bucket_back(lab: Any) -> None:
    path = lab.fresh()
    disk = lab.open(path)
    for number in range(20):
        disk.put_small("doomed", f"{number:04d}", b"x")
    disk.close()
    lab.die(kill, 1, lambda disk: disk.remove_bucket("doomed"), partial(lab.open, path))
    report = rebuild(str(path))
    assert (report.objects, report.deleted) == (2, 20)
    disk = lab.open(path)
    assert disk.bucket_ids() == [lab.bucket]
    disk.close()
    assert (path / "objects" / "doomed").exists()
    lab.expect(path, {name: [content] for name, content in lab.before.items()})
