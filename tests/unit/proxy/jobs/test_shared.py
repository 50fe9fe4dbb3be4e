"""The logs of jobs: what a coordinator has written is what the next one goes on with, and only one of both can write."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from memory_registry import MemoryRegistry, MemoryStore

from dfc.errors import BucketDeleting, BucketNotFound, Unavailable
from dfc.jobs.journal import Journal
from dfc.jobs.records import JobEntry, JobRecord, NewJob, OutputSummary, RecordedProgress, short, short_spec
from dfc.jobs.tasks import InputShard, OutputRecord, TaskResult
from dfc.limits import JOB_LABEL_CHARS_MAX, JOB_SPEC_SHARED_BYTES
from dfc.proxy.jobs import log as log_module
from dfc.proxy.jobs.log import (
    LogObjects,
    LogRefused,
    LogSegment,
    LogTaken,
    SharedLogs,
    UnknownSegment,
    first_segments,
    segment_name,
)
from dfc.proxy.jobs.queue import add_segment
from dfc.registry.base import RECORD_BYTES_MAX, Lease, LeaseLost
from dfc.wire.jobs import JobError

NEW = NewJob(
    id="0001", operation="keys", spec=b'{"a": 1}', label="mine", bucket="out", bucket_id="b1", memory_bytes=7, program="1"
)


class FakeObjects:
    """Segments in memory, shared by all coordinators."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, int], bytes] = {}
        self.is_gone = False
        self.is_full = False
        self.stored = asyncio.Event()
        self.hangs = False  # after it has stored

    def of(self, _cluster: Any, job_id: str, _bucket: str, _bucket_id: str) -> Any:
        async def put(number: int, data: bytes) -> bool:
            if self.is_gone:
                raise BucketDeleting("gone")
            if self.is_full:
                raise LogRefused("no_space", "the disk is full")
            is_ours = self.found.setdefault((job_id, number), data) == data
            self.stored.set()
            if self.hangs:
                await asyncio.Event().wait()
            return is_ours

        async def get(number: int) -> bytes | None:
            if self.is_gone:
                raise BucketDeleting("gone")
            return self.found.get((job_id, number))

        async def delete(number: int) -> None:
            self.found.pop((job_id, number), None)

        return SimpleNamespace(put=put, get=get, delete=delete)


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> FakeObjects:
    made = FakeObjects()
    monkeypatch.setattr(log_module, "LogObjects", made.of)
    return made


@pytest.fixture
async def registry() -> AsyncIterator[MemoryRegistry]:
    made = MemoryRegistry(MemoryStore())
    yield made
    await made.close()


def shards(count: int, prefix: str = "s") -> list[InputShard]:
    return [InputShard("in", f"{prefix}-{n}", "1", "c", n, n, 1, 2, 0, 0, "tar", "t1") for n in range(count)]


def result(number: int) -> TaskResult:
    name = f"o-{number:03d}"
    return TaskResult(samples=1, bytes_in=2, bytes_out=3, outputs=(OutputRecord(name, 3, "x", 3, "x", 1),))


class Run:
    """A job at a coordinator: its journal and its logs."""

    def __init__(self, journal: Journal, logs: SharedLogs) -> None:
        self.journal = journal
        self.logs = logs

    def everything(self) -> tuple[Any, ...]:
        """All that the journal knows of the job."""
        journal = self.journal
        inputs = tuple(tuple(each) for each in journal.inputs(NEW.id))
        tasks = {stage: list(journal.results(NEW.id, stage)) for stage in (0, 1)}
        return journal.get(NEW.id), journal.spec(NEW.id), inputs, tasks, list(journal.outputs(NEW.id))

    async def take(self) -> None:
        """What a service does with the log of a job."""
        (entry,) = self.logs.entries()
        self.journal.adopt(entry.record)
        async for segment in self.logs.take(entry):
            add_segment(self.journal, NEW.id, segment)


def opened(registry: MemoryRegistry, directory: Path, lease: Lease) -> Run:
    return Run(Journal(str(directory)), SharedLogs(None, registry, lease))  # type: ignore[arg-type]


async def begun(registry: MemoryRegistry, directory: Path, lease: Lease) -> Run:
    run, given = opened(registry, directory, lease), [shards(5), shards(2, "other")]
    record = run.journal.create(NEW, given)
    await run.logs.begin(record, "o-%03d", NEW.spec, given)
    return run


@pytest.fixture
async def lease(registry: MemoryRegistry) -> AsyncIterator[Lease]:
    async with registry.lease("office", "p1", 30.0) as held:
        yield held


@pytest.fixture
async def one(tmp_path: Path, objects: FakeObjects, registry: MemoryRegistry, lease: Lease) -> Run:
    """At a coordinator at which the job has begun."""
    return await begun(registry, tmp_path / "one", lease)


@pytest.fixture
async def two(tmp_path: Path, registry: MemoryRegistry, lease: Lease) -> Run:
    """At another one, which knows nothing of it yet."""
    return opened(registry, tmp_path / "two", lease)


async def test_the_next_one_knows_what_the_first_has_written(
    tmp_path: Path, objects: FakeObjects, registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "SHARDS_MAX", 2)
    monkeypatch.setattr(log_module, "RESULTS_MAX", 3)
    async with registry.lease("office", "p1", 30.0) as lease:
        one = await begun(registry, tmp_path / "one", lease)
        one.logs.running(one.journal.start(NEW.id))
        for first in (0, 4):
            entries = [(0, number, result(number)) for number in range(first, first + 4)]
            one.journal.record(NEW.id, entries)
            await one.logs.results(NEW.id, entries)
        summary = OutputSummary(8, 8, "d")
        await one.logs.commit(one.journal.commit(NEW.id, summary, RecordedProgress(done=8, total=8), ["a warning"]))
    async with registry.lease("office", "p2", 30.0) as lease:
        two = opened(registry, tmp_path / "two", lease)
        await two.take()
        assert two.everything() == one.everything()
        assert two.journal.get(NEW.id).state == "publishing"
        # The first one wakes up.
        with pytest.raises(LogTaken):
            await one.logs.results(NEW.id, [(0, number, result(number)) for number in range(20, 24)])
        for call in (one.logs.fail, one.logs.end, one.logs.abandon):
            with pytest.raises(LeaseLost):
                await call(one.journal.get(NEW.id))
        await two.logs.end(two.journal.succeed(NEW.id))
        await two.logs.end(two.journal.get(NEW.id))  # twice does no harm
        assert objects.found == {}
        (entry,) = two.logs.entries()
        assert (entry.is_over, entry.record, entry.segments) == (True, two.journal.get(NEW.id), 0)
        assert entry.spec == NEW.spec
        monkeypatch.setattr(log_module, "JOBS_KEPT_MAX", 1)
        await two.logs.tidy()
        assert two.logs.entries() == [entry]


async def test_a_writer_that_is_cut_off_goes_on_where_it_was(objects: FakeObjects, one: Run, two: Run) -> None:
    """The segment was stored, but its writer was cancelled before it knew: it is not taken for one of somebody else."""
    objects.stored.clear()
    objects.hangs = True
    writing = asyncio.create_task(one.logs.results(NEW.id, [(0, 0, result(0))]))
    await objects.stored.wait()
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    objects.hangs = False
    await one.logs.commit(one.journal.get(NEW.id))
    await two.take()
    assert list(two.journal.done_numbers(NEW.id, 0)) == [0]


async def test_a_job_ends_although_there_is_no_room(objects: FakeObjects, one: Run, two: Run) -> None:
    """What it has staged can be discarded then, and who comes after knows that it has failed."""
    objects.is_full = True
    with pytest.raises(LogRefused):
        await one.logs.results(NEW.id, [(0, 0, result(0))])
    with pytest.raises(LogRefused):
        await one.logs.commit(one.journal.get(NEW.id))
    record = one.journal.fail(NEW.id, JobError("no_space", "full"), RecordedProgress(), [])
    await one.logs.fail(record)
    (entry,) = two.logs.entries()
    assert (entry.record, entry.is_over) == (record, False)
    await two.logs.measure(entry)
    await two.logs.end(record)
    assert objects.found == {}
    assert [(each.is_over, each.segments) for each in two.logs.entries()] == [(True, 0)]


async def test_a_job_that_was_not_accepted_is_known_to_nobody(
    tmp_path: Path, objects: FakeObjects, registry: MemoryRegistry, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the registry was told of it, and only the answer was lost."""
    monkeypatch.setattr(log_module, "KEEP_RETRY_S", 0.001)
    keep, fails = registry.keep, [True, True, True]

    async def failing(*given: Any) -> None:
        await keep(*given)
        if fails:
            fails.pop()
            raise Unavailable("the answer is lost")

    monkeypatch.setattr(registry, "keep", failing)
    with pytest.raises(Unavailable):
        await begun(registry, tmp_path / "one", lease)
    again = opened(registry, tmp_path / "one", lease)
    assert len(again.logs.entries()) == 1
    await again.logs.abandon(again.journal.get(NEW.id))
    assert again.logs.entries() == []


async def test_what_another_version_has_written(
    tmp_path: Path, objects: FakeObjects, registry: MemoryRegistry, lease: Lease, one: Run
) -> None:
    for strange in (msgspec.msgpack.encode({"owner": "x", "format": 9}), b"rubbish", b""):
        objects.found[NEW.id, 2] = strange
        two = opened(registry, tmp_path / "two", lease)
        with pytest.raises(UnknownSegment):
            await two.take()
    await registry.keep("jobs/0002", b"rubbish", lease)
    assert [entry.record.id for entry in one.logs.entries()] == [NEW.id]


async def test_results_that_were_not_written_yet_are_a_prefix(objects: FakeObjects, one: Run, two: Run) -> None:
    """They are done again; never is a later one known without an earlier one."""
    for number in range(20):
        await one.logs.results(NEW.id, [(0, number, result(number))])
    written = len(objects.found)
    assert written < 10  # not one segment for each
    await two.take()
    done = list(two.journal.done_numbers(NEW.id, 0))
    assert done == list(range(len(done)))
    assert len(done) < 20


async def test_one_that_takes_over_while_the_first_still_writes(one: Run, two: Run) -> None:
    """Whatever the first has written by then is taken, and nothing after that counts."""
    two.logs.owner = "p2/9"  # type: ignore[misc]
    (entry,) = two.logs.entries()
    taken = two.logs.take(entry)
    await anext(taken)
    one.logs.running(one.journal.start(NEW.id))
    await one.logs.results(NEW.id, [(0, 0, result(0))])  # in between
    rest = [segment async for segment in taken]
    assert [segment.record.state for segment in rest if segment.record] == ["running"]
    assert [segment.results for segment in rest if segment.record] == [[(0, 0, result(0))]]


async def test_a_log_whose_bucket_is_gone(objects: FakeObjects, one: Run, two: Run) -> None:
    objects.is_gone = True
    with pytest.raises(BucketDeleting):
        await one.logs.commit(one.journal.start(NEW.id))
    with pytest.raises(BucketDeleting):
        await two.take()
    record = one.journal.fail(NEW.id, JobError("bucket_deleting", "gone"), RecordedProgress(), [])
    await one.logs.fail(record)
    await one.logs.end(record)
    assert [entry.is_over for entry in one.logs.entries()] == [True]


def test_many_inputs_are_cut_into_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "SHARDS_MAX", 3)
    record = JobRecord(
        id="1", operation="o", state="queued", label="", bucket="b", bucket_id="i", memory_bytes=1, program="1", created_us=1
    )
    made = first_segments("me", record, b"{}", [shards(7), [], shards(2)])
    assert [segment.spec for segment in made] == [b"{}", None, None, None]
    assert made[0].input_count == 3
    assert [(part.number, len(part.shards)) for segment in made for part in segment.inputs] == [(0, 3), (0, 3), (0, 1), (2, 2)]
    assert [segment.inputs for segment in first_segments("me", record, b"{}", [])] == [[]]
    data = msgspec.msgpack.encode(made[0])
    assert msgspec.msgpack.decode(data, type=LogSegment) == made[0]


def test_what_the_registry_keeps_of_a_job_is_small() -> None:
    record = JobRecord(
        id="1", operation="o", state="failed", label="", bucket="b", bucket_id="i", memory_bytes=1, program="1", created_us=1,
        warnings=tuple("\x01" * 1000 for _ in range(1000)), error=JobError("c", "m" * 100_000),
    )  # fmt: skip
    kept = short(record)
    assert 0 < len(kept.warnings) < 1000
    hostile = msgspec.structs.replace(kept, label="\x01" * JOB_LABEL_CHARS_MAX, error=JobError("c", "\x01" * 2000))
    entry = JobEntry(record=hostile, pattern="\x01" * 1024, spec=short_spec(b"x" * JOB_SPEC_SHARED_BYTES))
    assert len(entry.spec) == JOB_SPEC_SHARED_BYTES
    assert len(msgspec.json.encode(entry)) < RECORD_BYTES_MAX
    assert short_spec(b"x" * (JOB_SPEC_SHARED_BYTES + 1)) == b""
    few = msgspec.structs.replace(record, warnings=("one", "two"), error=JobError("c", "m"))
    assert short(few) == few
    assert segment_name("1", 12) == ".dfc/jobs/1/00000012"


class FakeTarget:
    """Answers the next requests for objects with these statuses; it keeps what was put all the same where it says so."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.stored: bytes | None = None
        self.bucket_id = "b1"
        self.control = self

    def bucket(self, name: str) -> Any:
        if self.bucket_id == "":
            raise BucketNotFound(name)
        return SimpleNamespace(id=self.bucket_id, state="active")

    def primary(self, _bucket: Any, name: str) -> Any:
        assert name == ".dfc/jobs/j/00000001"
        return SimpleNamespace(url="http://t")

    async def fetch(self, method: str, url: str, body: bytes, headers: Any, *, long: bool) -> tuple[int, str, bytes]:
        assert (url, long) == ("http://t/v1/objects/out/.dfc/jobs/j/00000001", True)
        self.asked.append(method)
        answer = self.answers.pop(0)
        if answer == "lost":
            self.stored = body
            raise Unavailable("the answer is lost")
        if isinstance(answer, Exception):
            raise answer
        content = self.stored if method == "GET" else json.dumps({"error": {"code": "x", "message": "m"}}).encode()
        return answer, "", content or b""


async def log_of(*answers: Any) -> tuple[FakeTarget, LogObjects]:
    target = FakeTarget(*answers)
    return target, LogObjects(target, "j", "out", "b1")  # type: ignore[arg-type]


async def test_an_answer_that_is_lost_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "RETRY_FIRST_S", 0.001)
    target, log = await log_of("lost", 412, 200)
    assert await log.put(1, b"mine") is True
    assert target.asked == ["PUT", "PUT", "GET"]
    target, log = await log_of(412, 200)
    target.stored = b"another's"
    assert await log.put(1, b"mine") is False
    # What was there is deleted before it is read: once more.
    target, log = await log_of(412, 404, 201)
    assert await log.put(1, b"mine") is True


async def test_what_passes_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "RETRY_FIRST_S", 0.001)
    monkeypatch.setattr(log_module, "RETRY_MAX_S", 0.002)
    target, log = await log_of(503, Unavailable("away"), 421, 307, 201)
    assert await log.put(1, b"mine") is True
    assert len(target.asked) == 5
    target, log = await log_of(503, 404)
    assert await log.get(1) is None
    target, log = await log_of(500, 204)
    await log.delete(1)


@pytest.mark.parametrize("status", [401, 403, 413, 507])
async def test_what_does_not_pass_is_not_waited_for(status: int) -> None:
    _, log = await log_of(status)
    with pytest.raises(LogRefused) as raised:
        await log.put(1, b"mine")
    assert raised.value.code == "x"


@pytest.mark.parametrize("bucket_id", ["", "b2"])
async def test_a_bucket_that_is_gone_is_not_made_again(bucket_id: str) -> None:
    target, log = await log_of()
    target.bucket_id = bucket_id
    for call in (log.put(1, b""), log.get(1), log.delete(1)):
        with pytest.raises(BucketDeleting):
            await call
    assert target.asked == []
