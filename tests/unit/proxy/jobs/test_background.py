"""What is done while nobody waits for it."""

from __future__ import annotations

import asyncio

import pytest

from dfc.proxy.jobs.queue import Background


async def test_an_error_is_logged_and_the_task_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    background, going_on = Background(), asyncio.Event()

    async def fail() -> None:
        await going_on.wait()
        raise RuntimeError("a mistake")

    background.spawn(fail())
    (task,) = background.tasks
    going_on.set()
    await asyncio.wait((task,))
    await asyncio.sleep(0)
    assert background.tasks == set()
    assert "the next start of the proxy tries again" in caplog.text
    assert "a mistake" in caplog.text


async def test_what_is_cancelled_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    background = Background()
    background.spawn(asyncio.sleep(3600))
    (task,) = background.tasks
    task.cancel()
    await asyncio.wait((task,))
    await asyncio.sleep(0)
    assert (background.tasks, caplog.text) == (set(), "")
