"""kill -9 at every call of staging, publishing and discarding: nothing unpublished is visible, nothing published is lost."""

from __future__ import annotations

import errno
import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from crash.conftest import put
from depositing import deposit
from faulty_filesystem import (
    FAULTS,
    PARTS,
    Fault,
    FaultyFileSystem,
    PowerLossFileSystem,
    fail_with,
    in_parts,
    places,
)

from dfc.errors import DfcError, ObjectCorrupt
from dfc.storage import Disk
from dfc.storage.catalog.changes import StagedName, staged_rows
from dfc.storage.upkeep.check import check
from dfc.storage.upkeep.rebuild import rebuild

JOB = "job-1"
OUT, TEMPORARY = StagedName(JOB), StagedName(JOB, temporary=True)


def prepare(lab: Any, disk: Disk, *, deposited: bool = False) -> None:
    """A job that replaces an object, makes another, and has a temporary blob. `deposited`: a worker beside the disk wrote."""
    for name, data, owner, durability in (
        ("old.tar", lab.new_tar, OUT, "fsync"),
        ("new-small", lab.new_small, OUT, "relaxed"),
        ("new-small", b"temporary" * 100, TEMPORARY, "relaxed"),
    ):
        if deposited:
            deposit(disk, lab.bucket, name, data, owner=owner, durability=durability)
        else:
            put(disk, name, data, durability, owner)


ACTS: dict[str, Any] = {
    "stage": lambda lab, disk: put(disk, "new.tar", lab.new_tar, staged=OUT),
    "stage relaxed": lambda lab, disk: put(disk, "new.tar", lab.new_tar, "relaxed", OUT),
    "stage temporary": lambda lab, disk: put(disk, "part", lab.new_small, "relaxed", TEMPORARY),
    "stage again": lambda lab, disk: put(disk, "old.tar", lab.new_tar, staged=OUT),
    "deposit": lambda lab, disk: deposit(disk, lab.bucket, "new.tar", lab.new_tar, owner=OUT),
    "deposit relaxed": lambda lab, disk: deposit(disk, lab.bucket, "new.tar", lab.new_tar, owner=OUT, durability="relaxed"),
    "deposit again": lambda lab, disk: deposit(disk, lab.bucket, "old.tar", lab.new_tar, owner=OUT, announced=False),
    "prepare": lambda lab, disk: disk.staging.prepare(JOB),
    "publish": lambda lab, disk: disk.staging.publish(JOB, lambda bucket_id: True),
    "discard": lambda lab, disk: disk.staging.discard(JOB),
}
PUBLISHED = {"old.tar": "new_tar", "new-small": "new_small"}


def published(lab: Any) -> dict[str, bytes | None]:
    return {**lab.before, **{name: getattr(lab, content) for name, content in PUBLISHED.items()}}


def begin(lab: Any, path: Path, fault: Fault | None = None) -> tuple[Disk, FaultyFileSystem]:
    filesystem = FaultyFileSystem(fault)
    return begun(lab, path, filesystem), filesystem


def begun(lab: Any, path: Path, filesystem: FaultyFileSystem) -> Disk:
    disk: Disk = lab.open(path, filesystem)
    prepare(lab, disk)
    return disk


def calls_of(lab: Any, act: str) -> list[str]:
    found: list[str] = lab.calls_of(partial(ACTS[act], lab), partial(begun, lab, lab.fresh()))
    return found


def visible(lab: Any, disk: Disk) -> dict[str, bytes | None]:
    return {name: lab.read(disk, name) for name in lab.before}


def staged_names(disk: Disk) -> set[tuple[str, bool]]:
    """What is staged; every row has its blob, which reads as it was written."""
    found = set()
    for entry in staged_rows(disk.parts.catalog):
        row = disk.staging.find(entry.row.bucket_id, entry.row.name, entry.owner)
        fd = disk.staging.open(row)
        disk.parts.filesystem.close(fd)
        found.add((entry.row.name, entry.owner.temporary))
    return found


@in_parts
@FAULTS
@pytest.mark.parametrize("act", ACTS)
def test_killed_anywhere(lab: Any, act: str, fault: Fault, part: int) -> None:
    for number in places(calls_of(lab, act), fault)[part::PARTS]:
        path = lab.fresh()
        look(lab, path, act, acknowledged=lab.die(fault, number, partial(ACTS[act], lab), partial(begun, lab, path)))


def look(lab: Any, path: Path, act: str, *, acknowledged: bool) -> None:
    """Everything or nothing is visible; whatever it is, it can be brought to its end."""
    disk = lab.open(path)
    disk.sweep()
    seen, staged = visible(lab, disk), staged_names(disk)
    assert seen in (dict(lab.before), published(lab))
    if act == "publish":
        assert not acknowledged or seen == published(lab)
        assert bool(staged) == (seen == dict(lab.before)), "published and staged at once, or neither"
        disk.staging.publish(JOB, lambda bucket_id: True)
        assert visible(lab, disk) == published(lab)
    else:
        assert seen == dict(lab.before), "something unpublished is visible"
        if act == "discard":
            assert not (acknowledged and staged)
        elif acknowledged:
            assert ("part" if act == "stage temporary" else "old.tar", act == "stage temporary") in staged
        if act == "prepare":
            assert staged == {("old.tar", False), ("new-small", False), ("new-small", True)}
        disk.staging.discard(JOB)
    assert staged_names(disk) == set()
    disk.close()
    lab.expect(path, {name: [content] for name, content in (published(lab) if act == "publish" else lab.before).items()})


@in_parts
@FAULTS
@pytest.mark.parametrize("act", ["stage", "stage again", "deposit", "deposit again", "discard"])
def test_a_rebuild_brings_nothing_unpublished_to_life(lab: Any, act: str, fault: Fault, part: int) -> None:
    for number in places(calls_of(lab, act), fault)[part::PARTS]:
        path = lab.fresh()
        lab.die(fault, number, partial(ACTS[act], lab), partial(begun, lab, path))
        for file in path.glob("catalog.sqlite*"):
            file.unlink()
        rebuild(str(path))
        disk = lab.open(path)
        assert visible(lab, disk) == dict(lab.before)
        disk.close()
        shutil.rmtree(path)


def test_a_rebuild_keeps_what_was_published_and_what_is_staged(lab: Any) -> None:
    path = lab.fresh()
    disk, _ = begin(lab, path)
    put(disk, "other", b"of another job", staged=StagedName("job-2"))
    disk.staging.publish(JOB, lambda bucket_id: True)
    disk.close()
    for file in path.glob("catalog.sqlite*"):
        file.unlink()
    assert rebuild(str(path)).staged == 1
    disk = lab.open(path)
    assert visible(lab, disk) == published(lab)
    assert staged_names(disk) == {("other", False)}
    disk.staging.publish("job-2", lambda bucket_id: True)
    assert lab.read(disk, "other") == b"of another job"
    disk.close()
    lab.expect(path, {**{name: [content] for name, content in published(lab).items()}, "other": [b"of another job"]})


@pytest.mark.parametrize("act", ACTS)
def test_a_failing_call_leaves_a_disk_that_can_go_on(lab: Any, act: str) -> None:
    for number, name in enumerate(calls_of(lab, act)):
        if name == "commit":
            continue  # then the outcome is open until the disk is opened again
        path = lab.fresh()
        disk, filesystem = begin(lab, path, fail_with(errno.EIO))
        filesystem.arm(number)
        try:
            ACTS[act](lab, disk)
        except DfcError:
            assert visible(lab, disk) == dict(lab.before)
        if act == "publish":
            disk.staging.publish(JOB, lambda bucket_id: True)
        else:
            disk.staging.discard(JOB)
        disk.sweep()
        disk.close()
        found = lab.open(path)
        assert visible(lab, found) == (published(lab) if act == "publish" else dict(lab.before))
        found.close()
        assert not check(str(path), full=True).damaged
        shutil.rmtree(path)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("deposited", [False, True], ids=["sent", "deposited"])
@pytest.mark.parametrize("seed", range(12))
def test_power_loss(lab: Any, seed: int, deposited: bool) -> None:
    """What was prepared is published whole, whatever comes in between; what was not may be refused, and is never torn."""
    chance = random.Random(seed)
    for run in range(10):
        path = lab.fresh()
        call, decisions = chance.randrange(70), chance.randrange(1 << 30)

        def action(acknowledge: Any, path: Path = path, call: int = call, decisions: int = decisions) -> None:
            filesystem = PowerLossFileSystem(str(path), decisions)
            disk = lab.open(path, filesystem)
            filesystem.arm(call)
            prepare(lab, disk, deposited=deposited)
            acknowledge("staged")
            disk.staging.prepare(JOB)
            acknowledge("prepared")
            disk.staging.publish(JOB, lambda bucket_id: True)
            acknowledge("published")
            filesystem.lose_power()

        said = lab.run(action).acknowledged
        disk = lab.open(path, boot_id="boot-2")
        disk.sweep()
        seen = visible(lab, disk)
        assert seen in (dict(lab.before), published(lab)), (seed, run, said)
        if "published" in said:
            assert seen == published(lab), (seed, run)
        try:
            disk.staging.publish(JOB, lambda bucket_id: True)
            seen = visible(lab, disk)
            if "prepared" in said:
                assert seen == published(lab), (seed, run)
            allowed = {name: {content, published(lab)[name]} for name, content in lab.before.items()}
            assert all(seen[name] in allowed[name] for name in seen), (seed, run)
        except ObjectCorrupt:
            assert "prepared" not in said, (seed, run)
            assert visible(lab, disk) == dict(lab.before)
            disk.staging.discard(JOB)
            seen = dict(lab.before)
        disk.close()
        lab.expect(path, {name: [content] for name, content in seen.items()}, boot_id="boot-2")
