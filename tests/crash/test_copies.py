"""Copies on a disk that is killed or loses power: what was undone or is surplus goes for good, and no alarm is raised."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from copying import PENDING, V1, V2, V3, adopt, body, newer, written
from faulty_filesystem import FAULTS, Fault, FaultyFileSystem, PowerLossFileSystem, kill, places, seeds

from dfc.storage import Disk
from dfc.storage.rows import NO_REPLICA, NameState, Standing
from dfc.storage.upkeep.check import check
from dfc.storage.upkeep.rebuild import rebuild

MANY = 300  # far more complete blobs without a row than the sweep takes for an accident


def surplus(lab: Any) -> tuple[Path, list[tuple[str, str, str]]]:
    """A disk with rows that it is no replica of, and these."""
    path = lab.fresh()
    disk = lab.open(path)
    rows = [("b", f"{number:04d}", V1) for number in range(MANY)]
    for _, name, version in rows:
        adopt(disk, name, version, b"x", Standing(NO_REPLICA), durability="relaxed")
    disk.sync_relaxed()
    disk.close()
    return path, rows


def lose_power(lab: Any, path: Path, seed: int, act: Callable[[Disk], object], call: int = -1) -> None:
    """At the end, or before a call."""

    def action(acknowledge: Any) -> None:
        filesystem = PowerLossFileSystem(str(path), seed)
        disk = lab.open(path, filesystem)
        filesystem.arm(call)
        act(disk)
        filesystem.lose_power()

    assert lab.run(action).killed


def blobs(path: Path) -> int:
    return sum(file.is_file() for file in (path / "objects" / "b").rglob("*"))


@pytest.mark.parametrize("left", [MANY, 1])
@FAULTS
def test_excess_rows_whose_removal_was_killed_raise_no_alarm(lab: Any, fault: Fault, left: int) -> None:
    """Their rows are gone with one commit, their blobs one by one."""
    path, rows = surplus(lab)
    lab.die(fault, 1 + MANY - left, lambda disk: disk.copies.remove_excess(rows), partial(lab.open, path))  # after the commit
    assert blobs(path) in (left, left - 1)
    assert set(check(str(path)).counts) <= {"superseded_blob", "departed_without_blob"}
    for _ in range(2):
        disk = lab.open(path)
        assert disk.list("b", limit=9, ranks="all") == []
        report = disk.sweep()
        assert (report.alarm, report.found, disk.stats.orphan_alarm) == (False, 0, 0)
        disk.close()
        assert blobs(path) == 0
        assert check(str(path)).counts == {}
    lab.expect(path, {name: [content] for name, content in lab.before.items()})


def test_a_rebuilt_catalog_brings_no_excess_row_back(lab: Any) -> None:
    path, rows = surplus(lab)
    lab.die(kill, 1, lambda disk: disk.copies.remove_excess(rows), partial(lab.open, path))
    report = rebuild(str(path))
    assert (report.objects, report.deleted) == (2, MANY)
    disk = lab.open(path)
    assert not disk.sweep().alarm
    disk.close()
    assert blobs(path) == 0


@pytest.mark.parametrize("seed", seeds(4))
def test_excess_rows_whose_removal_lost_power_raise_no_alarm(lab: Any, seed: int) -> None:
    """Unlinked files may be back; they are remembered until the medium has nothing of them."""
    path, rows = surplus(lab)

    def act(disk: Disk) -> None:
        disk.copies.remove_excess(rows)
        disk.sweep()
        disk.put_small("b1", "durable", b"x")  # and with it every commit before it

    lose_power(lab, path, seed, act, 1 + MANY // 2 if seed % 4 < 2 else -1)
    disk = lab.open(path, boot_id="boot-2")
    assert not disk.sweep().alarm
    left = len(disk.list("b", limit=999, ranks="all"))
    assert left in (0, MANY)
    assert left == 0 or seed % 4 < 2
    disk.close()
    assert blobs(path) == left


@pytest.mark.parametrize("seed", range(8))
def test_a_disk_whose_power_loss_may_have_cost_a_copy_says_so(lab: Any, seed: int) -> None:
    """Whether it did or not: the note is durable before the row may be acknowledged."""
    path = lab.fresh()
    disk = lab.open(path)
    before = disk.incarnation
    disk.close()
    lose_power(lab, path, seed, lab.scenarios["adopt relaxed"].act)
    disk = lab.open(path, boot_id="boot-2")
    assert disk.incarnation != before
    disk.close()


@FAULTS
@pytest.mark.parametrize("to", ["object", "tombstone", "nothing"])
def test_what_is_undone_is_undone_wholly_or_not_at_all(lab: Any, to: str, fault: Fault) -> None:
    def act(disk: Disk) -> None:
        if to == "object":
            assert disk.copies.revert_to(written(disk, "x", b"one", V1), V2)
        else:
            assert disk.copies.revert("b", "x", V2, V1 if to == "tombstone" else None)

    def prepared() -> Path:
        path: Path = lab.fresh()
        disk = lab.open(path)
        adopt(disk, "x", V2, b"two", PENDING)
        disk.close()
        return path

    outcomes = set()
    for number in places(lab.calls_of(act, partial(lab.open, prepared())), fault):
        path = prepared()
        lab.die(fault, number, act, partial(lab.open, path))
        disk = lab.open(path, orphan_alarm=0)
        state = disk.copies.state("b", "x")
        is_undone = state is None or state.version == V1
        outcomes.add(is_undone)
        assert disk.copies.has_pending == (not is_undone)
        if not is_undone:
            assert body(disk, "x") == b"two"
            adopt(disk, "x", V3, b"three")  # so that what came of the other one is superseded
        elif to == "object":
            assert body(disk, "x") == b"one"
        else:
            assert state == (NameState(V1) if to == "tombstone" else None)
        assert not disk.sweep().alarm
        disk.close()
        assert blobs(path) == (0 if is_undone and to != "object" else 1)
        assert check(str(path), full=True).counts == {}
    assert outcomes == ({True, False} if fault is kill or to == "object" else {True})  # the commit is the first call


@FAULTS
def test_a_certain_write_is_noted_and_confirmed_at_once(lab: Any, fault: Fault) -> None:
    """Never confirmed without the notes that make it certain."""
    for number in range(2):
        path = lab.fresh()

        def action(acknowledge: Any, path: Path = path, number: int = number) -> None:
            filesystem = FaultyFileSystem(fault)
            disk = lab.open(path, filesystem)
            adopt(disk, "x", V1, None, PENDING)
            filesystem.arm(number)
            disk.copies.mark_replicated("b", "x", V1, ["disk-2"])
            acknowledge("certain")
            disk.copies.drop_hints([("disk-2", "b", "x", V1)])

        outcome = lab.run(action)
        disk = lab.open(path)
        if outcome.acknowledged:
            assert not disk.copies.is_pending("b", "x")
        assert disk.copies.is_pending("b", "x") or disk.copies.has_hints_for("disk-2") or number == 1
        disk.close()


@pytest.mark.parametrize("seed", seeds(8))
def test_a_copy_that_was_acknowledged_survives_a_power_loss_with_its_mark_and_its_notes(lab: Any, seed: int) -> None:
    path = lab.fresh()

    def act(disk: Disk) -> None:
        standing = Standing(1, pending=True, hints=("disk-2",))
        adopt(disk, "durable", V1, b"one", standing)
        adopt(disk, "relaxed", V1, b"one", standing)
        adopt(disk, "relaxed", V2, b"two", standing, durability="relaxed")
        adopt(disk, "deleted", V1, None, standing)
        disk.copies.confirm([("b", "durable", V1)])  # may be lost

    lose_power(lab, path, seed, act)
    disk = lab.open(path, boot_id="boot-2")
    assert body(disk, "durable") == b"one"
    assert body(disk, "relaxed") in (b"one", b"two")
    assert disk.copies.state("b", "deleted") == NameState(V1)
    assert disk.copies.hint_counts() == {"disk-2": 3}
    pending = {row.name: row.version for row in disk.copies.pending()[0]}
    assert pending.pop("durable", V1) == V1
    state = disk.copies.state("b", "relaxed")
    assert state is not None
    assert pending == {"relaxed": state.version, "deleted": V1}
    assert not disk.sweep().alarm
    assert not disk.copies.adopt(written(disk, "durable", b"one", V1), newer(V1)).stored
    disk.close()
    assert check(str(path), full=True).counts == {}
