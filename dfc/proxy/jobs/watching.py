"""Watch jobs: whoever does is told of each change until a job ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from dfc.errors import Unavailable
from dfc.wire.jobs import Job

HEARTBEAT_S: Final = 10.0  # of event streams; below the timeouts of proxies between us and a browser
EVENT_INTERVAL_S: Final = 0.2  # the minimum time between two events of a stream


class Watchers:
    """Those who watch jobs, by job."""

    def __init__(self) -> None:
        self._pulses: dict[str, asyncio.Event] = {}
        self._is_stopping = False

    def changed(self, job_id: str) -> None:
        """Wake the watchers of a job."""
        pulse = self._pulses.pop(job_id, None)
        if pulse is not None:
            pulse.set()

    def stop(self) -> None:
        """End all event streams."""
        self._is_stopping = True
        for pulse in self._pulses.values():
            pulse.set()

    async def watch(self, job_id: str, show: Callable[[str], Awaitable[Job]]) -> AsyncIterator[Job | None]:
        """Yield what `show` returns of a job, now and whenever it changes, until it ends; None as a heartbeat when nothing
        changes. Raises what `show` does; Unavailable when this proxy stops first."""
        while True:
            pulse = self._pulses.setdefault(job_id, asyncio.Event())
            ended = True
            try:
                shown = await show(job_id)
                ended = shown.has_ended
            finally:
                if ended:  # before yielding: the watcher may go away then
                    self.changed(job_id)
            yield shown
            if ended:
                return
            while not self._is_stopping:
                try:
                    await asyncio.wait_for(pulse.wait(), HEARTBEAT_S)
                    break
                except TimeoutError:
                    yield None
            if self._is_stopping:
                raise Unavailable("this proxy is shutting down")
            await asyncio.sleep(EVENT_INTERVAL_S)
