"""What a disk says of itself, asked by several at the same time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from copied import FakeDisk

from dfc.target.threads import DiskThreads


class SlowDisk(FakeDisk):
    """Says how it is when it is let; the first time at once."""

    def __init__(self) -> None:
        super().__init__("disk")
        self.answers = threading.Semaphore(1)

    def totals(self) -> tuple[int, int]:
        assert self.answers.acquire(timeout=30)
        return super().totals()


@pytest.fixture
def disk() -> SlowDisk:
    return SlowDisk()


@pytest.fixture
def threads(disk: SlowDisk) -> Iterator[DiskThreads]:
    made = DiskThreads(disk, 2)  # type: ignore[arg-type]
    yield made
    disk.answers.release(10)
    made.close()


async def test_one_who_asks_again_takes_no_answer_from_another(disk: SlowDisk, threads: DiskThreads) -> None:
    """The second asks when the answer to the first has come, and the first has not gone on yet."""
    first = asyncio.create_task(threads.report(30))
    await asyncio.sleep(0)
    asked = threads._asked

    async def ask_at_once() -> object:
        while not asked.done():  # noqa: ASYNC110  # at the very turn of the loop in which it is done
            await asyncio.sleep(0)
        assert not first.done()
        return await threads.report(30)

    second = asyncio.create_task(ask_at_once())
    disk.answers.release()
    assert (await first).state == "up"
    assert not second.done()
    disk.answers.release()
    await second


async def test_who_gets_no_answer_in_time_is_told_that_the_disk_failed(disk: SlowDisk, threads: DiskThreads) -> None:
    assert (await threads.report(0.05)).state == "failed"
    disk.answers.release()
    assert (await threads.report(30)).state == "up"
