"""The upgrade of a disk in format 3, killed or without power at every call: the next opening finishes it, and all is there."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faulty_filesystem import Fault, FaultyFileSystem, PowerLossFileSystem, kill, kill_after, places

from dfc.clock import HybridClock
from dfc.database import read_header
from dfc.errors import DiskRefused
from dfc.filesystem import FileSystem
from dfc.storage import Disk
from dfc.storage.catalog.schema import SCHEMA_VERSION
from dfc.storage.upkeep.check import check
from dfc.storage.upkeep.rebuild import rebuild

FORMAT_3 = Path(__file__).parents[1] / "data" / "disk-format-3.tar.gz"  # tests/unit/storage/conftest.py says what is in it


@pytest.fixture
def fresh(lab: Any) -> Callable[[], Path]:
    """Makes one disk after another."""
    count = 0

    def make() -> Path:
        nonlocal count
        count += 1
        with tarfile.open(FORMAT_3) as archive:
            archive.extractall(lab.directory / f"old-{count}", filter="data")
        return lab.directory / f"old-{count}" / "disk"

    return make


def open_disk(lab: Any, path: Path, filesystem: FileSystem | None = None, boot: str = "boot-1") -> Disk:
    return Disk.open(str(path), "cluster-1", HybridClock(7), lab.options(boot_id=boot), filesystem)


def state_of(path: Path) -> tuple[int, int]:
    """What a program sees of a disk first: the formats of identity and catalog."""
    header = read_header(str(path / "catalog.sqlite"))
    return json.loads((path / "dfc-disk.json").read_text())["format"], header.user_version if header else 0


def expect_everything(lab: Any, path: Path, boot: str, replaced: tuple[bytes, ...]) -> None:
    disk = open_disk(lab, path, boot=boot)
    try:
        assert [row.name for row in disk.list("b", limit=9)] == ["bad", "plain", "replaced", "x.tar"]
        assert disk.read_small(disk.lookup("b", "plain")) == b"plain"
        assert disk.read_small(disk.lookup("b", "replaced")) in replaced
        assert disk.open_index(disk.lookup("b", "x.tar")).sample_count == 2
        assert disk.copies.tombstones()[0][0][1] == "deleted"
        assert list(disk.staging.totals()) == ["job-1"]
        assert [found.name for found in disk.quarantined()] == ["bad"]
        assert disk.copies.ranked_layout == 1
        assert len(disk.incarnation) == 16
        report = disk.sweep()
        assert not report.alarm
    finally:
        disk.close()
    assert state_of(path) == (4, SCHEMA_VERSION)
    assert set(check(str(path), full=True).counts) == {"quarantined", "damaged_blob"}


@pytest.mark.parametrize("fault", [kill, kill_after], ids=["before", "after"])
def test_an_upgrade_that_was_killed_is_finished_by_the_next_opening(lab: Any, fresh: Any, fault: Fault) -> None:
    filesystem = FaultyFileSystem()
    filesystem.arm()
    open_disk(lab, fresh(), filesystem).close()
    states = set()
    for number in places(filesystem.names, fault):
        path = fresh()

        def action(acknowledge: Any, path: Path = path, number: int = number) -> None:
            deadly = FaultyFileSystem(fault)
            deadly.arm(number)
            open_disk(lab, path, deadly).close()

        assert lab.run(action).killed
        states.add(state_of(path))
        # An old program sees its own formats, or refuses the identity.
        assert state_of(path)[0] == 4 or state_of(path) == (3, 3)
        if state_of(path) != (4, SCHEMA_VERSION):
            with pytest.raises(DiskRefused, match="Start the target with this disk once"):
                check(str(path))
        expect_everything(lab, path, "boot-1", (b"after",))
    assert states == {(3, 3), (4, 3), (4, SCHEMA_VERSION)}


@pytest.mark.parametrize("seed", range(3))
def test_an_upgrade_without_power_is_finished_by_the_next_opening(lab: Any, fresh: Any, seed: int) -> None:
    counting = PowerLossFileSystem(str(first := fresh()), 0)
    counting.arm()
    open_disk(lab, first, counting).close()
    for number in range(len(counting.names)):
        path = fresh()

        def action(acknowledge: Any, path: Path = path, number: int = number) -> None:
            filesystem = PowerLossFileSystem(str(path), seed * 1000 + number)
            filesystem.arm(number)
            open_disk(lab, path, filesystem).close()

        assert lab.run(action).killed
        assert state_of(path)[0] == 4 or state_of(path)[1] == 3
        expect_everything(lab, path, "boot-2", (b"before", b"after"))


@pytest.mark.parametrize("fault", [kill, kill_after], ids=["before", "after"])
def test_a_rebuild_of_a_disk_in_format_3_can_be_killed_and_run_again(lab: Any, fresh: Any, fault: Fault) -> None:
    filesystem = FaultyFileSystem()
    filesystem.arm()
    rebuild(str(fresh()), filesystem=filesystem)
    for number in places(filesystem.names, fault):
        path = fresh()

        def action(acknowledge: Any, path: Path = path, number: int = number) -> None:
            deadly = FaultyFileSystem(fault)
            deadly.arm(number)
            rebuild(str(path), filesystem=deadly)

        assert lab.run(action).killed
        rebuild(str(path))
        expect_rebuilt(lab, path)


def expect_rebuilt(lab: Any, path: Path) -> None:
    assert state_of(path) == (4, SCHEMA_VERSION)
    disk = open_disk(lab, path)
    assert disk.read_small(disk.lookup("b", "plain")) == b"plain"
    assert disk.copies.tombstones()[0][0][1] == "deleted"
    assert disk.copies.ranked_layout == 1
    disk.close()
