"""On PYTHONPATH of a node: what its event loop does at a time for so long that others wait, in processor time of the loop's
thread, which says the same on a busy machine. A line each in $LOOP_DIR/<process id>: milliseconds, and what it was."""

import asyncio
import os
import time

LEAST_NS = 3_000_000
_directory = os.environ.get("LOOP_DIR", "")


def _waits(handle: asyncio.Handle) -> str:
    """Where the task that ran waits now, from the outside in."""
    task, found = getattr(handle._callback, "__self__", None), []  # type: ignore[attr-defined]
    coroutine = task.get_coro() if isinstance(task, asyncio.Task) else None
    while getattr(coroutine, "cr_frame", None) is not None:
        found.append(f"{coroutine.__qualname__}:{coroutine.cr_frame.f_lineno}")
        coroutine = coroutine.cr_await
    return " > ".join(found) or "nothing"


def _watch() -> None:
    import uvloop

    run = asyncio.Handle._run  # type: ignore[attr-defined]

    def timed(handle: asyncio.Handle) -> None:
        begun_ns = time.thread_time_ns()
        run(handle)
        took_ns = time.thread_time_ns() - begun_ns
        if took_ns > LEAST_NS:
            with open(os.path.join(_directory, str(os.getpid())), "a") as file:
                file.write(f"{took_ns / 1e6:.1f} {handle!r}; goes on in {_waits(handle)}\n")

    asyncio.Handle._run = timed  # type: ignore[attr-defined]
    uvloop.run = lambda main: asyncio.run(main)  # type: ignore[assignment]  # whose callbacks are written in Python


if _directory:
    _watch()
