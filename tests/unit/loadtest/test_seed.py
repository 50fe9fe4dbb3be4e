"""Rows in bulk must be what a disk would have written itself: listed, counted, and where placement wants them."""

from __future__ import annotations

import pytest
from copied import map_of
from harness import owner_of

from dfc.clock import HybridClock
from dfc.errors import DiskLocked
from dfc.storage.disk import Disk
from loadtest.seed import object_name, seed_cluster

COUNT = 2000
MAP = map_of(disks=("d1", "d2"), copies=1)


@pytest.fixture
def directories(tmp_path):
    for number in (1, 2):
        Disk.format(str(tmp_path / f"{number}"), "c", f"d{number}")
    return tmp_path


def test_seeded_rows_are_listed_where_they_belong(directories):
    seed_cluster(directories, MAP.encode(), "b", COUNT)
    found = []
    for number in (1, 2):
        disk = Disk.open(str(directories / f"{number}"), "c", HybridClock(number))
        try:
            names = [row[0] for row in disk.list_tuples("b1", limit=COUNT)]
            assert disk.counts("b1")[0] == len(names)
            assert all(owner_of(MAP, "b", name).disk.id == disk.id for name in names)
        finally:
            disk.close()
        assert len(names) > COUNT // 3
        found += names
    assert sorted(found) == [object_name(number) for number in range(COUNT)]


def test_a_running_disk_is_not_seeded(directories):
    disk = Disk.open(str(directories / "1"), "c", HybridClock(1))
    try:
        with pytest.raises(DiskLocked):
            seed_cluster(directories, MAP.encode(), "b", 10)
    finally:
        disk.close()


def test_what_is_missing_is_named(directories):
    with pytest.raises(LookupError, match="bucket 'other' does not exist"):
        seed_cluster(directories, MAP.encode(), "other", 10)
    with pytest.raises(LookupError, match="no target"):
        seed_cluster(directories, map_of(disks=()).encode(), "b", 10)
