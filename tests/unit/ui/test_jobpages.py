"""The pages of jobs as they are rendered, whatever a spec and a report say, or if they are not to be had."""

from __future__ import annotations

import asyncio
import html
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from dfc.config import Settings
from dfc.errors import JobSpecGone, ObjectNotFound
from dfc.http.faces import TokenAccess
from dfc.jobs.records import digest_in_order
from dfc.jobs.tasks import OutputRecord
from dfc.proxy.samples import ObjectHead
from dfc.ui.pages import jobs as pages
from dfc.ui.pages.jobs import JobPages
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


class Feed:
    async def figures(self) -> Any:
        return SimpleNamespace(shape="s", values={})


def spec(shards: str = "t-*.tar", **options: Any) -> bytes:
    given = {"bucket": "in", "shards": shards}
    output = {"bucket": "out", "pattern": "v.json"}
    return msgspec.json.encode({"operation": "validate", "input": given, "output": output, "options": options})


def report(**counts: int) -> bytes:
    problems = {kind: [{"shard": "in/t", "key": NASTY, "message": NASTY}] for kind in counts}
    return msgspec.json.encode({"shards": 1, "other_objects": 0, "samples": 9, "counts": counts, "problems": problems})


def made(jobs: Jobs, shards: Shards) -> JobPages:
    uses: Any = SimpleNamespace(jobs=jobs, shards=shards)
    feed: Any = Feed()
    return JobPages(uses, Rendering(PageAccess(TokenAccess(Settings())), PageFiles()), feed)


async def shown(jobs: Jobs, content: bytes | None = None, written: bytes | None = None) -> str:
    """The page of a job that has `written` what is there, `content`, if nothing else is said."""
    written = content if written is None else written
    if written is not None and jobs.job.output is not None:
        digest = digest_in_order([OutputRecord("v.json", len(written), "c", len(written), "c", 0)])
        jobs.job = replace(jobs.job, output=replace(jobs.job.output, digest=digest))
    exchange: Any = SimpleNamespace(
        target_path=f"/ui/jobs/{ID}", query_parameters=lambda _: {}, header=lambda _: None, authority=None
    )
    answer: Any = await made(jobs, Shards(content)).one(exchange, (ID,))
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
    exchange: Any = SimpleNamespace(
        target_path="/ui/jobs", query_parameters=lambda _: {}, header=lambda _: None, authority=None
    )
    jobs = Jobs(spec(NASTY))
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
    exchange: Any = SimpleNamespace(
        target_path=f"/ui/jobs/{ID}", query_parameters=lambda _: {}, header=lambda _: None, authority=None
    )
    await made(Jobs(spec()), shards).one(exchange, (ID,))
    assert shards.limits == [pages.REPORT_BYTES_MAX]
