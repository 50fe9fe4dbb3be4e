"""The pages of jobs as they are rendered, whatever a spec and a report say, or if they are not to be had; what they draw."""

from __future__ import annotations

import asyncio
import html
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest
from msgspec.structs import replace

from dfc.config import Settings
from dfc.errors import JobSpecGone, ObjectNotFound
from dfc.http.faces import TokenAccess
from dfc.jobs.recording import Recorder, history_view
from dfc.jobs.records import digest_in_order
from dfc.jobs.tasks import OutputRecord, TaskResult, TaskRun
from dfc.limits import JOB_SPANS_MAX
from dfc.proxy.samples import ObjectHead
from dfc.ui.pages import jobs as pages
from dfc.ui.pages.jobs import JobPages, elapsed_s, rate_of, rates_plot, worker_rows
from dfc.ui.rendering import PageAccess, PageFiles, Rendering
from dfc.wire.jobs import Job, JobHistory, JobLog, JobOutput, JobPage, JobProgress, JobTasks, JobWorkers, TaskCount

ID = "00064ad7bbd4a3deadbeef"
NASTY = "\"'><img src=x onerror=alert(1)>\u202e"
SHOWN = NASTY.replace("\u202e", "⟨202E⟩")


class Jobs:
    """The jobs of a proxy: one, with this spec, or none."""

    def __init__(self, spec: bytes | None, **more: Any) -> None:
        self.known, self.asked, self.waits = spec, 0, False
        done = Job(
            id=ID, operation="validate", bucket="out", state="succeeded",
            progress=JobProgress(tasks=TaskCount(done=1, total=1)),
            created="2026-01-01T00:00:00.000Z", started="2026-01-01T00:00:00.000Z", finished="2026-01-01T00:00:07.000Z",
            output=JobOutput(1, 0, "d1"),
        )  # fmt: skip
        self.job = replace(done, **more)

    async def show(self, _: str) -> Any:
        return self.job

    async def page(self, *_: Any) -> Any:
        return JobPage(jobs=(self.job,))

    async def spec(self, _: str) -> bytes:
        self.asked += 1
        await asyncio.sleep(3600 if self.waits else 0)
        if self.known is None:
            raise JobSpecGone("gone")
        return self.known

    async def tasks(self, *_: Any) -> Any:
        return JobTasks(complete=True)

    async def history(self, _: str) -> Any:
        return JobHistory(complete=True, begun=None, step_s=1, workers=JobWorkers(step_s=1))

    async def log(self, _: str) -> Any:
        return JobLog(complete=True)


class Shards:
    """Objects; `content` None: there is none. Says how many bytes were asked for."""

    def __init__(self, content: bytes | None) -> None:
        self.content, self.limits = content, list[int]()

    async def head(self, bucket: str, name: str, limit: int) -> ObjectHead:
        assert (bucket, name) == ("out", "v.json")
        self.limits.append(limit)
        if self.content is None:
            raise ObjectNotFound("gone")
        return ObjectHead(self.content[:limit], "c", len(self.content))


def spec(shards: str = "t-*.tar", **options: Any) -> bytes:
    given = {"bucket": "in", "shards": shards}
    output = {"bucket": "out", "pattern": "v.json"}
    return msgspec.json.encode({"operation": "validate", "input": given, "output": output, "options": options})


def report(**counts: int) -> bytes:
    problems = {kind: [{"shard": "in/t", "key": NASTY, "message": NASTY}] for kind in counts}
    return msgspec.json.encode({"shards": 1, "other_objects": 0, "samples": 9, "counts": counts, "problems": problems})


def made(jobs: Jobs, shards: Shards) -> JobPages:
    uses: Any = SimpleNamespace(jobs=jobs, shards=shards)
    feed: Any = SimpleNamespace(figures=AsyncMock(return_value=SimpleNamespace(shape="s", values={})))
    return JobPages(uses, Rendering(PageAccess(TokenAccess(Settings())), PageFiles()), feed)


def exchange_of(path: str) -> Any:
    return SimpleNamespace(target_path=path, query_parameters=lambda _: {}, header=lambda _: None, authority=None)


async def shown(jobs: Jobs, content: bytes | None = None, written: bytes | None = None) -> str:
    """The page of a job that has `written` what is there, `content`, if nothing else is said."""
    written = content if written is None else written
    if written is not None and jobs.job.output is not None:
        digest = digest_in_order([OutputRecord("v.json", len(written), "c", len(written), "c", 0)])
        jobs.job = replace(jobs.job, output=replace(jobs.job.output, digest=digest))
    answer: Any = await made(jobs, Shards(content)).one(exchange_of(f"/ui/jobs/{ID}"), (ID,))
    assert answer.status == 200
    return str(answer.body.decode())


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dfc.ui.rendering.takes_gzip", lambda _: False)


async def test_what_was_found_is_shown_as_text() -> None:
    page = await shown(Jobs(spec(require=[NASTY])), report(duplicate=600, **{NASTY: 1}))
    assert "<img" not in page
    assert "\u202e" not in page
    text = html.unescape(page)
    assert f"<strong>601 problems (600 duplicate, 1 {SHOWN}) in 1 shard with 9 samples</strong>" in text
    assert "<h3>600 duplicate</h3>" in text
    assert '<a href="/out/v.json" download>The report, v.json</a>' in text
    assert '<a href="/ui/buckets/in/datasets">in/t-*.tar</a>' in text
    assert "; took 7 s." in text
    assert "<dt>digest</dt>" not in text, "a report has no samples to be counted"


async def test_what_a_later_job_found_is_not_shown_as_the_result_of_this_one() -> None:
    page = await shown(Jobs(spec()), report(duplicate=600), report())
    assert "Its report cannot be shown" in page
    assert "600" not in page
    several = Jobs(spec())
    several.job = replace(several.job, output=JobOutput(2, 0, "d1"))  # of which the digest tells nothing
    assert "600 problems" in await shown(several, report(duplicate=600), report())


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff" * 3_000_000, report()[:-1]])
async def test_a_report_that_cannot_be_read_does_not_hide_the_job(content: bytes | None) -> None:
    page = await shown(Jobs(spec()), content)
    assert "Its report cannot be shown" in page
    assert "took 7 s" in page


@pytest.mark.parametrize("known", [None, b"{}", b'{"operation": "no-such", "input": {"bucket": "b"}}'])
async def test_without_a_spec_there_is_still_what_was_made(known: bytes | None) -> None:
    jobs = Jobs(known)
    page = await shown(jobs, report())
    assert f"<dt>digest</dt><dd>{jobs.job.output.digest}</dd>" in page
    assert 'href="/ui/buckets/out/datasets"' in page


async def test_a_job_that_goes_on_has_made_nothing_yet() -> None:
    page = await shown(Jobs(spec(), state="running", output=None, finished=None), report())
    assert "has run for" in page
    assert "<h2>Output</h2>" not in page


async def test_the_list_says_what_jobs_read_and_write_and_asks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange, jobs = exchange_of("/ui/jobs"), Jobs(spec(NASTY))
    listed = made(jobs, Shards(None))
    for _ in range(2):
        answer: Any = await listed.all(exchange, ())
        text = answer.body.decode()
        assert "<img" not in text
        assert f"in/{SHOWN} → out/v.json" in html.unescape(text)
        assert '<td class="n">7 s</td>' in text
    assert jobs.asked == 1
    monkeypatch.setattr(pages, "SPECS_S", 0.01)
    jobs.waits = True
    answer = await made(jobs, Shards(None)).all(exchange, ())
    assert "<td>→ out</td>" in answer.body.decode()


async def test_no_more_of_a_report_is_read_than_a_page_may() -> None:
    shards = Shards(report())
    await made(Jobs(spec()), shards).one(exchange_of(f"/ui/jobs/{ID}"), (ID,))
    assert shards.limits == [pages.REPORT_BYTES_MAX]


def history_of(tasks: int, seconds: float = 1.0) -> JobHistory:
    """Of a job whose tasks ran one after the other on two workers."""
    now = [1_700_000_000_000_000]
    recorder = Recorder(lambda: now[0])
    recorder.begin(now[0])
    recorder.plan([("gather", tasks)])
    for number in range(tasks):
        seen = recorder.give(0, number, "label", None)
        recorder.attempt(seen)
        now[0] += int(1e6 * seconds)
        recorder.finish(seen, TaskResult(bytes_in=1000, bytes_out=500, run=TaskRun(f"t/{number % 2}", seconds)))
    return history_view(recorder)


def job(started: str | None, finished: str | None, size: int = 5000) -> Job:
    progress = JobProgress(bytes_in=size)
    return Job(id="1", operation="map", state="running", started=started, finished=finished, progress=progress)


def test_the_rate_is_that_since_the_start():
    begun, ended = "2026-01-01T12:00:00.000Z", "2026-01-01T12:00:02.500Z"
    assert elapsed_s(job(begun, ended)) == 2.5
    assert rate_of(job(begun, ended)) == "2 kB/s"
    assert rate_of(job(begun, ended, 0)) == rate_of(job(None, None)) == rate_of(job(begun, begun)) == ""
    assert elapsed_s(job(begun, None)) > 0


def test_rates():
    plot = rates_plot(history_of(10), 10.0)
    assert plot.about == "read at most 4 kB/s, written at most 2 kB/s, within 10 s"
    assert (plot.top, plot.long) == ("5 kB/s", "10 s")
    assert len(plot.read.split()) == len(plot.written.split()) == 41
    long = rates_plot(history_of(10_000), 10_000.0)
    assert len(long.read.split()) <= 120
    assert rates_plot(history_of(0), 3.0) is None


@pytest.mark.parametrize("tasks", [4, JOB_SPANS_MAX, JOB_SPANS_MAX + 2])
def test_tasks_are_drawn_one_by_one_until_there_are_many(tasks):
    rows = worker_rows(history_of(tasks), float(tasks))
    assert [(row.name, row.busy) for row in rows] == [("t/0", "50 %"), ("t/1", "50 %")]
    drawn = [row.path.count("M") for row in rows]
    assert drawn == [tasks // 2] * 2 if tasks <= JOB_SPANS_MAX else max(drawn) <= 120


def test_no_workers_are_no_rows():
    assert worker_rows(history_of(0), 1.0) == []
