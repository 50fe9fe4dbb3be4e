"""The journal of jobs: states that only go forward, results in pages, and a consistent file after kill -9 at any moment."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
import xxhash

from dfc.errors import DiskRefused, JobFinished, JobNotFound
from dfc.jobs.journal import FILE_NAME, PAGE, Journal, OutputWrittenTwice, Stored
from dfc.jobs.records import (
    JobEntry,
    NewJob,
    OutputSummary,
    RecordedProgress,
    StageTotals,
    digest_in_order,
    job_view,
    total_progress,
)
from dfc.jobs.tasks import InputShard, OutputRecord, TaskResult
from dfc.limits import JOB_SPEC_KEPT_BYTES
from dfc.wire.jobs import JobError, JobProgress, TaskCount

SUMMARY = OutputSummary(2, 20, "d" * 32)


def new_job(number: int = 1, **changes: object) -> NewJob:
    values = {
        "id": f"job-{number:04}", "operation": "reshuffle", "spec": b'{"a": 1}', "label": "first", "bucket": "out",
        "bucket_id": "b1", "memory_bytes": 1 << 20, "program": "1", "warnings": ("one",),
    }  # fmt: skip
    return NewJob(**{**values, **changes})  # type: ignore[arg-type]


def shard(number: int) -> InputShard:
    return InputShard("in", f"s-{number:06}.tar", "0001", "c" * 32, 10240, 10240, 10, 20, 0, 0, "tar", "t1")


def written(*names: str, samples: int = 10) -> TaskResult:
    records = tuple(OutputRecord(name, 5, "a" * 32, 5, "a" * 32, samples) for name in names)
    return TaskResult(records, samples, 100, 50, (), b"data")


@pytest.fixture
def journal(tmp_path):
    found = Journal(str(tmp_path))
    yield found
    found.close()


def test_a_job_from_its_begin_to_its_end(journal, tmp_path):
    inputs = ([shard(0), shard(1)], [shard(2)])
    created = journal.create(new_job(), inputs)
    assert (created.state, created.started_us, created.warnings) == ("queued", None, ("one",))
    assert journal.start("job-0001").state == "running"
    journal.record("job-0001", [(0, 1, written("b")), (0, 0, written("a"))])
    assert [list(shards) for shards in journal.inputs("job-0001")] == [inputs[0], inputs[1]]
    assert journal.commit("job-0001", SUMMARY, RecordedProgress(2, 2), ["one", "two"]).state == "publishing"
    journal.close()
    again = Journal(str(tmp_path))
    assert [job.id for job in again.active()] == ["job-0001"]
    ended = again.succeed("job-0001")
    assert (ended.state, ended.output, ended.warnings, ended.discard) == ("succeeded", SUMMARY, ("one", "two"), False)
    assert ended.created_us <= ended.started_us <= ended.finished_us
    assert again.active() == []
    again.close()


@pytest.mark.parametrize("state", ["publishing", "succeeded", "failed", "cancelled"])
def test_nothing_goes_back_from_its_end(journal, state):
    journal.create(new_job(), [[]])
    journal.start("job-0001")
    if state in ("publishing", "succeeded"):
        journal.commit("job-0001", SUMMARY, RecordedProgress(), [])
    if state == "succeeded":
        journal.succeed("job-0001")
    if state == "failed":
        journal.fail("job-0001", JobError("no_space", "full"), RecordedProgress(), [])
    if state == "cancelled":
        journal.cancel("job-0001")
    with pytest.raises(JobFinished, match=state):
        journal.cancel("job-0001")
    with pytest.raises(JobFinished):
        journal.start("job-0001")
    with pytest.raises(JobFinished):
        journal.commit("job-0001", SUMMARY, RecordedProgress(), [])
    assert journal.get("job-0001").state == state
    assert journal.to_discard() == (["job-0001"] if state in ("failed", "cancelled") else [])


def test_what_was_discarded_is_remembered(journal):
    journal.create(new_job(), [[]])
    journal.cancel("job-0001")
    journal.discarded("job-0001")
    assert journal.to_discard() == []


def test_results_of_tasks(journal):
    journal.create(new_job(), [[]])
    results = [written(f"out-{number:05}", samples=number) for number in range(2500)]
    journal.record("job-0001", [(0, number, result) for number, result in enumerate(results)])
    journal.record("job-0001", [(1, 0, TaskResult(warnings=("w",)))])
    stored = journal.results("job-0001", 0)
    assert len(stored) == 2500
    assert list(stored) == results
    assert (stored[0], stored[-1], stored[1500]) == (results[0], results[-1], results[1500])
    assert list(stored[1000:1100]) == results[1000:1100]
    assert list(stored[::1000]) == results[::1000]
    with pytest.raises(IndexError):
        stored[2500]
    assert list(journal.done_numbers("job-0001", 0)) == list(range(2500))
    assert journal.stage_totals("job-0001")[0] == StageTotals(2500, sum(range(2500)), 250_000, 125_000)
    assert list(journal.task_warnings("job-0001")) == ["w"]
    assert journal.output_counts("job-0001") == (2500, sum(range(2500)))
    assert journal.writes("job-0001", "out-00007")
    assert not journal.writes("job-0001", "out-x")


def test_a_task_that_is_known_is_left_as_it_is(journal):
    journal.create(new_job(), [[]])
    journal.record("job-0001", [(0, 0, written("a"))])
    journal.record("job-0001", [(0, 0, written("b")), (0, 1, written("c"))])
    assert [output.name for output in journal.outputs("job-0001")] == ["a", "c"]


def test_two_tasks_that_write_one_name(journal):
    journal.create(new_job(), [[]])
    journal.record("job-0001", [(0, 0, written("a"))])
    with pytest.raises(OutputWrittenTwice, match="'a'"):
        journal.record("job-0001", [(0, 1, written("b")), (0, 2, written("a"))])
    assert list(journal.done_numbers("job-0001", 0)) == [0]


def test_outputs_come_in_the_order_of_their_bytes(journal):
    names = ["é", "a/b", "a.b", "Z", "\U0001f600", "￿", "z"]
    journal.create(new_job(), [[]])
    journal.record("job-0001", [(0, number, written(name)) for number, name in enumerate(names)])
    found = list(journal.outputs("job-0001"))
    assert [output.name for output in found] == sorted(names, key=str.encode)
    text = "".join(f"{name}\0{5}\0{'a' * 32}" for name in sorted(names, key=str.encode))
    assert digest_in_order(found) == xxhash.xxh3_128_hexdigest(text.encode())


def test_listings(journal):
    for number in range(5):
        journal.create(new_job(number), [[]])
    journal.start("job-0002")
    assert [job.id for job in journal.page(limit=2)] == ["job-0004", "job-0003"]
    assert [job.id for job in journal.page(before="job-0003", limit=2)] == ["job-0002", "job-0001"]
    assert [job.id for job in journal.page(["running", "failed"])] == ["job-0002"]
    assert journal.counts() == {"queued": 4, "running": 1}
    with pytest.raises(JobNotFound):
        journal.get("job-0009")


def test_ended_jobs_go_after_their_time(tmp_path):
    now = [10_000_000]
    journal = Journal(str(tmp_path), lambda: now[0])
    for number in range(4):
        journal.create(new_job(number), [[shard(0)]])
        journal.record(f"job-{number:04}", [(0, 0, written("a"))])
    for number in range(3):
        now[0] += 1_000_000
        journal.cancel(f"job-{number:04}")
    while journal.forget_details():
        pass
    assert journal.inputs("job-0000") == ((),)
    assert list(journal.outputs("job-0000")) == []
    assert list(journal.inputs("job-0003")[0]) == [shard(0)]
    assert journal.expire(0, 0) == 0, "what may be staged still is not forgotten"
    for number in range(3):
        journal.discarded(f"job-{number:04}")
    assert journal.expire(1.5, 100) == 1
    assert journal.expire(100, 1) == 1
    assert [job.id for job in journal.page()] == ["job-0003", "job-0002"]
    journal.close()


def test_a_foreign_file_is_refused(tmp_path):
    (tmp_path / FILE_NAME).write_bytes(b"no database at all" * 100)
    with pytest.raises(DiskRefused, match="not a journal"):
        Journal(str(tmp_path))
    (tmp_path / FILE_NAME).unlink()
    database = sqlite3.connect(tmp_path / FILE_NAME)
    database.execute("PRAGMA user_version=9")
    database.close()
    with pytest.raises(DiskRefused, match="not a journal of jobs: it is of another program"):
        Journal(str(tmp_path))


def test_many_tasks_take_little_memory(journal):
    journal.create(new_job(), [[]])
    for start in range(0, 50_000, 5000):
        journal.record("job-0001", [(0, start + at, written(f"{start + at:08}")) for at in range(5000)])
    tracemalloc.start()
    try:
        assert sum(result.samples for result in journal.results("job-0001", 0)) == 500_000
        assert len(digest_in_order(journal.outputs("job-0001"))) == 32
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


WRITER = """
import sys
from dfc.jobs.journal import Journal
from test_journal import new_job, shard, written, SUMMARY
from dfc.jobs.records import RecordedProgress
journal = Journal(sys.argv[1])
number = len(journal.page(limit=100_000))
print("ready", flush=True)
while True:
    job = f"job-{number:04}"
    journal.create(new_job(number), [[shard(at) for at in range(20)]])
    journal.start(job)
    for task in range(20):
        journal.record(job, [(0, task, written(f"a-{task}", f"b-{task}"))])
    journal.commit(job, SUMMARY, RecordedProgress(20, 20), [])
    journal.succeed(job)
    while journal.forget_details():
        pass
    number += 1
"""


def test_kill_at_any_moment(tmp_path):
    environment = {"PYTHONPATH": f"{Path(__file__).parent}:{Path(__file__).parents[3]}"}
    for round_number in range(8):
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        assert process.stdout.readline() == b"ready\n"
        time.sleep(0.02 + 0.037 * round_number)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        journal = Journal(str(tmp_path))
        assert journal.rows("PRAGMA integrity_check") == [("ok",)]
        jobs = journal.page(limit=100_000)
        assert [job.id for job in jobs] == [f"job-{number:04}" for number in reversed(range(len(jobs)))]
        for job in jobs:
            if job.state in ("queued", "running"):
                assert list(journal.inputs(job.id)[0]) == [shard(at) for at in range(20)]
            if job.state in ("queued", "running", "publishing"):
                done = list(journal.done_numbers(job.id, 0))
                assert done == list(range(len(done))), "an acknowledged result is never lost"
                names = {output.name for output in journal.outputs(job.id)}
                assert names == {f"{kind}-{task}" for task in done for kind in "ab"}
                assert len(done) == 20 or job.state != "publishing"
        # What the next round goes on from: a job that was cut off never ends by itself.
        for job in jobs:
            if job.state in ("queued", "running"):
                journal.cancel(job.id)
            if job.state == "publishing":
                journal.succeed(job.id)
        journal.close()


def test_how_a_job_is_shown(journal):
    journal.create(new_job(), [[]])
    shown = job_view(journal.start("job-0001"), RecordedProgress(3, 12, 30, 300, 150), 4.26)
    tasks = TaskCount(done=3, total=12)
    assert shown.progress == JobProgress(tasks=tasks, samples=30, bytes_in=300, bytes_out=150, eta_s=4.3)
    assert (shown.state, shown.finished, shown.error, shown.output) == ("running", None, None, None)
    failed = job_view(journal.fail("job-0001", JobError("no_space", "full"), RecordedProgress(), []))
    assert failed.error == JobError("no_space", "full")
    assert failed.output is None


def test_progress_counts_a_sample_of_two_stages_once():
    totals = {0: StageTotals(4, 100, 1000, 1000), 1: StageTotals(2, 40, 400, 400)}
    assert total_progress(totals, 8) == RecordedProgress(6, 8, 100, 1400, 1400)
    assert total_progress({}, None) == RecordedProgress()


def test_stored_reads_pages():
    asked = []

    def fetch(start: int, stop: int) -> list[int]:
        asked.append((start, stop))
        return list(range(start, stop))

    stored = Stored(3 * PAGE + 5, fetch)
    assert [stored[0], stored[5], stored[PAGE], stored[1]] == [0, 5, PAGE, 1]
    assert asked == [(0, PAGE), (PAGE, 2 * PAGE)]
    assert list(stored) == list(range(3 * PAGE + 5))
    assert stored[-1] == 3 * PAGE + 4


def test_specs_are_kept_unless_they_are_long(journal):
    long = b'{"a": "%b"}' % (b"x" * JOB_SPEC_KEPT_BYTES)
    just = b'{"a": "%b"}' % (b"x" * (JOB_SPEC_KEPT_BYTES - 9))
    assert len(just) == JOB_SPEC_KEPT_BYTES
    for number, spec in enumerate((b"{}", just, long)):
        journal.create(new_job(number, spec=spec), [[shard(0)]])
        assert journal.spec(f"job-{number:04}") == spec
    journal.cancel("job-0000")
    journal.cancel("job-0001")
    while journal.forget_details():
        pass
    assert [journal.spec(f"job-{number:04}") for number in range(3)] == [b"{}", just, long], "the last one has not ended"
    journal.cancel("job-0002")
    while journal.forget_details():
        pass
    assert [journal.spec(f"job-{number:04}") for number in range(3)] == [b"{}", just, b""]
    with pytest.raises(JobNotFound):
        journal.spec("job-9999")


def test_what_another_journal_does_not_know_of_a_spec_stays(journal, tmp_path):
    """A proxy that becomes the coordinator again has the specs that were too long for the registry."""
    for number in range(4):
        journal.create(new_job(number, spec=b"own"), [[shard(0)]])
    journal.cancel("job-0001")
    records = [journal.get(f"job-{number:04}") for number in range(3)]
    specs = (b"theirs", b"", b"")
    journal.take_over([JobEntry(record=r, pattern="p", spec=spec) for r, spec in zip(records, specs, strict=True)])
    assert [journal.spec(f"job-{number:04}") for number in range(3)] == [b"theirs", b"own", b"own"]
    assert journal.inputs("job-0000") == ()
    with pytest.raises(JobNotFound):
        journal.get("job-0003")
    (tmp_path / "other").mkdir()
    other = Journal(str(tmp_path / "other"))
    other.take_over([JobEntry(record=records[1], pattern="p")])
    assert other.spec("job-0001") == b""
    other.close()
