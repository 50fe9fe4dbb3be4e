"""The own part of a target that assembles a batch: other targets go on with it if a disk fails in the middle."""

from __future__ import annotations

import asyncio
import random
from array import array
from typing import Any

import pytest
from fake_node import FakeNode, batch_item

from dfc.batch.items import BatchItem
from dfc.batch.peers import PeerParts, Pinned
from dfc.checksum import checksum_of
from dfc.errors import StorageFailed
from dfc.http.peer import PeerPool
from dfc.target.batch import ContinuedPart

BODY = random.Random(9).randbytes(300_000)
ITEMS = [BatchItem("b", "x", start=at, length=9_000) for at in range(0, 300_000, 10_000)]
WHOLE = b"".join(batch_item(item, BODY) for item in ITEMS)


class Failing:
    """Pieces of a file on a disk that fails after so many bytes."""

    event = (-1, 0)

    def __init__(self, good: int) -> None:
        self._ready = memoryview(WHOLE)[:good]
        self.left = len(WHOLE)

    def fill(self, view: memoryview) -> int:
        count = min(len(view), len(self._ready))
        if not count:
            raise StorageFailed("the disk does not answer")
        view[:count], self._ready = self._ready[:count], self._ready[count:]
        self.left -= count
        return count


class Own:
    """The part of the target itself."""

    possibly_stale = False

    def __init__(self, good: int) -> None:
        self.source = Failing(good)
        self.lengths = array("Q", [len(batch_item(item, BODY)) for item in ITEMS])
        self.checksums = {("b", "x"): checksum_of(BODY)}
        self.closed = False

    async def close(self, *, whole: bool) -> None:
        self.closed = True


@pytest.mark.parametrize("good", [0, 1, 9_728, 9_729, 200_000])
@pytest.mark.parametrize("cut", [-1, 20_000])
async def test_another_target_goes_on_where_a_disk_failed(good: int, cut: int) -> None:
    other, pool = FakeNode("target"), PeerPool(5.0)
    other.objects["b", "x"] = BODY
    if cut > 0:
        other.fail("POST", cut_after=cut)
    parts = PeerParts(pool, "", lambda _node: other.url, lambda _bucket, _name: ["own", "other"])
    own: Any = Own(good)
    part = ContinuedPart(own, lambda taken: parts.go_on("own", ITEMS, "fail", Pinned(own.lengths, own.checksums), taken))
    found, memory = bytearray(), memoryview(bytearray(10_000))
    try:
        while len(found) < len(WHOLE):
            try:
                count = part.source.fill(memory[: len(WHOLE) - len(found)])
            except OSError:
                await part.reopen()
                continue
            found += memory[:count]
            if not count:
                await asyncio.sleep(0.001)
        assert found == WHOLE
        await part.close(whole=True)
        assert own.closed
    finally:
        pool.close()
        await asyncio.to_thread(other.stop)
