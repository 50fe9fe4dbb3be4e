"""The life of a job: what happens to it (events), and what is to be done then (actions). Pure; `proxy/active` carries it out.

One thing at a time is under way for a job, and how it ends is an event. `step` has a row for each line of this table; what
is not in it raises ImpossibleEvent. In brackets: what the journal says meanwhile. `write x` is WriteState(x).

| phase | event | next phase | actions |
| --- | --- | --- | --- |
| any | ProxyRestarted | by what the journal says, see `restored` | |
| new | JobAccepted | queued | |
| queued (queued) | TurnCame | starting | write running |
| interrupted (running) | TurnCame | working | StartWork |
| committed (publishing) | TurnCame | publishing | PublishOutputs |
| queued, interrupted | CancelAsked | cancelling | write cancelled |
| starting | Recorded running | working | StartWork |
| | JournalFailed | failing | write failed |
| | CancelAsked | stopping | |
| working (running) | WorkDone | committing | write publishing: **the commit point** |
| | WorkFailed | failing | write failed |
| | WorkStopped | cancelling | write cancelled |
| | CancelAsked | stopping | StopWork |
| stopping | whatever ends the work | cancelling | write cancelled |
| committing | Recorded publishing | publishing | PublishOutputs |
| | JournalFailed: is it committed? | doubting | ReadState |
| doubting | RecordFound publishing | publishing | PublishOutputs |
| | RecordFound running | failing | write failed |
| | any other, or JournalFailed | as in checking | |
| publishing (publishing) | OutputsPublished | finishing | write succeeded |
| | BucketLost | failing | write failed |
| | TargetsFailed | left | FreePlace |
| finishing | Recorded succeeded | succeeded | FreePlace |
| failing, cancelling | Recorded failed, cancelled | discarding | FreePlace, DiscardStaged |
| finishing, failing, cancelling | JournalFailed: has it ended? | checking | ReadState |
| checking | RecordFound succeeded | succeeded | FreePlace |
| | RecordFound failed, cancelled | discarding | FreePlace, DiscardStaged |
| | any other, or JournalFailed | left | FreePlace |
| discarding | StagedDiscarded | discarded | WriteDiscarded |
| | TargetsFailed | over | |
| discarded | DiscardRecorded, JournalFailed | over | |
| committed, committing to finishing, succeeded | CancelAsked | the same | RefuseCancel |
| stopping, failing, cancelling, checking, from the end on | CancelAsked | the same | |

`left`: the journal does not say how the job has ended, so nothing is done to it before the next start, which goes on from
whatever the journal says then. What is `over` with something staged is discarded at the next start.

Hence: what is published was committed, what is discarded never will be; from the commit point there is no way back but for a
bucket that is gone; a job that is asked to end before it never reaches it; and its place is freed once, whatever the journal
says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from dfc.jobs.records import JobError, JobState

Phase = Literal[
    "new", "queued", "interrupted", "committed", "starting", "working", "stopping", "committing", "doubting", "publishing",
    "finishing", "failing", "cancelling", "checking", "succeeded", "discarding", "discarded", "over", "left",
]  # fmt: skip
WrittenState = Literal["running", "publishing", "succeeded", "failed", "cancelled"]
RECORDED_BEFORE: Final[Mapping[WrittenState, tuple[JobState, ...]]] = {
    "running": ("queued",),
    "publishing": ("running",),
    "succeeded": ("publishing",),
    "failed": ("queued", "running", "publishing"),
    "cancelled": ("queued", "running"),
}
"""What the journal may say when a state is written; it checks that again."""
_WAITING: Final[frozenset[Phase]] = frozenset(("queued", "interrupted", "committed"))
_BEFORE_COMMIT: Final[frozenset[Phase]] = frozenset(("queued", "interrupted", "starting", "working"))
_FREE: Final[frozenset[Phase]] = frozenset(("succeeded", "discarding", "discarded", "over", "left"))
_COMMITS: Final = "the job is publishing its outputs; it will succeed"
_HAS_SUCCEEDED: Final = "the job has succeeded"


class ImpossibleEvent(RuntimeError):
    """An event that cannot happen to a job in this phase: a mistake of who reported it."""


@dataclass(frozen=True, slots=True)
class JobLife:
    """Where a job is. `error`: what it is going to fail with."""

    phase: Phase = "new"
    error: JobError | None = None

    @property
    def is_waiting(self) -> bool:
        """It begins as soon as a place to run is free. A job that neither waits nor `has_left` has such a place."""
        return self.phase in _WAITING

    @property
    def wants_tasks(self) -> bool:
        """What tasks do for it is of use, also those that a proxy has begun which was restarted since."""
        return self.phase in _BEFORE_COMMIT

    @property
    def has_left(self) -> bool:
        """Its place is free."""
        return self.phase in _FREE


# --- events


@dataclass(frozen=True, slots=True)
class JobAccepted:
    """The journal has the job, as queued."""


@dataclass(frozen=True, slots=True)
class ProxyRestarted:
    """All is forgotten but what the journal has. `discard`: objects of the job may be staged still."""

    recorded: JobState
    discard: bool = False


@dataclass(frozen=True, slots=True)
class TurnCame:
    """The job has got a place to run."""


@dataclass(frozen=True, slots=True)
class WorkDone:
    """All tasks have ended, and all that they wrote is staged and ready to be published."""


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """Tasks, their plan or what comes before the commit point have failed for good."""

    error: JobError


@dataclass(frozen=True, slots=True)
class WorkStopped:
    """Tasks were given up half-way."""


@dataclass(frozen=True, slots=True)
class OutputsPublished:
    """Every target has made visible what it had staged."""


@dataclass(frozen=True, slots=True)
class BucketLost:
    """The bucket was deleted, so that nobody will ever see the outputs."""

    error: JobError


@dataclass(frozen=True, slots=True)
class StagedDiscarded:
    """No target holds anything staged of the job."""


@dataclass(frozen=True, slots=True)
class TargetsFailed:
    """Publishing or discarding ended in a way that trying again does not mend; some of it may be done."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The journal has taken a state."""

    state: WrittenState


@dataclass(frozen=True, slots=True)
class RecordFound:
    """What the journal says."""

    state: JobState


@dataclass(frozen=True, slots=True)
class DiscardRecorded:
    """The journal knows that nothing is staged any more."""


@dataclass(frozen=True, slots=True)
class JournalFailed:
    """What was to be written may be in the journal, or not; or nothing could be read."""

    error: JobError


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """Somebody wants the job to end."""


Event = (
    JobAccepted | ProxyRestarted | TurnCame | WorkDone | WorkFailed | WorkStopped | OutputsPublished | BucketLost
    | StagedDiscarded | TargetsFailed | Recorded | RecordFound | DiscardRecorded | JournalFailed | CancelAsked
)  # fmt: skip


# --- actions, with the events that they end in


@dataclass(frozen=True, slots=True)
class WriteState:
    """Recorded or JournalFailed. `patient`: when the journal's disk has no room or fails, try until it is well again."""

    state: WrittenState
    error: JobError | None = None
    patient: bool = False


@dataclass(frozen=True, slots=True)
class ReadState:
    """RecordFound or JournalFailed. Patient."""


@dataclass(frozen=True, slots=True)
class StartWork:
    """WorkDone, WorkFailed, or WorkStopped. Those that are done by what the journal says are not run again."""


@dataclass(frozen=True, slots=True)
class StopWork:
    """Give StartWork up; no event of its own."""


@dataclass(frozen=True, slots=True)
class PublishOutputs:
    """OutputsPublished, BucketLost, or TargetsFailed. Some or all may be published already."""


@dataclass(frozen=True, slots=True)
class FreePlace:
    """The job is under way no more; no event. `is_known`: the journal says how it has ended."""

    is_known: bool


@dataclass(frozen=True, slots=True)
class DiscardStaged:
    """StagedDiscarded or TargetsFailed."""


@dataclass(frozen=True, slots=True)
class WriteDiscarded:
    """DiscardRecorded or JournalFailed. Patient."""


@dataclass(frozen=True, slots=True)
class RefuseCancel:
    """Tell who asked that it is too late; no event."""

    reason: str


Action = (
    WriteState | ReadState | StartWork | StopWork | PublishOutputs | FreePlace | DiscardStaged | WriteDiscarded | RefuseCancel
)  # fmt: skip
Outcome = tuple[JobLife, tuple[Action, ...]]


# --- the rules


def step(life: JobLife, event: Event) -> Outcome:
    """What a job is after an event, and what is to be done in this order. ImpossibleEvent."""
    match event:
        case ProxyRestarted(recorded, discard):
            return restored(recorded, discard)
        case CancelAsked():
            return _cancel(life)
    if life.phase in ("committing", "doubting", "publishing"):
        return _commit(life, event)
    if life.phase in ("finishing", "failing", "cancelling", "checking", "discarding", "discarded"):
        return _end(life, event)
    return _work(life, event)


def restored(recorded: JobState, discard: bool = False) -> Outcome:
    """A job of which nothing is known but its record."""
    match recorded:
        case "queued":
            return _to("queued")
        case "running":
            return _to("interrupted")
        case "publishing":
            return _to("committed")
        case "succeeded":
            return _to("succeeded")
        case "failed" | "cancelled":
            return _to("discarding", DiscardStaged()) if discard else _to("over")


def _work(life: JobLife, event: Event) -> Outcome:
    """Up to the commit point."""
    match life.phase, event:
        case "new", JobAccepted():
            return _to("queued")
        case "queued", TurnCame():
            # Impatient, like the commit point: a job for which there is no room fails, and says why.
            return _to("starting", WriteState("running"))
        case "interrupted", TurnCame():
            return _to("working", StartWork())
        case "committed", TurnCame():
            return _to("publishing", PublishOutputs())
        case "starting", Recorded("running"):
            return _to("working", StartWork())
        case "starting", JournalFailed(error):
            return _fail(error)
        case "working", WorkDone():
            return _to("committing", WriteState("publishing"))
        case "working", WorkFailed(error):
            return _fail(error)
        case "working", WorkStopped():
            return _to("cancelling", WriteState("cancelled", patient=True))
        # However the work ends, it ends as cancelled: above all, done or not, it is not committed.
        case "stopping", WorkDone() | WorkFailed() | WorkStopped() | Recorded("running") | JournalFailed():
            return _to("cancelling", WriteState("cancelled", patient=True))
    raise _impossible(life, event)


def _commit(life: JobLife, event: Event) -> Outcome:
    """From the commit point on: only forward."""
    match life.phase, event:
        case "committing", Recorded("publishing"):
            return _to("publishing", PublishOutputs())
        case "committing", JournalFailed(error):
            # The record may be there all the same, and it is what counts.
            return JobLife("doubting", error), (ReadState(),)
        case "doubting", RecordFound("publishing"):
            return _to("publishing", PublishOutputs())
        case "doubting", RecordFound("running") if life.error is not None:
            return _fail(life.error)
        case "doubting", RecordFound() | JournalFailed():
            return _check(event)
        case "publishing", OutputsPublished():
            return _to("finishing", WriteState("succeeded", patient=True))
        case "publishing", BucketLost(error):
            return _fail(error)
        case "publishing", TargetsFailed():
            return _to("left", FreePlace(is_known=False))
    raise _impossible(life, event)


def _end(life: JobLife, event: Event) -> Outcome:
    """From the writing of the last state on."""
    match life.phase, event:
        case "finishing", Recorded("succeeded"):
            return _succeeded()
        case ("failing", Recorded("failed")) | ("cancelling", Recorded("cancelled")):
            return _discard()
        case "finishing" | "failing" | "cancelling", JournalFailed():
            # It may be there all the same; and one of two attempts that both came through is refused.
            return _to("checking", ReadState())
        case "checking", RecordFound() | JournalFailed():
            return _check(event)
        case "discarding", StagedDiscarded():
            return _to("discarded", WriteDiscarded())
        case ("discarding", TargetsFailed()) | ("discarded", DiscardRecorded() | JournalFailed()):
            return _to("over")
    raise _impossible(life, event)


def _cancel(life: JobLife) -> Outcome:
    match life.phase:
        case "queued" | "interrupted":
            return _to("cancelling", WriteState("cancelled", patient=True))
        case "starting":
            return _to("stopping")  # what is being written has been written in a moment
        case "working":
            return _to("stopping", StopWork())
        case "committed" | "committing" | "doubting" | "publishing" | "finishing":
            return life, (RefuseCancel(_COMMITS),)
        case "succeeded":
            return life, (RefuseCancel(_HAS_SUCCEEDED),)
        case "new":
            raise _impossible(life, CancelAsked())
        case "stopping" | "failing" | "cancelling" | "checking" | "discarding" | "discarded" | "over" | "left":
            return life, ()  # it ends, or has ended, without that


def _check(event: RecordFound | JournalFailed) -> Outcome:
    """Has it ended? The record says so, or nobody knows before the next start."""
    match event:
        case RecordFound("succeeded"):
            return _succeeded()
        case RecordFound("failed" | "cancelled"):
            return _discard()
    return _to("left", FreePlace(is_known=False))


def _succeeded() -> Outcome:
    return _to("succeeded", FreePlace(is_known=True))


def _discard() -> Outcome:
    return _to("discarding", FreePlace(is_known=True), DiscardStaged())


def _fail(error: JobError) -> Outcome:
    return JobLife("failing", error), (WriteState("failed", error, patient=True),)


def _to(phase: Phase, *actions: Action) -> Outcome:
    return JobLife(phase), actions


def _impossible(life: JobLife, event: Event) -> ImpossibleEvent:
    return ImpossibleEvent(f"unexpected event {event} for a job that is {life.phase}")
