"""What the jobs of a proxy tell of themselves, for who comes after: the face of a log, and that of a proxy which needs none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dfc.jobs.journal import TaskEntry
from dfc.jobs.records import JobRecord
from dfc.jobs.tasks import InputShard


class LogTaken(Exception):
    """Another coordinator goes on with the job: nothing more must be done for it here."""


class JobLogs(Protocol):
    """What the jobs of a proxy tell of themselves, for who comes after."""

    async def begin(self, record: JobRecord, pattern: str, spec: bytes, inputs: Sequence[Sequence[InputShard]]) -> None:
        """A job was accepted. LogRefused, BucketDeleting, Unavailable: it may be known all the same until `abandon`."""

    async def abandon(self, record: JobRecord) -> None:
        """A job was not accepted, although it was begun. Returns when nobody goes on with it."""

    def running(self, record: JobRecord) -> None:
        """A job runs. Told with what comes next."""

    async def results(self, job_id: str, entries: Sequence[TaskEntry]) -> None:
        """Tasks have ended. What is told last may be lost. LogTaken, LogRefused."""

    async def commit(self, record: JobRecord) -> None:
        """From now on the outputs of a job will be published, whatever happens; not if it raises LogTaken, LogRefused or
        BucketDeleting."""

    async def fail(self, record: JobRecord) -> None:
        """A job has failed, or was cancelled; what it has staged is to be discarded. LeaseLost."""

    async def end(self, record: JobRecord) -> None:
        """Nothing is left to be done for a job. LeaseLost."""

    async def tidy(self) -> None:
        """Forget what is old."""


class NoLogs:
    """For a proxy whose journal is all there is."""

    async def begin(self, record: JobRecord, pattern: str, spec: bytes, inputs: Sequence[Sequence[InputShard]]) -> None:
        pass

    async def abandon(self, record: JobRecord) -> None:
        pass

    def running(self, record: JobRecord) -> None:
        pass

    async def results(self, job_id: str, entries: Sequence[TaskEntry]) -> None:
        pass

    async def commit(self, record: JobRecord) -> None:
        pass

    async def fail(self, record: JobRecord) -> None:
        pass

    async def end(self, record: JobRecord) -> None:
        pass

    async def tidy(self) -> None:
        pass
