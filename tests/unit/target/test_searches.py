"""Search the shards of a target: on a real disk, with what may happen to shards and callers meanwhile."""

from __future__ import annotations

import asyncio
import os
import threading
from types import SimpleNamespace

import msgspec
import pytest
from copied import map_of
from job_shards import tar_of

from dfc.errors import NoLease, StorageFailed
from dfc.listing.search import KeyQuery, SearchPart, SearchRequest
from dfc.storage import Disk
from dfc.target import listing
from dfc.target.copies.service import TargetCopies
from dfc.target.listing import OwnSearches
from dfc.target.local import NOT_HERE, TargetState

SHARDS = [f"s{number:03d}.tar" for number in range(100)]


def shard_of(keys: list[str]) -> bytes:
    return tar_of([(f"{key}.txt", b"") for key in keys])


@pytest.fixture
def disk(disk: Disk) -> Disk:
    for number, name in enumerate(SHARDS):
        content = shard_of([f"{number:03d}-{sample}" for sample in range(3)] + ["same"])
        disk.put_small("b1", name, content, durability="relaxed")
    disk.put_small("b1", "notes.txt", b"no shard", durability="relaxed")
    return disk


@pytest.fixture
def searches(local: TargetState) -> OwnSearches:
    copied = TargetCopies(local, local.control, SimpleNamespace(token="", hold_s=1.0)).objects  # type: ignore[arg-type]
    return OwnSearches(local, copied)


def asked(
    how: str = "exact", key: str = "same", shards: list[str] = SHARDS, limit: int = 1000, budget_s: float = 30.0
) -> SearchRequest:
    return SearchRequest("b", KeyQuery(how, key), shards, limit, budget_s)  # type: ignore[arg-type]


def keys(part: SearchPart) -> list[tuple[str, str]]:
    return [(hit.shard, hit.key) for hit in part.hits]


@pytest.mark.parametrize(("how", "key"), [("exact", "same"), ("prefix", "sa"), ("contains", "am")])
async def test_all_shards_are_searched_in_order(searches: OwnSearches, how: str, key: str) -> None:
    part = await searches.search(asked(how, key))
    assert [(hit.shard, hit.number, hit.key) for hit in part.hits] == [(name, 3, "same") for name in SHARDS]
    assert part == SearchPart(part.hits, len(SHARDS))
    assert part.reached is None


async def test_one_key_is_in_one_shard(searches: OwnSearches) -> None:
    assert keys(await searches.search(asked(key="042-1"))) == [("s042.tar", "042-1")]
    assert keys(await searches.search(asked("prefix", "042-"))) == [("s042.tar", f"042-{number}") for number in range(3)]
    assert keys(await searches.search(asked(key="042-7"))) == []


@pytest.mark.parametrize("how", ["exact", "prefix"])
async def test_the_limit_leaves_the_first_ones(searches: OwnSearches, how: str) -> None:
    part = await searches.search(asked(how, limit=7))
    assert keys(part) == [(name, "same") for name in SHARDS[:7]]
    assert (part.stopped, part.reached) == ("limit", (SHARDS[6], 4))
    assert (await searches.search(asked(how, limit=101))).stopped is None


@pytest.mark.parametrize("how", ["exact", "contains"])
async def test_without_time_nothing_is_searched(searches: OwnSearches, how: str) -> None:
    assert await searches.search(asked(how, budget_s=0.0)) == SearchPart(stopped="time", reached=(SHARDS[0], 0))
    going_on = msgspec.structs.replace(asked(how, budget_s=0.0), start=(SHARDS[0], 2))
    assert await searches.search(going_on) == SearchPart(stopped="time", reached=(SHARDS[0], 2))


async def test_the_time_may_be_over_inside_of_a_shard(searches: OwnSearches, monkeypatch: pytest.MonkeyPatch) -> None:
    real, steps = listing.find_samples, iter(range(1000))

    def slow(*given):
        for hit in real(*given):
            if next(steps) == 10:
                monkeypatch.setattr(listing.time, "monotonic", lambda: float("inf"))
            yield hit

    monkeypatch.setattr(listing, "find_samples", slow)
    part = await searches.search(asked("contains", "0-"))
    assert part.stopped == "time"
    assert 0 < part.searched < len(SHARDS)
    assert keys(part) == sorted(keys(part)) != []
    assert part.reached >= part.hits[-1].after
    monkeypatch.undo()
    left = [name for name in SHARDS if name >= part.reached[0]]
    rest = await searches.search(msgspec.structs.replace(asked("contains", "0-", left), start=part.reached))
    assert keys(part) + keys(rest) == keys(await searches.search(asked("contains", "0-")))


@pytest.mark.parametrize("how", ["exact", "prefix", "contains"])
async def test_it_goes_on_inside_of_a_shard(searches: OwnSearches, how: str) -> None:
    part = await searches.search(msgspec.structs.replace(asked(how), start=(SHARDS[0], 3)))
    assert len(part.hits) == 100
    for start in ((SHARDS[0], 4), (SHARDS[0], 1 << 23)):
        part = await searches.search(msgspec.structs.replace(asked(how), start=start))
        assert [hit.shard for hit in part.hits] == SHARDS[1:]
    part = await searches.search(msgspec.structs.replace(asked(how), start=("s000.ta", 4)))
    assert len(part.hits) == 100


async def test_what_is_no_shard_here_is_said(searches: OwnSearches) -> None:
    part = await searches.search(asked(shards=["none.tar", "notes.txt", "s000.tar"]))
    assert [(each.shard, each.code) for each in part.missing] == [
        ("none.tar", "object_not_found"),
        ("notes.txt", "not_a_shard"),
    ]
    assert (keys(part), part.searched, part.failed) == ([("s000.tar", "same")], 1, [])


async def test_others_are_to_be_asked_for_what_is_not_here(searches: OwnSearches, local: TargetState) -> None:
    local.take_map(map_of(2, disks=("d1", "d2"), copies=1))
    part = await searches.search(asked())
    elsewhere = [each.shard for each in part.failed]
    assert {(each.code, each.message) for each in part.failed} == {("elsewhere", NOT_HERE)}
    assert 0 < len(elsewhere) < len(SHARDS)
    assert sorted([*elsewhere, *(hit.shard for hit in part.hits)]) == SHARDS


async def test_a_shard_that_cannot_be_read_fails_alone(
    searches: OwnSearches, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Disk.open_index

    def broken(self, row):
        if row.name == "s005.tar":
            raise StorageFailed("reading an index: Input/output error")
        return real(self, row)

    monkeypatch.setattr(Disk, "open_index", broken)
    part = await searches.search(asked())
    assert [(each.shard, each.code) for each in part.failed] == [("s005.tar", "storage_failed")]
    assert (len(part.hits), part.searched, part.stopped) == (99, 99, None)


@pytest.mark.parametrize("how", ["exact", "contains"])
async def test_a_damaged_index_is_built_anew(searches: OwnSearches, disk: Disk, how: str) -> None:
    path = disk.index_path(disk.lookup("b1", "s007.tar"))
    disk.parts.indexes.forget(path.removesuffix(".idx"))
    with open(path, "r+b") as file:
        file.seek(600)
        file.write(os.urandom(100))
    part = await searches.search(asked(how))
    assert (len(part.hits), part.searched, part.failed) == (100, 100, [])


async def test_a_replaced_shard_is_searched_as_it_is_now(
    searches: OwnSearches, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, once = Disk.open_index, iter([True])

    def replacing(self, row):
        if row.name == "s003.tar" and next(once, False):
            disk.put_small("b1", "s003.tar", shard_of(["new"]), durability="relaxed")
            disk.wait_for_opening_work(5)
            path = disk.blob_path(row)
            disk.parts.indexes.forget(path)
            if os.path.exists(path + ".idx"):
                os.unlink(path + ".idx")
        return real(self, row)

    monkeypatch.setattr(Disk, "open_index", replacing)
    part = await searches.search(asked("prefix", "new"))
    assert keys(part) == [("s003.tar", "new")]
    assert part.searched == len(SHARDS)


async def test_without_a_lease_nothing_is_said(searches: OwnSearches, local: TargetState) -> None:
    local.lease.__init__()  # type: ignore[misc]
    with pytest.raises(NoLease):
        await searches.search(asked())


class Gate:
    """Look-ups that wait until they are let through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.begun, self.looked = threading.Event(), threading.Event(), []
        real = listing.IndexWalk._search

        def waiting(this, shard):
            self.looked.append(shard)
            self.begun.set()
            assert self.open.wait(20)
            return real(this, shard)

        monkeypatch.setattr(listing.IndexWalk, "_search", waiting)

    async def until_looked(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, 20)


async def test_a_search_that_is_given_up_ends_after_the_shard_of_that_moment(
    searches: OwnSearches, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    search = asyncio.create_task(searches.search(asked("contains")))
    await gate.until_looked()
    search.cancel()
    with pytest.raises(asyncio.CancelledError):
        await search
    gate.open.set()
    assert keys(await searches.search(asked("contains", shards=SHARDS[:1]))) == [("s000.tar", "same")]
    assert len(gate.looked) == 2


async def test_a_disk_that_hangs_does_not_hold_up_the_answer(searches: OwnSearches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "END_S", 0.01)
    gate = Gate(monkeypatch)
    for budget_s in (0.05, 0.5, 5.0, 15.0):  # on a busy machine the time may be over before it meets the disk
        part = await searches.search(asked("contains", budget_s=budget_s))
        assert (part.hits, part.stopped) == ([], "time")
        if gate.looked:
            break
    assert set(gate.looked) == set(SHARDS[:1])
    gate.open.set()


async def test_searches_wait_for_their_turn_within_their_time(searches: OwnSearches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "END_S", 0.01)
    searches._turns = asyncio.Semaphore(1)
    gate = Gate(monkeypatch)
    first = asyncio.create_task(searches.search(asked("contains")))
    await gate.until_looked()
    assert await searches.search(asked(budget_s=0.01)) == SearchPart(stopped="time", reached=(SHARDS[0], 0))
    second = asyncio.create_task(searches.search(asked(key="001-1", budget_s=20.0)))
    gate.open.set()
    assert len((await first).hits) == 100
    assert keys(await second) == [("s001.tar", "001-1")]
