"""The state machine of a job: its phases, the events that change them, and the resulting actions. Pure.

`dfc.proxy.jobs.active` carries out the actions, one at a time per job; the end of an action is an event. `step` has a
case for each row of this table; anything else raises ImpossibleEvent. In brackets: the state in the journal. `write x` is
WriteState(x).

| phase | event | next phase | actions |
| --- | --- | --- | --- |
| any | ProxyRestarted | by what the journal says, see `restored` | |
| new | JobAccepted | queued | |
| queued (queued) | TurnCame | starting | write running |
| interrupted (running) | TurnCame | working | StartWork |
| committed (publishing) | TurnCame | publishing | PublishOutputs |
| queued, interrupted | CancelRequested | cancelling | write cancelled |
| starting | Recorded running | working | StartWork |
| | JournalFailed | failing | write failed |
| | CancelRequested | stopping | |
| working (running) | WorkDone | committing | write publishing: **the commit point** |
| | WorkFailed | failing | write failed |
| | WorkStopped | cancelling | write cancelled |
| | CancelRequested | stopping | StopWork |
| stopping | whatever ends the work | cancelling | write cancelled |
| committing | Recorded publishing | publishing | PublishOutputs |
| | JournalFailed: is it committed? | doubting | ReadState |
| doubting | RecordFound publishing | publishing | PublishOutputs |
| | RecordFound running | failing | write failed |
| | any other, or JournalFailed | as in checking | |
| publishing (publishing) | OutputsPublished | finishing | write succeeded |
| | OutputsLost | failing | write failed |
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
| committed, committing to finishing, succeeded | CancelRequested | the same | RefuseCancel |
| stopping, failing, cancelling, checking, from the end on | CancelRequested | the same | |

`left`: the journal does not say how the job ended, so nothing is done until the next start, which continues from whatever the
journal says then. If a job is `over` with objects still staged, they are discarded at the next start.

Hence: only committed jobs are published, and a discarded job is never published; after the commit point a job fails only if
its bucket is gone, or outputs are with a disk that was lost for good; a job that is cancelled before never reaches it; and a
job's place is freed exactly once, whatever the journal says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from dfc.wire.jobs import JobError, JobState

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
"""The states that may precede each state; the journal checks it again."""
_WAITING: Final[frozenset[Phase]] = frozenset(("queued", "interrupted", "committed"))
_BEFORE_COMMIT: Final[frozenset[Phase]] = frozenset(("queued", "interrupted", "starting", "working"))
_FREE: Final[frozenset[Phase]] = frozenset(("succeeded", "discarding", "discarded", "over", "left"))


class ImpossibleEvent(RuntimeError):
    """An event that cannot happen in this phase: a bug in the caller."""


@dataclass(frozen=True, slots=True)
class JobLife:
    """The phase of a job. `error` is the error it is going to fail with."""

    phase: Phase = "new"
    error: JobError | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a free place to run. A job that neither waits nor `has_left` has a place."""
        return self.phase in _WAITING

    @property
    def wants_tasks(self) -> bool:
        """Whether results of tasks are still useful, including tasks started before the proxy was restarted."""
        return self.phase in _BEFORE_COMMIT

    @property
    def has_left(self) -> bool:
        """Whether its place is free."""
        return self.phase in _FREE


# --- events


@dataclass(frozen=True, slots=True)
class JobAccepted:
    """The job was recorded in the journal as queued."""


@dataclass(frozen=True, slots=True)
class ProxyRestarted:
    """The proxy was restarted and knows only what the journal has. `discard`: objects of the job may still be staged."""

    recorded: JobState
    discard: bool = False


@dataclass(frozen=True, slots=True)
class TurnCame:
    """The job got a place to run."""


@dataclass(frozen=True, slots=True)
class WorkDone:
    """All tasks have ended, and all outputs are staged and ready to be published."""


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """A task, the plan, or another step before the commit point failed permanently."""

    error: JobError


@dataclass(frozen=True, slots=True)
class WorkStopped:
    """The tasks were stopped before they were done."""


@dataclass(frozen=True, slots=True)
class OutputsPublished:
    """Every target has published its staged outputs, and all are on every disk that must have them."""


@dataclass(frozen=True, slots=True)
class OutputsLost:
    """The output bucket was deleted, or a disk with outputs was lost for good, so they can never be published."""

    error: JobError


@dataclass(frozen=True, slots=True)
class StagedDiscarded:
    """No target holds staged objects of the job any more."""


@dataclass(frozen=True, slots=True)
class TargetsFailed:
    """Publishing or discarding failed, and a retry will not help; it may be partly done."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The state was written to the journal."""

    state: WrittenState


@dataclass(frozen=True, slots=True)
class RecordFound:
    """The state that was read from the journal."""

    state: JobState


@dataclass(frozen=True, slots=True)
class DiscardRecorded:
    """The journal has recorded that nothing is staged any more."""


@dataclass(frozen=True, slots=True)
class JournalFailed:
    """Writing failed, so the state may or may not be in the journal; or reading failed."""

    error: JobError


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """A client asked to cancel the job."""


Event = (
    JobAccepted | ProxyRestarted | TurnCame | WorkDone | WorkFailed | WorkStopped | OutputsPublished | OutputsLost
    | StagedDiscarded | TargetsFailed | Recorded | RecordFound | DiscardRecorded | JournalFailed | CancelRequested
)  # fmt: skip


# --- actions, with the events they end with


@dataclass(frozen=True, slots=True)
class WriteState:
    """Write a state. Ends with Recorded or JournalFailed. `patient`: if the disk is full or fails, retry until it works."""

    state: WrittenState
    error: JobError | None = None
    patient: bool = False


@dataclass(frozen=True, slots=True)
class ReadState:
    """Read the state from the journal, patiently. Ends with RecordFound or JournalFailed."""


@dataclass(frozen=True, slots=True)
class StartWork:
    """Run the tasks that the journal does not list as done. Ends with WorkDone, WorkFailed or WorkStopped."""


@dataclass(frozen=True, slots=True)
class StopWork:
    """Stop StartWork. No event of its own."""


@dataclass(frozen=True, slots=True)
class PublishOutputs:
    """Publish the outputs, some of which may be published already. Ends with OutputsPublished, OutputsLost or TargetsFailed."""


@dataclass(frozen=True, slots=True)
class FreePlace:
    """Free the job's place. No event. `is_known`: the journal says how the job ended."""

    is_known: bool


@dataclass(frozen=True, slots=True)
class DiscardStaged:
    """Discard the staged objects. Ends with StagedDiscarded or TargetsFailed."""


@dataclass(frozen=True, slots=True)
class WriteDiscarded:
    """Record that nothing is staged, patiently. Ends with DiscardRecorded or JournalFailed."""


@dataclass(frozen=True, slots=True)
class RefuseCancel:
    """Tell the client that it is too late to cancel. No event."""

    reason: str


Action = (
    WriteState | ReadState | StartWork | StopWork | PublishOutputs | FreePlace | DiscardStaged | WriteDiscarded | RefuseCancel
)  # fmt: skip
Outcome = tuple[JobLife, tuple[Action, ...]]


# --- the rules


def step(life: JobLife, event: Event) -> Outcome:
    """Return the new state of a job after an event, and the actions to carry out, in order. ImpossibleEvent."""
    match event:
        case ProxyRestarted(recorded, discard):
            return restored(recorded, discard)
        case CancelRequested():
            return _cancel(life)
    if life.phase in ("committing", "doubting", "publishing"):
        return _commit(life, event)
    if life.phase in ("finishing", "failing", "cancelling", "checking", "discarding", "discarded"):
        return _end(life, event)
    return _work(life, event)


def restored(recorded: JobState, discard: bool = False) -> Outcome:
    """Return the state and actions of a job of which only the record is known."""
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
    """Handle events before the commit point."""
    match life.phase, event:
        case "new", JobAccepted():
            return _to("queued")
        case "queued", TurnCame():
            # Not patient, as at the commit point: if the disk is full, the job fails and says why.
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
        # However the work ends, the job is cancelled; even if all tasks are done, it is not committed.
        case "stopping", WorkDone() | WorkFailed() | WorkStopped() | Recorded("running") | JournalFailed():
            return _to("cancelling", WriteState("cancelled", patient=True))
    raise _impossible(life, event)


def _commit(life: JobLife, event: Event) -> Outcome:
    """Handle events from the commit point on."""
    match life.phase, event:
        case "committing", Recorded("publishing"):
            return _to("publishing", PublishOutputs())
        case "committing", JournalFailed(error):
            # The state may have been written nevertheless, and the journal is what counts.
            return JobLife("doubting", error), (ReadState(),)
        case "doubting", RecordFound("publishing"):
            return _to("publishing", PublishOutputs())
        case "doubting", RecordFound("running") if life.error is not None:
            return _fail(life.error)
        case "doubting", RecordFound() | JournalFailed():
            return _check(event)
        case "publishing", OutputsPublished():
            return _to("finishing", WriteState("succeeded", patient=True))
        case "publishing", OutputsLost(error):
            return _fail(error)
        case "publishing", TargetsFailed():
            return _to("left", FreePlace(is_known=False))
    raise _impossible(life, event)


def _end(life: JobLife, event: Event) -> Outcome:
    """Handle events from the writing of the final state on."""
    match life.phase, event:
        case "finishing", Recorded("succeeded"):
            return _succeeded()
        case ("failing", Recorded("failed")) | ("cancelling", Recorded("cancelled")):
            return _discard()
        case "finishing" | "failing" | "cancelling", JournalFailed():
            # The state may have been written nevertheless; and if two attempts succeed, the second is refused.
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
            return _to("stopping")  # the pending write will end in a moment
        case "working":
            return _to("stopping", StopWork())
        case "committed" | "committing" | "doubting" | "publishing" | "finishing":
            return life, (RefuseCancel("the job is publishing its outputs; it will succeed"),)
        case "succeeded":
            return life, (RefuseCancel("the job has succeeded"),)
        case "new":
            raise _impossible(life, CancelRequested())
        case "stopping" | "failing" | "cancelling" | "checking" | "discarding" | "discarded" | "over" | "left":
            return life, ()  # it is ending or has ended anyway


def _check(event: RecordFound | JournalFailed) -> Outcome:
    """End the job as the record says; if the record does not say, leave the job until the next start."""
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
