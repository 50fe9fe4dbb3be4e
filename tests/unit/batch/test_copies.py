"""Parts of a batch whose items have copies: they go on at other nodes, with the same bytes in the same order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from fake_node import FakeNode, batch_item

from dfc.batch import peers as parts_module
from dfc.batch.gather import ItemError
from dfc.batch.items import BatchItem
from dfc.batch.peers import PeerPart, PeerParts
from dfc.errors import DfcError, Unavailable
from dfc.http.peer import PeerPool

DRAW = random.Random(4)
OBJECTS = {("b", name): DRAW.randbytes(400_000) for name in "xyz"}
READERS = {"x": ["t0", "t1"], "y": ["t0", "t2"], "z": ["t0", "t1"]}
ITEMS = [
    BatchItem("b", DRAW.choice("xyz"), start=DRAW.randrange(390_000), length=DRAW.randrange(1, 50_000)) for _ in range(200)
]
WHOLE = b"".join(batch_item(item, OBJECTS[item.bucket, item.object]) for item in ITEMS)


class Nodes:
    """Three nodes, and parts of them; `readers` are those by the map."""

    def __init__(self) -> None:
        self.fakes = {f"t{number}": FakeNode("target") for number in range(3)}
        for fake in self.fakes.values():
            fake.objects = OBJECTS
        self.readers = dict(READERS)
        self.pool = PeerPool(5.0)
        self.parts = PeerParts(self.pool, "", lambda node: self.fakes[node].url, lambda _bucket, name: self.readers[name])

    def asked(self, node: str) -> int:
        return len(self.fakes[node].requests("POST", "/v1/node/batch"))


@pytest.fixture
async def nodes(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Nodes]:
    monkeypatch.setattr(parts_module, "BATCH_RETRY_S", 2.0)
    made = Nodes()
    yield made
    made.pool.close()
    for fake in made.fakes.values():
        await asyncio.to_thread(fake.stop)


async def rest(part: PeerPart, until: Callable[[int], Any] = lambda _count: None) -> bytes:
    """All bytes of a part, which is opened again where it breaks off, as the merge does it."""
    found, memory = bytearray(), memoryview(bytearray(50_000))
    total = sum(part.lengths)
    while len(found) < total:
        try:
            count = part.source.fill(memory[: total - len(found)])
        except OSError:
            await part.reopen()
            continue
        if not count:
            await asyncio.sleep(0.001)
        found += memory[:count]
        if (change := until(len(found))) is not None:
            await asyncio.to_thread(change)
    assert part.source.left == 0
    return bytes(found)


async def comes_whole(nodes: Nodes, until: Callable[[int], Any] = lambda _count: None) -> None:
    part = await nodes.parts.open("t0", ITEMS, "fail")
    assert await rest(part, until) == WHOLE
    await part.close(whole=True)


async def test_all_come_from_the_first_while_it_serves(nodes: Nodes) -> None:
    await comes_whole(nodes)
    assert [nodes.asked(node) for node in nodes.fakes] == [1, 0, 0]


@pytest.mark.parametrize("way", ["killed", "503", "item", "hangs up"])
async def test_the_items_of_who_does_not_serve_them_come_from_others(nodes: Nodes, way: str) -> None:
    first = nodes.fakes["t0"]
    if way == "killed":
        await asyncio.to_thread(first.kill)
    else:
        headers = {"X-DFC-Item": "5"} if way == "item" else {}
        first.fail("POST", hang_up=way == "hangs up", status=0 if way == "hangs up" else 503, headers=headers)
    await comes_whole(nodes)
    assert [nodes.asked(node) for node in ("t1", "t2")] == [1, 1]


@pytest.mark.parametrize("cut", [3_000, 100_000, 1_000_000, 2_000_000])
async def test_a_part_that_breaks_off_goes_on_at_others(nodes: Nodes, cut: int) -> None:
    nodes.fakes["t0"].fail("POST", cut_after=cut)
    for node in ("t1", "t2"):  # they break off, too, and the first one goes on
        nodes.fakes[node].fail("POST", cut_after=cut // 2)
    await comes_whole(nodes)
    assert all(nodes.asked(node) for node in ("t1", "t2"))


async def test_a_node_that_dies_in_the_middle(nodes: Nodes) -> None:
    first = nodes.fakes["t0"]
    await comes_whole(nodes, lambda count: first.kill if count > 500_000 and first.thread.is_alive() else None)


async def test_it_waits_only_when_nobody_is_left(nodes: Nodes) -> None:
    nodes.fakes["t0"].fail("POST", cut_after=1_000_000)
    for node in ("t0", "t1", "t2"):
        nodes.fakes[node].fail("POST", status=503)
    begun_s = asyncio.get_running_loop().time()
    await comes_whole(nodes)
    assert asyncio.get_running_loop().time() - begun_s < 2


async def test_other_versions_are_not_mixed_in(nodes: Nodes) -> None:
    for node in ("t1", "t2"):
        nodes.fakes[node].objects = {key: body[::-1] for key, body in OBJECTS.items()}
    nodes.fakes["t0"].fail("POST", cut_after=1_000_000)
    part = await nodes.parts.open("t0", ITEMS, "fail")
    with pytest.raises(DfcError) as caught:
        await rest(part)
    assert caught.value.status == 412
    await part.close(whole=False)


async def test_an_error_names_the_item_of_the_list(nodes: Nodes) -> None:
    nodes.fakes["t0"].fail("POST", status=503)
    for node in ("t1", "t2"):
        nodes.fakes[node].objects = {key: body for key, body in OBJECTS.items() if key[1] != "y"}
    with pytest.raises(ItemError) as caught:
        await nodes.parts.open("t0", ITEMS, "fail")
    assert caught.value.number == next(place for place, item in enumerate(ITEMS) if item.object == "y")
    assert caught.value.error.status == 404


async def test_of_a_node_that_refuses_one_item_the_others_are_had(nodes: Nodes) -> None:
    nodes.readers |= {"x": ["t0"], "z": ["t0"]}
    number = next(place for place, item in enumerate(ITEMS) if item.object == "y")
    nodes.fakes["t0"].fail("POST", status=503, headers={"X-DFC-Item": str(number)})
    await comes_whole(nodes)
    assert [nodes.asked(node) for node in nodes.fakes] == [2, 0, 1]


async def test_with_one_copy_the_owner_alone_is_asked(nodes: Nodes) -> None:
    nodes.readers = {name: ["t0"] for name in "xyz"}
    first = nodes.fakes["t0"]
    first.fail("POST", status=503)
    with pytest.raises(DfcError) as caught:
        await nodes.parts.open("t0", ITEMS, "fail")
    assert caught.value.status == 503
    first.fail("POST", cut_after=1_000_000)
    first.fail("POST", status=503)
    await comes_whole(nodes)
    assert [nodes.asked(node) for node in nodes.fakes] == [4, 0, 0]
    await asyncio.to_thread(first.kill)
    with pytest.raises(Unavailable):
        await nodes.parts.open("t0", ITEMS, "fail")
