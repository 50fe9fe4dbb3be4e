"""What a disk says of itself when it has failed."""

from __future__ import annotations

import pytest
from calls import raising

from dfc.errors import StorageFailed
from dfc.storage import Disk
from dfc.target.threads import DiskThreads


async def test_a_disk_that_cannot_be_read_is_not_empty(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would be taken for one that may be replaced."""
    disk.put_small("b", "x", b"x")
    threads = DiskThreads(disk, 1)
    assert (await threads.report(5.0)).objects == 1
    monkeypatch.setattr(disk, "totals", raising(StorageFailed("gone")))
    for _ in range(2):
        report = await threads.report(5.0)
        assert (report.state, report.objects, report.first) == ("failed", 1, {"b": 1})
    threads.close()
