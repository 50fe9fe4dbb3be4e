"""The places of batch reads: how many, how many bytes, whose turn it is."""

from __future__ import annotations

import asyncio

import pytest

from dfc.batch import gate as module
from dfc.batch.gate import BatchGate, gate_families
from dfc.errors import Unavailable
from dfc.limits import BATCH_SHORT_BYTES, BATCHES_MAX

MIB = 1 << 20
LONG = 10 * MIB


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def entering(gate: BatchGate, size: int = LONG, client: str = "") -> asyncio.Task[module.BatchPlace]:
    return asyncio.create_task(gate.enter(size, client))


async def test_long_lists_come_in_turn_and_short_ones_wait_for_none() -> None:
    gate = BatchGate("any", 2 * LONG)
    places = [await gate.enter(LONG), await gate.enter(LONG)]
    third, fourth = entering(gate, 2 * LONG), entering(gate)
    await settle()
    assert not third.done()
    short = await gate.enter(BATCH_SHORT_BYTES)
    assert (gate.running, gate.bytes) == (3, 2 * LONG)
    places[0].leave()
    await settle()
    assert not fourth.done(), "the first to come is let in first"
    places[0].leave()
    places[1].leave()
    await settle()
    assert third.done()
    assert not fourth.done()
    (await third).leave()
    (await fourth).leave()
    short.leave()
    assert (gate.running, gate.bytes) == (0, 0)


async def test_no_client_gets_more_than_half_unless_it_is_alone_with_one() -> None:
    gate = BatchGate("any", 4 * LONG)
    mine = [await gate.enter(LONG, "a"), await gate.enter(LONG, "a")]
    waiting = entering(gate, LONG, "a")
    await settle()
    assert not waiting.done()
    other = await gate.enter(LONG, "b")
    mine.pop().leave()
    await settle()
    (await waiting).leave()
    mine.pop().leave()
    whole = await gate.enter(3 * LONG, "a")
    whole.leave()
    other.leave()
    assert (gate.running, gate.bytes, gate._by_client) == (0, 0, {})


async def test_who_finds_no_room_in_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_WAIT_S", 0.05)
    gate = BatchGate("any", LONG)
    place = await gate.enter(LONG)
    with pytest.raises(Unavailable) as caught:
        await gate.enter(LONG)
    assert caught.value.headers["Retry-After"]
    assert (gate.running, gate.refused) == (1, 1)
    place.leave()
    (await gate.enter(LONG)).leave()
    many = [await gate.enter(0) for _ in range(BATCHES_MAX)]
    with pytest.raises(Unavailable):
        await gate.enter(0)
    for each in many:
        each.leave()
    assert (gate.running, gate.refused) == (0, 2)


async def test_those_that_wait_keep_no_short_list_out() -> None:
    gate = BatchGate("any", LONG)
    place = await gate.enter(LONG)
    waiting = [entering(gate) for _ in range(BATCHES_MAX)]
    await settle()
    (await gate.enter(BATCH_SHORT_BYTES)).leave()
    with pytest.raises(Unavailable):
        await gate.enter(LONG)
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    place.leave()
    assert (gate.running, gate.bytes, gate._waiting) == (0, 0, [])


async def test_who_goes_away_while_waiting_leaves_nothing() -> None:
    gate = BatchGate("any", 2 * LONG)
    place = await gate.enter(LONG)
    first, second = entering(gate, 2 * LONG), entering(gate)
    await settle()
    first.cancel()
    await settle()
    assert second.done(), "nobody is before it any more"
    admitted = entering(gate)
    await settle()
    place.leave()
    admitted.cancel()
    (await second).leave()
    await asyncio.gather(first, admitted, return_exceptions=True)
    assert (gate.running, gate.bytes, gate._waiting) == (0, 0, [])


async def test_one_long_list_is_worked_on_at_a_time() -> None:
    gate = BatchGate("any")
    long, other, short = await gate.enter(LONG), await gate.enter(LONG), await gate.enter(0)
    async with long.working():
        async with short.working():
            pass
        waiting = asyncio.create_task(other.working().__aenter__())
        await settle()
        assert not waiting.done()
    await waiting


async def test_metrics() -> None:
    gate = BatchGate("any")
    await gate.enter(LONG)
    found = {each.name: each.samples[0].value for each in gate_families((gate, BatchGate("own")))}
    assert found == {"dfc_batches": 1, "dfc_batch_list_bytes": LONG, "dfc_batches_refused": 0}
