"""What a target lists of a bucket's shards is a part of one answer: it follows from one step of placement, or is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from job_shards import tar_of
from placements import node_entry

from dfc.errors import MapChanging
from dfc.listing.specs import expand
from dfc.placement.map import BucketEntry, ClusterMap, LayoutEntry, NodeEntry, SliceRun
from dfc.storage import Disk
from dfc.target import listing as selecting
from dfc.target.copies.ledger import FIRST
from dfc.target.listing import ShardSelection
from dfc.target.local import TargetState

BUCKET = BucketEntry(id="b1", name="in", copies=2, written=2, wanted=2)


def node(number: int, **state: Any) -> NodeEntry:
    return node_entry(f"t{number}", f"d{number}", **state)


def layout(number: int, *disks: str) -> LayoutEntry:
    return LayoutEntry(number=number, disks=disks)


CALM = ClusterMap(
    cluster_id="c",
    version=1,
    step=7,
    nodes=(node(1), node(2), node(3)),
    buckets=(BUCKET,),
    layouts=(layout(1, "d1", "d2"),),
    slices=(SliceRun(first=0, at=1),),
)


class FakeLocal:
    """A target with one disk that has heard of `coming`, if that is asked for."""

    def __init__(self, disk: Disk) -> None:
        self.map, self.coming = CALM, CALM
        self.disk = disk
        self.check_step = TargetState.check_step.__get__(self)

    def check_leased(self) -> None:
        pass

    def in_order(self) -> list[Disk]:
        return [self.disk]

    async def refresh_map(self, *, at_once: bool) -> None:
        assert at_once
        self.map = self.coming

    async def call(self, function: Any, *arguments: Any) -> Any:
        return await asyncio.to_thread(function, *arguments)


@pytest.fixture
def disk(disk: Disk) -> Disk:
    for name in ("a.tar", "b.tar"):
        disk.put_small("b1", name, tar_of([("a.x", b"")]))
    return disk


@pytest.fixture
def local(disk: Disk) -> FakeLocal:
    return FakeLocal(disk)


@pytest.fixture
def selection(local: FakeLocal) -> ShardSelection:
    return ShardSelection(local, SimpleNamespace(of=lambda _disk, _bucket: FIRST), None)  # type: ignore[arg-type]


async def names_of(selection: ShardSelection, step: int | None, meanwhile: Any = lambda: None) -> list[str]:
    async with selection.rows(BUCKET, "**", anything=True, step=step) as rows:
        found = [next(rows)[1].name]
        meanwhile()
        return found + [row.name for _, row in rows]


async def test_it_answers_by_the_step_that_is_asked_for_only(selection, local):
    assert await names_of(selection, 7) == await names_of(selection, None) == ["a.tar", "b.tar"]
    for step in (6, 8):
        with pytest.raises(MapChanging, match=f"at step 7 of placement, not at step {step}"):
            await names_of(selection, step)
    local.coming = msgspec.structs.replace(CALM, step=8, version=2)
    assert await names_of(selection, 8) == ["a.tar", "b.tar"], "it has fetched the map"


CHANGES = {
    "objects move": (
        {"slices": (SliceRun(first=0, at=1, to=2, phase="moved"),), "layouts": (layout(1, "d1", "d2"), layout(2, "d2"))},
        True,
    ),
    "its disk was replaced": ({"nodes": (node(1, state="down"), node(2), node(3))}, True),
    "objects are copied to where they will be": (
        {"slices": (SliceRun(first=0, at=1, to=2, phase="copying"),), "layouts": (layout(1, "d1", "d2"), layout(2, "d2"))},
        False,
    ),
    "another target is down": ({"nodes": (node(1), node(2), node(3, state="down"))}, False),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_it_is_whole_if_nothing_of_its_part_was_moved_away_meanwhile(selection, local, change):
    fields, is_refused = CHANGES[change]

    def meanwhile() -> None:
        local.map = msgspec.structs.replace(CALM, step=8, version=2, **fields)

    if not is_refused:
        assert await names_of(selection, 7, meanwhile) == ["a.tar", "b.tar"]
        return
    with pytest.raises(MapChanging, match="were moved"):
        await names_of(selection, 7, meanwhile)


async def test_while_a_list_takes_long_there_are_signs_of_it(monkeypatch):
    monkeypatch.setattr(selecting, "NODE_LIST_SIGN_S", 0.05)
    monkeypatch.setattr(selecting, "NODE_LIST_SIGNS_MAX", 3)
    over, ended = asyncio.Event(), []

    async def pieces() -> AsyncGenerator[bytes, None]:
        try:
            yield b"{}\n"
            await over.wait()
            yield b"{}\n"
            raise MapChanging("moved")
        finally:
            ended.append(True)

    found = selecting._with_signs(pieces())
    assert [await asyncio.wait_for(anext(found), 20) for _ in range(4)] == [b"{}\n", b"\n", b"\n", b"\n"]
    silent = asyncio.ensure_future(anext(found))
    await asyncio.sleep(0.2)
    assert not silent.done()  # nothing more is said of what hangs
    over.set()
    assert await silent == b"{}\n"
    with pytest.raises(MapChanging):
        await anext(found)
    over.clear()
    given_up = selecting._with_signs(pieces())
    assert [await anext(given_up) for _ in range(2)] == [b"{}\n", b"\n"]
    await given_up.aclose()  # type: ignore[attr-defined]
    assert ended == [True, True]


def test_a_thread_is_given_back_after_a_moment(selection, disk, monkeypatch):
    """Whatever has been found by then: others wait for it."""
    rows = list(selection._matching("b1", [(disk, FIRST)], expand("**"), False))
    assert len(rows) == 2
    assert selecting._next_of(iter(rows)) == (rows, True)
    whole = list(selecting._lines_of(disk, [row for _, row in rows], "key"))
    assert len(whole) == 1
    monkeypatch.setattr(selecting, "PIECE_S", -1.0)
    several = list(selecting._lines_of(disk, [row for _, row in rows], "key"))
    assert b"".join(several) == b"".join(whole)
    assert len(several) > 1
    left = iter(rows)
    assert [selecting._next_of(left) for _ in range(3)] == [(rows[:1], False), (rows[1:], False), ([], True)]


async def test_a_stream_of_keys_is_broken_off_rather_than_short(selection, local, disk, monkeypatch):
    async def bucket(_name: str) -> BucketEntry:
        return BUCKET

    def begin(function: Any, *arguments: Any) -> asyncio.Future[Any]:
        return asyncio.ensure_future(asyncio.to_thread(function, *arguments))

    async def iterate(pieces: Iterator[bytes]) -> Any:
        for piece in pieces:
            yield piece

    local.bucket, local.certain, local.begin = bucket, TargetState.certain.__get__(local), begin
    local.threads = lambda _disk: SimpleNamespace(read=begin, iterate=iterate)
    whole = [piece async for piece in await selection.keys("in", "**", "key", 7)]
    assert b"".join(whole).count(b"\n") == 2
    stream = await selection.keys("in", "**", "key", 7)
    assert await anext(stream)
    local.map = msgspec.structs.replace(CALM, step=8, version=2, **CHANGES["objects move"][0])
    with pytest.raises(MapChanging, match="were moved"):
        async for _ in stream:
            pass
