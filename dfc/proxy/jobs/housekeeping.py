"""Housekeeping of jobs: keep what is recorded of them, forget old ones, and count all by state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from prometheus_client.core import Metric

from dfc.http.shutdown import in_time
from dfc.jobs.recording.views import end_line
from dfc.jobs.records import JobRecord
from dfc.proxy.jobs.background import Background
from dfc.proxy.jobs.context import Means
from dfc.proxy.jobs.recordings import SAVE_S

_log: Final = logging.getLogger("dfc.proxy.jobs")
HOUSEKEEPING_S: Final = 3600.0


class Housekeeping:
    """What is done beside the jobs, and after their end. Knows how many are in which state, as of their last change."""

    def __init__(self, means: Means, background: Background) -> None:
        self._means = means
        self._background = background
        self._saving = asyncio.Lock()
        self._counts: dict[str, int] = {}

    def start(self) -> None:
        """Begin what is done now and then."""
        self._background.spawn(self._keep_tidy())
        self._background.spawn(self._keep_saved())

    async def stop(self) -> None:
        """Save what is recorded of all jobs; call it when nothing else is done for them any more."""
        recordings = self._means.recordings
        left = recordings.closed()
        await in_time(lambda: recordings.save_blocking(left), "what was recorded of jobs")

    def ended(self, record: JobRecord) -> None:
        """Keep what was recorded of a job that has ended."""
        recorder = self._means.recordings.live(record.id)
        if recorder is not None:
            recorder.say(*end_line(record))
            self._background.spawn(self._close_recording(record.id))

    async def _close_recording(self, job_id: str) -> None:
        means = self._means
        async with self._saving:
            await means.plan(means.recordings.save_blocking, means.recordings.closed(job_id))
        means.recordings.drop(job_id)

    async def _keep_saved(self) -> None:
        """Save now and then what is recorded of jobs, for the next start if this proxy is killed."""
        means = self._means
        while True:
            await asyncio.sleep(SAVE_S)
            async with self._saving:
                await means.plan(means.recordings.save_blocking, means.recordings.changed())

    async def _keep_tidy(self) -> None:
        """Expire old jobs, at the start and every hour."""
        while True:
            try:
                await self.forget()
                await self._means.logs.tidy()
            except Exception:
                _log.exception("cleaning up finished jobs failed; trying again later")
            await asyncio.sleep(HOUSEKEEPING_S)

    async def forget(self) -> None:
        """Forget the details of jobs that have ended, and old jobs."""
        means = self._means
        while await means.write(means.journal.forget_details):
            pass
        await means.write(means.journal.expire, means.settings.jobs_keep_s, means.settings.jobs_keep_max)
        await means.plan(means.recordings.prune_blocking, means.journal.known)
        await self.count()

    async def count(self) -> None:
        """Count the jobs of the journal."""
        self._counts = await self._means.write(self._means.journal.counts)

    def families(self) -> Iterable[Metric]:
        return self._means.stats.families(self._counts)
