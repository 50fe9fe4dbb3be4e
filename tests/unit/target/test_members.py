"""Look-ups in an index that is not in memory: the event loop waits for no disk."""

from __future__ import annotations

import asyncio
import os
import resource
import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from job_shards import tar_of

from dfc.api.objects import Elsewhere, StoredHandlers
from dfc.errors import MemberNotFound, SampleNotFound
from dfc.http.exchange import Exchange
from dfc.http.peer import ControlClient
from dfc.storage import Disk, ObjectRow
from dfc.tar.index.format import Sample
from dfc.tar.index.reader import ShardIndex
from dfc.target.local import TargetState
from dfc.target.objects import Extract, Members, OwnObject, OwnObjects

COUNT = 4000


@pytest.fixture
def row(disk: Disk) -> ObjectRow:
    files = [(f"{'directory/' * 5}{number:06d}.{ending}", b"%06d" % number) for number in range(COUNT) for ending in "xy"]
    return disk.put_small("b", "s.tar", tar_of(files)).row


def cold(disk: Disk, row: ObjectRow) -> None:
    """Open the index of the shard, and leave none of its pages in memory."""
    path = disk.blob_path(row)
    disk.parts.indexes.forget(path)
    disk.parts.indexes._cache._pages.clear()
    disk.open_index(row)
    descriptor = os.open(disk.index_path(row), os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def test_many_samples_and_an_extension_as_long_as_a_request_allows_are_looked_for_in_a_thread(
    disk: Disk, row: ObjectRow, monkeypatch: Any
) -> None:
    """The index is in memory here: what must not be done on the event loop is the work itself."""
    here, asked = threading.current_thread(), []
    sample_at = ShardIndex.sample_at

    def elsewhere(index: ShardIndex, number: int) -> Sample:
        assert threading.current_thread() is not here, "the event loop looks through an index"
        asked.append(number)
        return sample_at(index, number)

    async def run(numbers: list[int], ext: str) -> Mapping[int, object]:
        return await members.look_into(OwnObject(local, disk, row), lambda shard: shard.several(numbers, ext))

    local, members = TargetState(cast(ControlClient, None), "http://proxy:1", 2), Members()
    local.add(disk)
    monkeypatch.setattr(ShardIndex, "sample_at", elsewhere)
    numbers = [*range(0, COUNT, COUNT // 50), 0, COUNT - 1]
    found = asyncio.run(run(numbers, "X"))
    assert list(found) == asked == list(dict.fromkeys(numbers))
    assert [cast(Extract, each).size for each in found.values()] == [6] * len(found)
    found = asyncio.run(run(numbers, "x" * 8000))
    assert all(isinstance(each, MemberNotFound) and len(str(each)) < 400 for each in found.values())
    with pytest.raises(SampleNotFound, match=f"no sample {COUNT}: it has {COUNT}"):
        asyncio.run(run([0, COUNT], "x"))


@pytest.mark.parametrize("query", [{"member": "{}.y"}, {"sample": "{}"}, {"sample": "{}", "ext": "x"}, {"member": "{}.none"}])
def test_the_event_loop_waits_for_no_index(disk: Disk, row: ObjectRow, query: dict[str, str], monkeypatch: Any) -> None:
    here = threading.current_thread()
    pread = os.pread

    def elsewhere(*arguments: Any) -> bytes:
        assert threading.current_thread() is not here, "the event loop reads from a disk"
        return pread(*arguments)

    async def faults(number: int) -> int:
        """Pages that the loop's thread had to wait for while it answered."""
        key = f"{'directory/' * 5}{number:06d}"
        exchange = cast(Exchange, SimpleNamespace(headers={}, method="HEAD"))
        await local.threads(disk).read(cold, disk, row)
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
        try:
            asked = {what: value.format(key) for what, value in query.items()}
            answer = await handlers.stored(exchange, OwnObject(local, disk, row), asked)
            assert answer.status == 200
        except (MemberNotFound, SampleNotFound):
            assert "none" in query.get("member", "")
        return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt - before

    async def run() -> list[int]:
        await faults(0)
        return [await faults(number) for number in range(100, COUNT, 400)]

    local = TargetState(cast(ControlClient, None), "http://proxy:1", 2)
    local.add(disk)
    handlers = StoredHandlers(local, cast(OwnObjects, None), Members(), cast(Elsewhere, None))
    monkeypatch.setattr(os, "pread", elsewhere)
    # Now and then the thread may wait for a page of something else.
    assert sorted(asyncio.run(run()))[:5] == [0] * 5
