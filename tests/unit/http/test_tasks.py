"""How tasks are ended, and what runs for as long as a node does."""

from __future__ import annotations

import asyncio

import pytest

from dfc.http.shutdown import Looping, end, log_failure


async def _fails() -> None:
    raise OSError("no")


class _Counting(Looping):
    """Counts, and takes its time to end."""

    def __init__(self) -> None:
        self.counted, self.ended = 0, False

    async def _run(self) -> None:
        try:
            while True:
                self.counted += 1
                await asyncio.sleep(0)
        finally:
            await asyncio.sleep(0.01)
            self.ended = True


async def test_all_have_ended_however_they_do() -> None:
    waiting = asyncio.create_task(asyncio.sleep(60))
    failing = asyncio.create_task(_fails())
    done = asyncio.create_task(asyncio.sleep(0, "done"))
    await asyncio.sleep(0.01)
    await end(waiting, failing, done)
    assert waiting.cancelled()
    assert isinstance(failing.exception(), OSError)
    assert done.result() == "done"
    await end()


async def test_nobody_hears_of_an_error_that_was_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    for task in (asyncio.create_task(_fails()), asyncio.create_task(asyncio.sleep(60))):
        task.add_done_callback(log_failure)
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(0)
        del task
    assert not caplog.records


async def test_it_runs_until_it_is_stopped() -> None:
    counting = _Counting()
    await counting.stop()
    counting.start()
    await asyncio.sleep(0.01)
    await counting.stop()
    assert counting.ended
    counted = counting.counted
    assert counted > 1
    await asyncio.sleep(0.01)
    assert counting.counted == counted
