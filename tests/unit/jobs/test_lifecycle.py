"""The life of a job: every line of its table, and whatever can happen to a job, with a crash at every moment of it."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pytest

from dfc.jobs import lifecycle
from dfc.jobs.lifecycle import (
    RECORDED_BEFORE,
    CancelRequested,
    DiscardRecorded,
    DiscardStaged,
    FreePlace,
    ImpossibleEvent,
    JobAccepted,
    JobLife,
    JournalFailed,
    OutputsLost,
    OutputsPublished,
    Phase,
    ProxyRestarted,
    PublishOutputs,
    ReadState,
    Recorded,
    RecordFound,
    RefuseCancel,
    StagedDiscarded,
    StartWork,
    StopWork,
    TargetsFailed,
    TurnCame,
    WorkDone,
    WorkFailed,
    WorkStopped,
    WriteDiscarded,
    WriteState,
    WrittenState,
    step,
)
from dfc.jobs.records import STATES
from dfc.wire.jobs import JobError, JobState

ERROR, EARLIER = JobError("no_space", "full"), JobError("storage_failed", "I/O error")
ACTIVE = ("queued", "running", "publishing")
PHASES: tuple[Phase, ...] = get_args(Phase)
WRITTEN: tuple[WrittenState, ...] = get_args(WrittenState)
EVENTS: list[Any] = [
    JobAccepted(), TurnCame(), WorkDone(), WorkFailed(ERROR), WorkStopped(), OutputsPublished(), OutputsLost(ERROR),
    StagedDiscarded(), TargetsFailed(), DiscardRecorded(), JournalFailed(ERROR), CancelRequested(),
    *(Recorded(state) for state in WRITTEN), *(RecordFound(state) for state in STATES),
    *(ProxyRestarted(state, discard) for state in STATES for discard in (False, True)),
]  # fmt: skip


def life_in(phase: Phase) -> JobLife:
    return JobLife(phase, EARLIER if phase in ("failing", "doubting") else None)


# --- the table

WRITE_CANCELLED = WriteState("cancelled", patient=True)
FAIL = (JobLife("failing", ERROR), WriteState("failed", ERROR, patient=True))
CANCEL = (JobLife("cancelling"), WRITE_CANCELLED)
DISCARD = (JobLife("discarding"), FreePlace(True), DiscardStaged())
LEAVE = (JobLife("left"), FreePlace(False))
SUCCEED = (JobLife("succeeded"), FreePlace(True))
PUBLISH = (JobLife("publishing"), PublishOutputs())
WORK = (JobLife("working"), StartWork())
CHECK = (JobLife("checking"), ReadState())
REFUSE = "refuse"
STAY = "stay"
TABLE: dict[Phase, dict[Any, Any]] = {
    "new": {JobAccepted(): (JobLife("queued"),)},
    "queued": {TurnCame(): (JobLife("starting"), WriteState("running")), CancelRequested(): CANCEL},
    "interrupted": {TurnCame(): WORK, CancelRequested(): CANCEL},
    "committed": {TurnCame(): PUBLISH, CancelRequested(): REFUSE},
    "starting": {Recorded("running"): WORK, JournalFailed(ERROR): FAIL, CancelRequested(): (JobLife("stopping"),)},
    "working": {
        WorkDone(): (JobLife("committing"), WriteState("publishing")),
        WorkFailed(ERROR): FAIL,
        WorkStopped(): CANCEL,
        CancelRequested(): (JobLife("stopping"), StopWork()),
    },
    "stopping": {
        **dict.fromkeys((WorkDone(), WorkFailed(ERROR), WorkStopped(), Recorded("running"), JournalFailed(ERROR)), CANCEL),
        CancelRequested(): STAY,
    },
    "committing": {
        Recorded("publishing"): PUBLISH,
        JournalFailed(ERROR): (JobLife("doubting", ERROR), ReadState()),
        CancelRequested(): REFUSE,
    },
    "doubting": {
        RecordFound("publishing"): PUBLISH,
        RecordFound("running"): (JobLife("failing", EARLIER), WriteState("failed", EARLIER, patient=True)),
        RecordFound("queued"): LEAVE,
        RecordFound("succeeded"): SUCCEED,
        RecordFound("failed"): DISCARD,
        RecordFound("cancelled"): DISCARD,
        JournalFailed(ERROR): LEAVE,
        CancelRequested(): REFUSE,
    },
    "publishing": {
        OutputsPublished(): (JobLife("finishing"), WriteState("succeeded", patient=True)),
        OutputsLost(ERROR): FAIL,
        TargetsFailed(): LEAVE,
        CancelRequested(): REFUSE,
    },
    "finishing": {Recorded("succeeded"): SUCCEED, JournalFailed(ERROR): CHECK, CancelRequested(): REFUSE},
    "failing": {Recorded("failed"): DISCARD, JournalFailed(ERROR): CHECK, CancelRequested(): STAY},
    "cancelling": {Recorded("cancelled"): DISCARD, JournalFailed(ERROR): CHECK, CancelRequested(): STAY},
    "checking": {
        **{RecordFound(state): LEAVE for state in ACTIVE},
        RecordFound("succeeded"): SUCCEED,
        RecordFound("failed"): DISCARD,
        RecordFound("cancelled"): DISCARD,
        JournalFailed(ERROR): LEAVE,
        CancelRequested(): STAY,
    },
    "succeeded": {CancelRequested(): REFUSE},
    "discarding": {
        StagedDiscarded(): (JobLife("discarded"), WriteDiscarded()),
        TargetsFailed(): (JobLife("over"),),
        CancelRequested(): STAY,
    },
    "discarded": {DiscardRecorded(): (JobLife("over"),), JournalFailed(ERROR): (JobLife("over"),), CancelRequested(): STAY},
    "over": {CancelRequested(): STAY},
    "left": {CancelRequested(): STAY},
}
RESTARTS: dict[Any, Any] = {
    **{ProxyRestarted("queued", discard): (JobLife("queued"),) for discard in (False, True)},
    **{ProxyRestarted("running", discard): (JobLife("interrupted"),) for discard in (False, True)},
    **{ProxyRestarted("publishing", discard): (JobLife("committed"),) for discard in (False, True)},
    **{ProxyRestarted("succeeded", discard): (JobLife("succeeded"),) for discard in (False, True)},
    ProxyRestarted("failed", True): (JobLife("discarding"), DiscardStaged()),
    ProxyRestarted("failed", False): (JobLife("over"),),
    ProxyRestarted("cancelled", True): (JobLife("discarding"), DiscardStaged()),
    ProxyRestarted("cancelled", False): (JobLife("over"),),
}


@pytest.mark.parametrize("phase", PHASES)
def test_every_event_in_every_phase(phase):
    life = life_in(phase)
    for event in EVENTS:
        expected = {**TABLE[phase], **RESTARTS}.get(event)
        if expected is None:
            with pytest.raises(ImpossibleEvent, match=phase):
                step(life, event)
            continue
        after, actions = step(life, event)
        if expected is STAY:
            assert (after, actions) == (life, ()), event
        elif expected is REFUSE:
            assert after == life, event
            assert [type(action) for action in actions] == [RefuseCancel], event
        else:
            assert (after, *actions) == expected, event


def test_the_table_knows_every_phase_and_event():
    assert TABLE.keys() == set(PHASES)
    assert {type(event) for event in EVENTS} == set(get_args(lifecycle.Event))


def test_what_one_who_cancels_too_late_is_told():
    for phase, reason in (("committed", "it will succeed"), ("finishing", "it will succeed"), ("succeeded", "has succeeded")):
        ((action,), _) = step(life_in(phase), CancelRequested())[::-1]
        assert reason in action.reason


def test_the_page_names_everything():
    for name in (*PHASES, *(each.__name__ for kind in (lifecycle.Event, lifecycle.Action) for each in get_args(kind))):
        if name != "WriteState":
            assert name in lifecycle.__doc__.partition("Hence:")[0], name


# --- all that can happen


NEW = JobLife()


@dataclass(frozen=True)
class World:
    """A job, its record, and what targets hold. `under_way`: the action whose end is waited for."""

    life: JobLife = NEW
    record: JobState = "queued"
    discard: bool = False
    staged: bool = False
    published: str = "nothing"
    has_bucket: bool = True
    under_way: Any = None
    is_cancelled: bool = False  # somebody asked for it, and was not refused, since the last start
    is_free: bool = False


Steps = Callable[[JobLife, Any], tuple[JobLife, tuple[Any, ...]]]


def happen(world: World, event: Any, steps: Steps) -> World:
    before = world.life
    life, actions = steps(before, event)
    world = replace(world, life=life)
    if isinstance(event, CancelRequested) and before.wants_tasks:
        world = replace(world, is_cancelled=True)
    for action in actions:
        world = carried_out(world, action, before)
    assert world.is_free == life.has_left, "its place is free when it has left, not before"
    assert world.under_way is not None or life.is_waiting or life.has_left, "it waits for nothing"
    if life.phase == "over" and not isinstance(event, TargetsFailed | JournalFailed | CancelRequested):
        assert not world.discard, "it waits for the next start without need"
    return world


def carried_out(world: World, action: Any, before: JobLife) -> World:
    """The promises, where they could be broken."""
    match action:
        case FreePlace(is_known):
            assert not world.is_free, "freed twice"
            if is_known:
                assert world.record not in ACTIVE
                assert not world.is_cancelled or world.record == "cancelled"
            return replace(world, is_free=True)
        case RefuseCancel():
            assert not before.wants_tasks, "it might have been cancelled"
            return world
        case StopWork():
            assert world.under_way == StartWork()
            return world
        case WriteState("publishing"):
            assert not world.is_cancelled, "it reaches its commit point although it was cancelled"
        case StartWork():
            assert world.record == "running"
            assert not world.is_cancelled
        case PublishOutputs():
            assert world.record == "publishing", "published before it was committed"
        case DiscardStaged():
            assert world.record in ("failed", "cancelled"), "discarded although a start would go on with it"
            assert world.published == "nothing" or not world.has_bucket, "discarded although it is visible"
        case WriteDiscarded():
            assert not world.staged
    assert world.under_way is None, "two things at a time"
    return replace(world, under_way=action)


def endings(world: World) -> Iterator[tuple[World, Any]]:
    """How what is under way may end: what it has changed, and the event. What should happen comes first."""
    match world.under_way:
        case WriteState(state):
            if world.record in RECORDED_BEFORE[state]:
                assert world.record != "publishing" or state == "succeeded" or not world.has_bucket, "it goes back"
                written = replace(world, record=state, discard=state in ("failed", "cancelled"))
                yield written, Recorded(state)
                yield written, JournalFailed(ERROR)
            yield world, JournalFailed(ERROR)
        case ReadState():
            yield world, RecordFound(world.record)
            yield world, JournalFailed(ERROR)
        case StartWork():
            done = replace(world, staged=True)
            yield done, WorkDone()
            yield done, WorkFailed(ERROR)
            yield done, WorkStopped()
        case PublishOutputs():
            yield replace(world, published="all", staged=False), OutputsPublished()
            yield replace(world, published="some"), TargetsFailed()
            yield world, TargetsFailed()
            if not world.has_bucket:
                yield world, OutputsLost(ERROR)
                yield replace(world, published="some"), OutputsLost(ERROR)
        case DiscardStaged():
            yield replace(world, staged=False), StagedDiscarded()
            yield world, TargetsFailed()
        case WriteDiscarded():
            yield replace(world, discard=False), DiscardRecorded()
            yield world, JournalFailed(ERROR)


def restarted(world: World, steps: Steps) -> World:
    """All is forgotten but the record; a job that has ended has no place to free."""
    forgotten = replace(
        world, life=JobLife(), under_way=None, is_cancelled=False, is_free=world.record not in ACTIVE
    )  # fmt: skip
    return happen(forgotten, ProxyRestarted(world.record, world.discard), steps)


def followers(world: World, steps: Steps) -> Iterator[World]:
    yield happen(world, CancelRequested(), steps)
    yield restarted(world, steps)
    if world.has_bucket:
        yield replace(world, has_bucket=False)
    if world.life.is_waiting:
        yield happen(world, TurnCame(), steps)
    for changed, event in endings(world):
        yield happen(replace(changed, under_way=None), event, steps)
        yield restarted(changed, steps)  # it has come so far, and nobody has heard of it


def calm_end(world: World, steps: Steps) -> World:
    """The job when all goes well from now on, with one more start for what is left to it."""
    for start in (False, True):
        world = restarted(world, steps) if start else world
        for _ in range(12):
            if world.life.is_waiting:
                world = happen(world, TurnCame(), steps)
            for changed, event in list(endings(world))[:1]:
                world = happen(replace(changed, under_way=None), event, steps)
    return world


def explore(steps: Steps) -> set[World]:
    """Go wherever a job can get to, by whatever row of events and crashes, and look whether it keeps its promises there.
    These are so few places that none needs to be drawn at random."""
    first = happen(World(), JobAccepted(), steps)
    seen, left = {first}, deque([first])
    while left:
        world = left.popleft()
        ended = calm_end(world, steps)
        assert ended.under_way is None
        assert ended.record not in ACTIVE, "it never ends"
        assert not ended.staged, "something stays staged"
        assert not ended.discard
        assert ended.record != "succeeded" or ended.published == "all"
        for each in followers(world, steps):
            if each not in seen:
                seen.add(each)
                left.append(each)
    return seen


def test_whatever_happens_to_a_job_and_whenever_its_proxy_dies_it_keeps_its_promises():
    seen = explore(step)
    assert {world.life.phase for world in seen} == set(PHASES) - {"new"}
    assert {world.record for world in seen} == set(STATES)


def changed_to(life: JobLife, *actions: Any) -> Callable[[JobLife, Any], Any]:
    return lambda _life, _event: (life, actions)


MUTANTS: dict[str, tuple[Phase, Any, Callable[[JobLife, Any], Any]]] = {
    "cancelled, yet committed": ("stopping", WorkDone(), changed_to(JobLife("committing"), WriteState("publishing"))),
    "cancelled, yet failed": ("stopping", WorkFailed(ERROR), changed_to(FAIL[0], FAIL[1])),
    "work goes on when it was cancelled": ("starting", CancelRequested(), lambda life, _: (life, ())),
    "published before the record": ("working", WorkDone(), changed_to(*PUBLISH)),
    "a commit in doubt fails": ("committing", JournalFailed(ERROR), changed_to(*FAIL)),
    "a commit in doubt is published": ("committing", JournalFailed(ERROR), changed_to(*PUBLISH)),
    "publishing is cancelled": ("publishing", CancelRequested(), changed_to(*CANCEL)),
    "publishing that fails is discarded": ("publishing", TargetsFailed(), changed_to(*FAIL)),
    "refused too early": ("working", CancelRequested(), lambda life, _: (life, (RefuseCancel("no"),))),
    "a place that stays taken": ("checking", JournalFailed(ERROR), changed_to(JobLife("left"))),
    "a place freed twice": ("discarding", TargetsFailed(), changed_to(JobLife("over"), FreePlace(True))),
    "nothing is discarded": ("cancelling", Recorded("cancelled"), changed_to(JobLife("over"), FreePlace(True))),
    "discarded before the record": ("cancelling", JournalFailed(ERROR), changed_to(*DISCARD)),
    "discarded is not told": ("discarding", StagedDiscarded(), changed_to(JobLife("over"))),
    "publishing starts anew as running": ("new", ProxyRestarted("publishing"), changed_to(JobLife("interrupted"))),
    "nothing is discarded after a start": ("new", ProxyRestarted("failed", True), changed_to(JobLife("over"))),
    "nothing is waited for": ("finishing", JournalFailed(ERROR), lambda life, _: (life, ())),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_rule_would_be_found(name):
    phase, wrong, rule = MUTANTS[name]

    def mutant(life: JobLife, event: Any) -> Any:
        return rule(life, event) if (life.phase, event) == (phase, wrong) else step(life, event)

    with pytest.raises((AssertionError, ImpossibleEvent)):
        explore(mutant)


@pytest.mark.parametrize("phase", PHASES)
def test_what_phases_are_for(phase):
    life = life_in(phase)
    assert life.is_waiting == (phase in ("queued", "interrupted", "committed"))
    assert life.wants_tasks == (phase in ("queued", "interrupted", "starting", "working"))
    assert life.has_left == (phase in ("succeeded", "discarding", "discarded", "over", "left"))


def test_it_knows_nothing_but_values():
    tree = ast.parse(Path(lifecycle.__file__).read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"__future__", "collections.abc", "dataclasses", "typing", "dfc.wire.jobs"}
    assert not any(isinstance(node, ast.Import) for node in ast.walk(tree))
