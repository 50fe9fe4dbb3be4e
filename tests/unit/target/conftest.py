"""A disk of a target, and the state of target t1 that has it, in a cluster of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from copied import disk_at, map_of

from dfc.registry.base import boot_s
from dfc.storage import Disk
from dfc.target.local import TargetState


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = disk_at(tmp_path)
    yield disk
    disk.close()


@pytest.fixture
def local(disk: Disk) -> Iterator[TargetState]:
    made = TargetState(SimpleNamespace(), "http://proxy:1", 2)
    made.node_id = "t1"
    made.add(disk)
    made.take_map(map_of(disks=("d1",), copies=1))
    made.lease.extend(boot_s(), 600)
    yield made
    made.close()
