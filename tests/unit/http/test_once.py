"""One call for all who wait; whoever leaves takes nothing from the others."""

from __future__ import annotations

import asyncio

import pytest

from dfc.errors import NotFound, Unavailable
from dfc.http.peer import SharedCall


class Calls:
    """A call that ends when the test says so."""

    def __init__(self) -> None:
        self.count, self.now_s = 0, 0.0
        self.going_on = asyncio.Event()
        self.error: Exception | None = None
        self.shared = SharedCall(self._call, 1.0, lambda: self.now_s)

    async def _call(self) -> int:
        self.count += 1
        await self.going_on.wait()
        if self.error is not None:
            raise self.error
        return self.count


async def test_many_who_wait_are_one_call() -> None:
    calls = Calls()
    waiting = [asyncio.create_task(calls.shared.get()) for _ in range(50)]
    await asyncio.sleep(0)
    calls.going_on.set()
    assert await asyncio.gather(*waiting) == [1] * 50
    calls.now_s = 0.9
    assert await calls.shared.get() == 1
    calls.now_s = 1.0
    assert await calls.shared.get() == 2


async def test_who_is_cancelled_leaves_the_others_waiting() -> None:
    calls = Calls()
    first, second = (asyncio.create_task(calls.shared.get()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    calls.now_s = 5.0  # whoever comes now waits for the same call
    third = asyncio.create_task(calls.shared.get())
    await asyncio.sleep(0)
    calls.going_on.set()
    assert (await second, await third, calls.count) == (1, 1, 1)


async def test_a_call_goes_on_when_all_have_left_and_its_error_is_nobodys() -> None:
    calls = Calls()
    calls.error = NotFound("lost")
    only = asyncio.create_task(calls.shared.get())
    await asyncio.sleep(0)
    only.cancel()
    await asyncio.wait((only,))
    calls.going_on.set()
    for _ in range(3):
        await asyncio.sleep(0)
    calls.error = None
    assert await calls.shared.get() == 2  # a failed call is not kept, however fresh


async def test_an_error_is_everybodys() -> None:
    calls = Calls()
    calls.error = NotFound("lost")
    calls.going_on.set()
    found = await asyncio.gather(calls.shared.get(), calls.shared.get(), return_exceptions=True)
    assert [type(each) for each in found] == [NotFound, NotFound]
    assert calls.count == 1


async def test_a_result_is_kept_for_ever_unless_it_is_said_how_long() -> None:
    calls = Calls()
    calls.going_on.set()
    kept = SharedCall(calls.shared.get, clock_s=lambda: calls.now_s)
    calls.error = NotFound("lost")
    for _ in range(2):
        with pytest.raises(NotFound):  # but not an error
            await kept.get()
    calls.error, before = None, calls.count
    assert await kept.get() == before + 1
    calls.now_s = 1e9
    assert await kept.get() == before + 1


async def test_many_who_leave_and_come_are_one_call() -> None:
    calls = Calls()
    for _ in range(20):
        leaving = asyncio.create_task(calls.shared.get())
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait((leaving,))
    last = asyncio.create_task(calls.shared.get())
    await asyncio.sleep(0)
    calls.going_on.set()
    assert (await last, calls.count) == (1, 1)


async def test_the_end() -> None:
    calls = Calls()
    waiting = asyncio.create_task(calls.shared.get())
    await asyncio.sleep(0)
    await calls.shared.stop()
    for each in (waiting, calls.shared.get()):
        with pytest.raises(Unavailable, match="stops"):
            await each
    await Calls().shared.stop()


async def test_what_is_fresh_at_the_end_may_be_had() -> None:
    calls = Calls()
    calls.going_on.set()
    assert await calls.shared.get() == 1
    await calls.shared.stop()
    assert await calls.shared.get() == 1
    calls.now_s = 1.0
    with pytest.raises(Unavailable, match="stops"):
        await calls.shared.get()
