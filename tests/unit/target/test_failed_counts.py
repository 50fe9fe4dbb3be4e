"""What a disk says of itself when it has failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from dfc.clock import HybridClock
from dfc.errors import StorageFailed
from dfc.storage import Disk, DiskOptions
from dfc.target.threads import DiskThreads


async def test_a_disk_that_cannot_be_read_is_not_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would be taken for one that may be replaced."""
    Disk.format(str(tmp_path / "disk"), "c", "d1")
    options = DiskOptions(reserve_bytes=0, ballast_bytes=0, maintenance=False)
    disk = Disk.open(str(tmp_path / "disk"), "c", HybridClock(7), options)
    disk.put_small("b", "x", b"x")
    threads = DiskThreads(disk, 1)
    assert (await threads.report(5.0)).objects == 1

    def failed() -> tuple[int, int]:
        raise StorageFailed("gone")

    monkeypatch.setattr(disk, "totals", failed)
    for _ in range(2):
        report = await threads.report(5.0)
        assert (report.state, report.objects, report.first) == ("failed", 1, {"b": 1})
    threads.close()
    disk.close()
