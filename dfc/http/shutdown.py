"""Stop a node within a bounded time, and the tasks of its event loop.

Tasks are cancelled, waits for threads have timeouts, and a watchdog exits in any case.

A thread that hangs in a system call, because its disk does, can neither be cancelled nor joined, and at exit Python joins the
threads of all executors again. So stopping waits for them for a limited time and abandons those that are late; `Watchdog` then
exits the process. That costs no more than kill -9: nothing that was acknowledged is lost.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from dfc.limits import STOP_CLOSE_S

_log: Final = logging.getLogger("dfc.node")
LAST_WORDS_S: Final = 0.5  # for the last log message, which may itself hang
EXIT_CUT_OFF: Final = 1


def ends_in_time(call: Callable[[], object], timeout_s: float = STOP_CLOSE_S) -> bool:
    """Run a blocking call that may hang in a daemon thread; whether it returned within the timeout."""
    thread = threading.Thread(target=call, name="ending", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return not thread.is_alive()


async def in_time(call: Callable[[], object], what: str, timeout_s: float = STOP_CLOSE_S) -> bool:
    """Run a blocking call off the event loop; whether it returned within the timeout. Raises what the call raises.

    It gets its own daemon thread. A call that is late is abandoned, with a warning.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if ended.done():
            return
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)

    def run() -> None:
        error = None
        try:
            call()
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop is closed already
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=run, name=f"end-{what}", daemon=True).start()
    try:
        async with asyncio.timeout(timeout_s):
            await ended
    except TimeoutError:
        _log.warning("gave up waiting for %s after %g s", what, timeout_s)
        return False
    return True


async def end_threads(pool: ThreadPoolExecutor, what: str, timeout_s: float = STOP_CLOSE_S) -> bool:
    """Shut down an executor: drop queued calls and wait for running ones; whether all ended within the timeout."""
    pool.shutdown(wait=False, cancel_futures=True)
    return await in_time(pool.shutdown, what, timeout_s)


class Watchdog:
    """Exits the process at a deadline, whatever hangs: the event loop, a thread, or the interpreter's shutdown."""

    def __init__(self) -> None:
        self._deadline_s = math.inf
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def end_within(self, seconds: float) -> None:
        """Exit the process within so many seconds; an earlier deadline that was set before stays."""
        with self._changed:
            self._deadline_s = min(self._deadline_s, time.monotonic() + seconds)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        with self._changed:
            while (left_s := self._deadline_s - time.monotonic()) > 0:
                self._changed.wait(left_s)
        saying = threading.Thread(target=_say_last_words, daemon=True)
        saying.start()
        saying.join(LAST_WORDS_S)
        os._exit(EXIT_CUT_OFF)


def _say_last_words() -> None:
    ours = (threading.current_thread(), threading.main_thread())
    names = sorted({t.name for t in threading.enumerate() if t not in ours and not t.daemon})
    _log.warning("this node did not stop in time and exits now; threads still running: %s", ", ".join(names) or "(none)")
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until all of them have ended, however they do."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def log_failure(task: asyncio.Future[Any]) -> None:
    """Retrieve the error of a task for which perhaps nobody waits any more, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


class Looping:
    """Base of what runs in a task of its own, `_run`, from `start` to `stop`."""

    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop, and wait for the end of it. Safe before `start`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))  # which does not cancel it once more if this is cancelled

    async def _run(self) -> None:
        raise NotImplementedError
