"""What a target knows of names with copies: who may write, who waits, and what counts."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from copied import BUCKET, Target, key_of, map_of, name_with

from dfc.errors import BucketDeleting, NoLease, Unavailable
from dfc.placement.mapped import placement_of
from dfc.replication.write import ReadVerdict
from dfc.storage.catalog.changes import PurgeTombstones
from dfc.storage.rows import ALONE, NO_REPLICA, Standing
from dfc.target.copies import ledger
from dfc.target.copies.ledger import NotPeered, has_several, rank_of
from dfc.target.copies.messages import CopyKey

OWN, OTHER, NEITHER = name_with("d1", "d2"), name_with("d2", "d1"), name_with("d2", "d3")
KEY = key_of(OWN)


def soon(seconds: float = 10.0) -> float:
    return asyncio.get_running_loop().time() + seconds


async def begun(coroutine: Any) -> asyncio.Task[Any]:
    """A task that has come to its first wait."""
    task = asyncio.create_task(coroutine)
    for _ in range(3):
        await asyncio.sleep(0)
    return task


# --- waiting


async def test_one_write_of_a_name_begins_at_a_time(target: Target) -> None:
    ledger, order = target.ledger, list[int]()

    async def write(number: int) -> None:
        async with ledger.hold(KEY, soon()):
            order.append(number)
            await asyncio.sleep(0.01)
            order.append(number)

    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        for number in range(5):
            tasks.create_task(write(number))
    assert sorted(order[::2]) == list(range(5))
    assert order[::2] == order[1::2], "never two of them"


async def test_names_do_not_wait_for_each_other(target: Target) -> None:
    async with target.ledger.hold(KEY, soon()), target.ledger.hold(key_of("other"), soon(0)):
        pass


async def test_a_write_waits_until_the_one_before_is_certain(target: Target) -> None:
    ledger = target.ledger
    ledger.in_doubt.add(KEY)

    async def write() -> None:
        async with ledger.hold(KEY, soon()):
            pass

    writing, reading = await begun(write()), await begun(ledger.until_replicated(KEY, soon()))
    assert not writing.done()
    assert not reading.done()
    ledger.free(KEY)
    await asyncio.gather(writing, reading)
    assert KEY not in ledger.in_doubt
    ledger.free(KEY)  # again: nothing happens


async def test_who_waits_too_long_is_told_to_try_again(target: Target) -> None:
    ledger = target.ledger
    async with ledger.hold(KEY, soon()):
        with pytest.raises(Unavailable, match="another write"):
            async with ledger.hold(KEY, soon(0.01)):
                pytest.fail("two at a time")
        await ledger.until_replicated(KEY, soon(0))  # it has not been committed yet, so nothing is uncertain
    ledger.in_doubt.add(KEY)
    with pytest.raises(Unavailable, match="another write"):
        await ledger.until_replicated(KEY, soon(0.01))
    ledger.free(KEY)
    async with ledger.hold(KEY, soon(0)):  # whoever gave up keeps nobody out
        pass


async def test_a_waiter_that_is_cancelled_keeps_nobody_out(target: Target) -> None:
    ledger = target.ledger

    async def write() -> str:
        async with ledger.hold(KEY, soon()):
            return "written"

    async with ledger.hold(KEY, soon()):
        waiting = [await begun(write()) for _ in range(3)]
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
    assert await asyncio.gather(*waiting[1:]) == ["written"] * 2
    holding = await begun(_hold_forever(target))
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
    async with ledger.hold(KEY, soon(0)):
        pass


async def _hold_forever(target: Target) -> None:
    async with target.ledger.hold(KEY, soon()):
        await asyncio.Event().wait()


# --- the guard


def refused(target: Target, name: str = OWN) -> type[Exception]:
    marks: set[CopyKey] = set()
    with pytest.raises(Exception) as caught:
        target.ledger.guard(target.bucket, key_of(name), marks)
    assert marks == set(), "a name that is refused does not become uncertain"
    return caught.type


def guard(target: Target, name: str = OWN) -> tuple[Standing, bool]:
    marks: set[CopyKey] = set()
    standing = target.ledger.guard(target.bucket, key_of(name), marks)
    return standing, bool(marks)


async def test_a_write_of_the_primary_is_pending_until_others_have_it(target: Target) -> None:
    assert guard(target) == (Standing(0, pending=True), True)
    assert KEY in target.ledger.in_doubt
    assert refused(target) is Unavailable
    target.ledger.free(KEY)
    assert guard(target)[1]


async def test_who_is_not_the_primary_is_refused(target: Target) -> None:
    assert refused(target, OTHER) is Unavailable
    assert refused(target, NEITHER) is Unavailable
    assert target.ledger.in_doubt == set()
    target.take_map(map_of(2, 2, down=("d2",)))
    assert guard(target, OTHER) == (Standing(1, pending=True), True), "it is the first reader now, and the second replica"


async def test_nothing_is_written_without_a_lease_or_before_peering(target: Target) -> None:
    target.settles = False
    target.take_map(map_of(2, 2, down=("d2",)))
    assert refused(target, OTHER) is NotPeered
    assert guard(target, OWN)[1], "it was its primary already"
    target.ledger.free(KEY)
    target.peer_now()
    assert guard(target, OTHER)[1]
    target.local.lease.end()
    assert refused(target) is NoLease


async def test_nothing_is_written_into_a_bucket_that_goes(target: Target) -> None:
    bucket = target.bucket
    target.take_map(map_of(2, state="deleting"))
    assert refused(target) is BucketDeleting
    target.take_map(map_of(3, state="checking"))
    assert refused(target) is Unavailable
    target.take_map(map_of(4, copies=2))
    assert target.ledger.guard(bucket, KEY, set()).pending


async def test_a_write_that_nobody_else_takes_counts_at_once(target: Target) -> None:
    target.take_map(map_of(2, 2, copies=1))
    assert guard(target) == (Standing(0), False)
    assert target.ledger.in_doubt == set()
    target.take_map(map_of(3, 3, down=("d2", "d3")))
    assert guard(target) == (Standing(0, pending=True), True), "the replicas that are away must get it"


async def test_outputs_of_jobs_are_published_by_the_same_rules(target: Target) -> None:
    marks: set[CopyKey] = set()
    for pending in (False, True):  # of a write that is certain, else the name would be uncertain
        target.ledger.free(KEY)
        assert target.ledger.guard_published(target.bucket, KEY, marks, pending=pending) == Standing(0, pending=True)
        assert marks == {KEY}
    with pytest.raises(Unavailable):
        target.ledger.guard_published(target.bucket, KEY, set(), pending=False)
    target.take_map(map_of(2, 2, copies=1))
    assert target.ledger.guard_published(target.bucket, key_of(OTHER), set(), pending=False) == ALONE


async def test_an_output_of_another_primary_stays_pending_but_not_in_place_of_what_may_be_undone(target: Target) -> None:
    marks: set[CopyKey] = set()
    other = key_of(OTHER)
    assert target.ledger.guard_published(target.bucket, other, marks, pending=False) == Standing(1, pending=True)
    assert (marks, target.ledger.in_doubt) == (set(), set()), "this disk does not decide about it"
    with pytest.raises(Unavailable):
        target.ledger.guard_published(target.bucket, other, marks, pending=True)
    target.local.lease.end()
    with pytest.raises(NoLease):
        target.ledger.guard_published(target.bucket, other, marks, pending=False)


async def test_a_transaction_that_is_tried_again_does_not_wait_for_itself(target: Target) -> None:
    marks: set[CopyKey] = set()
    for _ in range(2):
        assert target.ledger.guard(target.bucket, KEY, marks).pending
        assert (marks, target.ledger.in_doubt) == ({KEY}, {KEY})
    with pytest.raises(Unavailable):
        target.ledger.guard(target.bucket, KEY, set())
    target.take_map(map_of(2, 2, down=("d2", "d3"), out_of_sync_with={"d1": ("d2",)}))
    with pytest.raises(Unavailable):
        target.ledger.guard(target.bucket, KEY, marks)
    assert (marks, target.ledger.in_doubt) == (set(), set()), "nothing is on its way"


# --- what counts


async def test_reads_by_role(target: Target) -> None:
    ledger = target.ledger

    def verdict(name: str, *, pending: bool = False) -> ReadVerdict:
        return ledger.verdict(ledger.roles(BUCKET, name), key_of(name), pending=pending)

    assert verdict(OWN) is verdict(OTHER) is ReadVerdict.SERVE
    assert verdict(OTHER, pending=True) is ReadVerdict.ASK_PRIMARY
    assert verdict(NEITHER) is ReadVerdict.ELSEWHERE
    ledger.in_doubt.add(KEY)
    assert verdict(OWN, pending=True) is ReadVerdict.WAIT
    ledger.free(KEY)
    assert verdict(OWN, pending=True) is ReadVerdict.SERVE, "a row at the primary whose mark is just not dropped yet"
    target.settles = False
    target.take_map(map_of(2, 2, down=("d2",)))
    assert verdict(OTHER) is ReadVerdict.WAIT
    assert verdict(OWN) is ReadVerdict.SERVE


async def test_only_a_peered_primary_with_a_lease_speaks(target: Target) -> None:
    ledger = target.ledger
    assert (ledger.speaks(KEY), ledger.speaks(key_of(OTHER)), ledger.speaks(key_of(NEITHER))) == (True, False, False)
    ledger.in_doubt.add(KEY)
    assert not ledger.speaks(KEY)
    ledger.free(KEY)
    target.settles = False
    target.take_map(map_of(2, 2, down=("d2",)))
    assert (ledger.speaks(KEY), ledger.speaks(key_of(OTHER))) == (True, False)
    target.peer_now()
    assert ledger.speaks(key_of(OTHER))
    target.local.lease.end()
    assert not ledger.speaks(KEY)


async def test_who_was_cleared_counts_only_while_it_is_out_of_sync(target: Target) -> None:
    cleared = target.ledger.cleared["d1"]
    target.take_map(map_of(2, 2, out_of_sync_with={"d2": ("d1",), "d3": ("d1",)}))
    cleared |= {"d2", "d3", "d9"}
    target.take_map(map_of(3, 3, out_of_sync_with={"d2": ("d1",), "d3": ("d1",)}))
    assert cleared == {"d2", "d3"}
    target.take_map(map_of(4, 4, out_of_sync_with={"d2": ("d1",), "d3": ("d1",)}, down=("d3",)))
    assert cleared == {"d2"}
    target.take_map(map_of(5, 5, out_of_sync_with={"d2": ("d3",)}))
    assert cleared == set()


def test_ranks_and_whether_there_are_copies_at_all() -> None:
    assert has_several(placement_of(map_of()))
    assert has_several(placement_of(map_of(copies=1, written=2)))
    assert not has_several(placement_of(map_of(copies=1)))


async def test_the_rank_is_that_of_the_replica(target: Target) -> None:
    found = target.ledger.roles(BUCKET, OTHER)
    assert [rank_of(found, disk) for disk in ("d2", "d1", "d3")] == [0, 1, NO_REPLICA]
    assert target.ledger.own_primary(found) is None
    assert target.ledger.own_primary(target.ledger.roles(BUCKET, OWN)) == "d1"


def purged(target: Target) -> int:
    """How many of the tombstones go that are old enough."""
    return target.disk.parts.committer.submit(PurgeTombstones(1 << 60))


def deleted(target: Target) -> None:
    """A tombstone that everybody has."""
    name = name_with("d1", "d2")
    target.write(name, b"x", pending=False)
    target.bury(name, pending=False)


@pytest.mark.parametrize("away", [{"down": ("d3",)}, {"out_of_sync_with": {"d3": ("d2",)}}])
def test_tombstones_stay_while_a_disk_is_away_or_out_of_sync(
    target: Target, monkeypatch: pytest.MonkeyPatch, away: dict[str, Any]
) -> None:
    """It may have an object that was deleted meanwhile, of which nothing here is noted."""
    deleted(target)
    target.take_map(map_of(2, 2, **away))
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    assert purged(target) == 0
    now_s += 1e9
    assert purged(target) == 0
    target.take_map(map_of(3, 3))
    now_s += ledger.CALM_S - 1
    assert purged(target) == 0, "rows on other disks may not be removed as surplus yet"
    now_s += 2
    assert purged(target) == 1


def test_tombstones_do_not_stay_for_a_disk_that_was_removed(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which makes no step. Other news without one do not put it off."""
    deleted(target)
    target.take_map(map_of(2, 2, down=("d3",)))
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    target.take_map(map_of(3, 2, disks=("d1", "d2")))
    now_s += ledger.CALM_S - 1
    assert purged(target) == 0
    target.take_map(map_of(4, 2, disks=("d1", "d2")))
    now_s += 2
    assert purged(target) == 1


def test_with_one_copy_tombstones_stay_as_well(target: Target) -> None:
    """There may have been more copies when the disk went away."""
    deleted(target)
    target.take_map(map_of(2, 2, copies=1, down=("d3",)))
    assert purged(target) == 0
