"""Waits that end: for calls, for tasks, for executors, and for a whole process; and what runs for as long as a node does."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dfc.http.shutdown import EXIT_CUT_OFF, Looping, end, end_threads, in_time, log_failure


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    """What hangs waits for it; set at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


async def test_a_call_in_time_is_waited_for_and_what_it_raises_comes_out():
    said = []
    assert await in_time(lambda: said.append(threading.current_thread().daemon), "a call", 30)
    assert said == [True]

    def fail() -> None:
        raise OSError("the disk says no")

    with pytest.raises(OSError, match="says no"):
        await in_time(fail, "a call", 30)


async def test_a_call_that_hangs_is_left_behind_with_a_warning(hang, caplog):
    assert not await in_time(hang.wait, "the disk sda", 0.05)
    assert "gave up waiting for the disk sda after 0.05 s" in caplog.text


async def test_threads_that_end_are_joined_and_what_waits_is_dropped():
    release, ran = threading.Event(), []
    pool = ThreadPoolExecutor(1)
    first, second = pool.submit(release.wait), pool.submit(ran.append, 1)
    ending = asyncio.create_task(end_threads(pool, "the threads", 20))
    await asyncio.sleep(0)
    release.set()
    assert await ending
    assert first.result() is True
    assert second.cancelled()
    assert ran == []


async def test_a_thread_that_hangs_holds_nothing_up(hang, caplog):
    pool = ThreadPoolExecutor(2)
    pool.submit(hang.wait)
    assert not await end_threads(pool, "the transfer threads", 0.05)
    assert "gave up waiting for the transfer threads" in caplog.text


@pytest.mark.parametrize(
    "hangs",
    [
        "ThreadPoolExecutor(1, thread_name_prefix='disk').submit(os.read, pipe, 1)",  # Python joins it when it exits
        "os.read(pipe, 1)",  # the main thread, where the event loop would be
    ],
)
def test_the_watchdog_ends_a_process_that_hangs_and_says_so(hangs):
    program = f"""
import logging, os
from concurrent.futures import ThreadPoolExecutor
from dfc.http import shutdown
from dfc.http.shutdown import Watchdog
shutdown.LAST_WORDS_S = 20
logging.basicConfig(format="%(message)s")
pipe, keep = os.pipe()
watchdog = Watchdog()
watchdog.end_within(3600)
watchdog.end_within(3)
watchdog.end_within(3600)  # never later than what was said before
{hangs}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == EXIT_CUT_OFF
    assert "this node did not stop in time" in done.stderr
    if "disk" in hangs:
        assert "disk_0" in done.stderr


def test_the_watchdog_lets_a_process_end_before_it():
    program = "from dfc.http.shutdown import Watchdog\nWatchdog().end_within(3600)\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


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
