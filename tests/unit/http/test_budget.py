"""The places of a budget: how many, how many bytes, whose turn it is."""

from __future__ import annotations

import asyncio

import pytest

from dfc import limits
from dfc.errors import Unavailable
from dfc.http.budget import KINDS, LISTINGS, Budget, BudgetPlace, Budgets, Kind
from dfc.http.shutdown import end

MIB = 1 << 20
LONG = 10 * MIB


def budget(bytes_max: int, *, places: int = 8, waits: bool = False, is_shared: bool = True) -> Budget:
    return Budget(Kind("any", places, bytes_max, waits, is_shared))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def entering(found: Budget, size: int = LONG, client: str = "") -> asyncio.Task[BudgetPlace]:
    return asyncio.create_task(found.enter(size, client))


def leave(*places: BudgetPlace) -> None:
    for place in places:
        place.leave()


async def test_what_is_long_comes_in_turn_and_what_is_short_waits_for_none() -> None:
    one = budget(2 * LONG)
    places = [await one.enter(LONG), await one.enter(LONG)]
    third, fourth = entering(one, 2 * LONG), entering(one)
    await settle()
    assert not third.done()
    short = await one.enter()
    assert (one.running, one.bytes) == (3, 2 * LONG)
    places[0].leave()
    await settle()
    assert not fourth.done(), "the first to come is let in first"
    leave(*places)
    await settle()
    assert third.done()
    assert not fourth.done()
    (await third).leave()
    leave(await fourth, short)
    assert (one.running, one.bytes) == (0, 0)


async def test_no_client_gets_more_than_half_unless_it_is_alone_with_one() -> None:
    one = budget(4 * LONG)
    mine = [await one.enter(LONG, "a"), await one.enter(LONG, "a")]
    waiting = entering(one, LONG, "a")
    await settle()
    assert not waiting.done()
    other = await one.enter(LONG, "b")
    mine.pop().leave()
    await settle()
    (await waiting).leave()
    mine.pop().leave()
    whole = await one.enter(3 * LONG, "a")
    whole.leave()
    other.leave()
    assert (one.running, one.bytes, one._bytes_of, one._places_of) == (0, 0, {}, {})


async def test_no_client_gets_more_than_three_quarters_of_the_places() -> None:
    one = budget(0, waits=True)
    mine = [await one.enter(client="a") for _ in range(6)]
    waiting = entering(one, 0, "a")
    other = await one.enter(client="b")
    await settle()
    assert not waiting.done(), "it waits, and keeps nobody out"
    mine.pop().leave()
    await settle()
    leave(*mine, other, await waiting)
    short = budget(0)  # for which nobody waits
    mine = [await short.enter(client="a") for _ in range(6)]
    with pytest.raises(Unavailable, match="6 any of this client"):
        await short.enter(client="a")
    (await short.enter(client="b")).leave()
    leave(*mine)
    assert (short.running, short.refused) == (0, 1)
    nodes = budget(0, is_shared=False)
    leave(*[await nodes.enter(client="a") for _ in range(8)])
    assert (one.running, nodes.running) == (0, 0)


async def test_who_finds_no_room_in_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BUDGET_WAIT_S", 0.05)
    one = budget(LONG)
    place = await one.enter(LONG)
    with pytest.raises(Unavailable) as caught:
        await one.enter(LONG)
    assert caught.value.headers["Retry-After"]
    assert (one.running, one.refused) == (1, 1)
    place.leave()
    (await one.enter(LONG)).leave()
    many = [await one.enter() for _ in range(8)]
    with pytest.raises(Unavailable):
        await one.enter()
    leave(*many)
    assert (one.running, one.refused) == (0, 2)


async def test_a_place_is_waited_for_by_the_kinds_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BUDGET_WAIT_S", 0.05)
    one = budget(0, places=2, waits=True)
    places = [await one.enter(), await one.enter()]
    waiting = entering(one, 0)
    await settle()
    places.pop().leave()
    (await waiting).leave()
    places.append(await one.enter())
    with pytest.raises(Unavailable):
        await one.enter()
    waiting, other = entering(one, 0), entering(one, 0)
    await settle()
    with pytest.raises(Unavailable, match="2 any are already running, or wait"):
        await one.enter()
    await end(waiting, other)
    leave(*places)
    assert (one.running, one._waiting) == (0, [])


async def test_those_that_wait_for_bytes_keep_nobody_out_who_needs_none() -> None:
    one = budget(LONG)
    place = await one.enter(LONG)
    waiting = [entering(one) for _ in range(8)]
    await settle()
    (await one.enter()).leave()
    with pytest.raises(Unavailable):
        await one.enter(LONG)
    await end(*waiting)
    place.leave()
    assert (one.running, one.bytes, one._waiting) == (0, 0, [])


async def test_who_goes_away_while_waiting_leaves_nothing() -> None:
    one = budget(2 * LONG)
    place = await one.enter(LONG)
    first, second = entering(one, 2 * LONG), entering(one)
    await settle()
    first.cancel()
    await settle()
    assert second.done(), "nobody is before it any more"
    admitted = entering(one)
    await settle()
    place.leave()
    admitted.cancel()
    (await second).leave()
    await asyncio.gather(first, admitted, return_exceptions=True)
    assert (one.running, one.bytes, one._waiting) == (0, 0, [])


async def test_what_turns_out_smaller_makes_room() -> None:
    one = budget(2 * LONG)
    place, other = await one.enter(LONG, "a"), await one.enter(LONG, "b")
    waiting = entering(one, LONG, "c")
    await settle()
    place.shrink(2 * LONG)  # it never grows
    await settle()
    assert not waiting.done()
    place.shrink(0)
    await settle()
    assert waiting.done()
    assert one.bytes == 2 * LONG
    leave(place, other, await waiting)
    place.shrink(0)
    assert (one.running, one.bytes, one._bytes_of) == (0, 0, {})


async def test_more_than_there_is_takes_all_of_it() -> None:
    one = budget(LONG)
    place = await one.enter(5 * LONG)
    assert one.bytes == LONG
    place.leave()


async def test_one_long_list_is_worked_on_at_a_time() -> None:
    one = budget(9 * LONG)
    long, other, short = await one.enter(LONG), await one.enter(LONG), await one.enter()
    async with long.working():
        async with short.working():
            pass
        waiting = asyncio.create_task(other.working().__aenter__())
        await settle()
        assert not waiting.done()
    await waiting


async def test_metrics() -> None:
    budgets = Budgets()
    await budgets[LISTINGS].enter(LONG)
    found = {each.name: {sample.labels["kind"]: sample.value for sample in each.samples} for each in budgets.families()}
    none = {kind.name: 0 for kind in KINDS}
    assert found == {
        "dfc_budget_requests": {**none, "listings": 1},
        "dfc_budget_bytes": {**none, "listings": LONG},
        "dfc_budget_refused": none,
    }
