"""The end of a node, which nothing can put off: waits for threads are bounded, and a watchdog ends the process after all.

A thread that hangs in a system call, since its disk does, can neither be cancelled nor joined, and Python joins the threads of
all executors once more when it exits. So a stop waits for them for a named time, leaves behind what has not come back, and
`Watchdog` ends the process under it. That costs what kill -9 costs: nothing that was acknowledged.
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
from typing import Final

from dfc.limits import STOP_CLOSE_S

_log: Final = logging.getLogger("dfc.node")
LAST_WORDS_S: Final = 0.5  # for the log, which may be what hangs
EXIT_CUT_OFF: Final = 1


def ends_in_time(call: Callable[[], object], timeout_s: float = STOP_CLOSE_S) -> bool:
    """Run a blocking call that may never come back, in a thread that keeps no process from ending; whether it came back."""
    thread = threading.Thread(target=call, name="ending", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return not thread.is_alive()


async def in_time(call: Callable[[], object], what: str, timeout_s: float = STOP_CLOSE_S) -> bool:
    """Run a blocking call off the event loop; whether it ended within the time. Raises what it raised.

    It gets a thread of its own that nobody joins. One that does not end in time is left behind, with a warning.
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
    """Shut an executor down: what waits in it is dropped, what runs may end within the time; whether all did."""
    pool.shutdown(wait=False, cancel_futures=True)
    return await in_time(pool.shutdown, what, timeout_s)


class Watchdog:
    """Ends the process at a deadline, whatever hangs: the event loop, a thread, the interpreter's own end."""

    def __init__(self) -> None:
        self._deadline_s = math.inf
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def end_within(self, seconds: float) -> None:
        """The process is gone by then, or earlier if that was said before."""
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
