"""One job and its actions, with a journal of its own, and work and targets that do what a test tells them."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from faulty_filesystem import sqlite_error

from dfc.errors import JobFinished, StorageFailed, Unavailable
from dfc.jobs.journal import Journal
from dfc.jobs.lifecycle import JobAccepted, JobLife, OutputsPublished, ProxyRestarted, TurnCame
from dfc.jobs.records import NewJob, OutputSummary
from dfc.proxy.jobs import context
from dfc.proxy.jobs.active import Active, check_cancel
from dfc.proxy.jobs.context import JobContext, JobStats, Recordings
from dfc.proxy.jobs.log import NoLogs

JOB = NewJob(
    id="job", operation="probe", spec=b"{}", label="", bucket="out", bucket_id="b1", memory_bytes=1, program="1"
)  # fmt: skip


class Targets:
    """Publish and discard, which fail if they are told to."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.error: Exception | None = None
        self.have_bucket = True

    async def publish(self, job_id: str, _bucket: str, is_lost: Callable[[], bool]) -> bool:
        self._call("publish")
        return self.have_bucket

    async def discard(self, job_id: str) -> None:
        self._call("discard")

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.error is not None:
            raise self.error


class Service:
    """The keeper of one job. `gone` is set when it has left its place."""

    def __init__(self) -> None:
        self.is_stopping = False
        self.activities = set()
        self.freed_as: list[bool] = []
        self.gone = asyncio.Event()

    async def is_idle(self) -> None:
        while self.activities:
            await asyncio.wait(self.activities)
            await asyncio.sleep(0)  # the end of one is an event of the next turn

    def changed(self, job_id: str) -> None:
        pass

    def freed(self, job: Active, is_known: bool) -> None:
        self.freed_as.append(is_known)
        self.gone.set()


class Setup:
    """`work` is what the job does; it ends when a test opens it."""

    def __init__(self, journal: Journal, writer: ThreadPoolExecutor) -> None:
        self.journal = journal
        self.read = journal.get
        self.targets = Targets()
        self.service = Service()
        self.working = asyncio.Event()
        self.worked = asyncio.Event()
        common = JobContext(
            None, journal, self.targets, JobStats(), None, writer, writer, 1, NoLogs(), None, Recordings("unused"),  # type: ignore[arg-type]
        )  # fmt: skip
        self.active = Active(common, self.service, journal.create(JOB, [[]]))
        self.active.runner.summary = OutputSummary(1, 1, "d" * 32)
        self.active.runner.work = self.work  # type: ignore[method-assign]

    async def work(self) -> None:
        self.working.set()
        await self.worked.wait()

    @property
    def state(self) -> str:
        return self.journal.get("job").state

    async def end(self) -> str:
        """The state that it ends in, when nothing is under way for it any more."""
        async with asyncio.timeout(20):
            await self.service.gone.wait()
            await self.service.is_idle()
        return self.state

    def begin(self, *, ends: bool = False) -> None:
        self.active.happen(JobAccepted())
        self.active.happen(TurnCame())
        if ends:
            self.worked.set()

    async def begin_work(self) -> None:
        self.begin()
        await self.working.wait()


@pytest.fixture
async def job(tmp_path, monkeypatch):
    monkeypatch.setattr(context, "JOURNAL_RETRY_S", 0.01)
    journal = Journal(str(tmp_path))
    with ThreadPoolExecutor(1) as writer:
        made = Setup(journal, writer)
        yield made
        made.service.is_stopping = True
        for task in list(made.service.activities):
            task.cancel()
        await asyncio.gather(*made.service.activities, return_exceptions=True)
    journal.close()


class FailingCall:
    """A call of the journal that fails `times` times; `done`: what it was to do has been done all the same."""

    def __init__(self, real, error: Exception, times: int = 1, done: bool = False) -> None:
        self.real, self.error, self.times, self.done = real, error, times, done

    def __call__(self, *arguments):
        if self.times:
            self.times -= 1
            if self.done:
                self.real(*arguments)
            raise self.error
        return self.real(*arguments)


DAMAGED = sqlite3.DatabaseError("database disk image is malformed")
FULL = sqlite_error()


async def test_a_job_to_its_end(job):
    await job.begin_work()
    assert job.state == "running"
    job.worked.set()
    assert await job.end() == "succeeded"
    assert (job.targets.calls, job.service.freed_as) == (["publish"], [True])
    with pytest.raises(JobFinished, match="has succeeded"):
        await job.active.cancel()


async def test_work_that_is_cancelled_before_it_has_begun_is_cancelled(job):
    job.journal.start("job")
    job.active.happen(ProxyRestarted("running"))
    job.active.happen(TurnCame())
    await job.active.cancel()
    assert not job.working.is_set()
    assert await job.end() == "cancelled"
    assert (job.targets.calls, job.service.freed_as) == (["discard"], [True])
    assert job.journal.to_discard() == []


async def test_work_that_ends_in_the_moment_in_which_it_is_cancelled_is_not_committed(job):
    await job.begin_work()
    job.worked.set()
    (task,) = job.service.activities
    while not task.done():  # noqa: ASYNC110  # the very turn in which it ends, before anybody hears of it
        await asyncio.sleep(0)
    assert job.active.life == JobLife("working"), "the test comes too late"
    await job.active.cancel()
    assert await job.end() == "cancelled"
    assert job.targets.calls == ["discard"]


@pytest.mark.parametrize("at", ["queued", "starting", "working"])
async def test_cancelling_at_any_time_before_the_commit_point(job, at):
    job.active.happen(JobAccepted())
    if at != "queued":
        job.active.happen(TurnCame())
    if at == "working":
        await job.working.wait()
    assert job.active.life == JobLife(at)
    waiting = [asyncio.create_task(job.active.cancel()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting.pop().cancel()  # who asked may go
    await asyncio.gather(*waiting)
    assert await job.end() == "cancelled"
    assert (job.targets.calls, job.service.freed_as) == (["discard"], [True])


@pytest.mark.parametrize("at", ["queued", "working"])
async def test_who_cancels_hears_of_a_journal_that_is_full_and_the_job_ends_all_the_same(job, monkeypatch, at):
    monkeypatch.setattr(job.journal, "cancel", FailingCall(job.journal.cancel, sqlite3.OperationalError("disk I/O error"), 3))
    job.active.happen(JobAccepted())
    if at == "working":
        job.active.happen(TurnCame())
        await job.working.wait()
    with pytest.raises(StorageFailed, match="journal"):
        await job.active.cancel()
    assert not job.service.freed_as
    assert await job.end() == "cancelled"
    assert job.service.freed_as == [True]


@pytest.mark.parametrize(("done", "ended", "calls"), [(True, "succeeded", ["publish"]), (False, "failed", ["discard"])])
@pytest.mark.parametrize("error", [FULL, DAMAGED])
async def test_a_commit_of_which_nobody_knows_whether_it_is_there(job, monkeypatch, error, done, ended, calls):
    monkeypatch.setattr(job.journal, "commit", FailingCall(job.journal.commit, error, done=done))
    job.begin(ends=True)
    assert await job.end() == ended
    assert (job.targets.calls, job.service.freed_as) == (calls, [True])
    if not done:
        said = job.journal.get("job").error
        assert said.code == ("no_space" if error is FULL else "internal_error")


async def test_an_end_that_the_journal_has_taken_although_it_failed(job, monkeypatch):
    """The second attempt is refused, since there is an end already."""
    monkeypatch.setattr(job.journal, "succeed", FailingCall(job.journal.succeed, FULL, done=True))
    job.begin(ends=True)
    assert await job.end() == "succeeded"
    assert job.service.freed_as == [True]


async def test_a_journal_that_fails_at_everything_costs_no_place(job, monkeypatch):
    for name in ("start", "fail", "get"):
        monkeypatch.setattr(job.journal, name, FailingCall(getattr(job.journal, name), DAMAGED, 9))
    job.begin()
    await job.service.gone.wait()
    assert (job.service.freed_as, job.active.life, job.targets.calls) == ([False], JobLife("left"), [])
    await job.active.cancel()
    assert not job.service.activities


async def test_who_cancels_hears_of_a_journal_that_is_damaged(job, monkeypatch):
    monkeypatch.setattr(job.journal, "cancel", FailingCall(job.journal.cancel, DAMAGED))
    await job.begin_work()
    with pytest.raises(sqlite3.DatabaseError, match="malformed"):
        await job.active.cancel()
    assert await job.end() == "running"
    assert (job.targets.calls, job.service.freed_as) == ([], [False])


async def test_who_cancels_while_nobody_knows_the_end_is_told_what_it_was(job, monkeypatch):
    looked, may_look = threading.Event(), threading.Event()
    real = job.journal.get

    def get(job_id):
        looked.set()
        assert may_look.wait(20)
        return real(job_id)

    def succeed(job_id, real=job.journal.succeed):
        real(job_id)
        monkeypatch.setattr(job.journal, "get", get)
        raise DAMAGED

    monkeypatch.setattr(job.journal, "succeed", succeed)
    job.begin(ends=True)
    await asyncio.to_thread(looked.wait, 20)
    asking = asyncio.create_task(job.active.cancel())
    await asyncio.sleep(0)
    may_look.set()
    with pytest.raises(JobFinished, match="has succeeded"):
        await asking
    assert await job.end() == "succeeded"


async def test_publishing_into_a_bucket_that_is_gone_fails(job):
    job.targets.have_bucket = False
    job.begin(ends=True)
    assert await job.end() == "failed"
    error = job.journal.get("job").error
    assert (error.code, error.message[:30]) == ("bucket_deleting", "the bucket 'out' was deleted w")
    assert (job.targets.calls, job.service.freed_as) == (["publish", "discard"], [True])


async def test_who_cancels_a_job_that_is_left_to_the_next_start_hears_so(job, monkeypatch):
    monkeypatch.setattr(job.journal, "cancel", FailingCall(job.journal.cancel, JobFinished("a mistake")))
    await job.begin_work()
    with pytest.raises(Unavailable, match="could not record how job job ended"):
        await job.active.cancel()
    assert (await job.end(), job.active.life) == ("running", JobLife("left"))


async def test_publishing_that_fails_by_a_mistake_is_left_to_the_next_start(job):
    job.targets.error = RuntimeError("a mistake")
    job.begin(ends=True)
    assert await job.end() == "publishing"
    assert (job.targets.calls, job.service.freed_as) == (["publish"], [False])


async def test_discarding_that_fails_is_done_again_at_the_next_start(job):
    job.targets.error = RuntimeError("a mistake")
    job.active.happen(JobAccepted())
    await job.active.cancel()
    assert await job.end() == "cancelled"
    assert job.journal.to_discard() == ["job"]
    restarted, job.targets.error = Service(), None
    Active(job.active._context, restarted, job.journal.get("job")).happen(ProxyRestarted("cancelled", True))
    await restarted.is_idle()
    assert job.journal.to_discard() == []
    assert restarted.freed_as == [], "it had no place"


async def test_an_event_that_cannot_be_costs_no_place(job, caplog):
    await job.begin_work()

    async def wrong() -> OutputsPublished:
        return OutputsPublished()

    task = asyncio.create_task(wrong())
    task.add_done_callback(partial(job.active._ended, OutputsPublished()))
    await job.service.gone.wait()
    assert (job.service.freed_as, job.active.life) == ([False], JobLife("left"))
    assert "for a job that is working" in caplog.text


async def test_a_service_that_ends_leaves_everything_where_it_is(job):
    await job.begin_work()
    waiting = asyncio.create_task(job.active.cancel())
    await asyncio.sleep(0)
    job.service.is_stopping = True
    job.active.tell(Unavailable("this proxy is shutting down"))
    for task in job.service.activities:
        task.cancel()
    with pytest.raises(Unavailable, match="shutting down"):
        await waiting
    with pytest.raises(Unavailable, match="shutting down"):
        await job.active.cancel()
    await asyncio.gather(*job.service.activities, return_exceptions=True)
    await asyncio.sleep(0)
    assert (job.state, job.service.freed_as) == ("running", [])


class Moody:
    """A call that fails now and then, and says nothing of whether it has done what it was to do."""

    def __init__(self, real, draw: random.Random) -> None:
        self.real, self.draw = real, draw

    def __call__(self, *arguments):
        error = self.draw.choice([None] * 5 + [FULL, FULL, DAMAGED])
        if error is None or self.draw.random() < 0.5:
            found = self.real(*arguments)
            if error is None:
                return found
        raise error


async def one_start(job: Setup, draw: random.Random, is_last: bool) -> bool:
    """A proxy that goes on with the job and is killed at some moment, unless it is the last. Whether one who cancelled
    the job was told that it has ended."""
    service, record = Service(), job.read("job")
    active = Active(job.active._context, service, record)
    active.runner.summary = OutputSummary(1, 1, "d" * 32)

    async def work() -> None:
        for _ in range(draw.randrange(4)):
            await asyncio.sleep(0)
        if draw.random() < 0.2:
            raise StorageFailed("a task failed")

    active.runner.work = work  # type: ignore[method-assign]
    job.targets.error = None if is_last or draw.random() < 0.7 else RuntimeError("a mistake")
    active.happen(ProxyRestarted(record.state, record.discard))
    if active.life.is_waiting:
        active.happen(TurnCame())
    asking = None
    for _ in range(draw.randrange(1, 40)):
        await asyncio.sleep(0 if draw.random() < 0.8 else 0.001)
        if draw.random() < 0.1 and active.life.wants_tasks:
            asking = asyncio.create_task(active.cancel())
    if is_last:
        await service.is_idle()
    service.is_stopping = True
    active.tell(Unavailable("this proxy is shutting down"))
    for task in service.activities:
        task.cancel()
    await asyncio.gather(*service.activities, return_exceptions=True)
    await asyncio.get_running_loop().run_in_executor(job.active._context.writer, lambda: None)
    assert len(service.freed_as) <= 1
    answers = [] if asking is None else await asyncio.gather(asking, return_exceptions=True)
    return answers == [None] and service.freed_as == [True]


@pytest.mark.parametrize("seed", range(60))
async def test_a_job_through_many_starts_with_a_journal_that_fails_now_and_then(job, monkeypatch, seed):
    monkeypatch.setattr(context, "JOURNAL_RETRY_S", 0.0005)
    draw, names = random.Random(seed), ("start", "commit", "succeed", "fail", "cancel", "discarded", "get")
    real = {name: getattr(job.journal, name) for name in names}
    job.read, is_cancelled = real["get"], False
    for is_last in (False,) * draw.randrange(1, 6) + (True,):
        for name in names:
            monkeypatch.setattr(job.journal, name, real[name] if is_last else Moody(real[name], draw))
        is_cancelled |= await one_start(job, draw, is_last)
        assert not is_cancelled or job.read("job").state in ("cancelled", "failed"), "it may have failed before"
        assert not {"publish", "discard"} <= set(job.targets.calls)
    assert job.read("job").state in ("succeeded", "failed", "cancelled")
    assert ("publish" in job.targets.calls) == (job.read("job").state == "succeeded")
    assert job.journal.to_discard() == []


def test_when_it_is_too_late_to_cancel_what_is_not_under_way():
    for state in ("failed", "cancelled"):
        check_cancel(state)
    with pytest.raises(JobFinished, match="has succeeded"):
        check_cancel("succeeded")
