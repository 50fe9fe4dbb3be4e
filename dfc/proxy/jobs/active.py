"""A job that is under way: carries out the actions of `jobs/lifecycle` and reports how they ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, Protocol, assert_never

import msgspec

from dfc.errors import BucketDeleting, DfcError, JobFinished, Unavailable
from dfc.jobs.lifecycle import (
    Action,
    CancelRequested,
    DiscardRecorded,
    DiscardStaged,
    Event,
    FreePlace,
    JobLife,
    JournalFailed,
    OutputsLost,
    OutputsPublished,
    PublishOutputs,
    ReadState,
    Recorded,
    RecordFound,
    RefuseCancel,
    StagedDiscarded,
    StartWork,
    StopWork,
    TargetsFailed,
    WorkDone,
    WorkFailed,
    WorkStopped,
    WriteDiscarded,
    WriteState,
    restored,
    step,
)
from dfc.jobs.records import JobRecord
from dfc.proxy.jobs.context import JobContext, JobFailure
from dfc.proxy.jobs.log import LogTaken
from dfc.proxy.jobs.runner import JobRunner
from dfc.registry.base import LeaseLost
from dfc.wire.jobs import JobError, JobState

_log: Final = logging.getLogger("dfc.proxy.jobs")
_MISTAKE: Final = JobError("internal_error", "internal error; see the proxy's log under the job's id")
_JOURNAL_FAILED: Final = JobError("internal_error", "the job journal failed; see the proxy's log under the job's id")


def check_cancel(recorded: JobState) -> None:
    """Raise JobFinished when it is too late to cancel a job that is not under way; `recorded` is its state in the journal."""
    life, _ = restored(recorded)
    _, actions = step(life, CancelRequested())
    for action in actions:
        if isinstance(action, RefuseCancel):
            raise JobFinished(action.reason)


def left_unfinished(job_id: str) -> Unavailable:
    """Make the error for cancelling a job whose end the journal could not record: the next start may resume it."""
    return Unavailable(f"the journal could not record how job {job_id} ended; cancel it after the next restart of the proxy")


class JobOwner(Protocol):
    """What an active job needs from its service. `activities`: the running tasks, for the service to cancel."""

    is_stopping: bool
    activities: set[asyncio.Task[Event]]

    def changed(self, job_id: str) -> None:
        """The job has changed: wake those who watch it."""

    def freed(self, job: Active, is_known: bool) -> None:
        """The job no longer counts as running; `is_known`: its record says how it ended."""


class Active:
    """A job under way. It runs one activity at a time, in a task whose end is the next event; `jobs/lifecycle` decides.

    When the service stops, the running activity is abandoned where it is, without an event.
    """

    def __init__(self, context: JobContext, keeper: JobOwner, record: JobRecord) -> None:
        self.id = record.id
        self.runner = JobRunner(context, record, partial(keeper.changed, record.id))
        self.life = JobLife()
        self._context = context
        self._keeper = keeper
        self._activity: asyncio.Task[Event] | None = None
        self._waiters: list[asyncio.Future[Exception | None]] = []

    def happen(self, event: Event) -> None:
        """Process an event and carry out the resulting actions. JobFinished when it is a request to cancel that is too late."""
        self.life, actions = step(self.life, event)
        for action in actions:
            self._carry_out(action)

    async def cancel(self) -> None:
        """Cancel the job; returns when it has ended, one way or another.

        Raises JobFinished from its commit point on; NoSpace or StorageFailed when the journal cannot record it (writing it is
        retried until it succeeds); Unavailable when the service stops, or the journal fails.
        """
        if self._keeper.is_stopping:
            raise Unavailable("this proxy is shutting down")
        self.happen(CancelRequested())
        if self.life.has_left:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        error = await waiter
        if error is not None:
            raise error
        self.happen(CancelRequested())  # refused if the job ended in another way
        if self.life.phase == "left":
            raise left_unfinished(self.id)

    def tell(self, error: Exception | None) -> None:
        """Wake the callers of `cancel`, with an error or None."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():  # its caller may be gone
                waiter.set_result(error)

    # --- actions

    def _carry_out(self, action: Action) -> None:
        match action:
            case WriteState():
                self._begin(self._write(action), JournalFailed(_JOURNAL_FAILED))
            case ReadState():
                self._begin(self._read(), JournalFailed(_JOURNAL_FAILED))
            case StartWork():
                self._begin(self._work(), WorkStopped())
            case StopWork():
                assert self._activity is not None
                self._activity.cancel()
            case PublishOutputs():
                self._begin(self._publish(), TargetsFailed())
            case DiscardStaged():
                self._begin(self._discard(), TargetsFailed())
            case WriteDiscarded():
                self._begin(self._write_discarded(), JournalFailed(_JOURNAL_FAILED))
            case FreePlace(is_known):
                self._free(is_known)
            case RefuseCancel(reason):
                raise JobFinished(reason)
            case _:
                assert_never(action)

    def _begin(self, activity: Coroutine[Any, Any, Event], otherwise: Event) -> None:
        task = self._activity = asyncio.create_task(activity)
        self._keeper.activities.add(task)
        # Not from within the activity: if it is cancelled before it starts, it never runs any code.
        task.add_done_callback(partial(self._ended, otherwise))

    def _ended(self, otherwise: Event, task: asyncio.Task[Event]) -> None:
        """Report how an activity ended; `otherwise` is the event if it was cancelled or failed unexpectedly."""
        self._keeper.activities.discard(task)
        event = otherwise
        if not task.cancelled():
            error = task.exception()
            if error is None:
                event = task.result()
            else:
                _log.error("job %s failed while it was %s", self.id, self.life.phase, exc_info=error)
        if self._keeper.is_stopping:
            return
        try:
            self.happen(event)
        except Exception:
            _log.exception("job %s: internal error while it was %s", self.id, self.life.phase)
            if not self.life.has_left:
                self.life = JobLife("left")
                self._free(is_known=False)

    def _free(self, is_known: bool) -> None:
        if not is_known:
            _log.error("job %s ended, but the journal has no record of how; the next start of the proxy resolves this", self.id)
        self._keeper.freed(self, is_known)
        self.tell(None)

    # --- activities

    async def _work(self) -> Event:
        try:
            await self._or_never(self.runner.work())
        except DfcError as error:
            return WorkFailed(JobError(error.code, error.message))
        except Exception:
            _log.exception("job %s failed with an internal error", self.id)
            return WorkFailed(_MISTAKE)
        return WorkDone()

    async def _publish(self) -> Event:
        try:
            await self.runner.publish()
        except (BucketDeleting, JobFailure) as error:
            return OutputsLost(JobError(error.code, error.message))
        return OutputsPublished()

    async def _discard(self) -> Event:
        await self._context.staged.discard(self.id)
        return StagedDiscarded()

    async def _write_discarded(self) -> Event:
        await self._context.write_at_last(self._context.journal.discarded, self.id)
        await self._context.end_log(await self._context.write(self._context.journal.get, self.id))
        return DiscardRecorded()

    async def _read(self) -> Event:
        self.runner.take(await self._context.write_at_last(self._context.journal.get, self.id, refused=self.tell))
        return RecordFound(self.runner.record.state)

    async def _write(self, action: WriteState) -> Event:
        if action.error is not None:
            _log.warning("job %s failed: %s: %s", self.id, action.error.code, action.error.message)
        call = self._call_that_writes(action)
        try:
            if action.state == "publishing":
                await self._or_never(self._context.logs.commit(self._committed()))  # first: with a log, the journal is a copy
            if action.patient:
                record = await self._context.write_at_last(call, refused=self.tell)
            else:
                record = await self._context.write(call)
        except DfcError as error:
            return JournalFailed(JobError(error.code, error.message))
        except Exception as error:
            _log.exception("job %s: the journal could not record its %s", self.id, "end" if action.patient else "next state")
            self.tell(error)
            return JournalFailed(_JOURNAL_FAILED)
        if action.state == "running":
            self._context.logs.running(record)
        elif action.state in ("failed", "cancelled"):
            await self._or_never(self._context.logs.fail(record))
        self.runner.take(record)
        return Recorded(action.state)

    def _committed(self) -> JobRecord:
        """The record as it will be when the job is committed."""
        runner = self.runner
        return msgspec.structs.replace(
            runner.record, state="publishing", output=runner.summary, progress=runner.progress, warnings=tuple(runner.warnings)
        )

    async def _or_never(self, told: Awaitable[None]) -> None:
        """Tell those who come after. If another coordinator goes on with the job, nothing more is done for it here."""
        try:
            await told
        except (LogTaken, LeaseLost) as error:
            _log.error("job %s is left alone: %s", self.id, error)
            self.tell(Unavailable("this proxy is not the coordinator any more"))
            await asyncio.Event().wait()  # until the service stops

    def _call_that_writes(self, action: WriteState) -> Callable[[], JobRecord]:
        journal, runner = self._context.journal, self.runner
        match action.state:
            case "running":
                return partial(journal.start, self.id)
            case "publishing":
                assert runner.summary is not None
                return partial(journal.commit, self.id, runner.summary, runner.progress, runner.warnings)
            case "succeeded":
                return partial(journal.succeed, self.id)
            case "failed":
                assert action.error is not None
                return partial(journal.fail, self.id, action.error, runner.progress, runner.warnings)
            case "cancelled":
                return partial(journal.cancel, self.id)
